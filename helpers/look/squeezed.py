"""Squeezes a text: without colours, without what loggers and quotes put before a line, and without
blanks, so that a message that was wrapped at any column reads like a whole one.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from functools import cached_property

from helpers.ground.grammar import SQUEEZED_OUT
from helpers.ground.tables import data, lazy

_DECORATION = re.compile(
    r"(?P<path>\b[A-Za-z]:(?:\\{1,2}(?:[^\\\"'<>|:*?\n]{1,80}(?=\\)|[^\s\\\"'<>|:*?]{1,80})){1,40})"
    r"|(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]"
)
r"""Colours, also written out as \x1b[0m, and line breaks written as \n. The group ``path`` is a Windows
path, whose backslashes begin neither.
"""
_PREFIX = lazy("|".join(data("look/squeezed")["prefixes"]))
MOST_PREFIXES = 8
"""In one line, such as the marks of a quote, then a container's name, a time and a level."""
_PIECE = re.compile(f"[^{SQUEEZED_OUT}]+")
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def lowered(text: str) -> str:
    """The text in lower case, each character at its place."""
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    # Some characters become two (a Turkish dotted I): then only those of ASCII change.
    return text.translate(_ASCII_LOWER)


def prefix(line: str) -> int:
    """Where the words of a line begin, behind the times, ranks, levels and quoting marks that
    programs and people put before them.
    """
    position = 0
    for _ in range(MOST_PREFIXES):
        match = _PREFIX.match(line, position)
        if not match:
            break
        position = match.end()
    return position


def undecorated(text: str) -> str:
    """The text with blanks in place of its colours and written-out line breaks, so that each other
    character stays at its place.
    """
    return _DECORATION.sub(_blank_or_path, text)


def _blank_or_path(match: re.Match[str]) -> str:
    if match["path"]:
        return match["path"]
    return " " * len(match.group())


class Squeezed:
    """A stretch of a text, squeezed and in lower case, is ``flat``; ``span`` tells where a part of
    it is in the text.
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
    def _word_starts(self) -> tuple[list[int], list[int]]:
        """Where each word begins in ``flat``, and where in the text. It is computed only for a
        stretch with a message, which most stretches of a long log have not.
        """
        in_flat = []
        in_text = []
        length = 0
        row_start = self._start
        for row in self._rows:
            for match in _PIECE.finditer(row, prefix(row)):
                in_flat.append(length)
                in_text.append(row_start + match.start())
                length += match.end() - match.start()
            row_start += len(row)
        return in_flat, in_text

    def _place(self, position: int) -> int:
        """Where in the text a character of ``flat`` is."""
        in_flat, in_text = self._word_starts
        word = bisect_right(in_flat, position) - 1
        return in_text[word] + position - in_flat[word]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The start and the end in the text of a part of ``flat``."""
        last = max(end - 1, start)
        return self._place(start), self._place(last) + 1
