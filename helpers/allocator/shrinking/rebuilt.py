"""The layout at a failure built anew from a few repeated requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from helpers.allocator.blocks import INACTIVE
from helpers.allocator.driver import GRANULE_BYTES, round_up
from helpers.allocator.outcome import Outcome, block_column, segments_of
from helpers.allocator.shrinking.search import RefusedRequest, ReplaySearch
from helpers.allocator.trace import Op, Trace, trace_of_rows
from helpers.settings.in_force import (
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_MAX_BYTES,
)

Rows = list[tuple[int, int, int]]
"""(op, id, size) of each operation."""


def rebuilt(search: ReplaySearch, trace: Trace) -> Iterator[Trace]:
    """Candidates from what lay on the card at the failure, those with the fewest requests first."""
    target = search.target
    assert target is not None, "the search knows how candidates are to fail"
    if target.kind == "capacity":
        yield _program(_filling(target.room_bytes, target.largest_bytes), trace)
        return
    layouts = [
        _rows_of(layout, target) for layout in _layouts(search.outcome(trace), target)
    ]
    for rows in sorted(layouts, key=len):
        yield _program(rows, trace)


class _Layout(NamedTuple):
    """So many segments in which ``live`` bytes are in use and the rest is a hole."""

    segment: int
    live: int
    segments: int

    @property
    def hole(self) -> int:
        return self.segment - self.live


def _layouts(outcome: Outcome, target: RefusedRequest) -> Iterator[_Layout]:
    """Holes that are enough together for the request, by the shapes seen at the failure that one
    request makes.
    """
    size = block_column(outcome.blocks, "size")
    in_use = block_column(outcome.blocks, "state") != INACTIVE
    segment_of, _ = segments_of(outcome.blocks)
    segments = np.bincount(segment_of, size).astype(np.int64).tolist()
    used = np.bincount(segment_of, np.where(in_use, size, 0)).astype(np.int64).tolist()
    for segment, used_bytes in set(zip(segments, used, strict=True)):
        live = max(round_up(used_bytes, GRANULE_BYTES), GRANULE_BYTES)
        too_small = 0 < segment - live < target.rounded_bytes
        if segment > target.largest_bytes or not too_small:
            continue
        enough = -(-target.rounded_bytes // (segment - live))
        # More than enough where other settings, which round otherwise, are to pass.
        for count in (enough, enough + 1, 2 * enough):
            if count * segment <= target.room_bytes:
                yield _Layout(segment, live, count)


def _rows_of(layout: _Layout, target: RefusedRequest) -> Rows:
    """The operations that build a layout and fill the rest of the card."""
    largest = target.largest_bytes
    rows = _filling(target.room_bytes - layout.segments * layout.segment, largest)
    fillers: list[int] = []
    for _ in range(layout.segments):
        ident = len(rows)
        rows += [(Op.ALLOC, ident, layout.segment), (Op.FREE, ident, 0)]
        rows.append((Op.ALLOC, len(rows), layout.live))
        if layout.live <= layout.hole:  # the next one would lie in this hole
            parts = -(-layout.hole // largest)
            size = layout.hole // parts // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
            idents = range(len(rows), len(rows) + parts)
            fillers += idents
            rows += [(Op.ALLOC, ident, size) for ident in idents]
    return [*rows, *((Op.FREE, ident, 0) for ident in fillers)]


def _filling(size: int, largest: int) -> Rows:
    """Requests that take so many bytes of the card in whole segments, as few as the largest
    request allows.
    """
    sizes: list[int] = []
    if largest >= MIN_LARGE_BYTES:
        unit = largest // GRANULE_BYTES * GRANULE_BYTES
        rest = size % unit // GRANULE_BYTES * GRANULE_BYTES
        sizes = [unit] * (size // unit)
        if rest >= MIN_LARGE_BYTES:
            sizes.append(rest)
    elif largest:
        segment = LARGE_STEP_BYTES if largest > SMALL_MAX_BYTES else GRANULE_BYTES
        parts = -(-segment // largest)
        part = max(
            segment // parts // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES
        )
        sizes = [part] * (size // segment * parts)
    return [(Op.ALLOC, ident, part) for ident, part in enumerate(sizes)]


def _program(rows: Rows, like: Trace) -> Trace:
    """The rows and then the last request of another trace, with its stack."""
    stack = -1 if like.frame is None else int(like.frame[-1])
    last = (Op.ALLOC, len(rows), int(like.size[-1]), stack)
    return trace_of_rows([*((*row, -1) for row in rows), last], like.frames, {})
