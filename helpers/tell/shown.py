"""A view as data: rows whose values stay numbers, and each way to show them: aligned text,
HTML, a figure, alt text, a frame.

Functions that show something return a ``Shown``. As the last line of a notebook's cell it is a
table that sorts and searches (templates/table.js) or its figure. Printed by a command it is wrapped
to the terminal, printed elsewhere it is aligned text. A reading without a value has a letter, whose
reason is below the table. Text from the box (process names, log lines) is made plain. The standard
library is enough for all but the frame and the figures.
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
"""Under this key an output's metadata has what a page needs: ``says``, its main result in a line;
``again``: the page of a batch shows the same elsewhere, and leaves this output out; ``label``: the
title of its fold; ``applies``: whether it says anything about this box; ``view``: the view as
``Shown.data`` gives it.
"""
MOST_SPOKEN = 24
"""Rows that an alt text names, some minutes of listening; it counts the others."""


@dataclass(frozen=True, repr=False)
class Shown:
    """One view.

    ``cells`` are rows with a value for each column: sizes are numbers of bytes, a reading stays a
    reading. ``columns`` are headings or ``Column``s; words below a heading may take ``widest``
    columns of a terminal. ``before`` and ``notes`` are lines above and below the table. ``none`` is
    the sentence in place of an empty table. ``draw`` makes its figure, where it has one, ``chart``
    the data of the figure's blocks for a reader who points at them. ``result`` is the main result
    in a line; ABOUT explains ``again``, ``label`` and ``applies``. Of more than ``most`` rows so
    many are shown and the rest counted; ``rows`` and ``table()`` have all.
    Raises ValueError for a row of another length than ``columns``.
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
        columns = []
        for column in self.columns:
            if not isinstance(column, Column):
                column = Column(column, "", self.widest)
            columns.append(column)
        object.__setattr__(self, "columns", tuple(columns))
        if not self.cells:  # nothing can be drawn
            object.__setattr__(self, "draw", None)
            object.__setattr__(self, "chart", None)
        for row in self.cells:
            if len(row) != len(columns):
                expected = f"{len(columns)}, one for each of {', '.join(self._heads())}"
                raise ValueError(f"a row of {len(row)} cells: expected {expected}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Each row as its values by their headings."""
        return [dict(zip(self._heads(), row)) for row in self.cells]

    def without(self, name: str) -> Shown:
        """The view without one of its columns."""
        place = self._heads().index(name)

        def without_place(row: Sequence[object]) -> list[object]:
            return [*row[:place], *row[place + 1 :]]

        cells = list(map(without_place, self.cells))
        return replace(self, columns=without_place(self.columns), cells=cells)

    def only(self, column: str, none: str = "") -> Shown:
        """The rows with a value other than 0 in a column, without figure and notes.

        ``none`` is the sentence where no row is left. Raises ValueError for a column that is not
        there.
        """
        place = self._heads().index(column)
        cells = [row for row in self.cells if row[place]]
        return replace(
            self, cells=cells, draw=None, chart=None, before=(), notes=(), none=none
        )

    def data(self) -> dict[str, list[object]]:
        """The columns with a rule for leaving this machine (``Column.passes``), as JSON:
        ``columns`` with the fields of each, and ``cells``, in which a reading is an object.
        """
        places = [place for place, column in enumerate(self.columns) if column.passes]
        cells: list[object] = []
        for row in self.cells:
            cells.append([_as_json(row[place]) for place in places])
        columns: list[object] = [list(self.columns[place]) for place in places]
        return {"columns": columns, "cells": cells}

    @staticmethod
    def of_data(data: Mapping[str, Any], title: str) -> Shown:
        """The view that ``data`` has as JSON. Raises ValueError where it is no view's."""
        try:
            columns = []
            for name, unit, _, passes in data["columns"]:
                if unit and unit not in UNITS:
                    raise KeyError(unit)
                columns.append(Column(str(name), unit, None, str(passes)))
            cells = [list(map(_of_json, row)) for row in data["cells"]]
            return Shown(title, columns, cells)
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"no view as JSON: {type(error).__name__}") from error

    def passing(self, rules: Mapping[str, Rule]) -> Shown:
        """The view for others: the columns whose rule is among ``rules``, each cell as that rule
        returns it.

        Left out are all other columns, those whose heading the rule ``heading`` refuses, the
        lines above and below the table, the result and the chart.
        """
        columns = []
        passed = []
        for place, column in enumerate(self.columns):
            may_pass = column.passes in rules
            if may_pass and column.name:
                may_pass = bool(rules["heading"](column.name))
            if may_pass:
                columns.append(column)
                rule = rules[column.passes]
                passed.append([rule(row[place]) for row in self.cells])
        # By rows again; without a column each row is empty.
        cells = [
            [column[number] for column in passed] for number in range(len(self.cells))
        ]
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
        if sys.stdout.isatty():
            return self.text(0)
        return self.text()

    def text(self, columns: int | None = None) -> str:
        """The table as text with the lines above and below it.

        ``columns`` is the width of a terminal (0: this one's): a wider table is wrapped to it.
        None: nothing is wrapped.
        """
        if columns == 0:
            columns = shutil.get_terminal_size().columns
        body, reasons = self._written()
        lines = [self.nothing]
        if body:
            lines = aligned(self._heads(), body, None)
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
        """The cells in words, and the lines to stand below them: how many rows are not shown, and
        each reason why a cell has no value, with its letter. ``cut_cells``: to their ``widest``.
        """
        marks: dict[str, str] = {}
        body = []
        for row in self.cells[: self.most]:
            cells = []
            for value, column in zip(row, self.columns):
                written = cell(value, column.unit)
                is_cut = cut_cells and column.name != "source"
                if written.why:
                    mark = marks.setdefault(written.why, f"({_letters(len(marks))})")
                    written = written._replace(words=f"{written.words} {mark}")
                elif is_cut and column.widest is not None:
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
        below = [*reasons, *self.notes]
        if not body:
            return within_sheet(lines_html([self.nothing]), lines_html(below))
        above = [line for line in self.before if line != self.title]
        return table_html(self.title, self._heads(), body, above, below)

    def _repr_html_(self) -> str | None:
        """The table as a notebook shows it. None where the view has a figure: a front end prefers
        HTML, and would leave the figure out.
        """
        if self.draw is not None:
            return None
        return f"{self.html()}<script>{template('table.js')}</script>"

    def _repr_mimebundle_(
        self, **_options: object
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a notebook shows of the view by MIME type, and its metadata by MIME type, where
        ABOUT is a key, too.

        A view without a figure is a table. A figure is an SVG, and a PNG for front ends that may
        not show an SVG, such as JupyterLab with a notebook that nobody has trusted yet. Where a
        person sits at the notebook, it is also HTML that fits a narrow screen and has its chart.
        """
        about: dict[str, object] = {"says": self.says, "again": self.again}
        if self.label:
            about.update(label=self.label, applies=self.applies)
        if any(column.passes for column in self.columns):
            about["view"] = self.data()
        metadata: dict[str, Any] = {ABOUT: about}
        html = self._repr_html_()
        if html is not None:
            return {"text/html": html, "text/plain": str(self)}, metadata
        figure = self.figure_data()
        picture, width, height = self._drawn(wide=True).picture()
        metadata["image/png"] = {"alt": self.alt, "width": width, "height": height}
        shown: dict[str, Any] = {
            "image/svg+xml": figure.pop("wide"),
            "image/png": base64.b64encode(picture).decode("ascii"),
            "text/plain": self.alt,
            FIGURE_MIME: figure,
        }
        if is_interactive():
            html = self.figure_html()
            if self.chart:
                html += f"<script>{template('table.js', 'figure.js')}</script>"
            shown["text/html"] = html
        return shown, metadata

    def figure_html(self) -> str:
        """Its figure as HTML for JupyterLab, without the script."""
        chart = ""
        if self.chart:
            chart = self.chart().for_script()
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
        """The figure, drawn for a desk or for a phone."""
        # here: matplotlib loads slowly
        from helpers.tell.sheet import WIDE, WIDTH, page_width

        assert self.draw is not None
        width = WIDTH
        if wide:
            width = WIDE
        with page_width(width):
            return self.draw()

    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``; a cell without a value is null.

        Where some values of a column are words, all of it is words.
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
        """The view in words for a reader who cannot see it: its title, its rows and its notes."""
        rows = [row for row in self._spoken_rows(MOST_SPOKEN) if row]
        if len(self.cells) > MOST_SPOKEN:
            rows.append(f"and {len(self.cells) - MOST_SPOKEN} more")
        first = self.nothing
        if rows:
            first = f"{self.title.rstrip('.')}: {'; '.join(rows)}"
        sentences = [sentence.rstrip(".") for sentence in (first, *self.notes)]
        return plain(". ".join(sentences) + ".")

    @property
    def nothing(self) -> str:
        """The sentence in place of a table without rows."""
        if self.none:
            return self.none
        subject = self.title
        if not subject:
            subject = ", ".join(self._heads())
        return f"{subject}: none."

    @property
    def says(self) -> str:
        """The main result in a line: the one that was given, the title of a figure, else the first
        line above the table or its first row.
        """
        if self.result:
            says = self.result
        elif not self.cells:
            says = self.nothing
        elif self.draw and self.title:
            says = self.title
        elif self.before:
            says = self.before[0]
        else:
            says = self._spoken_rows(1)[0]
        return plain(one_line(says))

    def _spoken_rows(self, most: int) -> list[str]:
        """The first rows in words. Where several columns have numbers, each has its heading."""
        body, _ = self._written(cut_cells=False)
        columns_of_numbers = 0
        for column in zip(*body):
            if any(cell.number or cell.why for cell in column):
                columns_of_numbers += 1
        return [self._spoken(row, columns_of_numbers > 1) for row in body[:most]]

    def _spoken(self, row: list[WrittenValue], name_numbers: bool) -> str:
        """A row in words, without empty cells, its source and the letters of its reasons."""
        words = ""
        separator = ""
        for written, column in zip(row, self.columns):
            if written.words == "-" or column.name == "source":
                continue
            value = written.words
            if written.why:
                value = value.partition(" (")[0]
            is_named = name_numbers and written.number is not False
            if is_named:
                value = f"{column.name} {value}"
            words += separator + value
            # A blank between words; a comma behind a number, and between all that follows it.
            if is_named:
                separator = ", "
            elif not separator:
                separator = " "
        return words


def _as_json(value: object) -> object:
    """A value of a cell as JSON: a reading as an object, what JSON has no form for as text."""
    if isinstance(value, Reading):
        return as_dict(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def _of_json(value: object) -> object:
    """The value that ``_as_json`` wrote so. Raises ValueError for another object."""
    if isinstance(value, dict):
        return from_json(Reading, value, "not a reading")
    return value


def _letters(number: int) -> str:
    """The letters of a number from 0: a, b, ... z, aa, ab, ..."""
    last = chr(ord("a") + number % 26)
    if number < 26:
        return last
    return _letters(number // 26 - 1) + last
