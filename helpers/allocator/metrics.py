"""How much of the reserved memory is in use, wasted, can be given back or is stranded; and what request would still succeed.

All of it is read off the table of blocks that a replay leaves (outcome.BLOCK_COLUMNS), in bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from helpers.allocator.block import Block, Segment
from helpers.allocator.driver import Card, Driver, round_up
from helpers.allocator.expandable import page_bytes
from helpers.allocator.model import Allocator
from helpers.allocator.outcome import STATES, Outcome
from helpers.allocator.release import release_cached_blocks
from helpers.allocator.replay import replay
from helpers.allocator.trace import Trace
from helpers.settings.releases import Behaviour
from helpers.settings.text import MIN_BLOCK_BYTES, MIN_LARGE_BYTES, SMALL_MAX_BYTES, Settings

MISLEADS = ("1 - allocated/reserved misleads: it is the same for cached segments, which the allocator gives back before it "
            "fails, and for holes between live blocks, which it cannot give back; stranded counts only the holes.")
MAX_SAMPLES = 60


@dataclass(frozen=True)
class Share:
    """What a part of the reserved memory is made of. active = allocated + awaiting free; requested and internal waste (block
    sizes less requests) are over active. releasable: whole free cudaMalloc segments and whole free pages of the default pools.
    stranded: free, yet neither; that is fragmentation, under expandable segments too. unmapped: addresses without memory."""

    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    awaiting_free_bytes: int
    requested_bytes: int
    internal_waste_bytes: int
    releasable_bytes: int
    stranded_bytes: int
    unmapped_bytes: int
    largest_free_bytes: int


@dataclass(frozen=True)
class Metrics:
    """All together, and per (stream, private pool, small). largest_requests: (stream, private pool, bytes); device_free_bytes:
    what the card still has; misleading_ratio: 1 - allocated/reserved, for the reason in MISLEADS."""

    all: Share
    parts: dict[tuple[int, int, bool], Share]
    largest_requests: tuple[tuple[int, int, int], ...]
    device_free_bytes: int
    misleading_ratio: float

    @property
    def largest_request_bytes(self) -> int:
        """The largest request that would succeed now on any stream, outside private pools."""
        return max((size for _, private, size in self.largest_requests if not private), default=0)


def metrics(blocks: np.ndarray, settings: Settings, card: Card, rules: Behaviour, *, fraction: float | None = None,
            largest: bool = True) -> Metrics:
    """The figures of a block table. largest=False leaves the search for the largest requests out."""
    kind, ordinal, _, offset, size, requested, state, stream, small, private, mapped = blocks.T
    is_mapped = mapped == 1
    free = is_mapped & (state == STATES.index("I"))
    active = is_mapped & ~free
    releasable = np.zeros(len(blocks), np.int64)
    _, at, count = np.unique(ordinal * 2 + kind, return_inverse=True, return_counts=True)
    whole = free & (kind == 0) & (private == 0) & (count[at.reshape(-1)] == 1)
    releasable[whole] = size[whole]
    pages = free & (kind == 1) & (private == 0)
    page = np.where(small == 1, 2 << 20, settings.large_segment_bytes)
    inside = (offset + size) // page * page - -(-offset // page) * page
    releasable[pages] = np.maximum(inside, 0)[pages]

    def share(rows: np.ndarray) -> Share:
        def total(which: np.ndarray, of: np.ndarray = size) -> int:
            return int(of[rows & which].sum())

        reserved, in_use, given = total(is_mapped), total(active), total(is_mapped, releasable)
        return Share(reserved, total(state == STATES.index("A")), in_use, total(state == STATES.index("P")),
                     total(active, requested), in_use - total(active, requested), given, reserved - in_use - given,
                     total(~is_mapped), int(size[rows & free].max(initial=0)))

    keys = sorted({(int(a), int(b), bool(c)) for a, b, c in zip(stream, private, small, strict=True)})
    parts = {key: share((stream == key[0]) & (private == key[1]) & (small == key[2])) for key in keys}
    everything = share(np.ones(len(blocks), bool))
    pools = sorted({(a, b) for a, b, _ in keys}) or [(0, 0)]
    requests = tuple((a, b, largest_request(blocks, settings, card, rules, stream=a, private=b, fraction=fraction))
                     for a, b in pools) if largest else ()
    used = rebuild(blocks, settings, card, rules, fraction).driver.used
    ratio = 1 - everything.allocated_bytes / everything.reserved_bytes if everything.reserved_bytes else 0.0
    return Metrics(everything, parts, requests, max(card.capacity_bytes - card.held_bytes - used, 0), ratio)


def rebuild(blocks: np.ndarray, settings: Settings, card: Card, rules: Behaviour,
            fraction: float | None = None) -> Allocator:
    """An allocator in the state that a block table shows, good for one request. What the table lacks (ages for garbage
    collection, where the next segment would lie) begins anew; a block that awaits events does so until all are waited for."""
    allocator = Allocator(settings, rules, card, fraction=fraction)
    above = int((blocks[:, 2] + blocks[:, 3] + blocks[:, 4]).max(initial=0))
    allocator.driver = Driver(replace(card, policy="monotonic"), (), above)
    for (kind, ordinal), group in groupby(blocks.tolist(), key=lambda row: (row[0], row[1])):
        rows = list(group)
        _, _, base, _, _, _, _, stream, small, private, _ = rows[0]
        pool = allocator.pool(1 if small else 1 << 30, private)
        segment = Segment(base, sum(row[4] for row in rows), stream, pool, ordinal, bool(kind), allocator.number(None))
        segment.page_bytes = page_bytes(allocator, pool) if kind else 0
        allocator.segments.append(segment)
        last: Block | None = None
        for _, _, _, offset, size, requested, state, _, _, _, mapped in rows:
            block = Block(segment, base + offset, size, segment.number, requested, STATES[state] == "A", bool(mapped))
            block.splice(last, None)
            last = block
            if not mapped:
                pool.insert_unmapped(block)
                continue
            allocator.mapped_bytes += size
            if STATES[state] == "I":
                pool.insert(block)
                continue
            allocator.active[block.address] = block
            if STATES[state] == "P":
                block.event_count = 1
                allocator.waiting[len(allocator.waiting)] = block
        held = sum(row[4] for row in rows if row[10])
        allocator.driver.used += held if kind else round_up(held, card.granule_bytes)
    return allocator


def succeeds(blocks: np.ndarray, settings: Settings, card: Card, rules: Behaviour, request_bytes: int, *, stream: int = 0,
             private: int = 0, fraction: float | None = None) -> bool:
    """Whether the allocator would serve this request now, with all that it does before it gives up."""
    return rebuild(blocks, settings, card, rules, fraction).malloc(request_bytes, stream, private) is not None


def largest_request(blocks: np.ndarray, settings: Settings, card: Card, rules: Behaviour, *, stream: int = 0, private: int = 0,
                    fraction: float | None = None) -> int:
    """The largest request in bytes, in steps of 512, that would succeed now; 0 where none would.

    The model itself is asked. Between two neighbouring marks (sizes of free blocks, lengths of free and unmapped runs,
    thresholds) success is either had at the top or lost at one point, so a search from the highest mark down is exact.
    """
    def ask(size: int) -> bool:
        return succeeds(blocks, settings, card, rules, size, stream=stream, private=private, fraction=fraction)

    limit = card.capacity_bytes // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
    split = settings.max_split_bytes
    marks = {SMALL_MAX_BYTES, MIN_LARGE_BYTES - MIN_BLOCK_BYTES, split - MIN_BLOCK_BYTES, settings.round_size(max(limit, 1))}
    allocator = rebuild(blocks, settings, card, rules, fraction)
    for _ in range(2):  # as it stands, and after everything cached was given back
        for pool in allocator.pools.get(private, ()):
            marks |= {block.size for block in pool.blocks if block.stream == stream}
            marks |= {_run(block) for block in pool.unmapped if block.stream == stream}
        release_cached_blocks(allocator)
    tops = sorted({_most(settings, mark, limit) for mark in marks})
    for below, top in zip(reversed([0, *tops[:-1]]), reversed(tops), strict=True):
        if top and ask(top):
            return top
        low, high = below + MIN_BLOCK_BYTES, top
        if low < high and ask(low):
            while high - low > MIN_BLOCK_BYTES:
                middle = (low + high) // 2 // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
                low, high = (middle, high) if ask(middle) else (low, middle)
            return low
    return 0


def _run(block: Block) -> int:
    """Bytes of addresses that a request could be laid over from this unmapped block, or the free one before it, on."""
    at: Block | None = block.prev if block.prev and block.prev.available else block
    room = 0
    while at is not None and at.available:
        room, at = room + at.size, at.next
    return room


def _most(settings: Settings, rounded: int, limit: int) -> int:
    """The largest request, in steps of 512 bytes and up to limit, whose rounded size is at most that."""
    steps = range(min(rounded, limit) // MIN_BLOCK_BYTES + 1)
    return (bisect_right(steps, rounded, key=lambda step: settings.round_size(step * MIN_BLOCK_BYTES)) - 1) * MIN_BLOCK_BYTES


def external_index(blocks: np.ndarray, settings: Settings, card: Card, rules: Behaviour, request_bytes: int, *, stream: int = 0,
                   private: int = 0) -> float | None:
    """How scattered the free memory of this stream and pool is for a request: 0 where a free block serves it, towards 1 where
    much is free in small pieces; None where nothing is free, which is lack of memory and not fragmentation."""
    allocator = rebuild(blocks, settings, card, rules)
    size = settings.round_size(request_bytes)
    pool = allocator.pool(size, private)
    free = [block.size for block in pool.blocks if block.stream == stream]
    if not free:
        return None
    return 0.0 if allocator.get_free_block(pool, size, stream) else 1 - max(free) / sum(free)


def timeline_metrics(outcome: Outcome) -> dict[str, np.ndarray]:
    """Bytes reserved, active, allocated and requested after each operation of a replay with timeline=True."""
    return {f"{name}_bytes": outcome.column(name) for name in ("reserved", "active", "allocated", "requested")}


def stranded_over_time(trace: Trace, conf: str, card: Card, *, samples: int = 40, **how: Any) -> list[tuple[int, Share]]:
    """(operation, figures after it) at evenly spaced points, the last operation among them; `how` goes to replay.

    Each point is a replay of its own, so this costs half of samples replays of the whole; more than MAX_SAMPLES are not taken.
    """
    from helpers.settings.releases import behaviour
    from helpers.settings.text import parse
    rules = behaviour(how.get("torch", "2.14.1"), how.get("build", "cuda"))
    points = np.unique(np.linspace(0, len(trace), min(samples, MAX_SAMPLES) + 1).astype(int))[1:]
    return [(int(stop) - 1, metrics(replay(trace, conf, card, stop=int(stop), **how).blocks, parse(conf, rules), card, rules,
                                    largest=False).all) for stop in points]
