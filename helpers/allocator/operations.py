"""The operations of a trace, carried out one after the other from the state at its start, and what
came of each.

``a`` is the record of the allocator (records.py). Its other records are read by their places, as
in ``block_at(a, place)``; the one at NONE stands for none.
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
"""What came of an operation: done; out of memory; nothing, because it names a block that is not
there; settings that torch refused.
"""
OUT, KIND, ORDINAL, OFFSET, SIZE, ADDRESS, FIRST_FIGURE = range(7)
"""Places in a row of the timeline (outcome.COLUMNS); the figures of blocks.NAMES follow."""
FIRST_COUNTER = FIRST_FIGURE + len(NAMES)
"""Place of the first of blocks.COUNTERS."""
EDGE = 16
"""Calls to the driver, and new blocks, that an operation makes however few blocks there are: at
most a few, for which this is ample.
"""


def has_room(a: Allocator) -> bool:
    """Whether the tables hold all that one operation can make.

    Unmapping leaves up to two new blocks beside each block. The driver log has up to four calls
    for each: it is unmapped, its range is given up, and pages are mapped before and after that.
    """
    blocks = 3 * a.block_count + EDGE <= a.block_room
    calls = not a.logs or a.call_count + 4 * a.block_count + EDGE <= a.call_room
    return blocks and calls and a.use_count < a.use_room


def advance(a: Allocator, timeline: np.ndarray, begin: int, stop: int) -> int:
    """Carry out the operations from ``begin`` on, up to before ``stop``. Returns which one comes
    next: ``stop``, or the one at which a.status says why it cannot go on.

    ``begin``: -1 to put up the starting state first. ``timeline``: has a row for each operation
    if the replay logs.
    """
    a.status = FINE
    if begin < 0:
        restore(a)
        begin = 0
    for i in range(begin, stop):
        if not has_room(a):
            a.status = GROW
            return i
        a.operation = i
        out, place = step(a, operation_at(a, i))
        if a.logs:
            note(a, timeline[i], out, place)
        if a.status != FINE:
            return i
    return stop


def step(a: Allocator, operation: Operation) -> tuple[int, int]:
    """Carry out one operation. Returns what came of it (an index into OUTCOMES), and the place of
    the block that it handed out.
    """
    op = operation.op
    if op == Op.ALLOC:
        return allocate_for(a, operation)
    if op == Op.FREE or op == Op.FREE_REQUESTED or op == Op.RECORD_STREAM:
        return use_or_free(a, operation), NONE
    if op == Op.FREE_COMPLETED:
        if complete(a, operation.ident):
            return OK, NONE
        return SKIPPED, NONE
    if op == Op.SET_CONF:
        return set_conf(a, operation.size), NONE
    if op == Op.EMPTY_CACHE:
        release_cached_blocks(a, operation.pool)
    elif op == Op.RESET_PEAK:
        for row in range(OVERSIZE_SEGMENTS + 1):  # the last row of the statistics
            stat_at(a, row).peak = stat_at(a, row).current
    else:
        set_circumstance(a, op, operation.size)
    return OK, NONE


def set_conf(a: Allocator, place: int) -> int:
    """Let other settings hold from here on, by their place in the table of settings; a place k
    that torch refuses, after it has taken over some of them, is given as -1 - k.
    """
    is_refused = place < 0
    if is_refused:
        place = -1 - place
    a.setting = place
    # A fraction named there is seen by throw_on_cudamalloc_oom alone (measured, 2.14).
    if conf(a).fraction_bytes != NO_LIMIT:
        a.config_bytes = conf(a).fraction_bytes
    if is_refused:
        return ERROR
    return OK


def set_circumstance(a: Allocator, op: int, size: int) -> None:
    """What happens around the program: a limit, bytes that others hold, a number of calls that are
    made to fail, events.
    """
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
    """A request: OK or OOM, and the place of the block that it got."""
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
    """Another stream uses a block, or the program frees it: OK, or SKIPPED where the request for
    it failed or it was freed before.
    """
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
        pending = NONE
        if operation.op == Op.FREE_REQUESTED:
            pending = operation.ident
        free(a, block_at(a, place), pending)
    return OK


def note(a: Allocator, row: np.ndarray, out: int, place: int) -> None:
    """Fill a row of the timeline (outcome.COLUMNS): what came of the operation, the block that it
    handed out, and figures and counters after it.
    """
    block = block_at(a, place)
    segment = segment_at(a, block.segment)
    row[OUT] = out
    row[KIND:FIRST_FIGURE] = -1  # no block was handed out
    if place != NONE:
        row[KIND] = segment.expandable
        row[ORDINAL] = segment.ordinal
        row[OFFSET] = block.address - segment.address
        row[SIZE] = block.size
        row[ADDRESS] = block.address
    for figure in range(len(NAMES)):
        row_of_all_pools = len(POOLS) * figure
        row[FIRST_FIGURE + figure] = stat_at(a, row_of_all_pools).current
    counters = (
        a.num_alloc_retries,
        a.num_ooms,
        a.num_device_alloc,
        a.num_device_free,
        a.num_sync_all_streams,
        a.num_oom_rejections,
    )
    for number, value in enumerate(counters):
        row[FIRST_COUNTER + number] = value


def restore(a: Allocator) -> None:
    """Put the allocator into the state in which a recording starts; segments get their ordinals in
    the order of the parts.
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
    """The segment that begins with this part; the card's memory of a cudaMalloc segment is counted
    here, that of mapped pages with each block.
    """
    segment = new_segment(a, part.base, part.span, part.page_bytes)
    if not segment.expandable:
        a.used += round_up(part.span, GRANULE_BYTES)
        count_reserved(a, pool_at(a, part.pool).small, segments=1, size=part.span)
    return segment


def restore_state(a: Allocator, block: Block, part: Part) -> None:
    """Make a block of the starting state free, live or awaiting its free, and count it."""
    if part.page_bytes and part.mapped:
        a.used += part.size
        count_reserved(a, is_small(a, block), segments=0, size=part.size)
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
        wait_for(a, block, part.ident)
