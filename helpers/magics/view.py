"""Tables and cards of this extension: HTML for a notebook, aligned words for a terminal.

Both come from one ``Card``. Colours are the front end's own, so that light and dark themes keep
their contrast; there is no script in it.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field

Row = tuple[str, ...]

STYLE = (
    "border-left:4px solid {colour};padding:.3em .8em;margin:.4em 0;"
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);color:inherit;max-width:60em"
)
RED, BLUE = "#d1453b", "#3b82c4"
CELL = "text-align:{align};padding:.15em .5em .15em 0;vertical-align:top;white-space:{space}"


@dataclass
class Table:
    """A table; columns in ``numbers`` are aligned to the right. The last one may have lines."""

    heads: Row
    rows: list[Row]
    numbers: frozenset[int] = frozenset()


@dataclass
class Card:
    """A title, sentences, a table, numbered steps and a last line, each left out where empty."""

    title: str
    code: str = ""
    sentences: list[str] = field(default_factory=list)
    table: Table | None = None
    steps: list[str] = field(default_factory=list)
    foot: str = ""
    is_failure: bool = False

    def words(self) -> str:
        """The card as plain text."""
        parts = [self.title]
        if self.code:
            parts.append(f"    {self.code}")
        parts += self.sentences
        if self.table is not None and self.table.rows:
            parts += ["", *_aligned(self.table)]
        if self.steps:
            parts += ["", "Next"]
            parts += [f"  {number}. {step}" for number, step in enumerate(self.steps, start=1)]
        if self.foot:
            parts += ["", self.foot]
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


def show(card: Card) -> None:
    """Show a card as the output of the running cell."""
    from IPython.display import display  # here: the package is imported without IPython, too

    display({"text/html": card.html(), "text/plain": card.words()}, raw=True)


def _aligned(table: Table) -> list[str]:
    """The rows for a terminal: the lines of the last column stay below it."""
    *columns, _ = zip(table.heads, *table.rows)
    widths = [max(map(len, column)) for column in columns]
    before = sum(widths) + 2 * len(widths)
    lines = []
    for *row, last in (table.heads, *table.rows):
        cells = [
            cell.rjust(width) if number in table.numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        ]
        first, *rest = last.split("\n")
        lines.append("  ".join([*cells, first]).rstrip())
        lines += [" " * before + line for line in rest]
    return lines


def _table_html(table: Table) -> str:
    lines = [_row_html(table.heads, "th", table)]
    lines += [_row_html(row, "td", table) for row in table.rows]
    style = "border-collapse:collapse;margin:.4em 0;overflow-wrap:normal;word-break:normal"
    table_html = f'<table style="{style}">{"".join(lines)}</table>'
    return f'<div style="overflow-x:auto">{table_html}</div>'


def _row_html(row: Row, tag: str, table: Table) -> str:
    cells = []
    for number, cell in enumerate(row):
        style = CELL.format(align="left", space="pre-line")
        if number in table.numbers:
            style = CELL.format(align="right", space="nowrap")
        if number == len(row) - 1:  # a long word there is cut, and none of another column
            style += ";overflow-wrap:anywhere;min-width:6em"
        cells.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"
