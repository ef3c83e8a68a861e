"""Tables and cards of this extension: HTML for a notebook, aligned words for a terminal.

Both come from one ``Notice``. Colours are the front end's own, so that light and dark themes keep
their contrast; there is no script in it.
"""

from __future__ import annotations

import html
import shutil
import sys
import textwrap
from dataclasses import dataclass, field

Row = tuple[str, ...]

UNLIMITED = 1_000_000
NARROWEST = 24
"""Characters that a line, and a last column, have in a narrower window, too."""
NARROWEST_COLUMN = 40
"""Characters for the last column beside the others; in fewer, nearly each word would stand on a line
of its own.
"""

WIDTH_EM = 0.6
"""Of a character in a front end's font, on average; a word gets one character more than it has."""

STYLE = (
    "border-left:4px solid {colour};padding:.3em .8em;margin:.4em 0;"
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);color:inherit;max-width:60em"
)
RED = "#d1453b"
BLUE = "#3b82c4"
CELL = (
    "display:block;flex:{flex};min-width:0;text-align:{align};padding:.15em .5em .15em 0;"
    "white-space:pre-line;overflow-wrap:anywhere"
)


@dataclass
class Table:
    """A table; columns in ``numbers`` are aligned to the right. The last one may have lines."""

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
        style = STYLE.format(colour=RED if self.is_failure else BLUE)
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
        # Here: the package is imported without IPython, too.
        from IPython.display import display

        width = UNLIMITED  # a notebook wraps by itself
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
        answer = {"text/html": self.html(), "text/plain": self.words(width)}
        display(answer, raw=True)


def _wrapped(text: str, width: int, first: str = "") -> list[str]:
    """Lines of a text; those after the first one stand below the text, not below ``first``."""
    return textwrap.wrap(
        text,
        max(width, NARROWEST),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _aligned(table: Table, width: int) -> list[str]:
    """The rows for a terminal: the lines of the last column stay below it, or stand below the row
    where the others leave it too little.
    """
    *widths, _ = _widths(table)
    before = sum(widths) + 2 * len(widths)
    is_below = width - before < NARROWEST_COLUMN
    indent = " " * (4 if is_below else before)
    lines = []
    for *row, last in (table.heads, *table.rows):
        cells = [
            cell.rjust(size) if number in table.numbers else cell.ljust(size)
            for number, (cell, size) in enumerate(zip(row, widths))
        ]
        texts = [
            line for text in last.split("\n") for line in _wrapped(text, width, indent)
        ]
        start = "  ".join([*cells, ""])
        if texts and not is_below:
            start += texts.pop(0)[before:]  # the cells take the place of its indent
        lines += [start.rstrip(), *texts]
    return lines


def _widths(table: Table) -> list[int]:
    """The length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(table.heads, *table.rows)]


def _table_html(table: Table) -> str:
    """A table whose last column stands below the others where these leave it too little width. A
    front end that takes styles away shows an ordinary table.
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
        styles.append(
            CELL.format(flex=f"0 1 {(width + 1) * WIDTH_EM:.1f}em", align=align)
        )
    return [
        *styles,
        CELL.format(flex=f"1 1 {NARROWEST * WIDTH_EM:.1f}em", align="left"),
    ]


def _row_html(row: Row, tag: str, styles: list[str]) -> str:
    cells = [
        f'<{tag} style="{style}">{html.escape(cell)}</{tag}>'
        for cell, style in zip(row, styles)
    ]
    return f'<tr style="display:flex;flex-wrap:wrap;padding:0">{"".join(cells)}</tr>'
