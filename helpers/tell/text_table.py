"""A table as aligned text, wrapped to a terminal."""

from __future__ import annotations

import re
from itertools import zip_longest

from helpers.ground.units import columns_of
from helpers.tell.values import WrittenValue

LEAST = 12
"""Columns of a terminal for a table's column of words, enough for a word or two; where there are
fewer, each cell has a line of its own.
"""
SHORT = 28
"""Letters below which a cell that begins with a number, ``3.00 GiB of 24.00``, counts as one."""
_PARTS = re.compile(r"\s+|[^\s/,]+[/,]*|[/,]+")
"""Parts of a long cell that stay whole: it may be broken at blanks, and after a slash or comma."""
_NUMBER = re.compile(r"-?[\d.,]+( |$)")
GAP = "  "
"""Between the columns of a table."""


def aligned(
    heads: list[str], rows: list[list[WrittenValue]], columns: int | None
) -> list[str]:
    """The lines of a table with its header, numbers at the right of their column.

    ``columns`` is the width of the terminal. A table that is wider has its long cells wrapped
    between words; where that is not enough, within words; and where there is no room for that
    either, each cell has a line of its own. With None or 0 the table is as wide as its longest
    cells.
    """
    number_columns = are_numbers(rows)
    body = [[cell.words for cell in row] for row in rows]
    widths = [max(map(columns_of, column)) for column in zip(heads, *body)]
    if columns:
        unbroken = _unbroken_widths(heads, body, number_columns)
        fitting = _fitting_widths(widths, unbroken, columns)
        if fitting is None:  # words may be broken, too
            least = [_least_width(*pair) for pair in zip(widths, number_columns)]
            fitting = _fitting_widths(widths, least, columns)
        if fitting is None:
            return _line_for_each_cell(heads, body, columns)
        widths = fitting
    rule = ["-" * width for width in widths]
    lines = []
    for row in [heads, rule, *body]:
        cells = [filled(words, width) for words, width in zip(row, widths)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [_padded(*part) for part in zip(parts, widths, number_columns)]
            lines.append(GAP.join(padded).rstrip())
    return lines


def _least_width(width: int, is_number: bool) -> int:
    """How narrow a column may become where words may be broken; numbers are never broken."""
    if is_number:
        return width
    return LEAST


def _unbroken_widths(
    heads: list[str], rows: list[list[str]], number_columns: list[bool]
) -> list[int]:
    """How narrow each column may become so that none of its numbers and words is broken."""
    widths = []
    for head, cells, is_number in zip(heads, zip(*rows), number_columns):
        parts = _PARTS.findall(head)
        least = 0
        if is_number:
            parts += cells
        else:
            for words in cells:
                parts += _PARTS.findall(words)
            # A column of words keeps LEAST letters, or as many as its shortest cell has: narrower,
            # its cells would be towers of short words.
            least = min(LEAST, *map(columns_of, cells))
        widths.append(max([least, *map(columns_of, parts)]))
    return widths


def _fitting_widths(
    widths: list[int], least: list[int], columns: int
) -> list[int] | None:
    """Widths with which a table fits the columns of a terminal; None where none are narrow enough.

    Whichever column is the widest becomes narrower by one, again and again, but none below its
    number in ``least``.
    """
    widths = list(widths)
    gaps = len(GAP) * (len(widths) - 1)
    while sum(widths) + gaps > columns:
        shrinkable = [
            place for place, width in enumerate(widths) if width > least[place]
        ]
        if not shrinkable:
            return None
        widest = max(shrinkable, key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _line_for_each_cell(
    heads: list[str], rows: list[list[str]], columns: int
) -> list[str]:
    """A line ``heading: cell`` for each cell, and an empty one below each row."""
    lines = []
    for row in rows:
        for name, words in zip(heads, row):
            lines += filled(f"{name}: {words}", columns)
        lines.append("")
    return lines


def filled(text: str, columns: int) -> list[str]:
    """Text in lines of at most so many columns, broken between the parts that _PARTS finds; a part
    that is longer than a line is broken anywhere.
    """
    if columns_of(text) <= columns:
        return [text]
    pieces: list[str] = []
    for word in _PARTS.findall(text):
        if columns_of(word) <= columns:
            pieces.append(word)
        else:
            pieces += word  # letter by letter
    lines = [""]
    for piece in pieces:
        if columns_of(lines[-1] + piece) > columns:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines if line.strip()]


def are_numbers(rows: list[list[WrittenValue]], short_too: bool = False) -> list[bool]:
    """For each column whether it is one of numbers: it has at least one, and all other cells have
    none or no value.

    With ``short_too`` a short text that begins with a number counts as a number (see SHORT).
    """
    answers = []
    for column in zip(*rows):
        valued = [cell for cell in column if cell.number is not None]
        are_all = all(_is_number(cell, short_too) for cell in valued)
        answers.append(bool(valued) and are_all)
    return answers


def _is_number(cell: WrittenValue, short_too: bool) -> bool:
    """Whether a cell counts as a number, as ``are_numbers`` explains it."""
    if cell.number or not short_too:
        return bool(cell.number)
    return len(cell.words) < SHORT and _NUMBER.match(cell.words) is not None


def _padded(text: str, width: int, is_number: bool) -> str:
    """Text filled up to a column's width; a number stands at its right."""
    space = " " * (width - columns_of(text))
    if is_number:
        return space + text
    return text + space
