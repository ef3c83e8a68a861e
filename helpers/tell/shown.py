"""A view as data: rows whose values stay numbers, and each way to show them: aligned text,
HTML, a figure, alt text, a frame.

``Shown`` is what a function that shows something answers with. As the last line of a cell it is
a table that sorts and searches (templates/table.js, which pages have too) or its figure. Printed
by a command it is wrapped to the terminal; anywhere else it is the same rows as plain aligned
text. A reading without a value stands as ``not available`` or ``not allowed`` with a letter,
and its reason stands under the table. Text from the box (process names, log lines) is made
harmless first. The standard library is enough for all but the frame and the figures.
"""

from __future__ import annotations

import base64
import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.ground.contract import as_dict, from_json
from helpers.ground.shapes import Reading
from helpers.ground.units import columns_of, cut, plain
from helpers.tell.chart import FIGURE_MIME, Chart
from helpers.tell.front_end import is_interactive
from helpers.tell.html_table import (
    figure_html,
    lines_html,
    table_html,
    within_sheet,
)
from helpers.tell.prose import one_line, within
from helpers.tell.resources import template
from helpers.tell.text_table import aligned
from helpers.tell.values import (
    UNITS,
    WIDEST,
    Column,
    Rule,
    WrittenValue,
    bare_values,
    cell,
)

if TYPE_CHECKING:
    import pyarrow

    from helpers.tell.sheet import Drawing

ABOUT = "casebook"
"""In an output's metadata: ``says``, its main result in a line, for where it is folded;
``again``: somewhere else on a page of the batch stands the same, so that page leaves it out;
``label``: what a page calls its row; ``applies``: whether it says anything of this box.
"""
MOST_SPOKEN = 24
"""Rows that an alt text names; of more it says how many there are."""


@dataclass(frozen=True, repr=False)
class Shown:
    """One view.

    ``cells`` are rows of values, one for each column; bytes stay numbers, a reading stays a
    reading.

    ``columns`` are headings or ``Column``s, ``widest`` what the headings' cells of words may
    take; ``before`` and ``notes`` are lines above and below the table, ``none`` is what an
    empty one says instead, ``draw`` makes its figure, where it has one, and ``chart`` its data for
    who points at it. ``result`` is what its rows come to, in a line; ``again``, ``label`` and
    ``applies`` as of ABOUT. Of more than ``most`` rows so many are shown
    and the rest counted; ``rows`` and ``table()`` have all. Raises ValueError for a row of
    another length.
    """

    title: str
    columns: Sequence[Any]
    cells: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    before: Sequence[str] = ()
    none: str = ""
    draw: Callable[[], Drawing] | None = None
    chart: Callable[[], Chart] | None = None
    widest: int | None = WIDEST
    result: str = ""
    again: bool = False
    most: int | None = None
    label: str = ""
    applies: bool = True

    def __post_init__(self) -> None:
        columns = tuple(
            column if isinstance(column, Column) else Column(column, "", self.widest)
            for column in self.columns
        )
        object.__setattr__(self, "columns", columns)
        if not self.cells:
            object.__setattr__(self, "draw", None)  # no figure of nothing
            object.__setattr__(self, "chart", None)
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
        place = self._heads().index(name)
        columns, *cells = [
            [*row[:place], *row[place + 1 :]] for row in (self.columns, *self.cells)
        ]
        return replace(self, columns=columns, cells=cells)

    def only(self, column: str, none: str = "") -> Shown:
        """The rows that have something other than nothing or 0 in a column, without figure or notes.

        ``none`` is said where no row is left. Raises ValueError for a column that is not there.
        """
        place = self._heads().index(column)
        cells = [row for row in self.cells if row[place]]
        return replace(
            self, cells=cells, draw=None, chart=None, before=(), notes=(), none=none
        )

    def data(self) -> dict[str, list[object]]:
        """The view as JSON: the columns that name a rule, and their cells, a reading as an object."""
        places = [place for place, column in enumerate(self.columns) if column.passes]
        return {
            "columns": [list(self.columns[place]) for place in places],
            "cells": [[_as_json(row[place]) for place in places] for row in self.cells],
        }

    @staticmethod
    def of_data(data: Mapping[str, Any], title: str) -> Shown:
        """The view that ``data`` gave. Raises ValueError where it is none."""
        try:
            columns = []
            for name, unit, _, passes in data["columns"]:
                if unit and unit not in UNITS:
                    raise KeyError(unit)
                columns.append(Column(str(name), unit, None, str(passes)))
            cells = [[_of_json(value) for value in row] for row in data["cells"]]
            return Shown(title, columns, cells)
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"no view as JSON: {type(error).__name__}") from error

    def passing(self, rules: Mapping[str, Rule]) -> Shown:
        """The view for others: the columns that name a rule, each cell as its rule lets it through.

        A column without a rule, or whose heading is no word of ours, is left out, as are the lines
        above and below the table.
        """
        places = []
        for place, column in enumerate(self.columns):
            if column.passes in rules and (
                not column.name or rules["heading"](column.name)
            ):
                places.append((place, rules[column.passes]))
        columns = [self.columns[place] for place, _ in places]
        cells = []
        for row in self.cells:
            cells.append([rule(row[place]) for place, rule in places])
        return replace(
            self,
            columns=columns,
            cells=cells,
            before=(),
            notes=(),
            none="",
            result="",
            chart=None,
        )

    def __repr__(self) -> str:
        return self.text()

    def __str__(self) -> str:
        return self.text(0 if sys.stdout.isatty() else None)

    def text(self, columns: int | None = None) -> str:
        """The table as text, a column of numbers right.

        Where it is wider than ``columns`` (0: the terminal's) it is wrapped, with its notes.
        """
        if columns == 0:
            columns = shutil.get_terminal_size().columns
        body, reasons = self._written()
        lines = aligned(self._heads(), body, None) if body else [self.nothing]
        if columns and body and max(map(columns_of, lines)) > columns:
            body, reasons = self._written(cut_cells=False)
            lines = aligned(self._heads(), body, columns)
        above = list(self.before)
        below = [*reasons, *self.notes]
        if columns:
            above = [within(line, columns) for line in above]
            below = [within(line, columns) for line in below]
        return "\n".join([*above, *lines, *below])

    def _written(
        self, cut_cells: bool = True
    ) -> tuple[list[list[WrittenValue]], list[str]]:
        """The cells in words, and a line for each reason why one has no value."""
        marks: dict[str, str] = {}
        body = []
        for row in self.cells[: self.most]:
            cells = []
            for value, column in zip(row, self.columns):
                written = cell(value, column.unit)
                may_cut = (
                    cut_cells and column.widest is not None and column.name != "source"
                )
                if written.why:
                    mark = marks.setdefault(written.why, f"({_letters(len(marks))})")
                    written = written._replace(words=f"{written.words} {mark}")
                elif may_cut:
                    written = written._replace(words=cut(written.words, column.widest))
                cells.append(written)
            body.append(cells)
        reasons = [f"{mark} {why}" for why, mark in marks.items()]
        hidden = len(self.cells) - len(body)
        if hidden:
            reasons.insert(0, f"and {hidden} more rows")
        return body, reasons

    def html(self) -> str:
        """The table as HTML that is complete without scripts."""
        body, reasons = self._written(cut_cells=False)
        above = [
            line for line in self.before if line != self.title
        ]  # the title says it already
        below = [*reasons, *self.notes]
        if not body:
            return within_sheet(lines_html([self.nothing]), lines_html(below))
        return table_html(self.title, self._heads(), body, above, below)

    def _repr_html_(self) -> str | None:
        """The table for whoever asks for HTML; none where a figure stands for it, which a front
        end would else leave out.
        """
        return (
            None
            if self.draw
            else f"{self.html()}<script>{template('table.js')}</script>"
        )

    def _repr_mimebundle_(
        self, **_options: object
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a notebook shows of it: the figure with its words where it has one, else the table.

        A figure is an SVG, and a PNG for front ends that may not show one, such as JupyterLab with
        a notebook that nobody has trusted yet. Where somebody sits at it, it fits a narrow screen, too, and
        one with a ``chart`` answers to the pointer.
        """
        about: dict[str, Any] = {ABOUT: {"says": self.says, "again": self.again}}
        if self.label:
            about[ABOUT].update(label=self.label, applies=self.applies)
        if any(column.passes for column in self.columns):
            about[ABOUT]["view"] = self.data()
        if self.draw is None:
            html = self._repr_html_() or ""
            return {"text/html": html, "text/plain": str(self)}, about
        figure = self.figure_data()
        data, width, height = self._drawn(wide=True).picture()
        about["image/png"] = {"alt": self.alt, "width": width, "height": height}
        shown: dict[str, Any] = {
            "image/svg+xml": figure.pop("wide"),
            "image/png": base64.b64encode(data).decode("ascii"),
            "text/plain": self.alt,
            FIGURE_MIME: figure,
        }
        if is_interactive():
            html = self.figure_html()
            if self.chart:
                html += f"<script>{template('table.js', 'figure.js')}</script>"
            shown["text/html"] = html
        return shown, about

    def figure_html(self) -> str:
        """Its figure for JupyterLab."""
        chart = self.chart().for_script() if self.chart else ""
        figure = self.figure_data()
        return figure_html(figure["wide"], figure["narrow"], self.alt, chart)

    def figure_data(self) -> dict[str, Any]:
        """Its figure for a desk (``wide``) and for a phone (``narrow``) as SVG, and its ``chart``
        as JSON where it has one.
        """
        figure: dict[str, Any] = {
            "wide": self._drawn(wide=True).svg(),
            "narrow": self._drawn(wide=False).svg(),
        }
        if self.chart:
            figure["chart"] = as_dict(self.chart())
        return figure

    def _drawn(self, wide: bool) -> Drawing:
        # Here, as matplotlib is slow to load.
        from helpers.tell.sheet import WIDE, WIDTH, page_width

        assert self.draw is not None
        with page_width(WIDE if wide else WIDTH):
            return self.draw()

    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``; what has no value is null.

        A column of which some values are words is words throughout.
        """
        import pyarrow

        names = self._heads()
        if not self.cells:
            return pyarrow.table(
                {name: pyarrow.array([], pyarrow.string()) for name in names}
            )
        columns = [bare_values(column) for column in zip(*self.cells)]
        return pyarrow.table(columns, names=names)

    def frame(self) -> object:
        """The rows as a ``pandas.DataFrame``. Raises ValueError where pandas is not installed."""
        if importlib.util.find_spec("pandas") is None:
            raise ValueError(
                "pandas is not installed; .table() gives a pyarrow.Table without it"
            )
        return self.table().to_pandas()

    def _heads(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def alt(self) -> str:
        """The view for those who cannot see it: its title, its rows, and its notes.

        Where there are several columns of numbers each number has its column's name.
        """
        rows = [row for row in self._spoken_rows(MOST_SPOKEN) if row]
        if len(self.cells) > MOST_SPOKEN:
            rows.append(f"and {len(self.cells) - MOST_SPOKEN} more")
        first = self.nothing
        if rows:
            first = f"{self.title.rstrip('.')}: {'; '.join(rows)}"
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
        if self.result:
            says = self.result
        elif not self.cells:
            says = self.nothing
        elif self.draw and self.title:
            says = self.title
        else:
            says = next(iter([*self.before, *self._spoken_rows(1)]))
        return plain(one_line(says))

    def _spoken_rows(self, most: int) -> list[str]:
        body, _ = self._written(cut_cells=False)
        columns_of_numbers = 0
        for column in zip(*body):
            if any(cell.number or cell.why for cell in column):
                columns_of_numbers += 1
        return [self._spoken(row, columns_of_numbers > 1) for row in body[:most]]

    def _spoken(self, row: list[WrittenValue], name_numbers: bool) -> str:
        """A row in words, without where it is from."""
        words = ""
        separator = ""
        for written, column in zip(row, self.columns):
            if written.words == "-" or column.name == "source":
                continue
            value = written.words.split(" (")[0] if written.why else written.words
            is_named = name_numbers and written.number is not False
            words += separator
            words += f"{column.name} {value}" if is_named else value
            # A comma between numbers, none between the words that say whose they are.
            if is_named:
                separator = ", "
            elif not separator:
                separator = " "
        return words


def _as_json(value: object) -> object:
    if isinstance(value, Reading):
        return as_dict(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def _of_json(value: object) -> object:
    if isinstance(value, dict):
        return from_json(Reading, value, "not a reading")
    return value


def _letters(number: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    last = chr(ord("a") + number % 26)
    return last if number < 26 else _letters(number // 26 - 1) + last
