"""Figures of replays: the segment map at a moment, memory over a run, before and after a setting, the league of settings.

Each has a twin in words (``..._alt``). States are told apart by hatch as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from helpers.allocator.outcome import BLOCK_COLUMNS, STATES, Outcome
from helpers.look.reading import show_bytes

from .sheet import (
    ACCENT,
    ALARM,
    BODY,
    INK,
    MARGIN,
    MUTED,
    PALE,
    SMALL,
    WIDTH,
    Look,
    Sheet,
    drawn,
    fit,
    inches,
    wrap,
)

GIB = 1 << 30
ROWS = 26
POINTS = 1200
LEAGUE_ROWS = 14


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


def segment_map(outcome: Outcome, title: str = "") -> Figure:
    """Every reserved byte as one strip in address order, folded into rows: what is in use, and what lies between."""
    blocks = outcome.blocks[outcome.blocks[:, BLOCK_COLUMNS.index("mapped")] == 1]
    kinds = kinds_of(blocks)
    order = np.lexsort((blocks[:, 3], blocks[:, 2]))
    sizes = blocks[order, BLOCK_COLUMNS.index("size")]
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 1
    row_bytes = max(-(-total // ROWS), 1 << 20)
    patches: list[list[Rectangle]] = [[] for _ in KINDS]
    for size, end, kind in zip(sizes.tolist(), ends.tolist(), kinds[order].tolist(), strict=True):
        at = end - size
        while at < end:
            row, column = divmod(at, row_bytes)
            wide = min(end - at, row_bytes - column)
            patches[kind].append(Rectangle((column / row_bytes, -row - 0.9), wide / row_bytes, 0.8))
            at += wide
    starts = np.flatnonzero(np.diff(blocks[order][:, :2], axis=0, prepend=-1).any(axis=1))
    cuts = (ends - sizes)[starts].tolist()

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for kind, rectangles in zip(KINDS, patches, strict=True):
            axes.add_collection(
                PatchCollection(
                    rectangles,
                    facecolor=kind.face,
                    hatch=kind.hatch or None,
                    linewidth=0,
                    edgecolor=INK if kind.hatch else "none",
                )
            )
        for cut in cuts:
            row, column = divmod(cut, row_bytes)
            axes.plot(
                [column / row_bytes] * 2, [-row - 0.98, -row - 0.02], color=INK, linewidth=0.5
            )
        rows = -(-total // row_bytes)
        axes.set(xlim=(0, 1), ylim=(-rows - 0.1, 0.1), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_title(
            f"{title + ': ' if title else ''}{show_bytes(total)} reserved in {len(cuts)} segments\n"
            f"{show_bytes(row_bytes)} a row; a thin line begins a segment",
            fontsize=BODY,
            loc="left",
        )
        shown = [k for k, rectangles in zip(KINDS, patches, strict=True) if rectangles]
        figure.legend(
            handles=[
                Patch(facecolor=k.face, hatch=k.hatch or None, edgecolor=MUTED, label=k.words)
                for k in shown
            ],
            loc="outside lower left",
            fontsize=SMALL,
            frameon=False,
            ncols=1,
        )

    return drawn(draw, 4.6)


def segment_map_alt(outcome: Outcome) -> str:
    """The segment map in words: how many bytes of each kind."""
    blocks = outcome.blocks[outcome.blocks[:, BLOCK_COLUMNS.index("mapped")] == 1]
    kinds = kinds_of(blocks)
    sizes = blocks[:, BLOCK_COLUMNS.index("size")]
    parts = [
        f"{show_bytes(int(sizes[kinds == i].sum()))} {kind.words}"
        for i, kind in enumerate(KINDS)
        if (kinds == i).any()
    ]
    segments = len(np.unique(blocks[:, :2], axis=0))
    return f"Map of {segments} segments with {show_bytes(int(sizes.sum()))} reserved: {'; '.join(parts)}."


class Line(NamedTuple):
    """A curve of bytes over operations: its words, its values at each operation, or (at, values) where sampled."""

    words: str
    values: np.ndarray
    at: np.ndarray | None = None


def over_time(
    axes: Axes, lines: Sequence[Line], capacity_bytes: int, first_oom: int | None
) -> None:
    """Curves, the card's size, and the first out-of-memory, on one axis."""
    looks = ((ACCENT, "-", 1.6), ("#009e73", "-", 0.8), ("#e69f00", "-.", 1.6), (MUTED, ":", 1.0))
    for line, (color, style, width) in zip(lines, looks, strict=False):
        at = np.arange(len(line.values)) if line.at is None else line.at
        step = max(1, len(at) // POINTS)
        # Peaks matter more than shape: each drawn point is the highest of those it stands for.
        cut = len(at) // step * step
        top = line.values[:cut].reshape(-1, step).max(axis=1) if cut else line.values
        axes.plot(
            at[:cut:step] if cut else at,
            top / GIB,
            color=color,
            linestyle=style,
            linewidth=width,
            label=line.words,
        )
    axes.axhline(capacity_bytes / GIB, color=ALARM, linewidth=1)
    axes.annotate(
        f"the card, {show_bytes(capacity_bytes)}",
        (0, capacity_bytes / GIB),
        xytext=(2, 3),
        fontsize=SMALL,
        color=ALARM,
        textcoords="offset points",
    )
    if first_oom is not None:
        axes.axvline(first_oom, color=ALARM, linewidth=1, linestyle="--")
        axes.annotate(
            "first out-of-memory",
            (first_oom, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3, -3),
            textcoords="offset points",
            fontsize=SMALL,
            color=ALARM,
            ha="right",
            va="top",
        )
    tallest = max([capacity_bytes, *(int(line.values.max(initial=0)) for line in lines)])
    axes.set(xlabel="operation", ylabel="GiB", ylim=(0, 1.12 * tallest / GIB))


def memory_figure(
    lines: Sequence[Line], capacity_bytes: int, first_oom: int | None, title: str
) -> Figure:
    """Reserved, allocated and stranded bytes over one run."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        over_time(axes, lines, capacity_bytes, first_oom)
        axes.set_title(title, fontsize=BODY, loc="left")
        _legend(figure, axes)

    return drawn(draw, 3.1)


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower left",
        ncols=3,
        fontsize=SMALL,
        frameon=False,
    )


def memory_alt(lines: Sequence[Line], capacity_bytes: int, first_oom: int | None) -> str:
    """Memory over a run in words."""
    peaks = "; ".join(
        f"{line.words} at most {show_bytes(int(line.values.max(initial=0)))}" for line in lines
    )
    end = (
        "no request fails"
        if first_oom is None
        else f"the first out-of-memory is operation {first_oom}"
    )
    return f"Memory over the run on a card of {show_bytes(capacity_bytes)}: {peaks}; {end}."


def before_after(
    pairs: Sequence[tuple[str, Sequence[Line], int | None]], capacity_bytes: int
) -> Figure:
    """The same requests under two settings, one above the other on one scale."""

    def draw(figure: Figure) -> None:
        panels: Any = figure.subplots(len(pairs), 1, sharex=True, sharey=True, squeeze=False)
        for (words, lines, first), axes in zip(pairs, panels[:, 0], strict=True):
            over_time(axes, lines, capacity_bytes, first)
            axes.set_title(words, fontsize=BODY, loc="left")
            axes.label_outer()
        _legend(figure, panels[0, 0])

    return drawn(draw, 2.3 * len(pairs) + 0.3)


def league_figure(rows: Sequence[dict[str, Any]], capacity_bytes: int) -> Figure:
    """Settings, best first: a bar is the peak reserved, hatched where a request fails; slow calls beside it."""
    sheet, right = Sheet(), WIDTH - MARGIN
    default = [row for row in rows[LEAGUE_ROWS - 1 :] if not row["settings"]]
    shown = [*rows[: LEAGUE_ROWS - len(default)], *default]
    top = max([capacity_bytes, *(row["peak_reserved_bytes"] for row in shown)], default=1)
    room = right - MARGIN
    scale = room / top
    sheet.heading("Settings, best first", f"a card of {show_bytes(capacity_bytes)}")
    for row in shown:
        fails = row["ooms"] > 0
        value = "passes" if not fails else f"fails {row['ooms']}x"
        value += f", {row['device_calls']} slow calls"
        sheet.y += 0.17
        sheet.text(right, value, SMALL, ALARM if fails else MUTED, ha="right")
        sheet.text(
            MARGIN,
            fit(row["settings"] or "default settings", room - inches(value, SMALL) - 0.15, SMALL),
            SMALL,
        )
        sheet.y += 0.06
        sheet.box(MARGIN, capacity_bytes * scale, 0.12, Look(PALE))
        sheet.box(
            MARGIN,
            row["peak_reserved_bytes"] * scale,
            0.12,
            Look(
                "#f3c9ad" if fails else ACCENT, ALARM if fails else "none", "////" if fails else ""
            ),
        )
        sheet.y += 0.2
    words = "Bar: most bytes reserved. Pale: the card. Hatched: a request fails."
    words += (
        f" {len(rows) - len(shown)} more settings were tried." if len(rows) > len(shown) else ""
    )
    sheet.y += 0.1
    for line in wrap(words, room, SMALL):
        sheet.text(MARGIN, line, SMALL, MUTED)
        sheet.y += 0.14
    return sheet.done()


def league_alt(rows: Sequence[dict[str, Any]], capacity_bytes: int) -> str:
    """The league in words: how many settings pass and the first few."""
    passing = [row for row in rows if not row["ooms"]]
    head = f"{len(passing)} of {len(rows)} settings pass on {show_bytes(capacity_bytes)}."
    best = [
        f"{row['settings'] or 'default'} reserves at most {show_bytes(row['peak_reserved_bytes'])}"
        for row in rows[:3]
    ]
    return f"{head} Best first: {'; '.join(best)}."
