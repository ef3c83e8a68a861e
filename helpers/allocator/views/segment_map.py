"""The segment map: every reserved byte at a moment, as one strip in address order.

It is folded into rows. States are distinguished by hatch as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from helpers.allocator.blocks import STATES
from helpers.allocator.outcome import BLOCK_COLUMNS, Outcome
from helpers.allocator.trace import Op, Trace
from helpers.ground.units import MIB, show_bytes
from helpers.tell import sheet
from helpers.tell.shown import Shown
from helpers.tell.values import Column

ROWS = 26
"""Rows that the segment map is folded into."""


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

_Place = tuple[int, ...]
"""Where something lies: kind and ordinal of its segment, and mostly its offset there."""


class Segment(NamedTuple):
    """A segment of the map: its bytes, those in use and stranded in it, and what was allocated
    there and strands them.
    """

    size_bytes: int
    used_bytes: int
    stranded_bytes: int
    held_by: str


class _Blocks:
    """The mapped blocks of a state in address order, with the kind of each."""

    def __init__(self, table: np.ndarray) -> None:
        mapped = table[table[:, BLOCK_COLUMNS.index("mapped")] == 1]
        self.kinds = kinds_of(mapped)
        self.places = mapped[:, [_column("kind"), _column("ordinal"), _column("offset")]]
        self.sizes = mapped[:, _column("size")]
        self.address_order = np.lexsort((mapped[:, _column("offset")], mapped[:, _column("base")]))

    def bytes_of(self, kind: int) -> int:
        return int(self.sizes[self.kinds == kind].sum())

    @property
    def total(self) -> int:
        return int(self.sizes.sum())


def _column(name: str) -> int:
    return BLOCK_COLUMNS.index(name)


def kinds_of(blocks: np.ndarray) -> np.ndarray:
    """Which of KINDS each mapped block of a block table is; a page counts as stranded with the
    range that holds it.
    """
    ordinal = blocks[:, _column("ordinal")]
    segment_kind = blocks[:, _column("kind")]
    state = blocks[:, _column("state")]
    small = blocks[:, _column("small")] == 1
    key = segment_kind * (1 << 40) + ordinal
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    whole_segment = (counts[inverse] == 1) & (segment_kind == 0)
    in_use = np.where(small, SMALL_USE, IN_USE)
    free = np.where(whole_segment, RELEASABLE, STRANDED)
    kinds = np.where(state == STATES.index("A"), in_use, AWAITING)
    return np.where(state == STATES.index("I"), free, kinds)


def segment_map(trace: Trace, whole: Outcome, at: Outcome, title: str) -> Shown:
    """Every reserved byte ``at`` a moment: what is in use, and what lies between.

    ``whole``: the replay of the whole trace. A row a segment, the one that strands most first;
    where the trace has stacks, with the line that allocated what keeps it.
    """
    blocks = _Blocks(at.blocks)
    segments = _segments(blocks, _allocated_by(trace, whole, at.events))
    rows = sorted(
        segments.values(), key=lambda segment: (-segment.stranded_bytes, -segment.size_bytes)
    )
    stranded = show_bytes(blocks.bytes_of(STRANDED))
    head = f"{title}: {stranded} of {show_bytes(blocks.total)} reserved are stranded"
    notes = []
    for number, kind in enumerate(KINDS):
        size = blocks.bytes_of(number)
        if size:
            notes.append(f"{kind.words}: {show_bytes(size)}")
    columns = [Column(name, "bytes") for name in ("segment", "in use", "stranded")]
    draw = partial(sheet.drawn, partial(_draw_map, blocks, head), 5.0)
    return Shown(head, [*columns, "kept by"], rows, notes, draw=draw, widest=90)


def _allocated_by(trace: Trace, whole: Outcome, moment: int) -> dict[_Place, str]:
    """Who allocated what lies at a place after so many operations: the line, else the operation."""
    allocates = trace.op[:moment] == Op.ALLOC
    served = whole.column("kind")[:moment] >= 0
    events = np.flatnonzero(allocates & served)
    columns = [whole.column(name)[events] for name in ("kind", "ordinal", "offset")]
    places = map(tuple, np.stack(columns, axis=1).tolist())
    latest = dict(zip(places, events.tolist(), strict=True))
    return {place: _line_of(trace, event) for place, event in latest.items()}


def _line_of(trace: Trace, event: int) -> str:
    if trace.frame is not None and trace.frame[event] >= 0:
        frames = trace.frames[int(trace.frame[event])]
        if frames:
            return frames[0]
    return f"operation {event}"


def _segments(blocks: _Blocks, allocated_by: dict[_Place, str]) -> dict[_Place, Segment]:
    """The segments by kind and ordinal, each with the largest of what is in use in it."""
    places, segment_of = np.unique(blocks.places[:, :2], axis=0, return_inverse=True)
    segment_of = segment_of.ravel()
    segments: dict[_Place, Segment] = {}
    for number, place in enumerate(map(tuple, places.tolist())):
        inside = segment_of == number
        used = np.flatnonzero(inside & (blocks.kinds < STRANDED))
        largest_first = used[np.argsort(-blocks.sizes[used], kind="stable")]
        stranded = int(blocks.sizes[inside & (blocks.kinds == STRANDED)].sum())
        held_by = ""
        if stranded:
            owners = map(tuple, blocks.places[largest_first].tolist())
            held_by = _names([allocated_by.get(owner, "") for owner in owners])
        segments[place] = Segment(
            size_bytes=int(blocks.sizes[inside].sum()),
            used_bytes=int(blocks.sizes[used].sum()),
            stranded_bytes=stranded,
            held_by=held_by,
        )
    return segments


def _names(owners: Sequence[str]) -> str:
    """The first two of several names, and how many more there are."""
    names = list(dict.fromkeys(filter(None, owners)))
    words = ", ".join(names[:2])
    return f"{words} and {len(names) - 2} more" if len(names) > 2 else words


def _draw_map(blocks: _Blocks, head: str, figure: sheet.Drawing) -> None:
    sizes = blocks.sizes[blocks.address_order]
    kinds = blocks.kinds[blocks.address_order]
    places = blocks.places[blocks.address_order][:, :2]
    starts = np.cumsum(sizes) - sizes
    total = max(int(sizes.sum()), 1)
    row_bytes = max(-(-total // ROWS), MIB)
    axes = figure.subplots()

    def spans(first_blocks: np.ndarray) -> list[tuple[int, int]]:
        """From and to of what begins with each of these blocks."""
        return list(pairwise([*starts[first_blocks].tolist(), total]))

    changes = np.flatnonzero(np.diff(kinds, prepend=-1))
    patches = []
    labels = []
    for number, kind in enumerate(KINDS):
        of_kind = [
            span
            for span, other in zip(spans(changes), kinds[changes], strict=True)
            if other == number
        ]
        if not of_kind:
            continue
        hatch = kind.hatch or None
        edge = sheet.INK if kind.hatch else "none"
        strips = _strips(of_kind, row_bytes)
        axes.add_patch(
            PathPatch(strips, linewidth=0, facecolor=kind.face, hatch=hatch, edgecolor=edge)
        )
        patches.append(Patch(facecolor=kind.face, hatch=hatch, edgecolor=sheet.MUTED))
        labels.append(f"{kind.words}: {show_bytes(blocks.bytes_of(number))}")
    begins = np.flatnonzero(np.diff(places, axis=0, prepend=-1).any(axis=1))
    row, column = np.divmod(starts[begins], row_bytes)
    thin_lines = -row[:, None] - np.array([0.02, 0.98, np.nan])
    at = np.repeat(column / row_bytes, 3)
    axes.plot(at, thin_lines.ravel(), color=sheet.INK, linewidth=0.5)
    rows = -(-total // row_bytes)
    axes.set(xlim=(0, 1), ylim=(-rows - 0.1, 0.1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    sheet.titled(axes, f"{head}\n{show_bytes(row_bytes)} a row; a thin line begins a segment")
    sheet.legend(figure, patches, labels)


def _strips(spans: Sequence[tuple[int, int]], row_bytes: int) -> Path:
    """Where bytes lie on the map, from and to, as one shape."""
    boxes = []
    for begin, end in spans:
        at = begin
        while at < end:
            row, column = divmod(at, row_bytes)
            width = min(end - at, row_bytes - column)
            left = column / row_bytes
            right = (column + width) / row_bytes
            bottom = -row - 0.9
            top = bottom + 0.8
            boxes.append([(left, bottom), (right, bottom), (right, top), (left, top)])
            at += width
    return Path.make_compound_path_from_polys(np.array(boxes).reshape(-1, 4, 2))
