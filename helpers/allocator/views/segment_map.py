"""The segment map: every reserved byte at a moment, as one strip in address order.

It is folded into rows. States are distinguished by hatch as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from helpers.allocator.blocks import INACTIVE, LIVE
from helpers.allocator.outcome import Outcome, block_column, segments_of
from helpers.allocator.trace import Op, Trace
from helpers.allocator.views.charts import (
    AWAITING,
    IN_USE,
    RELEASABLE,
    SMALL_USE,
    STRANDED,
    strip,
)
from helpers.ground.units import MIB, show_bytes
from helpers.tell import sheet
from helpers.tell.chart import STATES, Chart
from helpers.tell.figure_style import INK, PALETTE
from helpers.tell.shown import Shown
from helpers.tell.values import columns

SEGMENTS = (
    "segment:number:bytes, in use:number:bytes, stranded:number:bytes, kept by:line"
)
ROWS = 26
"""Rows that the segment map is folded into."""


class _Blocks:
    """The mapped blocks of a state in address order: the size of each, its kind, and where it
    lies (kind and ordinal of its segment, offset there). ``starts``: reserved bytes before each;
    ``begins``: the first of each segment.
    """

    def __init__(self, table: np.ndarray) -> None:
        mapped = table[block_column(table, "mapped") == 1]
        order = np.lexsort(
            (block_column(mapped, "offset"), block_column(mapped, "base"))
        )
        mapped = mapped[order]
        self.kinds = kinds_of(mapped)
        place = [block_column(mapped, name) for name in ("kind", "ordinal", "offset")]
        self.places = np.stack(place, axis=1)
        self.sizes = block_column(mapped, "size")
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.begins = np.flatnonzero(
            np.diff(self.places[:, :2], axis=0, prepend=-1).any(axis=1)
        )

    def bytes_of(self, kind: int) -> int:
        return int(self.sizes[self.kinds == kind].sum())

    @property
    def total(self) -> int:
        return int(self.sizes.sum())


def kinds_of(blocks: np.ndarray) -> np.ndarray:
    """Which of STATES each mapped block of a block table is; a page counts as stranded with the
    range that holds it.
    """
    state = block_column(blocks, "state")
    small = block_column(blocks, "small") == 1
    segment, count = segments_of(blocks)
    is_whole_segment = (count[segment] == 1) & (block_column(blocks, "kind") == 0)
    in_use = np.where(small, SMALL_USE, IN_USE)
    free = np.where(is_whole_segment, RELEASABLE, STRANDED)
    kinds = np.where(state == LIVE, in_use, AWAITING)
    return np.where(state == INACTIVE, free, kinds)


def segment_map(trace: Trace, replay: Outcome, at: Outcome, title: str) -> Shown:
    """Every reserved byte ``at`` a moment: what is in use, and what lies between.

    ``replay``: that of the whole trace. A row a segment, the one that strands most first;
    where the trace has stacks, with the line that allocated what keeps it.
    """
    blocks = _Blocks(at.blocks)
    allocated_at = _allocated_at(trace, replay, at.events)
    rows = _rows(trace, blocks, allocated_at)
    stranded = show_bytes(blocks.bytes_of(STRANDED))
    head = f"{title}: {stranded} of {show_bytes(blocks.total)} reserved are stranded"
    present = [number for number in range(len(STATES)) if blocks.bytes_of(number)]
    notes = [_kind_words(blocks, number) for number in present]
    draw = partial(sheet.drawn, partial(_draw_map, blocks, head), 5.0)
    heads = columns(SEGMENTS, widest=90)
    chart = partial(_chart, blocks, head, trace, allocated_at)
    return Shown(head, heads, rows, notes, draw=draw, chart=chart)


def _chart(
    blocks: _Blocks, head: str, trace: Trace, allocated_at: dict[tuple[int, ...], int]
) -> Chart:
    segments = np.zeros(len(blocks.sizes), np.int64)
    segments[blocks.begins[1:]] = 1
    places = map(tuple, blocks.places.tolist())
    events = np.array([allocated_at.get(place, -1) for place in places], np.int64)
    in_use = blocks.kinds < STRANDED
    columns = (blocks.starts, blocks.sizes, blocks.kinds, np.cumsum(segments))
    return strip(
        head, trace, np.stack((*columns, np.where(in_use, events, -1)), axis=1)
    )


def _kind_words(blocks: _Blocks, number: int) -> str:
    return f"{list(STATES.values())[number]}: {show_bytes(blocks.bytes_of(number))}"


def _allocated_at(
    trace: Trace, replay: Outcome, moment: int
) -> dict[tuple[int, ...], int]:
    """The operation that allocated what lies at a place after so many operations."""
    allocates = trace.op[:moment] == Op.ALLOC
    served = replay.column("kind")[:moment] >= 0
    events = np.flatnonzero(allocates & served)
    parts = [replay.column(name)[events] for name in ("kind", "ordinal", "offset")]
    places = map(tuple, np.stack(parts, axis=1).tolist())
    return dict(zip(places, events.tolist(), strict=True))


def _rows(
    trace: Trace, blocks: _Blocks, allocated_at: dict[tuple[int, ...], int]
) -> list[list[object]]:
    """For each segment its bytes, those in use and stranded in it, and what was allocated there
    and strands them, the largest first; the segment that strands most first.
    """
    rows: list[tuple[int, int, list[int], list[object]]] = []
    for begin, end in pairwise([*blocks.begins.tolist(), len(blocks.sizes)]):
        sizes = blocks.sizes[begin:end]
        kinds = blocks.kinds[begin:end]
        used = np.flatnonzero(kinds < STRANDED)
        stranded = int(sizes[kinds == STRANDED].sum())
        held_by = ""
        if stranded:
            largest_first = used[np.argsort(-sizes[used], kind="stable")] + begin
            owners = map(tuple, blocks.places[largest_first].tolist())
            events = [allocated_at[owner] for owner in owners if owner in allocated_at]
            lines = [
                next(iter(trace.stack_of(event)), f"operation {event}")
                for event in events
            ]
            held_by = _names(lines)
        total = int(sizes.sum())
        cells = [total, int(sizes[used].sum()), stranded, held_by]
        rows.append((-stranded, -total, blocks.places[begin].tolist(), cells))
    return [cells for *_, cells in sorted(rows)]


def _names(owners: Sequence[str]) -> str:
    """The first two of several names, and how many more there are."""
    names = list(dict.fromkeys(filter(None, owners)))
    words = ", ".join(names[:2])
    if len(names) > 2:
        words += f" and {len(names) - 2} more"
    return words


def _draw_map(blocks: _Blocks, head: str, figure: Figure) -> None:
    row_bytes = max(-(-blocks.total // ROWS), MIB)
    axes = figure.subplots()
    changes = np.flatnonzero(np.diff(blocks.kinds, prepend=-1))
    runs = np.stack(
        (blocks.starts[changes], np.append(blocks.starts[changes][1:], blocks.total)), 1
    )
    patches = []
    for number, name in enumerate(STATES):
        look = PALETTE[name]
        spans = runs[blocks.kinds[changes] == number].tolist()
        if not spans:
            continue
        patch = PathPatch(
            _strips(spans, row_bytes),
            linewidth=0,
            facecolor=look.face,
            edgecolor=INK if look.hatch else "none",
            hatch=look.hatch or None,
            hatchcolor=INK,
            label=_kind_words(blocks, number),
        )
        patches.append(axes.add_patch(patch))
    row, column = np.divmod(blocks.starts[blocks.begins], row_bytes)
    axes.vlines(column / row_bytes, -row - 0.98, -row - 0.02, colors=INK, linewidth=0.5)
    rows = -(-blocks.total // row_bytes)
    axes.set(xlim=(0, 1), ylim=(-rows - 0.1, 0.1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    sheet.titled(
        axes, f"{head}\n{show_bytes(row_bytes)} a row; a thin line begins a segment"
    )
    sheet.legend(figure, patches, [str(patch.get_label()) for patch in patches])


def _strips(spans: Sequence[tuple[int, int]], row_bytes: int) -> Path:
    """Where bytes lie on the map, from and to, as one shape."""
    boxes = []
    for begin, end in spans:
        for row in range(begin // row_bytes, -(-end // row_bytes)):
            left = max(begin / row_bytes - row, 0)
            right = min(end / row_bytes - row, 1)
            bottom = -row - 0.9
            top = bottom + 0.8
            boxes.append([(left, bottom), (right, bottom), (right, top), (left, top)])
    return Path.make_compound_path_from_polys(np.array(boxes))
