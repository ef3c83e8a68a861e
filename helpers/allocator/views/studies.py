"""One study of the allocator as people look at it: memory over the run, the map at the failure,
the figures, the league.

States are told apart by hatch as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from helpers.allocator import metrics
from helpers.allocator.engine import replay
from helpers.allocator.outcome import BLOCK_COLUMNS, STATES, Outcome
from helpers.allocator.study import Study
from helpers.allocator.trace import Op, Trace
from helpers.ground.replays import Replay, WhatIf
from helpers.ground.units import GIB, MIB, show_bytes
from helpers.settings.releases import behaviour
from helpers.settings.text import parse
from helpers.tell import sheet
from helpers.tell.shown import Column, Shown, wrapped
from helpers.tell.shown import words as wording

from .replays import league as league_rows
from .replays import ranked

ROWS = 26
"""Rows that the segment map is folded into."""
POINTS = 1200
"""Points of a curve that are drawn."""
LEAGUE_ROWS = 14
"""Settings that are drawn."""
LINES = (
    (sheet.ACCENT, "-", 1.6),
    ("#009e73", "-", 0.8),
    ("#e69f00", "-.", 1.6),
    (sheet.MUTED, ":", 1.0),
)
FAILS = sheet.Look("#f3c9ad", sheet.ALARM, "////")


class Kind(NamedTuple):
    """A class of bytes on the segment map: its words and its look."""

    words: str
    face: str
    hatch: str


KINDS = (
    Kind("in use, blocks over 1 MiB", "#0072b2", ""),
    Kind("in use, small blocks", "#56b4e9", ""),
    Kind("freed, awaiting another stream", "#cc79a7", "||||"),
    Kind("free but stranded in a segment in use", "#e69f00", "////"),
    Kind("free, a whole segment: releasable", sheet.PALE, ""),
)
IN_USE, SMALL_USE, AWAITING, STRANDED, RELEASABLE = range(5)


def kinds_of(blocks: np.ndarray) -> np.ndarray:
    """Which of KINDS each mapped block of a block table is; a page counts as stranded with the
    range that holds it.
    """
    column = {name: blocks[:, i] for i, name in enumerate(BLOCK_COLUMNS)}
    key = column["kind"] * (1 << 40) + column["ordinal"]
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    alone = counts[inverse] == 1
    state = column["state"]
    small = column["small"] == 1
    kinds = np.where(state == STATES.index("A"), np.where(small, SMALL_USE, IN_USE), AWAITING)
    return np.where(
        state == STATES.index("I"),
        np.where(alone & (column["kind"] == 0), RELEASABLE, STRANDED),
        kinds,
    )


class Line(NamedTuple):
    """A curve of bytes over operations: its words, its values at each operation, or (at,
    values) where sampled.
    """

    words: str
    values: np.ndarray
    at: np.ndarray | None = None

    @property
    def peak_bytes(self) -> int:
        return int(self.values.max(initial=0))


@dataclass(frozen=True)
class View:
    """A replay of a study under one setting, and the state at its first out-of-memory, or where
    most was reserved.
    """

    study: Study
    conf: str
    outcome: Outcome
    moment: int
    at: Outcome
    metrics: metrics.Metrics
    largest_request_bytes: int
    stranded: Line

    @property
    def lines(self) -> list[Line]:
        return [
            Line("reserved", self.outcome.column("reserved")),
            Line("allocated", self.outcome.column("allocated")),
            self.stranded,
        ]

    @property
    def name(self) -> str:
        """The setting, in words."""
        return self.conf.replace(",", ", ") or "Default settings"

    @property
    def moment_words(self) -> str:
        """What the moment is, in words."""
        if self.outcome.first_oom is not None:
            return "at the first out-of-memory"
        return "when most was reserved"


def moment_of(outcome: Outcome) -> int:
    """Where a look begins: at the first out-of-memory, else where most was reserved."""
    first = outcome.first_oom
    return int(np.argmax(outcome.column("reserved"))) if first is None else first


def view(study: Study, conf: str | None = None, samples: int = 30) -> View:
    """Replays a study under its own settings or others; samples is how often stranded bytes are
    measured on the way.
    """
    conf = study.conf if conf is None else conf
    how: Any = {"torch": study.torch, "build": study.build, "fraction": study.fraction}
    outcome = replay(study.trace, conf, study.card, timeline=True, **how)
    moment = moment_of(outcome)
    at = replay(study.trace, conf, study.card, stop=moment + 1, **how)
    rules = behaviour(study.torch, study.build)
    settings = parse(conf, rules)
    held = metrics.metrics(at.blocks, settings)
    state = metrics.State(metrics.state_of(at.blocks), settings, study.card, rules, study.fraction)
    sampled = metrics.stranded_over_time(study.trace, conf, study.card, samples=samples, **how)
    points = np.array([point for point, _ in sampled], np.int64)
    stranded = Line("stranded", np.array([one.stranded_bytes for _, one in sampled]), points)
    largest = state.largest_request_of_any()
    return View(study, conf, outcome, moment, at, held, largest, stranded)


def words(study: Study) -> str:
    """The study in words, with what is to be said of its trace."""
    return "\n".join(line for one in (study.words, *study.notes) for line in wrapped(one))


def memory(*views: View) -> Shown:
    """Reserved, allocated and stranded over the run, of one setting or of several under each
    other on one scale.
    """
    size = show_bytes(views[0].study.card.capacity_bytes)
    rows = []
    for one in views:
        first = one.outcome.first_oom
        end = "no request fails" if first is None else f"out of memory at operation {first}"
        rows.append([one.name, *(line.peak_bytes for line in one.lines), end])
    peaks = [Column(f"{line.words} at most", "bytes") for line in views[0].lines]
    title = f"On a card of {size}: " + "; ".join(f"{row[0]}, {row[-1]}" for row in rows)
    height = 2.2 * len(views) + 0.9
    draw = partial(sheet.drawn, partial(_draw_runs, views, title), height)
    return Shown(title, ["settings", *peaks, ""], rows, draw=draw, widest=None)


def pair(seen: View, answer: WhatIf) -> Sequence[View]:
    """The run as it is and under the setting to use (or the best of the league), for before and
    after.
    """
    other = answer.use
    if other == seen.conf:
        others = (row for row in answer.rows if row.settings != seen.conf and not row.flags)
        other = next((row.settings for row in others), seen.conf)
    return seen, view(seen.study, other)


def _draw_runs(views: Sequence[View], title: str, figure: Figure) -> None:
    panels: Any = figure.subplots(len(views), 1, sharex=True, sharey=True, squeeze=False)
    for one, axes in zip(views, panels[:, 0], strict=True):
        own = f"{one.name}: at most {show_bytes(one.lines[0].peak_bytes)} reserved"
        sheet.titled(axes, own if len(views) > 1 else title)
        _draw_run(axes, one)
        axes.label_outer()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    sheet.legend(figure, handles, labels, columns=3)


def _draw_run(axes: Axes, seen: View) -> None:
    """Curves, the card's size, and the first out-of-memory, on one axis."""
    capacity = seen.study.card.capacity_bytes
    first = seen.outcome.first_oom
    for line, (color, style, width) in zip(seen.lines, LINES, strict=False):
        at = np.arange(len(line.values)) if line.at is None else line.at
        # Peaks matter more than shape: each drawn point is the highest of those it stands for.
        step = max(1, len(at) // POINTS)
        whole = len(at) // step * step
        tops = line.values[:whole].reshape(-1, step).max(axis=1) / GIB
        look: Any = {"color": color, "linestyle": style, "linewidth": width}
        axes.plot(at[:whole:step], tops, label=line.words, **look)
    axes.axhline(capacity / GIB, color=sheet.ALARM, linewidth=1)
    sheet.annotated(
        axes, f"the card, {show_bytes(capacity)}", (0, capacity / GIB), (2, 3), sheet.ALARM
    )
    if first is not None:
        axes.axvline(first, color=sheet.ALARM, linewidth=1, linestyle="--")
        place: Any = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top"}
        sheet.annotated(axes, "first out-of-memory", (first, 1), (-3, -3), sheet.ALARM, **place)
    tallest = max([capacity, *(line.peak_bytes for line in seen.lines)])
    axes.yaxis.set_major_formatter("{x:g} GiB")
    axes.set(xlabel="operation", ylim=(0, 1.12 * tallest / GIB))


def segments(seen: View) -> Shown:
    """The map of every reserved byte at the moment."""
    return segment_map(seen.study.trace, seen.outcome, seen.at, seen.moment_words.capitalize())


class Segment(NamedTuple):
    """A segment of the map: its bytes, those in use and stranded in it, and what was allocated
    there and strands them.
    """

    size_bytes: int
    used_bytes: int
    stranded_bytes: int
    held_by: str

    @property
    def words(self) -> str:
        held = f", kept from the card by {self.held_by}" if self.stranded_bytes else ""
        of = f"{show_bytes(self.used_bytes)} in use, {show_bytes(self.stranded_bytes)} stranded"
        return f"segment of {show_bytes(self.size_bytes)}: {of}{held}"


def segment_map(trace: Trace, whole: Outcome, at: Outcome, title: str) -> Shown:
    """Every reserved byte ``at`` a moment as one strip in address order, folded into rows: what
    is in use, and what lies between.

    A row a segment, the one that strands most first; where the trace has stacks, with the line
    that allocated what keeps it.
    """
    blocks = at.blocks[at.blocks[:, BLOCK_COLUMNS.index("mapped")] == 1]
    kinds = kinds_of(blocks)
    sizes = blocks[:, BLOCK_COLUMNS.index("size")]
    of = dict(zip(*_segments(blocks, kinds, _owners(trace, whole, at.events)), strict=True))
    ranked = sorted(of.values(), key=lambda one: (-one.stranded_bytes, -one.size_bytes))
    stranded = int(sizes[kinds == STRANDED].sum())
    total = show_bytes(int(sizes.sum()))
    head = f"{title}: {show_bytes(stranded)} of {total} reserved are stranded"
    sums = {kind.words: int(sizes[kinds == i].sum()) for i, kind in enumerate(KINDS)}
    notes = [f"{words}: {show_bytes(size)}" for words, size in sums.items() if size]
    columns = [Column(name, "bytes") for name in ("segment", "in use", "stranded")]
    draw = partial(sheet.drawn, partial(_draw_map, blocks, kinds, of, head), 5.0)
    return Shown(head, [*columns, "kept by"], ranked, notes, draw=draw, widest=90)


def _owners(trace: Trace, whole: Outcome, moment: int) -> dict[tuple[int, ...], str]:
    """Who allocated what lies at a place (kind, ordinal, offset) after so many operations: the
    line, else the operation.
    """
    made = np.flatnonzero((trace.op[:moment] == Op.ALLOC) & (whole.column("kind")[:moment] >= 0))
    places = np.stack([whole.column(name)[made] for name in ("kind", "ordinal", "offset")], axis=1)
    last = dict(zip(map(tuple, places.tolist()), made.tolist(), strict=True))
    return {place: _where(trace, event) for place, event in last.items()}


def _where(trace: Trace, event: int) -> str:
    stack = -1 if trace.frame is None else int(trace.frame[event])
    return trace.frames[stack][0] if stack >= 0 and trace.frames[stack] else f"operation {event}"


def _segments(
    blocks: np.ndarray, kinds: np.ndarray, owners: dict[tuple[int, ...], str]
) -> tuple[list[tuple[int, int]], list[Segment]]:
    """The segments by kind and ordinal, each with the largest of what is in use in it."""
    places, at = np.unique(blocks[:, :2], axis=0, return_inverse=True)
    at = at.ravel()
    sizes = blocks[:, BLOCK_COLUMNS.index("size")]
    made = []
    for number in range(len(places)):
        here = at == number
        used = np.flatnonzero(here & (kinds < STRANDED))
        used = used[np.argsort(-sizes[used], kind="stable")]
        named = [owners.get(tuple(blocks[n, [0, 1, 3]].tolist()), "") for n in used.tolist()]
        names = list(dict.fromkeys(filter(None, named)))
        more = f" and {len(names) - 2} more" * (len(names) > 2)
        stranded = int(sizes[here & (kinds == STRANDED)].sum())
        held = ", ".join(names[:2]) + more if stranded else ""
        made.append(Segment(int(sizes[here].sum()), int(sizes[used].sum()), stranded, held))
    return list(map(tuple, places.tolist())), made


def _draw_map(
    blocks: np.ndarray,
    kinds: np.ndarray,
    of: dict[tuple[int, int], Segment],
    head: str,
    figure: sheet.Drawing,
) -> None:
    order = np.lexsort((blocks[:, 3], blocks[:, 2]))
    blocks = blocks[order]
    kinds = kinds[order]
    sizes = blocks[:, BLOCK_COLUMNS.index("size")]
    starts = np.cumsum(sizes) - sizes
    total = max(int(sizes.sum()), 1)
    row_bytes = max(-(-total // ROWS), MIB)
    axes = figure.subplots()
    there = []

    def spans(turns: np.ndarray) -> list[tuple[int, int]]:
        return list(pairwise([*starts[turns].tolist(), total]))

    turns = np.flatnonzero(np.diff(kinds, prepend=-1))
    for number, kind in enumerate(KINDS):
        mine = [at for at, this in zip(spans(turns), kinds[turns], strict=True) if this == number]
        look: Any = {"facecolor": kind.face, "hatch": kind.hatch or None}
        look["edgecolor"] = sheet.INK if kind.hatch else "none"
        if mine:
            axes.add_patch(PathPatch(_strips(mine, row_bytes), linewidth=0, **look))
            held = show_bytes(int(sizes[kinds == number].sum()))
            look["edgecolor"] = sheet.MUTED
            there.append((Patch(**look), f"{kind.words}: {held}"))
    turns = np.flatnonzero(np.diff(blocks[:, :2], axis=0, prepend=-1).any(axis=1))
    row, column = np.divmod(starts[turns], row_bytes)
    thin = -row[:, None] - np.array([0.02, 0.98, np.nan])
    axes.plot(np.repeat(column / row_bytes, 3), thin.ravel(), color=sheet.INK, linewidth=0.5)
    for number, (at, place) in enumerate(zip(spans(turns), blocks[turns][:, :2], strict=True)):
        name = f"segment-{number}"
        look = {"facecolor": "#00000001", "linewidth": 0}
        axes.add_patch(PathPatch(_strips([at], row_bytes), gid=name, **look))
        figure.hovers[name] = of[tuple(place.tolist())].words
    rows = -(-total // row_bytes)
    axes.set(xlim=(0, 1), ylim=(-rows - 0.1, 0.1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    sheet.titled(axes, f"{head}\n{show_bytes(row_bytes)} a row; a thin line begins a segment")
    sheet.legend(figure, [patch for patch, _ in there], [words for _, words in there])


def _strips(spans: Sequence[tuple[int, int]], row_bytes: int) -> Path:
    """Where bytes lie on the map, from and to, as one shape."""
    boxes = []
    for at, end in spans:
        while at < end:
            row, column = divmod(at, row_bytes)
            wide = min(end - at, row_bytes - column)
            y = -row - 0.9
            left = column / row_bytes
            right = (column + wide) / row_bytes
            boxes.append([(left, y), (right, y), (right, y + 0.8), (left, y + 0.8)])
            at += wide
    return Path.make_compound_path_from_polys(np.array(boxes).reshape(-1, 4, 2))


def metrics_table(seen: View) -> Shown:
    """The figures at the moment, with what the usual ratio would have said."""
    whole = seen.metrics
    ratio = seen.metrics.misleading_ratio
    rows = [[name, getattr(whole, key), says] for name, key, says in wording("metrics")]
    rows.append(["largest request", seen.largest_request_bytes, "that would still succeed now"])
    misleads = wrapped(f"1 - allocated/reserved would say {ratio:.2f}. {metrics.MISLEADS}")
    title = f"{seen.moment_words.capitalize()}, operation {seen.moment}"
    columns = ["figure", Column("bytes", "bytes"), "is"]
    return Shown(title, columns, rows, misleads, widest=None)


def row_of(answer: WhatIf, conf: str) -> Replay:
    """The row of a setting in the league."""
    return next(row for row in answer.rows if row.settings == conf)


def league(answer: WhatIf) -> Shown:
    """Settings, the one to use first, then the best: a bar is the peak reserved, hatched where
    a request fails.
    """
    view = league_rows(answer, len(answer.rows))
    return replace(view, draw=partial(_draw_league, answer, view.title))


def _draw_league(answer: WhatIf, title: str) -> Figure:
    rows = ranked(answer)
    capacity = answer.capacity_bytes
    page = sheet.Sheet(title)
    default = [row for row in rows[LEAGUE_ROWS - 1 :] if not row.settings]
    chosen = [*rows[: LEAGUE_ROWS - len(default)], *default]
    top = max([capacity, *(row.peak_reserved_bytes for row in chosen)])
    page.bars([_league_bar(row, answer) for row in chosen], top)
    more = f" {len(rows) - len(chosen)} more settings were tried." * (len(rows) > len(chosen))
    words = (
        "Bar: most bytes reserved. Pale: the card. Hatched: a request fails. Slow calls: those to"
    )
    page.footnote(f"{words} the card, which wait for it.{more}")
    return page.done()


def _league_bar(row: Replay, answer: WhatIf) -> sheet.Bar:
    look = sheet.Look(sheet.ACCENT) if row.passes else FAILS
    fills = [(answer.capacity_bytes, sheet.Look(sheet.PALE)), (row.peak_reserved_bytes, look)]
    use = row.settings == answer.use and not answer.needs_bytes
    name = row.settings.replace(",", ", ") or "default settings"
    value = f"fails {max(row.ooms, 1)}x, " * (not row.passes) + f"{row.slow_calls} slow calls"
    return sheet.Bar(f"use {name}" if use else name, value, fills, (), "bold" if use else "normal")
