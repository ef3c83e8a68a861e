"""The card under the compiled replay: driver.py over the arrays of compiled_state.py."""

from __future__ import annotations

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_state import enlarge, function
from helpers.allocator.outcome import CALLS

MALLOC, MALLOC_FAIL, FREE, RESERVE, UNRESERVE, MAP, CREATE_FAIL, UNMAP = range(len(CALLS))
MEMORY, RESERVED = c.EXTENTS, c.EXTENTS + 3  # per arena: where its free ranges stand, how many, room for how many


@function
def round_up(size, unit):
    return -(-size // unit) * unit


@function
def take(m, arena, size):
    """The address of a free range, by the card's rule."""
    down = m[c.POLICY] == c.TOPDOWN
    low, count = m[arena], m[arena + 1]
    for k in range(count):
        at = low + 2 * (count - 1 - k if down else k)
        if m[at + 1] - m[at] >= size:
            if down:
                m[at + 1] -= size
                address = m[at + 1]
            else:
                address = m[at]
                m[at] += size
            if m[at] == m[at + 1]:
                remove_extent(m, arena, at)
            return address
    m[c.STATUS] = c.EXHAUSTED
    return 0


@function
def remove_extent(m, arena, at):
    m[arena + 1] -= 1
    for k in range(at, m[arena] + 2 * m[arena + 1]):
        m[k] = m[k + 2]


@function
def give(m, arena, low, size):
    """Join a range with the free ones beside it."""
    if m[c.POLICY] >= c.MONOTONIC:
        return
    first, count, high = m[arena], m[arena + 1], low + size
    i, end = 0, count
    while i < end:
        middle = (i + end) >> 1
        if m[first + 2 * middle] < low:
            i = middle + 1
        else:
            end = middle
    at = first + 2 * i
    left = i > 0 and m[at - 1] == low
    right = i < count and m[at] == high
    if left and right:
        m[at - 1] = m[at + 1]
        remove_extent(m, arena, at)
    elif left:
        m[at - 1] = high
    elif right:
        m[at] = low
    else:
        if count == m[arena + 2]:
            m[arena] = enlarge(m, first, 2 * count)
            m[arena + 2] *= 2
            at = m[arena] + 2 * i
        for k in range(m[arena] + 2 * count - 1, at - 1, -1):
            m[k + 2] = m[k]
        m[at], m[at + 1] = low, high
        m[arena + 1] = count + 1


@function
def log(m, call, ordinal, address, size):
    """Keep a call to the driver; ranges mapped or unmapped one after the other are one call."""
    if not m[c.LOGS]:
        return
    at = m[c.CALLS] + 5 * m[c.CALL_COUNT]
    if m[c.CALL_COUNT] and (call == MAP or call == UNMAP):
        same = m[at - 5] == m[c.AT] and m[at - 4] == call and m[at - 3] == ordinal
        if same and m[at - 2] + m[at - 1] == address:
            m[at - 1] += size
            return
    m[at], m[at + 1], m[at + 2], m[at + 3], m[at + 4] = m[c.AT], call, ordinal, address, size
    m[c.CALL_COUNT] += 1


@function
def room_for(m, size):
    if m[c.FAIL_NEXT]:
        m[c.FAIL_NEXT] -= 1
        return False
    if size > m[c.CAPACITY] - m[c.HELD] - m[c.USED]:
        return False
    m[c.USED] += size
    return True


@function
def recorded(m, size):
    """The next address of the recording; 0 where there is none or a replay that went another way has it in use."""
    if m[c.RECORDED] == m[c.RECORDED_END]:
        return 0
    address = m[m[c.RECORDED]]
    m[c.RECORDED] += 2
    for at in range(m[c.IN_PLACE], m[c.IN_PLACE_END], 2):
        if address < m[at] + m[at + 1] and m[at] < address + size:
            return 0
    keep_in_place(m, address, size)
    return address


@function
def keep_in_place(m, address, size):
    """Note a segment in use; where nothing was recorded there is nothing to note it for."""
    if m[c.IN_PLACE] < m[c.RECORDED_END]:
        m[m[c.IN_PLACE_END]], m[m[c.IN_PLACE_END] + 1] = address, size
        m[c.IN_PLACE_END] += 2


@function
def malloc(m, size):
    """(whether there was room, address); the ordinal is c.MALLOCS - 1."""
    physical = round_up(size, m[c.GRANULE])
    if not room_for(m, physical):
        log(m, MALLOC_FAIL, -1, -1, size)
        return False, 0
    address = recorded(m, physical)
    if address == 0:
        address = take(m, MEMORY, physical)
    log(m, MALLOC, m[c.MALLOCS], address, size)
    m[c.MALLOCS] += 1
    return True, address


@function
def free(m, ordinal, address, size):
    physical = round_up(size, m[c.GRANULE])
    m[c.USED] -= physical
    for at in range(m[c.IN_PLACE], m[c.IN_PLACE_END], 2):
        if m[at] == address:
            m[c.IN_PLACE_END] -= 2
            m[at], m[at + 1] = m[m[c.IN_PLACE_END]], m[m[c.IN_PLACE_END] + 1]
            break
    give(m, MEMORY, address, physical)
    log(m, FREE, ordinal, -1, -1)


@function
def reserve(m, size):
    address = take(m, RESERVED, round_up(size, m[c.GRANULE]))
    log(m, RESERVE, m[c.RESERVES], address, size)
    m[c.RESERVES] += 1
    return address


@function
def unreserve(m, ordinal, address, size):
    give(m, RESERVED, address, round_up(size, m[c.GRANULE]))
    log(m, UNRESERVE, ordinal, -1, -1)


@function
def map_pages(m, ordinal, offset, size, page):
    for made in range(size // page):
        if not room_for(m, page):
            m[c.USED] -= made * page
            log(m, CREATE_FAIL, made, -1, page)
            return False
    log(m, MAP, ordinal, offset, size)
    return True


@function
def unmap_pages(m, ordinal, offset, size):
    m[c.USED] -= size
    log(m, UNMAP, ordinal, offset, size)


@function
def record_event(m):
    m[c.EVENTS] += 1
    if not m[c.EVENTS_HELD]:
        m[c.EVENTS_DONE] = m[c.EVENTS]
    return m[c.EVENTS]
