"""The operations of a trace, carried out one after the other from the state at its start, and what
came of each.
"""

from __future__ import annotations

import numpy as np

from helpers.allocator.allocator import malloc, release_cached_blocks
from helpers.allocator.blocks import (
    INACTIVE,
    LIVE,
    NAMES,
    OVERSIZE_SEGMENTS,
    POOLS,
    conf,
    count_active,
    count_allocated,
    count_reserved,
    count_split,
    insert,
    is_small,
    new_block,
    new_segment,
    round_size,
    splice,
)
from helpers.allocator.driver import GRANULE_BYTES, round_up
from helpers.allocator.events import complete, free, record_stream, wait_for
from helpers.allocator.records import (
    FINE,
    GONE,
    GROW,
    NO_LIMIT,
    NONE,
    Allocator,
    Block,
    Operation,
    Part,
    Segment,
    block_at,
    ident_at,
    operation_at,
    part_at,
    pool_at,
    segment_at,
    stat_at,
)
from helpers.allocator.trace import Op

OUTCOMES = ("ok", "oom", "skipped", "error")
OK, OOM, SKIPPED, ERROR = range(len(OUTCOMES))
EDGE = 16
"""Calls to the driver, and new blocks, that an operation makes however few blocks there are."""


def has_room(a: Allocator) -> bool:
    """Whether the tables hold all that one operation can make: unmapping makes two blocks more
    of each one.
    """
    blocks = 3 * a.block_count + EDGE <= a.block_room
    calls = not a.logs or a.call_count + 4 * a.block_count + EDGE <= a.call_room
    return blocks and calls and a.use_count < a.use_room


def advance(a: Allocator, timeline: np.ndarray, begin: int, stop: int) -> int:
    """Carry out operations from begin (-1: put up the starting state first) to stop, or as far
    as the tables have room; which one is next.
    """
    a.status = FINE
    if begin < 0:
        restore(a)
    for i in range(max(begin, 0), stop):
        if not has_room(a):
            a.status = GROW
            return i
        a.operation = i
        out, block = step(a, operation_at(a, i))
        if a.logs:
            note(a, timeline[i], out, block)
        if a.status != FINE:
            return i
    return stop


def step(a: Allocator, operation: Operation) -> tuple[int, int]:
    """One operation: what came of it, and the place of the block that it handed out."""
    op = operation.op
    if op == Op.ALLOC:
        return allocate_for(a, operation)
    if op == Op.FREE or op == Op.FREE_REQUESTED or op == Op.RECORD_STREAM:
        return use_or_free(a, operation), NONE
    if op == Op.FREE_COMPLETED:
        return OK if complete(a, operation.ident) else SKIPPED, NONE
    if op == Op.SET_CONF:
        return set_conf(a, operation.size), NONE
    if op == Op.EMPTY_CACHE:
        release_cached_blocks(a, operation.pool)
    elif op == Op.RESET_PEAK:
        for row in range(OVERSIZE_SEGMENTS + 1):
            stat_at(a, row).peak = stat_at(a, row).current
    else:
        set_circumstance(a, op, operation.size)
    return OK, NONE


def set_conf(a: Allocator, place: int) -> int:
    """Take over the settings at this place; below 0 those at -1 - place, which torch refused
    after it had taken over some of them.
    """
    a.setting = place if place >= 0 else -1 - place
    # A fraction named there is seen by throw_on_cudamalloc_oom alone (measured, 2.14).
    if conf(a).fraction_bytes != NO_LIMIT:
        a.config_bytes = conf(a).fraction_bytes
    return OK if place >= 0 else ERROR


def set_circumstance(a: Allocator, op: int, size: int) -> None:
    """What happens around the program: a limit, other holders, a call made to fail, events."""
    if op == Op.SET_FRACTION:
        a.allowed_bytes = size
    elif op == Op.FOREIGN:
        a.foreign = size
    elif op == Op.FAIL_NEXT:
        a.fail_next = size
    elif op == Op.EVENTS_HOLD:
        a.events_held = size
    completes = op == Op.EVENTS_COMPLETE or op == Op.SYNCHRONIZE
    if completes or not a.events_held:
        a.events_done = a.events


def allocate_for(a: Allocator, operation: Operation) -> tuple[int, int]:
    place = NONE  # of a request of 0 bytes, which does not reach the allocator
    size = operation.size
    if size:
        place = malloc(a, size, operation.stream, operation.pool).at
        if place == NONE:
            if not a.ooms:
                a.first_oom = a.operation
                a.first_oom_bytes = round_size(size, conf(a).roundup_divisions)
            a.ooms += 1
            return OOM, NONE
    ident_at(a, operation.ident).block = place
    return OK, place


def use_or_free(a: Allocator, operation: Operation) -> int:
    entry = ident_at(a, operation.ident)
    place = entry.block
    if place == GONE:
        return SKIPPED
    if operation.op == Op.RECORD_STREAM:
        if place != NONE:
            record_stream(a, block_at(a, place), operation.stream)
        return OK
    entry.block = GONE
    if place != NONE:
        waits = operation.op == Op.FREE_REQUESTED
        free(a, block_at(a, place), operation.ident if waits else NONE)
    return OK


def note(a: Allocator, row: np.ndarray, out: int, place: int) -> None:
    """Fill a row of the timeline (outcome.COLUMNS): what was handed out, the figures, and the
    counters of blocks.COUNTERS.
    """
    block = block_at(a, place)
    segment = segment_at(a, block.segment)
    row[0] = out
    row[1:6] = -1
    if place != NONE:
        row[1] = segment.expandable
        row[2] = segment.ordinal
        row[3] = block.address - segment.address
        row[4] = block.size
        row[5] = block.address
    for figure in range(len(NAMES)):
        row[6 + figure] = stat_at(a, len(POOLS) * figure).current
    row[15] = a.num_alloc_retries
    row[16] = a.num_ooms
    row[17] = a.num_device_alloc
    row[18] = a.num_device_free
    row[19] = a.num_sync_all_streams
    row[20] = a.num_oom_rejections


def restore(a: Allocator) -> None:
    """Put the allocator into the state that a recording starts from; segments are numbered in
    the order given.
    """
    segment = segment_at(a, NONE)
    before = NONE
    for place in range(a.part_count):
        part = part_at(a, place)
        if part.begins:
            segment = restore_segment(a, part)
            before = NONE
        address = part.base + part.offset
        block = new_block(a, segment, part.pool, part.stream, address, part.size)
        splice(a, block, before, NONE)
        before = block.at
        block.requested = part.requested
        block.mapped = part.mapped
        restore_state(a, block, part)


def restore_segment(a: Allocator, part: Part) -> Segment:
    segment = new_segment(a, part.base, part.span, part.page_bytes)
    if not segment.expandable:
        a.used += round_up(part.span, GRANULE_BYTES)
        count_reserved(a, pool_at(a, part.pool).small, 1, part.span)
    return segment


def restore_state(a: Allocator, block: Block, part: Part) -> None:
    """Free, live or awaiting its free."""
    if part.page_bytes and part.mapped:
        a.used += part.size
        count_reserved(a, is_small(a, block), 0, part.size)
    if not part.mapped or part.state == INACTIVE:
        insert(a, block)
        if not part.whole:
            count_split(a, block, 1, part.size)
        return
    count_active(a, block, 1)
    if part.state == LIVE:
        block.allocated = 1
        count_allocated(a, block, 1)
        ident_at(a, part.ident).block = block.at
    else:
        block.event_count = 1
        wait_for(a, block, part.ident)
