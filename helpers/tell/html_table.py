"""A table and a figure as HTML that needs no scripts, and text as HTML that keeps its lines."""

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
LONGEST_WORD = 20
"""Letters of the longest word that is never broken; a longer path may break after a slash or an
underscore.
"""
# Letters for which a column keeps room however narrow the screen is, so that rows stay low.
WORDS_ROOM = 17
"""Of a column of words: as many as its longest cell has, at most these: a time or a PCI address."""
PROSE_LETTERS = 60
"""A column whose longest cell has so many letters is prose."""
PROSE_ROOM = (26, 44)
"""The least and the most of a column of prose."""
PROSE_LINES = 6
"""Lines of prose in a row, between the two."""


def table_html(
    title: str,
    heads: list[str],
    rows: list[list[WrittenValue]],
    above: Iterable[str],
    below: Iterable[str],
) -> str:
    """A table with its title and the lines above and below it. Numbers stand at the right, and each
    column keeps the room that ``_room`` gives it.
    """
    number_columns = are_numbers(rows, short_too=True)
    headings = ""
    for place, name in enumerate(heads):
        widths = [columns_of(row[place].words) for row in rows]
        room = _room(max([columns_of(name), *widths]))
        headings += _heading(name, number_columns[place], room)
    body = ""
    for row in rows:
        cells = [
            _cell(value.words, is_number)
            for value, is_number in zip(row, number_columns)
        ]
        body += f"<tr>{''.join(cells)}</tr>"
    caption = escape(plain(title))
    return within_sheet(
        f"<div style='color:{MUTED}'>{caption}</div>",
        lines_html(above),
        f"<table aria-label='{caption}'><thead><tr>{headings}</tr></thead>",
        f"<tbody>{body}</tbody></table>",
        lines_html(below),
    )


def within_sheet(*parts: str) -> str:
    """Pieces of HTML in the frame that every view has, with the style of tables."""
    style = template("table.css", "stacked.css")
    return f"<div class=casebook style='{SHEET}'>{''.join(parts)}</div><style>{style}</style>"


def figure_html(wide: str, narrow: str, alt: str, chart: str = "") -> str:
    """A figure as one picture with its alt text: the SVG ``wide`` for a desk, ``narrow`` for a
    phone. ``chart`` is its data for figure.js, as JSON.
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


def _picture(svg: str) -> str:
    """An SVG as an address that holds it."""
    data = base64.b64encode(svg.encode()).decode()
    return f"data:image/svg+xml;base64,{data}"


def _heading(words: str, is_number: bool, room: int) -> str:
    """The heading of a column that keeps room for so many letters.

    Its alignment and width are in the element itself: JupyterLab takes style sheets out of a
    notebook that is not trusted.
    """
    width = f"min-width:{0.6 * room:.0f}em"  # a letter is about 0.6 em wide
    attributes = f" style='text-align:left;{width}'"
    if is_number:
        attributes = f" class=number style='{width}'"
    return f"<th scope=col{attributes}>{breakable(words)}</th>"


def _cell(words: str, is_number: bool) -> str:
    """A cell of a table; its alignment is in the element itself, as ``_heading`` says."""
    attributes = " style='text-align:left'"
    if is_number:
        attributes = " class=number"
    return f"<td{attributes}>{breakable(words)}</td>"


def _room(letters: int) -> int:
    """Letters for which a column keeps room, when its longest cell has ``letters``. A column of
    prose gets so much that its longest cell has about PROSE_LINES lines.
    """
    if letters < PROSE_LETTERS:
        return min(letters, WORDS_ROOM)
    least, most = PROSE_ROOM
    return min(max(least, letters // PROSE_LINES), most)


def breakable(words: str) -> str:
    """Words as HTML. Where one is too long for a narrow screen, the text may also break after a
    slash or an underscore.
    """
    escaped = escape(words)
    if all(len(word) <= LONGEST_WORD for word in words.split()):
        return escaped
    return re.sub("[/_]", r"\g<0><wbr>", escaped)


def lines_html(lines: Iterable[str]) -> str:
    """Each line in an element of its own."""
    return "".join(f"<div>{escape(plain(line))}</div>" for line in lines)


def text_html(text: str) -> str:
    """Text with its lines, each wrapped at spaces only.

    JupyterLab breaks the lines of plain text within words, and after a hyphen.
    """
    style = f"{SHEET};word-break:normal;max-width:97%;white-space:pre-wrap"
    escaped = escape(plain(text, keep="\n"))
    # A whole word with a hyphen; one above 28 letters may break, or a phone would scroll.
    hyphenated = r"(?<!\S)(?=\S*-)\S{1,28}(?!\S)"
    unbroken = r"<span style='white-space:nowrap'>\g<0></span>"
    words = re.sub(hyphenated, unbroken, escaped)
    return f"<pre style='{style}'>{words}</pre>"
