"""Names that others chose, as words of a command that a person pastes into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from helpers.ground.units import escaped

_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
"""A name as useradd(8) and groupadd(8) recommend it, of at most 32 characters."""


def word(text: str) -> str:
    """The text quoted as one word of a shell, in one line whatever it contains.

    A text with characters that cannot be seen is written as ``$'a\\x0ab'``, which bash, zsh and
    ksh read; a plain sh does not know this form.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_spelt, text)) + "'"


def line(words: Iterable[str]) -> str:
    """The command line of these words, each quoted where a shell needs it."""
    return " ".join(map(word, words))


def _spelt(char: str) -> str:
    """A character as it is written between ``$'`` and ``'``."""
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # A shell takes \xff for one byte, which is no character of UTF-8 from 0x80 on.
    return escaped(ord(char), as_byte=0x80)


def is_account(name: str) -> bool:
    """Whether a user or a group can have this name."""
    return _ACCOUNT.fullmatch(name) is not None
