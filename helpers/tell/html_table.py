"""A table as HTML that is complete without scripts, and text as HTML that keeps its lines."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from html import escape

from helpers.ground.units import columns_of, plain
from helpers.tell.resources import template
from helpers.tell.text_table import are_numbers
from helpers.tell.values import WrittenValue

SHEET = "margin:4px 0;overflow-x:auto;line-height:1.35;font-size:12px"
MUTED = "var(--jp-ui-font-color2, #5c6670)"
LONGEST = 20
"""Letters of a word of a page that is not broken; a longer path may be, after a slash or an
underscore.
"""
UNWRAPPED = 17
OF_PROSE = (26, 44)
PROSE = 60
"""Letters that a column of a page has room for, if it needs so many, however narrow the screen
is: rows stay low. Of prose, which begins with so many letters, they are a few more, up to
six lines of a row.
"""


def table_html(
    title: str,
    heads: list[str],
    rows: list[list[WrittenValue]],
    above: Iterable[str],
    below: Iterable[str],
) -> str:
    """A table with its title and the lines above and below it; the title alone above no rows."""
    right = are_numbers(rows, short_too=True)
    columns = zip(heads, *([cell.words for cell in row] for row in rows))
    widest = [max(map(columns_of, words)) for words in columns]
    titles = [
        _heading(name, number, _room(width))
        for name, number, width in zip(heads, right, widest)
    ]
    lines = []
    for row in rows:
        cells = [_cell(cell.words, number) for cell, number in zip(row, right)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    caption = escape(plain(title))
    return within_sheet(
        f"<div style='color:{MUTED}'>{caption}</div>",
        lines_html(above),
        f"<table aria-label='{caption}'><thead><tr>{''.join(titles)}</tr></thead>",
        f"<tbody>{''.join(lines)}</tbody></table>",
        lines_html(below),
    )


def within_sheet(*parts: str) -> str:
    """Pieces of HTML in the house's frame, with the style of its tables."""
    style = template("table.css", "stacked.css")
    return f"<div class=casebook style='{SHEET}'>{''.join(parts)}</div><style>{style}</style>"


def figure_html(wide: str, narrow: str, alt: str, chart: str = "") -> str:
    """A figure's SVG for a desk and for a phone as one picture with its words; ``chart`` is its
    data for figure.js.
    """
    data = ""
    if chart:
        data = f" class=chart data-chart='{escape(chart)}'"
    style = template("table.css", "figure.css")
    return (
        f"<div class=casebook><figure{data} style='margin:4px 0'><picture>"
        f"<source media='screen and (max-width: 48rem)' srcset='{_picture(narrow)}'>"
        f"<img alt='{escape(alt)}' style='width:auto;max-width:100%' src='{_picture(wide)}'>"
        f"</picture></figure></div><style>{style}</style>"
    )


def _picture(drawing: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode()}"


def _heading(words: str, number: bool, room: int) -> str:
    """The heading of a column with room for so many letters.

    Its side and width are its own, as an untrusted notebook lets no style sheet in.
    """
    width = f"min-width:{0.6 * room:.0f}em"
    side = f" style='text-align:left;{width}'"
    if number:
        side = f" class=number style='{width}'"
    return f"<th scope=col{side}>{breakable(words)}</th>"


def _cell(words: str, number: bool) -> str:
    side = " style='text-align:left'"
    if number:
        side = " class=number"
    return f"<td{side}>{breakable(words)}</td>"


def _room(width: int) -> int:
    """Letters that a column has room for whose longest cell has so many."""
    least, most = OF_PROSE
    if width < PROSE:
        return min(width, UNWRAPPED)
    return min(max(least, width // 6), most)


def breakable(words: str) -> str:
    """Words as HTML in which a long one may be broken where a reader would: after a slash or an
    underscore.
    """
    escaped = escape(words)
    if all(len(word) <= LONGEST for word in words.split()):
        return escaped
    return re.sub("[/_]", r"\g<0><wbr>", escaped)


def lines_html(lines: Iterable[str]) -> str:
    """Each line in an element of its own."""
    return "".join(f"<div>{escape(plain(line))}</div>" for line in lines)


def text_html(text: str) -> str:
    """Text with its lines, each wrapped at spaces.

    What is printed as plain text JupyterLab breaks within words, and after a hyphen.
    """
    style = f"{SHEET};word-break:normal;max-width:97%;white-space:pre-wrap"
    unbroken = r"<span style='white-space:nowrap'>\g<0></span>"
    words = re.sub(
        r"(?<!\S)(?=\S*-)\S{1,28}(?!\S)", unbroken, escape(plain(text, keep="\n"))
    )
    return f"<pre style='{style}'>{words}</pre>"
