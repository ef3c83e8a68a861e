"""The operations of a trace, carried out one after the other, and what came of each."""

from helpers.allocator.allocator import malloc, release_cached_blocks
from helpers.allocator.blocks import NAMES, OVERSIZE_SEGMENTS, POOLS, conf, round_size
from helpers.allocator.events import complete, free, record_stream
from helpers.allocator.memory import (
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
from helpers.allocator.restore import restore
from helpers.allocator.trace import Op

OUTCOMES = ("ok", "oom", "skipped", "error")
OK, OOM, SKIPPED, ERROR = range(len(OUTCOMES))
EDGE = 16
"""Calls to the driver, and new blocks, that an operation makes however few blocks there are."""


def has_room(a):
    """Whether the tables hold all that one operation can make: unmapping makes two blocks more
    of each one.
    """
    blocks = 3 * a.block_count + EDGE <= a.block_room
    calls = not a.logs or a.call_count + 4 * a.block_count + EDGE <= a.call_room
    return blocks and calls and a.use_count < a.use_room


def advance(a, ops, idents, sizes, streams, pools, timeline, begin, stop):
    """Carry out operations from begin (-1: put up the starting state first) to stop, or as far
    as the tables have room; which one is next. A size is that of the trace; of SET_FRACTION
    the bytes it allows, of SET_CONF the place of the settings.
    """
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
    if op == Op.SET_CONF:
        return set_conf(a, size), NONE
    if op == Op.EMPTY_CACHE:
        release_cached_blocks(a, private)
    elif op == Op.RESET_PEAK:
        for row in range(OVERSIZE_SEGMENTS + 1):
            stat_at(a, row).peak = stat_at(a, row).current
    else:
        set_circumstance(a, op, size)
    return OK, NONE


def set_conf(a, place):
    """Take over the settings at this place; below 0 those at -1 - place, which torch refused
    after it had taken over some of them.
    """
    a.setting = place if place >= 0 else -1 - place
    # A fraction named there is seen by throw_on_cudamalloc_oom alone (measured, 2.14).
    if conf(a).fraction_bytes != NO_LIMIT:
        a.config_bytes = conf(a).fraction_bytes
    return OK if place >= 0 else ERROR


def set_circumstance(a, op, size):
    """What happens around the program: a limit, other holders, a call made to fail, events."""
    if op == Op.SET_FRACTION:
        a.allowed_bytes = size
    elif op == Op.FOREIGN:
        a.held = size
    elif op == Op.FAIL_NEXT:
        a.fail_next = size
    elif op == Op.EVENTS_HOLD:
        a.events_held = size
    if (
        op == Op.EVENTS_COMPLETE
        or op == Op.SYNCHRONIZE
        or (op == Op.EVENTS_HOLD and not size)
    ):
        a.events_done = a.events


def allocate_for(a, ident, size, stream, private):
    place = NONE  # of a request of 0 bytes, which does not reach the allocator
    if size:
        place = malloc(a, size, stream, private).at
        if place == NONE:
            if not a.ooms:
                a.first_oom = a.operation
                a.first_oom_bytes = round_size(size, conf(a).roundup_divisions)
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
    """One row of outcome.COLUMNS: what was handed out, the figures, and the counters of
    blocks.COUNTERS.
    """
    block = block_at(a, place)
    segment = segment_at(a, block.segment)
    row = timeline[i]
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
