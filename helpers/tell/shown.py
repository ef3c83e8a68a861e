"""A view as data: rows whose values stay numbers, and each way to show them: aligned text,
HTML, a figure, alt text, a frame.

``Shown`` is what a function of this folder answers with. As the last line of a cell it is a
table that sorts and searches (templates/table.js, which pages have too) or its figure. Printed
by a command it is wrapped to the terminal; anywhere else it is the same rows as plain aligned
text. A reading without a value stands as ``not available`` or ``not allowed`` with a letter,
and its reason stands under the table. Text from the box (process names, log lines) is made
harmless first. The standard library is enough for all but the frame and the figures.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import zip_longest
from typing import Any, NamedTuple

from helpers.ground.shapes import Reading
from helpers.ground.units import columns_of, show_bytes
from helpers.ground.units import cut as cut
from helpers.ground.units import plain as plain

WIDEST = 48
"""Columns a cell of words may take before it is cut with an ellipsis; sources and notes below
the table are never cut.
"""
WIDE = 88
SCREEN = 80
"""Columns of prose, so that it also fits the column of a page, and of a terminal."""
ABOUT = "casebook"
"""In an output's metadata: ``says``, its main result in a line, for where it is folded;
``again``: somewhere else on a page of the batch stands the same, so that page leaves it out.
"""
LEAST = 12
"""Columns of words in a table of a terminal; where there are fewer each cell has a line of its
own.
"""
LONGEST = 20
"""Letters of a word of a page that is not broken; a longer path may be, after a slash or an
underscore.
"""
MOST_SPOKEN = 24
LONGEST_LINE = 140
"""Rows that an alt text names (of more it says how many), and columns of the line that a folded
view has.
"""
UNWRAPPED = 17
OF_PROSE = (26, 44)
PROSE = 60
"""Letters that a column of a page has room for, if it needs so many, however narrow the screen
is: rows stay low. Of prose, which begins with so many letters, they are a few more, up to
six lines of a row.
"""
SHEET = "margin:4px 0;overflow-x:auto;line-height:1.35;font-size:12px"
DARK = "".join(
    f"[style*='l: #{old}'],[fill='#{old}']{{fill:#{new}!important}}"
    f"[style*='e: #{old}']{{stroke:#{new}!important}}"
    for old, new in zip(
        "1c2126 5c6670 c4cad0 eef1f4 ffffff bf4f00 0072b2 882255 f3c9ad".split(),
        "e4e7ea 9aa4ae 4a525a 2c343b 1a1e22 f08a45 3b94d9 b8557f 55382a".split(),
    )
)
"""The colours of a figure that a dark page has others for: its ink, paper and alarm, and those
that are too dark themselves.
"""
SCHEME = f"@media(prefers-color-scheme:dark){{{DARK}}}"
"""The style of every figure, with its paper, so that it can be read wherever it stands."""
MUTED = "var(--jp-ui-font-color2, #5c6670)"
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@lru_cache(maxsize=None)
def words(name: str) -> Any:
    """What words.json of this folder holds under a name: codes in a reader's words.

    It is shared, so nobody changes it.
    """
    return json.loads(pkgutil.get_data(__name__, "words.json") or b"{}")[name]


@lru_cache(maxsize=None)
def template(*names: str) -> str:
    """Files of templates/: table.js, by which tables sort and are searched in JupyterLab and VS
    Code, and how they look.
    """
    return b"".join(pkgutil.get_data(__name__, f"templates/{n}") or b"" for n in names).decode()


def uncoloured(text: str) -> str:
    """Program output without terminal colours, other control characters spelt out, lines and
    tabs kept.
    """
    return plain(_COLOUR.sub("", text.replace("\r\n", "\n")), keep="\n\t")


def size(reading: Reading) -> int | None:
    """The bytes of a reading that has any, None otherwise."""
    value = reading.value
    if not reading.ok or reading.unit != "bytes" or isinstance(value, str) or value is None:
        return None
    return int(value) if abs(value) < 1 << 62 else None


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``0.8 s``, ``42 s``, ``4 min 05 s``, ``3 h 07 min 21 s``,
    ``2 d 06 h 10 min``.
    """
    if not abs(seconds) < 1e12:
        return plain(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes = f"{whole // 60 % 60:02d} min"
    hours = whole // 3600
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{hours} h {minutes} {whole % 60:02d} s"
    return f"{hours // 24} d {hours % 24:02d} h {minutes}"


def percent(share: float) -> str:
    """A share as whole percent, of which none is below nothing: ``35%``, never ``-0%``."""
    return f"{round(share, 2) + 0:.0%}"


UNITS: dict[str, Callable[[Any], str]] = {
    "bytes": show_bytes,
    "s": duration,
    "0.1 s": "{:.1f} s".format,
    "ms": lambda seconds: f"{1e3 * seconds:.1f} ms",
    "%": percent,
}
"""How a plain number of a column with that unit is written."""


class Column(NamedTuple):
    """A column's heading, the unit of its plain numbers (a key of UNITS, or none), and its
    widest cell of words (None: any).
    """

    name: str
    unit: str = ""
    widest: int | None = WIDEST


class Cell(NamedTuple):
    """A value as it is written: its words, whether it is a number (None: neither number nor
    words), and why it has no value.
    """

    words: str
    number: bool | None
    why: str = ""


def cell(value: Any, unit: str = "") -> Cell:
    """How a value of a table is written."""
    if isinstance(value, Reading):
        if not value.ok:
            return Cell(value.status.replace("_", " "), None, plain(value.show()))
        return Cell(plain(value.show()), value.unit != "text")
    if value is None or value == "":
        return Cell("-", None)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", False)
    if isinstance(value, (int, float)):
        return Cell(UNITS[unit](value) if unit else plain(value), True)
    return Cell(plain(value), False)


@dataclass(frozen=True, repr=False)
class Shown:
    """One view.

    ``cells`` are rows of values, one for each column; bytes stay numbers, a reading stays a
    reading.

    ``columns`` are headings or ``Column``s, ``widest`` what the headings' cells of words may
    take; ``before`` and ``notes`` are lines above and below the table, ``none`` is what an
    empty one says instead, ``draw`` makes its figure, where it has one. ``result`` is what its
    rows come to, in a line; ``again`` as of ABOUT. Of more than ``most`` rows so many are shown
    and the rest counted; ``rows`` and ``frame()`` have all. Raises ValueError for a row of
    another length.
    """

    title: str
    columns: Sequence[Any]
    cells: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    before: Sequence[str] = ()
    none: str = ""
    draw: Callable[[], Any] | None = None
    widest: int | None = WIDEST
    result: str = ""
    again: bool = False
    most: int | None = None

    def __post_init__(self) -> None:
        columns = tuple(
            one if isinstance(one, Column) else Column(one, "", self.widest) for one in self.columns
        )
        object.__setattr__(self, "columns", columns)
        object.__setattr__(
            self, "draw", self.draw if self.cells else None
        )  # not a figure of nothing
        for row in self.cells:
            if len(row) != len(columns):
                expected = f"{len(columns)}, one for each of {', '.join(self._heads())}"
                raise ValueError(f"a row of {len(row)} cells: expected {expected}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows by heading, to go on with; values stay as they are."""
        return [dict(zip(self._heads(), row)) for row in self.cells]

    def without(self, name: str) -> Shown:
        """The view without one of its columns."""
        at = self._heads().index(name)
        rest = [[*row[:at], *row[at + 1 :]] for row in (self.columns, *self.cells)]
        return replace(self, columns=rest[0], cells=rest[1:])

    def only(self, column: str, none: str = "") -> Shown:
        """The rows that have something other than nothing or 0 in a column, without figure or notes.

        ``none`` is said where no row is left. Raises ValueError for a column that is not there.
        """
        place = self._heads().index(column)
        cells = [row for row in self.cells if row[place]]
        return replace(self, cells=cells, draw=None, before=(), notes=(), none=none)

    def __repr__(self) -> str:
        return self.text()

    def __str__(self) -> str:
        return self.text(0 if sys.stdout.isatty() else None)

    def text(self, columns: int | None = None) -> str:
        """The table as text, a column of numbers right; wider than ``columns`` (0: the
        terminal's) it is wrapped, with its notes.
        """
        columns = shutil.get_terminal_size().columns if columns == 0 else columns
        head = self._heads()
        body, why = self._written()
        lines = _aligned(head, body, None) if body else [self.nothing]
        if columns and max(map(columns_of, lines)) > columns:
            body, why = self._written(whole=True)
            lines = _aligned(head, body, columns) if body else lines
        over = self.before
        under = [*why, *self.notes]
        if columns:
            over, under = ([within(line, columns) for line in part] for part in (over, under))
        return "\n".join([*over, *lines, *under])

    def _written(self, whole: bool = False) -> tuple[list[list[Cell]], list[str]]:
        """The cells in words, and a line for each reason why one has no value."""
        marks: dict[str, str] = {}
        body = []
        for row in self.cells[: self.most]:
            written = []
            for value, column in zip(row, self.columns):
                one = cell(value, column.unit)
                if one.why:
                    mark = marks.setdefault(one.why, f"({_letters(len(marks))})")
                    one = one._replace(words=f"{one.words} {mark}")
                elif not whole and column.widest is not None and column.name != "source":
                    one = one._replace(words=cut(one.words, column.widest))
                written.append(one)
            body.append(written)
        more = [f"and {len(self.cells) - len(body)} more rows"] * (len(body) < len(self.cells))
        return body, [*more, *(f"{mark} {why}" for why, mark in marks.items())]

    def html(self) -> str:
        """The table as HTML that is complete without scripts."""
        body, why = self._written(whole=True)
        numbers = _numbers(body, sizes=True) or [False] * len(self.columns)
        columns = zip(self._heads(), *([one.words for one in row] for row in body))
        widest = [max(map(columns_of, words)) for words in columns]
        rooms = list(map(_room, widest))
        titles = "".join(map(_html_cell, self._heads(), numbers, rooms))
        lines = "".join(
            f"<tr>{''.join(_html_cell(one.words, right) for one, right in zip(row, numbers))}</tr>"
            for row in body
        )
        caption = escape(plain(self.title))
        over = [line for line in self.before if line != self.title]  # the title says it already
        above, below = (_html_lines(some) for some in (over, [*why, *self.notes]))
        whole = (
            f"<table aria-label='{caption}'><thead><tr>{titles}</tr></thead>"
            f"<tbody>{lines}</tbody></table>"
        )
        top = f"<div style='color:{MUTED}'>{caption}</div>{above}"
        if not lines:
            top = ""
            whole = _html_lines([self.nothing])
        return f"<div class=casebook style='{SHEET}'>{top}{whole}{below}</div><style>{template('table.css', 'stacked.css')}</style>"

    def _repr_html_(self) -> str | None:
        """The table for whoever asks for HTML; none where a figure stands for it, which a front
        end would else leave out.
        """
        return None if self.draw else f"{self.html()}<script>{template('table.js')}</script>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """What a notebook shows of it: the figure with its words where it has one, else the table.

        A figure is an SVG, and a PNG for who may not show that, as JupyterLab in a notebook
        that nobody has trusted yet.
        """
        about: dict[str, Any] = {ABOUT: {"says": self.says, "again": self.again}}
        if self.draw is None:
            return {"text/html": self._repr_html_() or "", "text/plain": str(self)}, about
        figure = self.draw()
        drawing = figure.svg()
        (data, width, height) = figure.picture()
        about["image/png"] = {"alt": self.alt, "width": width, "height": height}
        picture = base64.b64encode(data).decode("ascii")
        shown = {"image/svg+xml": drawing, "image/png": picture, "text/plain": self.alt}
        return shown, about

    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``; what has no value is null.

        A column of which some values are words is words throughout.
        """
        import pyarrow

        names = self._heads()
        if not self.cells:
            return pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in names})
        columns = [_values(column) for column in zip(*self.cells)]
        return pyarrow.table(columns, names=names)

    def frame(self) -> Any:
        """The rows as a ``pandas.DataFrame``. Raises ValueError where pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise ValueError("pandas is not installed; .table() gives a pyarrow.Table without it")
        return self.table().to_pandas()

    def _heads(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def alt(self) -> str:
        """The view for those who cannot see it: its title, its rows, and its notes.

        Where there are several columns of numbers each number has its column's name.
        """
        rows = self._spoken_rows(MOST_SPOKEN)
        if len(self.cells) > MOST_SPOKEN:
            rows.append(f"and {len(self.cells) - MOST_SPOKEN} more")
        head = f"{self.title.rstrip('.')}: "
        first = head + "; ".join(filter(None, rows)) if rows else self.nothing
        return plain(". ".join(part.rstrip(".") for part in (first, *self.notes)) + ".")

    @property
    def nothing(self) -> str:
        """What stands in place of rows where there are none: what is missing, and why where
        that is known.
        """
        return self.none or f"{self.title or ', '.join(self._heads())}: none."

    @property
    def says(self) -> str:
        """What the view comes to, in a line: as it was given, a figure's title, else its first
        rows.
        """
        said = self.result or (self.nothing if not self.cells else self.title if self.draw else "")
        said = said or next(iter([*self.before, *self._spoken_rows(1)]))
        return plain(one_line(said))

    def _spoken_rows(self, most: int) -> list[str]:
        body, _ = self._written(whole=True)
        named = sum(any(one.number or one.why for one in column) for column in zip(*body)) > 1
        return [self._spoken(row, named) for row in body[:most]]

    def _spoken(self, row: list[Cell], named: bool) -> str:
        """A row in words, without where it is from."""
        words = ""
        apart = ""
        for one, column in zip(row, self.columns):
            if one.words == "-" or column.name == "source":
                continue
            value = one.words.split(" (")[0] if one.why else one.words
            is_named = named and one.number is not False
            words += apart + (f"{column.name} {value}" if is_named else value)
            # A comma between numbers, none between the words that say whose they are.
            apart = ", " if is_named else apart or " "
        return words


def text_html(text: str) -> str:
    """Text with its lines, each wrapped at spaces; what is printed JupyterLab breaks within
    words, and after a hyphen.
    """
    style = f"{SHEET};word-break:normal;max-width:97%;white-space:pre-wrap"
    whole = r"<span style='white-space:nowrap'>\g<0></span>"
    said = re.sub(r"(?<!\S)(?=\S*-)\S{1,28}(?!\S)", whole, escape(plain(text, keep="\n")))
    return f"<pre style='{style}'>{said}</pre>"


def display(view: Any, data: dict[str, object] | None = None, again: bool = False) -> None:
    """Show a view, or words with ``data``, the same in other forms, as one output of a
    notebook's cell; ``again`` as of ABOUT.

    Where there is no notebook it is printed, a figure in its words.
    """
    if "IPython" in sys.modules:
        from IPython import display as front
        from IPython import get_ipython

        if get_ipython() is not None:
            if isinstance(view, Shown):
                front.display(replace(view, again=again or view.again))
            else:
                words = str(view)
                about: dict[str, object] = {"again": True} if again else {}
                if data is None:
                    data = {"text/html": text_html(words)}
                    about["says"] = one_line(words.split("\n")[0])
                how = {"metadata": {ABOUT: about}} if about else {}
                front.display({**data, "text/plain": words}, raw=True, **how)
            return
    print(view.alt if isinstance(view, Shown) and view.draw else view)


def _aligned(head: list[str], body: list[list[Cell]], columns: int | None) -> list[str]:
    """The lines of a table with its header.

    Wider than ``columns`` long cells are wrapped; where there is no room, a line a cell.
    """
    right = _numbers(body)
    texts = [head, *([one.words for one in row] for row in body)]
    widths = [max(map(columns_of, column)) for column in zip(*texts)]
    while columns and sum(widths) + 2 * len(widths) - 2 > columns:
        wide = [0 if number else width for number, width in zip(right, widths)]
        if max(wide) <= LEAST:
            cells = [[f"{name}: {words}" for name, words in zip(head, row)] for row in texts[1:]]
            return [line for row in cells for text in [*row, ""] for line in _filled(text, columns)]
        widths[wide.index(max(wide))] -= 1
    texts.insert(1, ["-" * width for width in widths])
    rows = [zip_longest(*map(_filled, row, widths), fillvalue="") for row in texts]
    return ["  ".join(map(_pad, line, widths, right)).rstrip() for row in rows for line in row]


def _filled(text: str, columns: int) -> list[str]:
    """Text in lines of so many columns, a path broken after a slash; one that fits is as it is."""
    if columns_of(text) <= columns:
        return [text]
    out = [""]
    for word in re.findall(r"\s+|[^\s/]+/*|/+", text):
        for part in [word] if columns_of(word) <= columns else word:
            if columns_of(out[-1] + part) > columns:
                out.append("")
            out[-1] += part
    return [line.strip() for line in out if line.strip()]


def _numbers(body: list[list[Cell]], sizes: bool = False) -> list[bool]:
    """Which columns hold numbers alone, and at least one; with ``sizes`` short words that begin
    with one count as one.
    """

    short = 28 * sizes
    number = re.compile(r"-?[\d.,]+( |$)")

    def kinds(column: Sequence[Cell]) -> set[bool]:
        known = (one for one in column if one.number is not None)
        return {bool(c.number or len(c.words) < short and number.match(c.words)) for c in known}

    return [kinds(column) == {True} for column in zip(*body)]


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns_of(text))
    return space + text if right else text + space


def bold(text: str) -> str:
    """The text in bold on a terminal that has it; as it is elsewhere, and where NO_COLOR is set."""
    plainly = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return text if plainly or not sys.stdout.isatty() else f"\x1b[1m{text}\x1b[0m"


def _html_cell(words: str, number: bool, room: int = 0) -> str:
    """A cell of a page, or with ``room`` in letters the heading of its column; a number stands
    right and is not broken.

    Words stand left, and columns have room, also where no style sheet is let in: in a notebook
    that nobody trusts yet.
    """
    tag, scope = ("th", " scope=col") if room else ("td", "")
    style = "text-align:left" * (not number) + f";min-width:{0.6 * room:.0f}em" * bool(room)
    side = " class=number" * number + f" style='{style.strip(';')}'" * bool(style)
    return f"<{tag}{scope}{side}>{breakable(words)}</{tag}>"


def _room(wide: int) -> int:
    """Letters that a column has room for whose longest cell has so many."""
    least, most = OF_PROSE
    return min(wide, UNWRAPPED) if wide < PROSE else min(max(least, wide // 6), most)


def breakable(words: str) -> str:
    """Words as HTML in which a long one may be broken where a reader would: after a slash or an
    underscore.
    """
    long = any(len(word) > LONGEST for word in words.split())
    return re.sub("[/_]", r"\g<0><wbr>", escape(words)) if long else escape(words)


def one_line(words: str) -> str:
    """Words in the line of a folded view: what is too long ends with a whole word, where it has
    any.
    """
    kept = cut(" ".join(words.split()), LONGEST_LINE)
    return f"{kept.rsplit(' ', 1)[0]} …" if kept.endswith("…") and " " in kept else kept


def _html_lines(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(plain(line))}</div>" for line in lines)


def _values(column: Sequence[Any]) -> list[Any]:
    """The values of a column for a frame: of one kind, a reading as what was read."""
    bare = [(one.value if one.ok else None) if isinstance(one, Reading) else one for one in column]
    known = {type(one) for one in bare if one not in (None, "")}
    if known <= {int, float} or known == {bool}:
        return [None if one == "" else one for one in bare]
    return [None if one is None else plain(one) for one in bare]


def _letters(number: int) -> str:
    last = chr(ord("a") + number % 26)
    return last if number < 26 else _letters(number // 26 - 1) + last


def within(text: str, columns: int = 0) -> str:
    """Lines for a terminal: prose that is too long is wrapped, and goes on below itself; a
    label with its path is not.
    """
    out = []
    most = columns or shutil.get_terminal_size().columns
    for line in text.split("\n"):
        lead = line[: len(line) - len(line.lstrip())]
        one = line.count(" ", len(lead)) < 2 or ": /" in line[:20]  # a path may have blanks
        fits = one or columns_of(line) <= most
        out += [line] if fits else wrapped(line.strip(), lead, lead + "  ", most)
    return "\n".join(out)


def wrapped(text: str, indent: str = "", then: str | None = None, columns: int = WIDE) -> list[str]:
    """Prose in lines of so many columns, made plain; ``then`` is the indent of the lines after
    the first, if another.
    """
    indents: Any = {"initial_indent": indent, "subsequent_indent": indent if then is None else then}
    whole: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(plain(text), columns, **indents, **whole) or [indent]


_WORDS = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")


def typed(command: str, indent: str = "") -> list[str]:
    """The lines of a command as they are typed; one too long is broken where a shell goes on
    reading. Quoted words stay whole.
    """
    out: list[str] = []
    for line in (indent + plain(line) for line in command.splitlines()):
        words = _WORDS.findall(line)
        first = line[: len(line) - len(line.lstrip())]
        note = next((at for at, word in enumerate(words) if word[0] == "#"), len(words))
        if columns_of(line) <= SCREEN or "".join("".join(words).split()) != "".join(line.split()):
            out = [*out, line]
            note = 0
        elif about := " ".join(words[note:]).strip("# "):
            out += wrapped(about, first + "# ", columns=SCREEN)
        ended = True
        for word in words[:note]:
            if ended:
                out.append(first + word)
            elif columns_of(f"{out[-1]} {word}") <= SCREEN - 2:
                out[-1] += f" {word}"
            else:
                out[-1:] = [out[-1] + " \\", f"{first}    {word}"]
            ended = word[-1] == ";" and word != "\\;"
            out[-1] = out[-1][:-1] if ended else out[-1]
    return out
