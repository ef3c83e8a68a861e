"""Cards of this extension with their tables: HTML for a notebook, aligned words for a terminal.

Both are made of one ``Notice``. Text has the front end's own colours, so that it is readable in
light and dark themes; there is no script in the HTML.
"""

from __future__ import annotations

import html
import shutil
import sys
import textwrap
from dataclasses import dataclass, field

Row = tuple[str, ...]

UNLIMITED = 1_000_000
"""A width in characters that no text reaches."""
NARROWEST = 24
"""Characters of a line, and of the last column in HTML, even where the window is narrower."""
NARROWEST_COLUMN = 40
"""Characters that the last column needs beside the others; with fewer, most lines would have a
single word.
"""
BELOW_INDENT = 4
"""Blanks before the last column's text where it stands below its row."""

WIDTH_EM = 0.6
"""The average width of a character in the fonts of front ends, in em."""

STYLE = (
    "border-left:4px solid {colour};padding:.3em .8em;margin:.4em 0;"
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);color:inherit;max-width:60em"
)
RED = "#d1453b"
"""The bar beside a failure."""
BLUE = "#3b82c4"
"""The bar beside any other answer."""
CELL = (
    "display:block;flex:{flex};min-width:0;text-align:{align};padding:.15em .5em .15em 0;"
    "white-space:pre-line;overflow-wrap:anywhere"
)


@dataclass
class Table:
    """A table. The columns with these ``numbers`` are aligned to the right; cells of the last
    column may have several lines.
    """

    heads: Row
    rows: list[Row]
    numbers: frozenset[int] = frozenset()


@dataclass
class Notice:
    """A title, sentences, a table, numbered steps and a last line, each left out where empty."""

    title: str
    code: str = ""
    sentences: list[str] = field(default_factory=list)
    table: Table | None = None
    steps: list[str] = field(default_factory=list)
    foot: str = ""
    is_failure: bool = False

    def words(self, width: int = UNLIMITED) -> str:
        """The card as plain text, in lines of at most ``width`` where words allow it."""
        parts = _wrapped(self.title, width)
        if self.code:
            parts.append(f"    {self.code}"[:width])
        for sentence in self.sentences:
            parts += _wrapped(sentence, width)
        if self.table is not None and self.table.rows:
            parts += ["", *_aligned(self.table, width)]
        if self.steps:
            parts += ["", "Next"]
        for number, step in enumerate(self.steps, start=1):
            parts += _wrapped(step, width, first=f"  {number}. ")
        if self.foot:
            parts += ["", *_wrapped(self.foot, width)]
        return "\n".join(parts)

    def html(self) -> str:
        """The card as HTML, every text escaped."""
        colour = BLUE
        if self.is_failure:
            colour = RED
        style = STYLE.format(colour=colour)
        parts = [f'<div style="{style}"><div><b>{html.escape(self.title)}</b></div>']
        if self.code:
            parts.append(f"<div><code>{html.escape(self.code)}</code></div>")
        parts += [f"<div>{html.escape(sentence)}</div>" for sentence in self.sentences]
        if self.table is not None and self.table.rows:
            parts.append(_table_html(self.table))
        if self.steps:
            steps = "".join(f"<li>{html.escape(step)}</li>" for step in self.steps)
            parts.append(f'<ol style="margin:.5em 0;padding-left:1.4em">{steps}</ol>')
        if self.foot:
            parts.append(f'<div style="opacity:.75">{html.escape(self.foot)}</div>')
        return "".join(parts) + "</div>"

    def show(self) -> None:
        """Show the card as the output of the running cell."""
        # Imported here, because tests and pytest's fixture use this package without IPython.
        from IPython.display import display

        width = UNLIMITED  # a notebook wraps by itself
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
        answer = {"text/html": self.html(), "text/plain": self.words(width)}
        display(answer, raw=True)


def _wrapped(text: str, width: int, first: str = "") -> list[str]:
    """The lines of a text that begins with ``first``; later lines are indented by its length."""
    return textwrap.wrap(
        text,
        max(width, NARROWEST),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _aligned(table: Table, width: int) -> list[str]:
    """The rows for a terminal. The text of the last column is beside the others, or below the row
    where they leave it less than NARROWEST_COLUMN.
    """
    *widths, _ = _widths(table)
    before = sum(widths) + 2 * len(widths)  # two blanks after each column
    is_below = width - before < NARROWEST_COLUMN
    indent = " " * before
    if is_below:
        indent = " " * BELOW_INDENT
    lines = []
    for *row, last in (table.heads, *table.rows):
        texts = []
        for text in last.split("\n"):
            texts += _wrapped(text, width, indent)
        start = "".join(_padded(row, widths, table.numbers))
        if texts and not is_below:
            start += texts.pop(0)[before:]  # the cells take the place of its indent
        lines += [start.rstrip(), *texts]
    return lines


def _padded(row: list[str], widths: list[int], numbers: frozenset[int]) -> list[str]:
    """Cells of a row, each as wide as its column and two blanks; ``numbers``: those to
    the right.
    """
    cells = []
    for number, (cell, width) in enumerate(zip(row, widths)):
        if number in numbers:
            cells.append(f"{cell:>{width}}  ")
        else:
            cells.append(f"{cell:<{width}}  ")
    return cells


def _widths(table: Table) -> list[int]:
    """The length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(table.heads, *table.rows)]


def _table_html(table: Table) -> str:
    """A table whose last column moves below the others where they leave it too little width (each
    row is a flex box that wraps). A front end that removes styles shows an ordinary table.
    """
    styles = _cell_styles(table)
    lines = [_row_html(table.heads, "th", styles)]
    lines += [_row_html(row, "td", styles) for row in table.rows]
    body = f'<tbody style="display:block">{"".join(lines)}</tbody>'
    return f'<table style="display:block;border:0;margin:.4em 0">{body}</table>'


def _cell_styles(table: Table) -> list[str]:
    """The style of the cells of each column."""
    *widths, _ = _widths(table)
    styles = []
    for number, width in enumerate(widths):
        align = "left"
        if number in table.numbers:
            align = "right"
        # A column keeps the width of its longest cell and one character.
        flex = f"0 1 {(width + 1) * WIDTH_EM:.1f}em"
        styles.append(CELL.format(flex=flex, align=align))
    # The last one takes the rest.
    last_flex = f"1 1 {NARROWEST * WIDTH_EM:.1f}em"
    return [*styles, CELL.format(flex=last_flex, align="left")]


def _row_html(row: Row, tag: str, styles: list[str]) -> str:
    """A row; ``tag`` is th or td."""
    cells = [
        f'<{tag} style="{style}">{html.escape(cell)}</{tag}>'
        for cell, style in zip(row, styles)
    ]
    return f'<tr style="display:flex;flex-wrap:wrap;padding:0">{"".join(cells)}</tr>'
