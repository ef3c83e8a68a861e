"""Shows a study of the allocator: memory over the run, the segment map at the failure, the figures
of that moment, and the league of settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.allocator import metrics
from helpers.allocator.outcome import Outcome
from helpers.allocator.study import Study
from helpers.allocator.views import charts
from helpers.allocator.views.replays import league as league_rows
from helpers.allocator.views.replays import ranked
from helpers.allocator.views.segment_map import segment_map
from helpers.ground.replays import Replay, WhatIf
from helpers.ground.units import GIB, show_bytes
from helpers.settings.in_force import parse
from helpers.settings.releases import behaviour
from helpers.tell import sheet
from helpers.tell.chart import MOST_OPERATIONS, Chart
from helpers.tell.figure_style import ALARM, PALETTE
from helpers.tell.prose import wrapped
from helpers.tell.resources import words as wording
from helpers.tell.shown import Shown
from helpers.tell.values import Column

POINTS = 100
"""Points of a curve drawn on each inch: about one for each pixel."""
SAMPLES = 30
"""How often stranded bytes are measured over the run: each time costs a replay."""
LINE_STYLES = {"reserved": "-", "stranded": "-."}
LEAGUE_ROWS = 14
"""Settings drawn: as many as a screen shows."""
RUN_HEIGHT = 2.2
REST_HEIGHT = 0.9
"""Inches of a figure: the curves of each setting, and title, axis and legend of all together."""
ABOVE_TALLEST = 1.12
"""Height of the axis, as a share of the tallest curve: room for the words at the top."""


class Curve(NamedTuple):
    """Bytes over operations: its name in words, its row of the palette, and the ``values`` at the
    operations ``at``.
    """

    words: str
    look: str
    values: np.ndarray
    at: np.ndarray

    @property
    def peak_bytes(self) -> int:
        return int(self.values.max(initial=0))


@dataclass(frozen=True)
class View:
    """A replay of a study under one setting. ``outcome``: the whole replay. ``moment``: the
    operation of its first out-of-memory, else the one after which most was reserved. ``at``: the
    replay up to and with that operation; ``metrics``: the figures then. ``stranded``: sampled over
    the run.
    """

    study: Study
    conf: str
    outcome: Outcome
    moment: int
    at: Outcome
    metrics: metrics.Metrics
    stranded: Curve

    @property
    def curves(self) -> list[Curve]:
        """What is drawn over the run: bytes reserved, allocated and stranded."""
        reserved = self.outcome.column("reserved")
        allocated = self.outcome.column("allocated")
        operations = np.arange(len(reserved))
        return [
            Curve("reserved", "reserved", reserved, operations),
            Curve("allocated", "in use", allocated, operations),
            self.stranded,
        ]

    @property
    def name(self) -> str:
        """The setting, in words."""
        return self.conf.replace(",", ", ") or "Default settings"

    @property
    def moment_words(self) -> str:
        """Which moment it is, in words."""
        if self.outcome.first_oom is not None:
            return "at the first out-of-memory"
        return "when most was reserved"


def moment_of(outcome: Outcome) -> int:
    """The operation to look at: the first out-of-memory, else where most was reserved."""
    if outcome.first_oom is not None:
        return outcome.first_oom
    return int(np.argmax(outcome.column("reserved")))


def view(study: Study, conf: str | None = None) -> View:
    """Replays a study under its own settings or others."""
    if conf is None:
        conf = study.conf
    outcome = study.replay(conf, timeline=True)
    moment = moment_of(outcome)
    at = study.replay(conf, stop=moment + 1)
    sampled = metrics.stranded_over_time(study, conf, SAMPLES)
    points = np.array([point for point, _ in sampled], np.int64)
    stranded = np.array([figures.stranded_bytes for _, figures in sampled])
    return View(
        study=study,
        conf=conf,
        outcome=outcome,
        moment=moment,
        at=at,
        metrics=metrics.metrics(
            at.blocks, parse(conf, behaviour(study.torch, study.build))
        ),
        stranded=Curve("stranded", "stranded", stranded, points),
    )


def words(study: Study) -> str:
    """The study in words, and the notes on its trace."""
    lines: list[str] = []
    for text in (study.words, *study.notes):
        lines += wrapped(text)
    return "\n".join(lines)


def memory(*views: View) -> Shown:
    """Reserved, allocated and stranded bytes over the run, under one setting, or under several
    below each other on one scale. A single one has a chart to point at, if its trace is not too
    long for that.
    """
    size = show_bytes(views[0].study.card.capacity_bytes)
    rows = []
    for seen in views:
        end = "no request fails"
        if seen.outcome.first_oom is not None:
            end = f"out of memory at operation {seen.outcome.first_oom}"
        rows.append([seen.name, *(curve.peak_bytes for curve in seen.curves), end])
    peaks = [Column(f"{curve.words} at most", "bytes") for curve in views[0].curves]
    ends = "; ".join(f"{row[0]}, {row[-1]}" for row in rows)
    title = f"On a card of {size}: {ends}"
    height = RUN_HEIGHT * len(views) + REST_HEIGHT
    draw = partial(sheet.drawn, partial(_draw_runs, views, title), height)
    chart = None
    if len(views) == 1 and len(views[0].study.trace) <= MOST_OPERATIONS:
        chart = partial(_chart, views[0], title)
    return Shown(
        title, ["settings", *peaks, ""], rows, draw=draw, chart=chart, widest=None
    )


def _chart(seen: View, title: str) -> Chart:
    """The run of one setting as a chart to point at."""
    return charts.timeline(
        trace=seen.study.trace,
        outcome=seen.outcome,
        title=title,
        capacity_bytes=seen.study.card.capacity_bytes,
        stranded=(seen.stranded.at, seen.stranded.values),
    )


def pair(seen: View, answer: WhatIf) -> Sequence[View]:
    """The run as it is, and the run under the setting to use. Where it has that setting already,
    the second is under the best of the other settings that may be recommended; without any it is
    the same again.
    """
    other = answer.use
    if other == seen.conf:
        for row in answer.rows:
            if row.settings != seen.conf and not row.flags:
                other = row.settings
                break
    return seen, view(seen.study, other)


def _draw_runs(views: Sequence[View], title: str, figure: Figure) -> None:
    """Draws the settings under each other; with a single one ``title`` is above it."""
    rows = figure.subplots(len(views), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for seen, axes in zip(views, rows, strict=True):
        head = title
        if len(views) > 1:
            most = show_bytes(seen.outcome.peak_reserved_bytes)
            head = f"{seen.name}: at most {most} reserved"
        sheet.titled(axes, head)
        _draw_run(axes, seen)
        axes.label_outer()
    handles, labels = rows[0].get_legend_handles_labels()
    sheet.legend(figure, handles, labels, columns=3)


def _draw_run(axes: Axes, seen: View) -> None:
    """Draws the curves, the card's size, and the first out-of-memory on one axis, in GiB."""
    capacity = seen.study.card.capacity_bytes
    for curve in seen.curves:
        _draw_curve(axes, curve)
    axes.axhline(capacity / GIB, color=ALARM, linewidth=1)
    sheet.annotated(
        axes, f"the card, {show_bytes(capacity)}", (0, capacity / GIB), (2, 3), ALARM
    )
    first = seen.outcome.first_oom
    if first is not None:
        axes.axvline(first, color=ALARM, linewidth=1, linestyle="--")
        sheet.annotated(
            axes,
            "first out-of-memory",
            (first, 1),
            (-3, -3),
            ALARM,
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
        )
    tallest = max([capacity, *(curve.peak_bytes for curve in seen.curves)])
    axes.yaxis.set_major_formatter("{x:g} GiB")
    axes.set(xlabel="operation", ylim=(0, ABOVE_TALLEST * tallest / GIB))


def _draw_curve(axes: Axes, curve: Curve) -> None:
    """Draws a curve with at most POINTS an inch. Peaks matter more than shape, so each point is the
    highest of those that it stands for.
    """
    points = round(sheet.width_of(axes) * POINTS)
    # Each point stands for ``step`` values; the last ones, too few for a point, are left out.
    step = max(1, len(curve.at) // points)
    end = len(curve.at) // step * step
    at = curve.at[:end:step]
    tops = curve.values[:end].reshape(-1, step).max(axis=1) / GIB
    colour = PALETTE[curve.look].face
    if curve.look == "in use":  # filled down to 0
        outline = [at[0], *at, at[-1]]
        axes.fill(outline, [0, *tops, 0], label=curve.words, color=colour, linewidth=0)
        return
    style = LINE_STYLES[curve.look]
    axes.plot(at, tops, label=curve.words, color=colour, linestyle=style)


def segments(seen: View) -> Shown:
    """The map of every reserved byte at the moment."""
    return segment_map(
        seen.study.trace, seen.outcome, seen.at, seen.moment_words.capitalize()
    )


def metrics_table(seen: View) -> Shown:
    """The figures at the moment, and why the usual ratio, 1 - allocated/reserved, misleads."""
    figures = seen.metrics
    rows = [
        [name, getattr(figures, key), says]
        for name, key, says in wording("rows")["metrics"]
    ]
    ratio = f"1 - allocated/reserved would say {figures.misleading_ratio:.2f}."
    misleads = wrapped(f"{ratio} {metrics.MISLEADS}")
    title = f"{seen.moment_words.capitalize()}, operation {seen.moment}"
    columns = ["figure", Column("bytes", "bytes"), "is"]
    return Shown(title, columns, rows, misleads, widest=None)


def league(answer: WhatIf) -> Shown:
    """The settings, the one to use first, then the best, as a table and as bars: the length of a
    bar is the peak reserved, and it is hatched where a request fails.
    """
    shown = league_rows(answer, len(answer.rows))
    return replace(shown, draw=partial(_draw_league, answer, shown.title))


def _draw_league(answer: WhatIf, title: str) -> sheet.Drawing:
    """Draws the first LEAGUE_ROWS settings, the default settings among them."""
    rows = ranked(answer)
    # The default settings take the last place if they would not be among those drawn.
    default = [row for row in rows[LEAGUE_ROWS - 1 :] if not row.settings]
    drawn = [*rows[: LEAGUE_ROWS - len(default)], *default]
    top = max([answer.capacity_bytes, *(row.peak_reserved_bytes for row in drawn)])
    page = sheet.FigurePage(title)
    page.bars([_league_bar(row, answer) for row in drawn], top)
    words = (
        "Bar: most bytes reserved. Pale: the card. Hatched: a request fails. Slow calls: those to"
        " the card, which wait for it."
    )
    if len(rows) > len(drawn):
        words += f" {len(rows) - len(drawn)} more settings were tried."
    page.footnote(words)
    return page.done()


def _league_bar(row: Replay, answer: WhatIf) -> sheet.Bar:
    """The bar of a setting, over a pale one as long as the card."""
    name = row.settings.replace(",", ", ") or "default settings"
    weight = "normal"
    # Where no setting helps, ``use`` is "", as for the default settings.
    if row.settings == answer.use and not answer.needs_bytes:
        name = f"use {name}"
        weight = "bold"
    value = f"{row.slow_calls} slow calls"
    look = PALETTE["in use"]
    if not row.passes:
        value = f"fails {row.ooms}x, {value}"
        look = PALETTE["fails"]
    # The later fill is drawn over the earlier.
    fills = [(answer.capacity_bytes, PALETTE["free"]), (row.peak_reserved_bytes, look)]
    return sheet.Bar(name, value, fills, (), weight)
