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
    """Whether the tables have room for all that one operation can add to them. If not, they are
    made larger before the operation begins, since it cannot be interrupted.

    The most is added where all cached memory goes back. Unmapping the middle of a block leaves up
    to two new blocks, so there can be three in place of each one. The driver log gets up to four
    calls for each block: its pages are unmapped, its range is given up, and pages are mapped before
    and after that. An operation adds at most one Use.
    """
    blocks = 3 * a.block_count + EDGE <= a.block_room
    calls = not a.logs or a.call_count + 4 * a.block_count + EDGE <= a.call_room
    return blocks and calls and a.use_count < a.use_room


def advance(a: Allocator, timeline: np.ndarray, begin: int, stop: int) -> int:
    """Carry out the operations from ``begin`` on, up to before ``stop``.

    Returns the number of the next operation: ``stop`` if all were carried out. Otherwise a.status
    says why not: with GROW the returned operation has not begun and can be continued with larger
    tables; with EXHAUSTED or BROKEN it failed half-way, and the replay is over.

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
    the block that it handed out, NONE where it handed out none.
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
    """Let other settings hold from here on. ``place`` is their place in the table of settings.

    A text that torch refuses can change settings, too: those that stand before the wrong one hold.
    Their place k in the table is then given as -1 - k, which is below 0, and ERROR is returned.
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
    """What happens around the program: a memory limit (``size`` bytes), bytes that others hold of
    the card, a number of calls that are made to fail, or events that are held back (1 or 0) or
    complete. Other operations, such as SNAPSHOT, change nothing.
    """
    if op == Op.SET_FRACTION:
        a.allowed_bytes = size
    elif op == Op.FOREIGN:
        a.foreign = size
    elif op == Op.FAIL_NEXT:
        a.fail_next = size
    elif op == Op.EVENTS_HOLD:
        a.events_held = size
    # Both complete all events, also while events are held back.
    completes = op == Op.EVENTS_COMPLETE or op == Op.SYNCHRONIZE
    if completes or not a.events_held:
        a.events_done = a.events


def allocate_for(a: Allocator, operation: Operation) -> tuple[int, int]:
    """Carry out a request. Returns OK and the place of its block, or OOM and NONE.

    The replay goes on after an OOM. The first one of a replay is noted with its rounded size.
    """
    place = NONE  # of a request of 0 bytes, which does not reach the allocator
    size = operation.size
    if size:
        place = malloc(a, size, operation.stream, operation.pool).at
        if place == NONE:
            if not a.ooms:  # the first
                a.first_oom = a.operation
                a.first_oom_bytes = round_size(size, conf(a).roundup_divisions)
            a.ooms += 1
            return OOM, NONE
    ident_at(a, operation.ident).block = place
    return OK, place


def use_or_free(a: Allocator, operation: Operation) -> int:
    """Carry out an operation by which another stream uses a block, or the program frees it. Returns
    OK, or SKIPPED where the block is not there: the request for it failed in this replay, or it
    was freed before. For a request of 0 bytes, which has no block, there is nothing to do: OK.
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
    """Put the allocator into the state in which a recording starts. It is given as parts, each a
    block of that state (records.Part), segment by segment and in the order of addresses. Segments
    get their ordinals in this order.
    """
    segment = segment_at(a, NONE)  # until the first part begins one
    before = NONE
    for place in range(a.part_count):
        part = part_at(a, place)
        if part.begins:  # a new segment; else the part lies behind the one before
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
    """The segment that begins with this part. The memory that a cudaMalloc segment takes from the
    card is counted here; of an expandable segment the mapped blocks are counted one by one, in
    restore_state.
    """
    segment = new_segment(a, part.base, part.span, part.page_bytes)
    if not segment.expandable:
        a.used += round_up(part.span, GRANULE_BYTES)
        count_reserved(a, pool_at(a, part.pool).small, segments=1, size=part.span)
    return segment


def restore_state(a: Allocator, block: Block, part: Part) -> None:
    """Make a block of the starting state unmapped, free, live or awaiting its free. Count it."""
    if part.page_bytes and part.mapped:  # in an expandable segment, with memory
        a.used += part.size
        count_reserved(a, is_small(a, block), segments=0, size=part.size)
    if not part.mapped or part.state == INACTIVE:
        insert(a, block)  # into the set of free blocks, or that of unmapped ones
        if not part.whole:  # a free part of a segment
            count_split(a, block, 1, part.size)
        return
    count_active(a, block, 1)
    if part.state == LIVE:
        block.allocated = 1
        count_allocated(a, block, 1)
        ident_at(a, part.ident).block = block.at
    else:  # PENDING: the trace has a FREE_COMPLETED for it
        wait_for(a, block, part.ident)
