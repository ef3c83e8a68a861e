"""How much of the reserved memory is in use, wasted, can be given back or is stranded; and what
request would still succeed.

All of it is read off the table of blocks that a replay leaves (outcome.BLOCK_COLUMNS), in bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from helpers.allocator.blocks import round_size
from helpers.allocator.driver import Card
from helpers.allocator.engine import UNMAPPED, replay, run
from helpers.allocator.outcome import STATES, Outcome
from helpers.allocator.trace import Op, StartBlock, StartSegment, Trace
from helpers.ground.units import halved
from helpers.settings.releases import Behaviour, behaviour
from helpers.settings.text import MIN_BLOCK_BYTES, MIN_LARGE_BYTES, SMALL_MAX_BYTES, Settings, parse

MISLEADS = (
    "1 - allocated/reserved misleads: it is the same for cached segments, which the allocator gives back before it "
    "fails, and for holes between live blocks, which it cannot give back; stranded counts only the holes."
)
MAX_SAMPLES = 60


@dataclass(frozen=True)
class Metrics:
    """What the reserved memory is made of. active = allocated + awaiting free; requested and
    internal waste (block sizes less requests) are over active. releasable: whole free
    cudaMalloc segments and whole free pages of the default pools. stranded: free, yet
    neither; that is fragmentation, under expandable segments too.
    """

    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    releasable_bytes: int

    @property
    def awaiting_free_bytes(self) -> int:
        return self.active_bytes - self.allocated_bytes

    @property
    def internal_waste_bytes(self) -> int:
        return self.active_bytes - self.requested_bytes

    @property
    def stranded_bytes(self) -> int:
        return self.reserved_bytes - self.active_bytes - self.releasable_bytes

    @property
    def misleading_ratio(self) -> float:
        """1 - allocated/reserved, for the reason in MISLEADS."""
        return 1 - self.allocated_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


def metrics(blocks: np.ndarray, settings: Settings) -> Metrics:
    """The figures of a block table."""
    kind, ordinal, _, offset, size, requested, state, _, small, private, mapped = blocks.T
    free = (mapped == 1) & (state == STATES.index("I"))
    active = (mapped == 1) & ~free
    _, at, count = np.unique(ordinal * 2 + kind, return_inverse=True, return_counts=True)
    whole = free & (kind == 0) & (private == 0) & (count[at.reshape(-1)] == 1)
    pages = free & (kind == 1) & (private == 0)
    page = np.where(small == 1, 2 << 20, settings.large_segment_bytes)
    inside = np.maximum((offset + size) // page * page - -(-offset // page) * page, 0)
    return Metrics(
        reserved_bytes=int(size[mapped == 1].sum()),
        allocated_bytes=int(size[state == STATES.index("A")].sum()),
        active_bytes=int(size[active].sum()),
        requested_bytes=int(requested[active].sum()),
        releasable_bytes=int(size[whole].sum() + inside[pages].sum()),
    )


def state_of(blocks: np.ndarray) -> tuple[StartSegment, ...]:
    """A block table as a starting state: the ids of its active blocks are their places in it."""
    segments = []
    for _, group in groupby(enumerate(blocks.tolist()), key=lambda row: row[1][:2]):
        members = list(group)
        kind, _, base, _, _, _, _, stream, small, private, _ = members[0][1]
        kept = []
        for at, (*_, offset, size, requested, state, _, _, _, mapped) in members:
            word = STATES[state] if mapped else UNMAPPED
            kept.append(StartBlock(offset, size, requested, word, at if word in ("A", "P") else -1))
        span = sum(block.size for block in kept)
        of = (stream, bool(small), private, bool(kind))
        segments.append(StartSegment(base, span, *of, tuple(kept)))
    return tuple(segments)


@dataclass(frozen=True)
class State:
    """The allocator in the state that a block table shows, under some settings.

    What the table lacks (ages for garbage collection, where the next segment would lie) begins
    anew; a block that awaits events does so until all are waited for.
    """

    start: tuple[StartSegment, ...]
    settings: Settings
    card: Card
    rules: Behaviour
    fraction: float | None = None

    def after(self, op: Op, size: int = 0, stream: int = 0) -> Outcome:
        """What one operation more makes of it."""
        ids = max((block.id for segment in self.start for block in segment.blocks), default=-1)
        ops, ident, sizes, streams, pools = np.array([[op, ids + 1, size, stream, 0]], np.int64).T
        trace = Trace(ops, ident, sizes, streams, pools, start=self.start)
        card = replace(self.card, policy="monotonic")
        return run(trace, [self.settings], {}, self.rules, card, fraction=self.fraction)

    def succeeds(self, request_bytes: int, stream: int = 0) -> bool:
        """Whether the allocator would serve this request now, with all that it does before it
        gives up.
        """
        return not self.after(Op.ALLOC, request_bytes, stream).ooms

    def largest_request_of_any(self) -> int:
        """The largest request that would succeed now on any stream in use."""
        streams = {one.stream for one in self.start if not one.pool} or {0}
        return max(map(self.largest_request, sorted(streams)))

    def largest_request(self, stream: int = 0) -> int:
        """The largest request in bytes, in steps of 512, that would succeed now outside private
        pools; 0 where none would.

        The allocator itself is asked. Between two neighbouring marks (sizes of free blocks,
        lengths of free and unmapped runs, thresholds) success is either had at the top or lost
        at one point, so a search from the highest mark down is exact.
        """
        limit = self.card.capacity_bytes // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
        split = self.settings.max_split_bytes
        marks = {
            SMALL_MAX_BYTES,
            MIN_LARGE_BYTES - MIN_BLOCK_BYTES,
            split - MIN_BLOCK_BYTES,
            round_size(max(limit, 1), self.settings.roundup_divisions),
        }
        # As it stands, and after everything cached was given back.
        for start in (self.start, state_of(self.after(Op.EMPTY_CACHE).blocks)):
            for segment in start:
                if (segment.stream, segment.pool) == (stream, 0):
                    marks |= _room_in(segment)
        tops = sorted({_most(self.settings, mark, limit) for mark in marks})
        for below, top in zip(reversed([0, *tops[:-1]]), reversed(tops), strict=True):
            if top and self.succeeds(top, stream):
                return top
            low = below + MIN_BLOCK_BYTES
            if low < top and self.succeeds(low, stream):
                return halved(lambda size: self.succeeds(size, stream), low, top, MIN_BLOCK_BYTES)[
                    0
                ]
        return 0


def _room_in(segment: StartSegment) -> set[int]:
    """Sizes of the free blocks, and of the runs of free and unmapped ones from each that a
    request could be laid over.
    """
    found = set()
    run_bytes = 0
    for block in reversed(segment.blocks):
        run_bytes = run_bytes + block.size if block.state in ("I", UNMAPPED) else 0
        if run_bytes:
            found |= {run_bytes} | ({block.size} if block.state == "I" else set())
    return found


def _most(settings: Settings, rounded: int, limit: int) -> int:
    """The largest request, in steps of 512 bytes and up to limit, whose rounded size is at most
    that.
    """

    def size(step: int) -> int:
        return round_size(step * MIN_BLOCK_BYTES, settings.roundup_divisions)

    steps = range(min(rounded, limit) // MIN_BLOCK_BYTES + 1)
    return (bisect_right(steps, rounded, key=size) - 1) * MIN_BLOCK_BYTES


def stranded_over_time(
    trace: Trace, conf: str, card: Card, *, samples: int = 40, **how: Any
) -> list[tuple[int, Metrics]]:
    """(operation, figures after it) at evenly spaced points, the last operation among them;
    `how` goes to replay.

    Each point is a replay of its own, so this costs half of samples replays of the whole; more
    than MAX_SAMPLES are not taken.
    """
    rules = behaviour(how.get("torch", "2.14.1"), how.get("build", "cuda"))
    points = np.unique(np.linspace(0, len(trace), min(samples, MAX_SAMPLES) + 1).astype(int))[1:]
    settings = parse(conf, rules)
    found = []
    for stop in points.tolist():
        blocks = replay(trace, conf, card, stop=stop, **how).blocks
        found.append((stop - 1, metrics(blocks, settings)))
    return found
