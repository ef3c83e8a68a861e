"""Names that others chose, as words of a command that a person pastes into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from helpers.ground.units import escaped

_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def word(text: str) -> str:
    """The text as one word of a shell and in one line, whatever stands in it.

    What cannot be seen is spelt as bash, zsh and ksh read it: ``$'a\\x0ab'``.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_spelt, text)) + "'"


def line(words: Iterable[str]) -> str:
    """A command of these words."""
    return " ".join(map(word, words))


def _spelt(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    return escaped(ord(char), as_byte=0x80)


def is_account(name: str) -> bool:
    """Whether a user or a group can have this name (useradd(8), groupadd(8))."""
    return _ACCOUNT.fullmatch(name) is not None
