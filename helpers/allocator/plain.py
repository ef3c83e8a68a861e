"""Replay by the readable model: slow, and what the compiled replay is held to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.allocator import release
from helpers.allocator.block import Block
from helpers.allocator.driver import Card
from helpers.allocator.model import Allocator
from helpers.allocator.outcome import CALLS, ERROR, OK, OOM, SKIPPED, STATES, Outcome
from helpers.allocator.statistics import NAMES, POOLS
from helpers.allocator.trace import Op, Trace
from helpers.settings.releases import Behaviour
from helpers.settings.text import Settings


def run(trace: Trace, settings: Sequence[Settings], settings_at: dict[int, int], behaviour: Behaviour, card: Card, *,
        fraction: float | None, stop: int, timeline: bool, addresses: tuple[int, ...]) -> Outcome:
    """Carry out the first `stop` operations. settings[0] holds from the start, settings[settings_at[i]] from operation i on;
    -1 - number for what torch refuses there and what then holds."""
    allocator = Allocator(settings[0], behaviour, card, fraction=fraction, start=trace.start, addresses=addresses)
    live: dict[int, Block | None] = dict(allocator.live)
    rows: list[list[int]] = []
    calls: list[list[int]] = []
    first: int | None = None
    first_bytes = ooms = 0
    ops, ids, sizes = trace.op.tolist(), trace.id.tolist(), trace.size.tolist()
    streams, pools = trace.stream.tolist(), trace.pool.tolist()
    for index in range(stop):
        op, ident, size = ops[index], ids[index], sizes[index]
        out, block = OK, None
        allocator.driver.log = []
        if op == Op.ALLOC:
            if size:
                block = allocator.malloc(size, streams[index], pools[index])
                if block is None:
                    out = OOM
                    ooms += 1
                    if first is None:
                        first, first_bytes = index, allocator.settings.round_size(size)
            if out == OK:
                live[ident] = block
        elif op in (Op.FREE, Op.FREE_REQUESTED, Op.RECORD_STREAM):
            if ident not in live:
                out = SKIPPED
            else:
                used = live[ident]
                if op != Op.RECORD_STREAM:
                    del live[ident]
                if used is not None and op == Op.RECORD_STREAM:
                    allocator.record_stream(used, streams[index])
                elif used is not None:
                    allocator.free(used, ident if op == Op.FREE_REQUESTED else None)
        elif op == Op.FREE_COMPLETED:
            out = OK if ident in allocator.waiting else SKIPPED
            allocator.complete(ident)
        elif op == Op.EMPTY_CACHE:
            release.release_cached_blocks(allocator, (pools[index],) if pools[index] else ())
        elif op == Op.SET_FRACTION:
            allocator.set_fraction(float(trace.values[size]))
        elif op == Op.SET_CONF:
            number = settings_at[index]
            out = ERROR if number < 0 else OK
            allocator.set_conf(settings[-1 - number if number < 0 else number])
        else:
            circumstance(allocator, op, size)
        if timeline:
            rows.append(row(allocator, out, block))
            calls += [[index, *call(entry)] for entry in allocator.driver.log]
    figures = np.array([[allocator.statistics.stats[name][pool].row() for pool in POOLS] for name in NAMES], np.int64)
    stats = allocator.statistics
    oversize = np.array([stats.oversize_allocations.row(), stats.oversize_segments.row()], np.int64)
    return Outcome(stop, ooms, first, first_bytes, figures, oversize, np.array(list(allocator.counters.values()), np.int64),
                   block_table(allocator), np.array(rows, np.int64).reshape(-1, 21) if timeline else None,
                   np.array(calls, np.int64).reshape(-1, 5) if timeline else None)


def circumstance(allocator: Allocator, op: int, size: int) -> None:
    """What happens around the allocator: events, other processes, calls that fail."""
    driver = allocator.driver
    if op == Op.EVENTS_HOLD:
        driver.hold_events(bool(size))
    elif op in (Op.EVENTS_COMPLETE, Op.SYNCHRONIZE):
        driver.complete_events()
    elif op == Op.FOREIGN:
        driver.held = size
    elif op == Op.FAIL_NEXT:
        driver.fail_next = size
    elif op == Op.RESET_PEAK:
        allocator.statistics.reset_peak()


def row(allocator: Allocator, out: int, block: Block | None) -> list[int]:
    """One row of the timeline."""
    place = [-1, -1, -1, -1, -1] if block is None else [int(block.segment.expandable), block.segment.ordinal, block.offset,
                                                        block.size, block.address]
    stats = allocator.statistics
    return [out, *place, *(stats.current(name) for name in ("allocated_bytes", "reserved_bytes", "active_bytes",
                                                            "requested_bytes", "inactive_split_bytes", "allocation", "active",
                                                            "segment", "inactive_split")), *allocator.counters.values()]


def call(entry: list) -> list[int]:
    """A call to the driver as [call, ordinal, address, size], -1 where it has none."""
    name, rest = entry[0], entry[1:]
    if name == "malloc_fail":
        return [CALLS.index(name), -1, -1, rest[0]]
    if name == "create_fail":
        return [CALLS.index(name), rest[0], -1, rest[1]]
    return [CALLS.index(name), *rest] if len(rest) == 3 else [CALLS.index(name), rest[0], -1, -1]


def block_table(allocator: Allocator) -> np.ndarray:
    """Every block of every segment, in order of kind, ordinal and offset."""
    seen = {}
    for pair in allocator.pools.values():
        for pool in pair:
            seen.update({id(block): block for block in [*pool.blocks, *pool.unmapped]})
    seen.update({id(block): block for block in allocator.active.values()})
    rows = []
    for block in seen.values():
        segment = block.segment
        state = STATES.index("A" if block.allocated else "P" if block.event_count else "I")
        rows.append([int(segment.expandable), segment.ordinal, segment.address, block.offset, block.size, block.requested,
                     state, segment.stream, int(segment.pool.small), segment.pool.private, int(block.mapped)])
    return np.array(sorted(rows), np.int64).reshape(-1, 11)
