"""A text without colours, the prefixes of others and blanks, so that a line wrapped at any column
reads like a whole one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from helpers.ground.grammar import SQUEEZED_OUT
from helpers.ground.tables import data, lazy

_DECORATION = re.compile(
    r"(?P<path>\b[A-Za-z]:(?:\\{1,2}(?:[^\\\"'<>|:*?\n]{1,80}(?=\\)|[^\s\\\"'<>|:*?]{1,80})){1,40})"
    r"|(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]"
)
"""Colours and written-out line breaks; a Windows path, whose backslashes are its own."""
_PREFIX = lazy("|".join(data("look/squeezed")["prefixes"]))
_PIECE = re.compile(f"[^{SQUEEZED_OUT}]+")
_ASCII_LOWER = {code: code + 32 for code in range(65, 91)}


def lowered(text: str) -> str:
    """The text in lower case, each character at its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def prefix(line: str) -> int:
    """Where a line begins behind the times, ranks, levels and quoting marks that others put
    before it.
    """
    at = 0
    for _ in range(8):
        match = _PREFIX.match(line, at)
        if not match:
            break
        at = match.end()
    return at


def undecorated(text: str) -> str:
    """The text with blanks for its colours and written-out line breaks, each character at its
    place.
    """
    return _DECORATION.sub(
        lambda match: match["path"] or " " * len(match.group()), text
    )


class Squeezed:
    """A stretch of a text without colours, prefixes and blanks, in lower case: ``flat``, which
    knows where each word stood.
    """

    def __init__(self, text: str, start: int = 0, stop: int | None = None):
        self._start = start
        plain = undecorated(text[start:stop])
        self._rows = plain.splitlines(keepends=True)
        words: list[str] = []
        for row in self._rows:
            words += _PIECE.findall(row, prefix(row))
        self.flat = lowered("".join(words))

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Where each word begins in ``flat`` and in the text; most stretches of a long log are
        never asked for it.
        """
        flat = []
        text = []
        length = 0
        line = self._start
        for row in self._rows:
            for match in _PIECE.finditer(row, prefix(row)):
                flat.append(length)
                text.append(line + match.start())
                length += match.end() - match.start()
            line += len(row)
        return flat, text

    def _place(self, at: int) -> int:
        flat, text = self._places
        word = bisect_right(flat, at) - 1
        return text[word] + at - flat[word]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text a stretch of ``flat`` stands."""
        return self._place(start), self._place(max(end - 1, start)) + 1
