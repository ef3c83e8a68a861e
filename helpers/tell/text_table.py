"""A table as aligned text, wrapped to a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from helpers.ground.units import columns_of
from helpers.tell.values import WrittenValue

LEAST = 12
"""Columns of words in a table of a terminal; where there are fewer each cell has a line of its
own.
"""
SHORT = 28
"""Letters of a cell that may begin with a number and still stand in a column of numbers."""
_PARTS = re.compile(r"\s+|[^\s/,]+[/,]*|[/,]+")
"""Where a long cell may be broken: at blanks, behind a slash, between settings."""
_NUMBER = re.compile(r"-?[\d.,]+( |$)")


def aligned(
    heads: list[str], rows: list[list[WrittenValue]], columns: int | None
) -> list[str]:
    """The lines of a table with its header; ``columns`` None: as wide as it is.

    A wider table has its long cells wrapped; where there is no room for that, each cell has a line.
    """
    right = are_numbers(rows)
    texts = [heads, *([cell.words for cell in row] for row in rows)]
    widths = [max(map(columns_of, column)) for column in zip(*texts)]
    if columns:
        whole_words = _least_widths(heads, texts[1:], right)
        broken_words = [
            width if number else LEAST for number, width in zip(right, widths)
        ]
        fitting = _fitting_widths(widths, whole_words, columns)
        fitting = fitting or _fitting_widths(widths, broken_words, columns)
        if fitting is None:
            return _line_for_each_cell(heads, texts[1:], columns)
        widths = fitting
    texts.insert(1, ["-" * width for width in widths])
    lines = []
    for row in texts:
        cells = [filled(words, width) for words, width in zip(row, widths)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [_padded(*part) for part in zip(parts, widths, right)]
            lines.append("  ".join(padded).rstrip())
    return lines


def _least_widths(
    heads: list[str], rows: list[list[str]], right: list[bool]
) -> list[int]:
    """The least width of each column: no number, and no part of words or settings, is broken."""
    least = []
    for head, cells, is_number in zip(heads, zip(*rows), right):
        width = max(map(columns_of, _PARTS.findall(head)), default=0)
        if is_number:
            width = max(width, *map(columns_of, cells))
        else:
            parts = [
                columns_of(part) for cell in cells for part in _PARTS.findall(cell)
            ]
            width = max(width, min(LEAST, *map(columns_of, cells)), *parts)
        least.append(width)
    return least


def _fitting_widths(
    widths: list[int], least: list[int], columns: int
) -> list[int] | None:
    """The widths with the widest columns made narrower; None where that is not enough."""
    widths = list(widths)
    gaps = 2 * (len(widths) - 1)
    while sum(widths) + gaps > columns:
        spare = [width if width > floor else 0 for width, floor in zip(widths, least)]
        widest = max(spare)
        if not widest:
            return None
        widths[spare.index(widest)] -= 1
    return widths


def _line_for_each_cell(
    heads: list[str], rows: list[list[str]], columns: int
) -> list[str]:
    lines = []
    for row in rows:
        for name, words in zip(heads, row):
            lines += filled(f"{name}: {words}", columns)
        lines += filled("", columns)
    return lines


def filled(text: str, columns: int) -> list[str]:
    """Text in lines of so many columns, a path broken after a slash; one that fits is as it is."""
    if columns_of(text) <= columns:
        return [text]
    lines = [""]
    for word in _PARTS.findall(text):
        for part in [word] if columns_of(word) <= columns else word:
            if columns_of(lines[-1] + part) > columns:
                lines.append("")
            lines[-1] += part
    return [line.strip() for line in lines if line.strip()]


def are_numbers(rows: list[list[WrittenValue]], short_too: bool = False) -> list[bool]:
    """Which columns hold numbers alone, and at least one.

    With ``short_too`` short words that begin with a number count as one.
    """

    def is_number(cell: WrittenValue) -> bool:
        if cell.number:
            return True
        return (
            short_too
            and len(cell.words) < SHORT
            and _NUMBER.match(cell.words) is not None
        )

    def holds_numbers(column: Sequence[WrittenValue]) -> bool:
        kinds = {is_number(cell) for cell in column if cell.number is not None}
        return kinds == {True}

    return [holds_numbers(column) for column in zip(*rows)]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space
