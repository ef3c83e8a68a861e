"""One study of the allocator as people look at it: memory over the run, the map at the failure, the figures, the league.

States are told apart by hatch as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from helpers.allocator import metrics, whatif
from helpers.allocator.outcome import BLOCK_COLUMNS, STATES, Outcome
from helpers.allocator.replay import replay
from helpers.load.study import Study
from helpers.look.reading import GIB, MIB, show_bytes
from helpers.settings.releases import behaviour
from helpers.settings.text import parse

from .replays import league as league_rows
from .sheet import (
    ACCENT,
    ALARM,
    INK,
    MUTED,
    PALE,
    Bar,
    Look,
    Sheet,
    annotated,
    drawn,
    legend,
    titled,
)
from .shown import Column, Shown, wrapped

ROWS = 26
"""Rows that the segment map is folded into."""
POINTS = 1200
"""Points of a curve that are drawn."""
LEAGUE_ROWS = 14
LINES = ((ACCENT, "-", 1.6), ("#009e73", "-", 0.8), ("#e69f00", "-.", 1.6), (MUTED, ":", 1.0))
FAILS = Look("#f3c9ad", ALARM, "////")


class Kind(NamedTuple):
    """A class of bytes on the segment map: its words and its look."""

    words: str
    face: str
    hatch: str


KINDS = (
    Kind("in use, blocks over 1 MiB", "#0072b2", ""),
    Kind("in use, small blocks", "#56b4e9", ""),
    Kind("freed, awaiting another stream", "#cc79a7", "...."),
    Kind("free but stranded in a segment in use", "#e69f00", "////"),
    Kind("free, a whole segment: releasable", PALE, ""),
)
IN_USE, SMALL_USE, AWAITING, STRANDED, RELEASABLE = range(5)


def kinds_of(blocks: np.ndarray) -> np.ndarray:
    """Which of KINDS each mapped block of a block table is; a page counts as stranded with the range that holds it."""
    column = {name: blocks[:, i] for i, name in enumerate(BLOCK_COLUMNS)}
    key = column["kind"] * (1 << 40) + column["ordinal"]
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    alone = counts[inverse] == 1
    state, small = column["state"], column["small"] == 1
    kinds = np.where(state == STATES.index("A"), np.where(small, SMALL_USE, IN_USE), AWAITING)
    return np.where(
        state == STATES.index("I"),
        np.where(alone & (column["kind"] == 0), RELEASABLE, STRANDED),
        kinds,
    )


class Line(NamedTuple):
    """A curve of bytes over operations: its words, its values at each operation, or (at, values) where sampled."""

    words: str
    values: np.ndarray
    at: np.ndarray | None = None

    @property
    def peak_bytes(self) -> int:
        return int(self.values.max(initial=0))


@dataclass(frozen=True)
class View:
    """A replay of a study under one setting, and the state at its first out-of-memory, or where most was reserved."""

    study: Study
    conf: str
    outcome: Outcome
    moment: int
    at: Outcome
    metrics: metrics.Metrics
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
        return self.conf or "Default settings"

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
    """Replays a study under its own settings or others; samples is how often stranded bytes are measured on the way."""
    conf = study.conf if conf is None else conf
    how: Any = {"torch": study.torch, "build": study.build, "fraction": study.fraction}
    outcome = replay(study.trace, conf, study.card, timeline=True, **how)
    moment = moment_of(outcome)
    at = replay(study.trace, conf, study.card, stop=moment + 1, **how)
    rules = behaviour(study.torch, study.build)
    settings = parse(conf, rules)
    held = metrics.metrics(at.blocks, settings, study.card, rules, fraction=study.fraction)
    sampled = metrics.stranded_over_time(study.trace, conf, study.card, samples=samples, **how)
    points = np.array([point for point, _ in sampled], np.int64)
    stranded = np.array([share.stranded_bytes for _, share in sampled], np.int64)
    return View(study, conf, outcome, moment, at, held, Line("stranded", stranded, points))


def words(study: Study) -> str:
    """The study in words, with what is to be said of its trace."""
    return "\n".join(line for one in (study.words, *study.notes) for line in wrapped(one))


def memory(seen: View) -> Shown:
    """Reserved, allocated and stranded over the run."""
    return _over_time("Memory over the run", [seen], 3.1)


def pair(seen: View, answer: whatif.Answer) -> Sequence[View]:
    """The run as it is and under the setting to use (or the best of the league), for before and after."""
    other = answer.use
    if other == seen.conf:
        others = (row for row in answer.rows if row.settings != seen.conf and not row.flags)
        other = next((row.settings for row in others), seen.conf)
    return seen, view(seen.study, other)


def before_after(views: Sequence[View]) -> Shown:
    """The same requests under two settings, one above the other on one scale."""
    title = "Memory over the run before and after"
    return _over_time(title, views, 2.3 * len(views) + 0.3)


def _over_time(title: str, views: Sequence[View], height: float) -> Shown:
    """Runs of one trace under each other: the highest of each curve, and where the first request fails."""
    size = show_bytes(views[0].study.card.capacity_bytes)
    rows = []
    for one in views:
        first = one.outcome.first_oom
        end = (
            f"first out-of-memory at operation {first}" if first is not None else "no request fails"
        )
        rows.append([one.name, *(line.peak_bytes for line in one.lines), end])
    peaks = [Column(f"{line.words} at most", "bytes") for line in views[0].lines]
    head = ["settings", *peaks, ""]
    draw = partial(drawn, partial(_draw_runs, views), height)
    return Shown(f"{title} on a card of {size}", head, rows, draw=draw, widest=None)


def _draw_runs(views: Sequence[View], figure: Figure) -> None:
    panels: Any = figure.subplots(len(views), 1, sharex=True, sharey=True, squeeze=False)
    for one, axes in zip(views, panels[:, 0], strict=True):
        titled(axes, one.name)
        _draw_run(axes, one)
        axes.label_outer()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    legend(figure, handles, labels, columns=3)


def _draw_run(axes: Axes, seen: View) -> None:
    """Curves, the card's size, and the first out-of-memory, on one axis."""
    capacity, first = seen.study.card.capacity_bytes, seen.outcome.first_oom
    for line, (color, style, width) in zip(seen.lines, LINES, strict=False):
        at = np.arange(len(line.values)) if line.at is None else line.at
        # Peaks matter more than shape: each drawn point is the highest of those it stands for.
        step = max(1, len(at) // POINTS)
        whole = len(at) // step * step
        tops = line.values[:whole].reshape(-1, step).max(axis=1) / GIB
        look: Any = {"color": color, "linestyle": style, "linewidth": width}
        axes.plot(at[:whole:step], tops, label=line.words, **look)
    axes.axhline(capacity / GIB, color=ALARM, linewidth=1)
    annotated(axes, f"the card, {show_bytes(capacity)}", (0, capacity / GIB), (2, 3), ALARM)
    if first is not None:
        axes.axvline(first, color=ALARM, linewidth=1, linestyle="--")
        place: Any = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top"}
        annotated(axes, "first out-of-memory", (first, 1), (-3, -3), ALARM, **place)
    tallest = max([capacity, *(line.peak_bytes for line in seen.lines)])
    axes.set(xlabel="operation", ylabel="GiB", ylim=(0, 1.12 * tallest / GIB))


def segments(seen: View) -> Shown:
    """The map of every reserved byte at the moment."""
    return segment_map(seen.at, seen.moment_words.capitalize())


def segment_map(outcome: Outcome, title: str) -> Shown:
    """Every reserved byte as one strip in address order, folded into rows: what is in use, and what lies between."""
    blocks = outcome.blocks[outcome.blocks[:, BLOCK_COLUMNS.index("mapped")] == 1]
    kinds, sizes = kinds_of(blocks), blocks[:, BLOCK_COLUMNS.index("size")]
    rows = [
        [kind.words, int(sizes[kinds == i].sum())]
        for i, kind in enumerate(KINDS)
        if (kinds == i).any()
    ]
    count, total = len(np.unique(blocks[:, :2], axis=0)), show_bytes(int(sizes.sum()))
    head = f"{title}: {total} reserved in {count} segments"
    draw = partial(drawn, partial(_draw_map, blocks, kinds, head), 4.6)
    return Shown(head, ["kind", Column("bytes", "bytes")], rows, draw=draw)


def _draw_map(blocks: np.ndarray, kinds: np.ndarray, head: str, figure: Figure) -> None:
    order = np.lexsort((blocks[:, 3], blocks[:, 2]))
    sizes = blocks[order, BLOCK_COLUMNS.index("size")]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 1
    row_bytes = max(-(-total // ROWS), MIB)
    patches: list[list[Rectangle]] = [[] for _ in KINDS]
    for size, end, kind in zip(sizes.tolist(), ends.tolist(), kinds[order].tolist(), strict=True):
        at = end - size
        while at < end:
            row, column = divmod(at, row_bytes)
            wide = min(end - at, row_bytes - column)
            patches[kind].append(Rectangle((column / row_bytes, -row - 0.9), wide / row_bytes, 0.8))
            at += wide
    axes = figure.subplots()
    for kind, rectangles in zip(KINDS, patches, strict=True):
        edge = INK if kind.hatch else "none"
        look: Any = {"facecolor": kind.face, "hatch": kind.hatch or None, "edgecolor": edge}
        axes.add_collection(PatchCollection(rectangles, linewidth=0, **look))
    begins = np.diff(blocks[order][:, :2], axis=0, prepend=-1).any(axis=1)
    for at in (ends - sizes)[np.flatnonzero(begins)].tolist():
        row, column = divmod(at, row_bytes)
        x = [column / row_bytes] * 2
        axes.plot(x, [-row - 0.98, -row - 0.02], color=INK, linewidth=0.5)
    rows = -(-total // row_bytes)
    axes.set(xlim=(0, 1), ylim=(-rows - 0.1, 0.1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    titled(axes, f"{head}\n{show_bytes(row_bytes)} a row; a thin line begins a segment")
    there = [kind for kind, rectangles in zip(KINDS, patches, strict=True) if rectangles]
    look = {"edgecolor": MUTED}
    handles = [Patch(facecolor=k.face, hatch=k.hatch or None, **look) for k in there]
    legend(figure, handles, [kind.words for kind in there])


def metrics_table(seen: View) -> Shown:
    """The figures at the moment, with what the usual ratio would have said."""
    whole, ratio = seen.metrics.all, seen.metrics.misleading_ratio
    awaiting, releasable = whole.awaiting_free_bytes, whole.releasable_bytes
    rows: list[tuple[str, int, str]] = [
        ("reserved", whole.reserved_bytes, "what the allocator holds of the card"),
        ("allocated", whole.allocated_bytes, "what tensors hold"),
        ("awaiting free", awaiting, "freed, while another stream may still use it"),
        ("internal waste", whole.internal_waste_bytes, "of blocks in use: sizes less requests"),
        ("releasable", releasable, "whole free segments and pages: given back before a failure"),
        (
            "stranded",
            whole.stranded_bytes,
            "free, but beside something in use: the true fragmentation",
        ),
        ("largest request", seen.metrics.largest_request_bytes, "that would still succeed now"),
    ]
    misleads = wrapped(f"1 - allocated/reserved would say {ratio:.2f}. {metrics.MISLEADS}")
    before = [*wrapped(seen.study.words), f"{seen.moment_words}, operation {seen.moment}", ""]
    columns = ["at this moment", Column("bytes", "bytes"), "is"]
    return Shown("The allocator's figures", columns, rows, ["", *misleads], before, widest=None)


def row_of(answer: whatif.Answer, conf: str) -> whatif.Row:
    """The row of a setting in the league."""
    return next(row for row in answer.rows if row.settings == conf)


def league(answer: whatif.Answer) -> Shown:
    """Settings, best first: a bar is the peak reserved, hatched where a request fails; slow calls beside it."""
    return replace(league_rows(answer, len(answer.rows)), draw=partial(_draw_league, answer))


def _draw_league(answer: whatif.Answer) -> Figure:
    rows, capacity, sheet = answer.rows, answer.capacity_bytes, Sheet()
    default = [row for row in rows[LEAGUE_ROWS - 1 :] if not row.settings]
    chosen = [*rows[: LEAGUE_ROWS - len(default)], *default]
    top = max([capacity, *(row.peak_reserved_bytes for row in chosen)])
    sheet.heading("Settings, best first", f"a card of {show_bytes(capacity)}")
    sheet.bars([_league_bar(row, capacity) for row in chosen], top)
    words = "Bar: most bytes reserved. Pale: the card. Hatched: a request fails."
    more = f" {len(rows) - len(chosen)} more settings were tried." * (len(rows) > len(chosen))
    sheet.footnote(words + more)
    return sheet.done()


def _league_bar(row: whatif.Row, capacity: int) -> Bar:
    end = "passes" if row.passes else f"fails {max(row.ooms, 1)}x"
    look = Look(ACCENT) if row.passes else FAILS
    fills = [(capacity, Look(PALE)), (row.peak_reserved_bytes, look)]
    return Bar(row.settings or "default settings", f"{end}, {row.slow_calls} slow calls", fills)
