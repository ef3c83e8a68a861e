"""The segment map: every reserved byte at a moment as one strip in address order, folded into rows.

The states of blocks (tell.chart.STATES) are told apart by hatch as well as by colour. *Stranded*
bytes are free but in a segment that is in use, so that the allocator cannot give them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import ceil

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
"""The map is folded into about so many rows: a row is as high as a line of text."""
WIDEST = 90
"""Characters of a cell: two lines of the program with their functions."""
MAP_HEIGHT = 5.0
"""Inches of the figure."""
# Of a row, which is 1 high: the strip leaves a gap to the next, the line before a segment almost
# none.
STRIP = (0.1, 0.9)
LINE = (0.02, 0.98)
EDGE = 0.1  # above the first row and below the last


class _Blocks:
    """The mapped blocks of an outcome in address order, as arrays. ``sizes``: their bytes.
    ``kinds``: their states (``kinds_of``). ``places``: a row for each block with the kind and the
    ordinal of its segment and its offset there, which together name an address. ``starts``: the
    reserved bytes before each block. ``begins``: the number of the first block of each segment.
    """

    def __init__(self, table: np.ndarray) -> None:
        mapped = table[block_column(table, "mapped") == 1]
        address = block_column(mapped, "base") + block_column(mapped, "offset")
        mapped = mapped[np.argsort(address)]
        self.kinds = kinds_of(mapped)
        place = [block_column(mapped, name) for name in ("kind", "ordinal", "offset")]
        self.places = np.stack(place, axis=1)
        self.sizes = block_column(mapped, "size")
        self.starts = np.cumsum(self.sizes) - self.sizes
        # A segment begins where kind or ordinal changes; no kind is -1, so the first block begins
        # one.
        segment_changes = np.diff(self.places[:, :2], axis=0, prepend=-1)
        self.begins = np.flatnonzero(segment_changes.any(axis=1))

    def bytes_of(self, kind: int) -> int:
        """The bytes of all blocks in a state."""
        return int(self.sizes[self.kinds == kind].sum())

    @property
    def total(self) -> int:
        """All reserved bytes."""
        return int(self.sizes.sum())


def kinds_of(blocks: np.ndarray) -> np.ndarray:
    """The state of each mapped block of a block table, as a place in STATES. Free blocks of
    expandable segments are all stranded, though the allocator could unmap whole pages of them.
    """
    state = block_column(blocks, "state")
    small = block_column(blocks, "small") == 1
    segment, count = segments_of(blocks)  # of each block; blocks in each segment
    is_expandable = block_column(blocks, "kind") == 1
    is_whole_segment = (count[segment] == 1) & ~is_expandable
    in_use = np.where(small, SMALL_USE, IN_USE)
    free = np.where(is_whole_segment, RELEASABLE, STRANDED)
    kinds = np.where(state == LIVE, in_use, AWAITING)
    return np.where(state == INACTIVE, free, kinds)


def segment_map(trace: Trace, replay: Outcome, at: Outcome, title: str) -> Shown:
    """The map of every reserved byte ``at`` a moment, and as a table a row for each segment, the
    one with most stranded bytes first, with the lines whose blocks keep it in use.

    ``replay``: that of the whole trace, with a timeline. ``at``: one that stops at the moment.
    """
    blocks = _Blocks(at.blocks)
    allocated_at = _allocated_at(trace, replay, at.events)
    rows = _rows(trace, blocks, allocated_at)
    stranded = show_bytes(blocks.bytes_of(STRANDED))
    head = f"{title}: {stranded} of {show_bytes(blocks.total)} reserved are stranded"
    present = [number for number in range(len(STATES)) if blocks.bytes_of(number)]
    notes = [_kind_words(blocks, number) for number in present]
    draw = partial(sheet.drawn, partial(_draw_map, blocks, head), MAP_HEIGHT)
    heads = columns(SEGMENTS, widest=WIDEST)
    chart = partial(_chart, blocks, head, trace, allocated_at)
    return Shown(head, heads, rows, notes, draw=draw, chart=chart)


def _chart(
    blocks: _Blocks, head: str, trace: Trace, allocated_at: dict[tuple[int, ...], int]
) -> Chart:
    """The map as a chart; ``charts.strip`` says which columns it has."""
    begins_segment = np.zeros(len(blocks.sizes), np.int64)
    begins_segment[blocks.begins[1:]] = 1
    segments = np.cumsum(begins_segment)  # numbered from 0
    places = map(tuple, blocks.places.tolist())
    events = np.array([allocated_at.get(place, -1) for place in places], np.int64)
    # The states before STRANDED are those in use. A free block is no longer of the operation that
    # allocated at its address.
    in_use = blocks.kinds < STRANDED
    events = np.where(in_use, events, -1)
    columns = (blocks.starts, blocks.sizes, blocks.kinds, segments, events)
    return strip(head, trace, np.stack(columns, axis=1))


def _kind_words(blocks: _Blocks, number: int) -> str:
    """A state in words, with the bytes of the blocks that are in it."""
    words = list(STATES.values())[number]
    return f"{words}: {show_bytes(blocks.bytes_of(number))}"


def _allocated_at(
    trace: Trace, replay: Outcome, moment: int
) -> dict[tuple[int, ...], int]:
    """For each place, (kind, ordinal, offset), the operation that last allocated a block there
    among the first ``moment`` operations.
    """
    allocates = trace.op[:moment] == Op.ALLOC
    served = replay.column("kind")[:moment] >= 0
    events = np.flatnonzero(allocates & served)
    parts = [replay.column(name)[events] for name in ("kind", "ordinal", "offset")]
    places = map(tuple, np.stack(parts, axis=1).tolist())
    # of equal places the last one stays
    return dict(zip(places, events.tolist(), strict=True))


def _rows(
    trace: Trace, blocks: _Blocks, allocated_at: dict[tuple[int, ...], int]
) -> list[list[object]]:
    """The cells of SEGMENTS for each segment, the one with most stranded bytes first."""
    segments = []
    for begin, end in pairwise([*blocks.begins.tolist(), len(blocks.sizes)]):
        sizes = blocks.sizes[begin:end]
        kinds = blocks.kinds[begin:end]
        is_used = kinds < STRANDED
        stranded = int(sizes[kinds == STRANDED].sum())
        kept_by = ""
        if stranded:  # else nothing is gained by knowing who keeps it
            used = begin + np.flatnonzero(is_used)
            kept_by = _names(_lines_of(trace, blocks, allocated_at, used))
        total = int(sizes.sum())
        cells: list[object] = [total, int(sizes[is_used].sum()), stranded, kept_by]
        order = (-stranded, -total, blocks.places[begin].tolist())
        segments.append((order, cells))
    return [cells for _order, cells in sorted(segments)]


def _lines_of(
    trace: Trace,
    blocks: _Blocks,
    allocated_at: dict[tuple[int, ...], int],
    used: np.ndarray,
) -> list[str]:
    """The lines that allocated some blocks, given by their numbers, the largest block first; a
    block of the start has none.
    """
    largest_first = used[np.argsort(-blocks.sizes[used], kind="stable")]
    lines = []
    for place in map(tuple, blocks.places[largest_first].tolist()):
        event = allocated_at.get(place)
        if event is not None:
            lines.append(next(iter(trace.stack_of(event)), f"operation {event}"))
    return lines


def _names(lines: Sequence[str]) -> str:
    """The first two of the different lines, and how many more there are; "" for none."""
    names = list(dict.fromkeys(lines))
    words = ", ".join(names[:2])
    if len(names) > 2:
        words += f" and {len(names) - 2} more"
    return words


def _draw_map(blocks: _Blocks, head: str, figure: Figure) -> None:
    """Draws the map: row k is between -k and -k - 1, and the bytes of a row are between 0 and 1."""
    row_bytes = max(ceil(blocks.total / ROWS), MIB)
    axes = figure.subplots()
    # Blocks of one state beside each other are drawn as one.
    changes = np.flatnonzero(np.diff(blocks.kinds, prepend=-1))
    starts = blocks.starts[changes]
    ends = np.append(starts[1:], blocks.total)
    patches = []
    for number, name in enumerate(STATES):
        look = PALETTE[name]
        is_of_state = blocks.kinds[changes] == number
        spans = np.stack((starts[is_of_state], ends[is_of_state]), axis=1).tolist()
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
    top, bottom = LINE
    axes.vlines(
        column / row_bytes, -row - bottom, -row - top, colors=INK, linewidth=0.5
    )
    rows = ceil(blocks.total / row_bytes)
    axes.set(xlim=(0, 1), ylim=(-rows - EDGE, EDGE), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    sheet.titled(
        axes, f"{head}\n{show_bytes(row_bytes)} a row; a thin line begins a segment"
    )
    sheet.legend(figure, patches, [str(patch.get_label()) for patch in patches])


def _strips(spans: Sequence[tuple[int, int]], row_bytes: int) -> Path:
    """The boxes of some spans of bytes, (from, to), on the map, as one shape. The map is folded, so
    a span has a box in each row in which some of its bytes are.
    """
    above, below = STRIP
    boxes = []
    for begin, end in spans:
        for row in range(begin // row_bytes, ceil(end / row_bytes)):
            left = max(begin / row_bytes - row, 0)
            right = min(end / row_bytes - row, 1)
            bottom = -row - below
            top = -row - above
            boxes.append([(left, bottom), (right, bottom), (right, top), (left, top)])
    return Path.make_compound_path_from_polys(np.array(boxes))
