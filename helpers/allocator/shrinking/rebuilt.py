"""Builds the layout of the card at a failure anew, from a few repeated requests.

Every program first fills the card, except for the segments that show the failure, and ends with
the refused request. *Largest* is the largest size that it may ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
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
    """Candidates for a smaller trace that fails like this one, those with the fewest requests
    first. For "capacity" it is one program that fills the card; else programs with layouts of
    holes, maybe none.
    """
    target = search.target
    assert target is not None, "the search knows how candidates have to fail"
    if target.kind == "capacity":
        yield _program(_filling(target.room_bytes, target.largest_bytes), trace)
        return
    layouts = _layouts(search.outcome(trace), target)
    programs = [_rows_of(layout, target) for layout in layouts]
    for rows in sorted(programs, key=len):
        yield _program(rows, trace)


class _Layout(NamedTuple):
    """A layout of equal segments: there are ``segments`` of them, each has ``segment`` bytes, of
    which ``live`` bytes are in use and the rest is a hole.
    """

    segment: int
    live: int
    segments: int

    @property
    def hole(self) -> int:
        return self.segment - self.live


def _layouts(outcome: Outcome, target: RefusedRequest) -> Iterator[_Layout]:
    """Layouts of equal segments. Each hole is too small for the refused request, and all holes
    together are large enough. A segment has the size and the bytes in use of one at the failure;
    only sizes that a single request of at most the largest size makes are taken. ``outcome``: of
    the whole trace.
    """
    size = block_column(outcome.blocks, "size")
    in_use = block_column(outcome.blocks, "state") != INACTIVE
    segment_of, _ = segments_of(outcome.blocks)
    segments = np.bincount(segment_of, size).astype(np.int64).tolist()
    used = np.bincount(segment_of, np.where(in_use, size, 0)).astype(np.int64).tolist()
    for segment, used_bytes in set(zip(segments, used, strict=True)):
        # In whole granules of the driver, so that no rounding of the allocator changes it.
        live = max(round_up(used_bytes, GRANULE_BYTES), GRANULE_BYTES)
        too_small = 0 < segment - live < target.rounded_bytes
        if segment > target.largest_bytes or not too_small:
            continue
        enough = ceil(target.rounded_bytes / (segment - live))
        # Some more, as settings under which the requests have to pass may round otherwise.
        for count in (enough, enough + 1, 2 * enough):
            if count * segment <= target.room_bytes:
                yield _Layout(segment, live, count)


def _rows_of(layout: _Layout, target: RefusedRequest) -> Rows:
    """The operations that fill the rest of the card and build a layout: for each segment a request
    of all of it is freed, and a request of its live bytes takes the front. The place of an
    operation is a new id.
    """
    largest = target.largest_bytes
    rows = _filling(target.room_bytes - layout.segments * layout.segment, largest)
    fillers: list[int] = []
    for _ in range(layout.segments):
        ident = len(rows)
        rows += [(Op.ALLOC, ident, layout.segment), (Op.FREE, ident, 0)]
        rows.append((Op.ALLOC, len(rows), layout.live))
        next_would_fit = layout.live <= layout.hole
        if next_would_fit:
            # The next segment's live bytes would go into this hole, so it stays filled until all
            # segments are there; a request may not be larger than the largest.
            parts = ceil(layout.hole / largest)
            size = round_down(layout.hole // parts, MIN_BLOCK_BYTES)
            for _ in range(parts):
                fillers.append(len(rows))
                rows.append((Op.ALLOC, len(rows), size))
    return [*rows, *((Op.FREE, ident, 0) for ident in fillers)]


def _filling(size: int, largest: int) -> Rows:
    """Requests that take ``size`` bytes of the card, as far as whole segments go, with as few
    requests as the ``largest`` size allows. They are never freed. Their ids count from 0.
    """
    sizes: list[int] = []
    if largest >= MIN_LARGE_BYTES:  # each request gets a segment of its own
        unit = round_down(largest, GRANULE_BYTES)
        rest = round_down(size % unit, GRANULE_BYTES)
        sizes = [unit] * (size // unit)
        if rest >= MIN_LARGE_BYTES:
            sizes.append(rest)
    elif largest:  # several requests share a segment
        segment = GRANULE_BYTES
        if largest > SMALL_MAX_BYTES:
            segment = LARGE_STEP_BYTES
        parts = ceil(segment / largest)
        part = max(round_down(segment // parts, MIN_BLOCK_BYTES), MIN_BLOCK_BYTES)
        sizes = [part] * (size // segment * parts)
    return [(Op.ALLOC, ident, part) for ident, part in enumerate(sizes)]


def round_down(size: int, unit: int) -> int:
    """The largest multiple of ``unit`` up to ``size``."""
    return size // unit * unit


def _program(rows: Rows, like: Trace) -> Trace:
    """A trace of ``rows``, which get no stacks, and then of the refused request: the last operation
    of the trace ``like``, with its stack.
    """
    stack = -1
    if like.frame is not None:
        stack = int(like.frame[-1])
    last = (Op.ALLOC, len(rows), int(like.size[-1]), stack)
    return trace_of_rows([*((*row, -1) for row in rows), last], like.frames, {})
