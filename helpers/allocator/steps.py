"""The operations of a trace, one after the other, and the state that they start from."""

from __future__ import annotations

from helpers.allocator.allocator import malloc, release_cached_blocks
from helpers.allocator.blocks import (
    NAMES,
    OVERSIZE_SEGMENTS,
    POOLS,
    complete,
    conf,
    free,
    record_stream,
    restore,
    round_size,
)
from helpers.allocator.records import (
    FINE,
    GONE,
    GROW,
    NO_LIMIT,
    NONE,
    block_at,
    ident_at,
    segment_at,
    stat_at,
)
from helpers.allocator.trace import Op

OUTCOMES = ("ok", "oom", "skipped", "error")
OK, OOM, SKIPPED, ERROR = range(len(OUTCOMES))
EDGE = (
    16  # calls to the driver, and new blocks, that an operation makes however few blocks there are
)


def has_room(a):
    """Whether the tables hold all that one operation can make: unmapping makes two blocks more of each one."""
    blocks = 3 * a.block_count + EDGE <= a.block_room
    calls = not a.logs or a.call_count + 4 * a.block_count + EDGE <= a.call_room
    return blocks and calls and a.use_count < a.use_room


def advance(a, ops, idents, sizes, streams, pools, timeline, begin, stop):
    """Carry out operations from begin (-1: put up the starting state first) to stop, or as far as the tables have room; which
    one is next. A size is that of the trace; of SET_FRACTION the bytes it allows, of SET_CONF the place of the settings."""
    a.status = FINE
    if begin < 0:
        restore(a)
    for i in range(max(begin, 0), stop):
        if not has_room(a):
            a.status = GROW
            return i
        a.operation = i
        out, block = step(a, ops[i], idents[i], sizes[i], streams[i], pools[i])
        if a.logs:
            note(a, timeline, i, out, block)
        if a.status != FINE:
            return i
    return stop


def step(a, op, ident, size, stream, private):
    """One operation: what came of it, and the place of the block that it handed out."""
    if op == Op.ALLOC:
        return allocate_for(a, ident, size, stream, private)
    if op == Op.FREE or op == Op.FREE_REQUESTED or op == Op.RECORD_STREAM:
        return use_or_free(a, op, ident, stream), NONE
    if op == Op.FREE_COMPLETED:
        return OK if complete(a, ident + 1) else SKIPPED, NONE
    if op == Op.EMPTY_CACHE:
        release_cached_blocks(a, private)
    elif op == Op.SET_FRACTION:
        a.allowed_bytes = size
    elif op == Op.SET_CONF:
        # A fraction named there is seen by throw_on_cudamalloc_oom alone (measured, 2.14).
        a.setting = size if size >= 0 else -1 - size
        if conf(a).fraction_bytes != NO_LIMIT:
            a.config_bytes = conf(a).fraction_bytes
        if size < 0:  # refused, after some of it had been taken over
            return ERROR, NONE
    elif op == Op.FOREIGN:
        a.held = size
    elif op == Op.FAIL_NEXT:
        a.fail_next = size
    elif op == Op.RESET_PEAK:
        for row in range(OVERSIZE_SEGMENTS + 1):
            stat_at(a, row).peak = stat_at(a, row).current
    elif op == Op.EVENTS_HOLD:
        a.events_held = size
    if op == Op.EVENTS_COMPLETE or op == Op.SYNCHRONIZE or (op == Op.EVENTS_HOLD and not size):
        a.events_done = a.events
    return OK, NONE


def allocate_for(a, ident, size, stream, private):
    place = NONE  # of a request of 0 bytes, which does not reach the allocator
    if size:
        place = malloc(a, size, stream, private).at
        if place == NONE:
            if not a.ooms:
                a.first_oom, a.first_oom_bytes = (
                    a.operation,
                    round_size(size, conf(a).roundup_divisions),
                )
            a.ooms += 1
            return OOM, NONE
    ident_at(a, ident + 1).block = place
    return OK, place


def use_or_free(a, op, ident, stream):
    entry = ident_at(a, ident + 1)
    place = entry.block
    if place == GONE:
        return SKIPPED
    if op == Op.RECORD_STREAM:
        if place != NONE:
            record_stream(a, block_at(a, place), stream)
        return OK
    entry.block = GONE
    if place != NONE:
        free(a, block_at(a, place), ident if op == Op.FREE_REQUESTED else -1)
    return OK


def note(a, timeline, i, out, place):
    """One row of outcome.COLUMNS."""
    timeline[i, 0] = out
    block = block_at(a, place)
    segment = segment_at(a, block.segment)
    found = place != NONE
    timeline[i, 1] = segment.expandable if found else -1
    timeline[i, 2] = segment.ordinal if found else -1
    timeline[i, 3] = block.address - segment.address if found else -1
    timeline[i, 4] = block.size if found else -1
    timeline[i, 5] = block.address if found else -1
    for figure in range(len(NAMES)):
        timeline[i, 6 + figure] = stat_at(a, len(POOLS) * figure).current
    timeline[i, 15] = a.num_alloc_retries
    timeline[i, 16] = a.num_ooms
    timeline[i, 17] = a.num_device_alloc
    timeline[i, 18] = a.num_device_free
    timeline[i, 19] = a.num_sync_all_streams
    timeline[i, 20] = a.num_oom_rejections
