"""The memory of the compiled replay: one array of 64-bit words, with records in it instead of objects.

A record's place in the array takes the part of a reference, -1 that of None: m[block + SIZE]. One array keeps compiling short
and grows by copying. Nothing grows while compiled code runs: before an operation that might not fit, the kernel goes back to
Python (compiled.py). Here are the records, the statistics, and the pools as sorted lists in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

CHUNK = 64
"""Entries of a chunk: a pool of 100,000 free blocks stays as quick as one of 100."""

# The first word of a record that is not in use is the next such record (0: none).
# A block. LIST is that of its pool, USES its first node, MADE_BEFORE links all block records; IN_USE is 2 for a part
# of a segment that was released alone.
(ADDRESS, SIZE, REQUESTED, SEGMENT, PREV, NEXT, NUMBER, GC_BASE, ALLOCATED, MAPPED, EVENT_COUNT, USES, MADE_BEFORE, LIST,
 IN_USE, EXPANDABLE) = range(16)
BLOCK_WORDS = 16
# A segment; RANK is its number where blocks are told apart by it.
BASE, SPAN, HOME, ORDINAL, RANK, PAGE, IS_RANGE, GONE = range(8)
SEGMENT_WORDS = 8
# A pair: a (pool, stream) that the trace names, in that order. FIRST is the first pair of the same pool, where the searches
# of its large and small pool are counted. Its four lists follow: large, large unmapped, small, small unmapped.
POOL, STREAM, FIRST, SEARCHES = range(4)
LISTS, SMALL, UNMAPPED, PAIR_WORDS = 8, 16, 8, 40
# A list: how many chunks, room for how many, where their places stand from 1 on; the pair, and whether of the small pool.
COUNT, ROOM, PLACES, PAIR, IS_SMALL = range(5)
# A chunk: how many entries, their keys (size of a free block, address of an unmapped one), their blocks.
KEYS, ENTRIES, CHUNK_WORDS = 1, 1 + CHUNK, 1 + 2 * CHUNK
# A stream with uses: its handle, first and last node. A node: handle or event waited for, block, next node.
HANDLE, HEAD, TAIL = range(3)
# Figures, in the order of statistics.NAMES; three rows each, then these. A row has four words.
(ALLOCATION, SEGMENT_COUNT, ACTIVE, INACTIVE_SPLIT, ALLOCATED_BYTES, RESERVED_BYTES, ACTIVE_BYTES, INACTIVE_SPLIT_BYTES,
 REQUESTED_BYTES) = range(9)
OVERSIZE_ALLOCATIONS, OVERSIZE_SEGMENTS, FIGURE_ROWS = 27, 28, 29
CURRENT, PEAK, GIVEN, FREED = range(4)
# The head of the memory: the settings that hold at present ...
MAX_SPLIT, NON_SPLIT_ROUNDING, EXPANDABLES, LARGE_SEGMENT, THROW, COLLECTS, DIVIDES, DIVISIONS = range(8)
SETTINGS = DIVISIONS + 16
# ... the counters, in the order of statistics.COUNTERS ...
RETRIES, OOMS, DEVICE_ALLOC, DEVICE_FREE, SYNCS, REJECTIONS = range(SETTINGS, SETTINGS + 6)
COUNTERS_END = SETTINGS + 6
# ... all other numbers of the allocator and the card (EXTENTS: per arena a place, how many, room for how many; from IN_PLACE
# to IN_PLACE_END: address and size of segments in use, in the room that recorded addresses leave as they are passed) ...
(ALLOWED, GC_BYTES, CONFIG_LIMIT, TOTAL, MAPPED_BYTES, NUMBERS, ORDER, SKIPS, GRANULE, POLICY, CAPACITY, HELD, USED,
 FAIL_NEXT, MALLOCS, RESERVES, IN_PLACE, IN_PLACE_END, RECORDED, RECORDED_END, EVENTS, EVENTS_DONE, EVENTS_HELD, QUEUED,
 QUEUES, QUEUE_COUNT, FREE_NODE, WAITING, WAIT_HEAD, WAIT_TAIL, FREE_BLOCK, LAST_MADE, FOUND, FREE_SEGMENT, FREE_CHUNK,
 BLOCKS, PAIRS, PAIR_COUNT, LAST_PAIR, TOP, AT, LOGS, CALLS, CALL_COUNT, CALL_ROOM, SPARE, STATUS, CHANGES, SETTING,
 FAILURES, FIRST_OOM, FIRST_BYTES, EXTENTS) = range(COUNTERS_END, COUNTERS_END + 53)
# ... and the figures.
STATS = EXTENTS + 6
HEAD_WORDS = STATS + 4 * FIGURE_ROWS
BY_ADDRESS, BY_BLOCK, BY_SEGMENT = range(3)  # ORDER
FIRSTFIT, TOPDOWN, MONOTONIC, RECORDED_ONLY = range(4)  # POLICY, as in driver.POLICIES
FINE, GROW, EXHAUSTED, BROKEN = range(4)  # STATUS
NO_LIMIT = (1 << 63) - 1  # ALLOWED


def function(body: Callable[..., Any]) -> Any:
    """Compile for use from compiled code only: once, not anew for each constant that it is called with."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Any = njit(body, nogil=True, error_model="numpy", **options)
    resolve = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: resolve(tuple(map(types.unliteral, args)), kws)
    return compiled


# records ----------------------------------------------------------------------------------------------------------------
@function
def make(m, words):
    """New words at the top; the kernel has seen to it that they fit."""
    place = m[TOP]
    m[TOP] += words
    return place


@function
def make_record(m, free, words):
    """A record that was dropped, or a new one."""
    place = m[free]
    if place == 0:
        return make(m, words)
    m[free] = m[place]
    return place


@function
def drop_record(m, free, place):
    m[place] = m[free]
    m[free] = place


@function
def enlarge(m, place, words):
    """Twice as many words with what stood there at the front."""
    larger = make(m, 2 * words)
    for k in range(words):
        m[larger + k] = m[place + k]
    return larger


# statistics -------------------------------------------------------------------------------------------------------------
@function
def add(m, row, amount):
    at = STATS + 4 * row
    m[at + CURRENT] += amount
    if amount >= 0:
        m[at + PEAK] = max(m[at + PEAK], m[at + CURRENT])
        m[at + GIVEN] += amount
    else:
        m[at + FREED] -= amount


@function
def change(m, small, figure, amount):
    """Add to a figure, for all pools together and for the small or large one."""
    add(m, 3 * figure, amount)
    add(m, 3 * figure + 2 - small, amount)


# sorted lists -----------------------------------------------------------------------------------------------------------
@function
def precedes(m, entry, key, number, address):
    """Whether the entry of a chunk (its place + how many before it) comes before (key, number, address)."""
    if m[entry + KEYS] != key:
        return m[entry + KEYS] < key
    block = m[entry + ENTRIES]
    if m[block + NUMBER] != number:
        return m[block + NUMBER] < number
    return m[block + ADDRESS] < address


@function
def locate(m, home, key, number, address):
    """(place in the directory, place in the chunk) of the first entry that is not before; perhaps one past a chunk's end."""
    places, low, high = m[home + PLACES], 1, m[home + COUNT]
    if high == 0:
        return 1, 0
    while low < high:
        middle = (low + high + 1) >> 1
        if precedes(m, m[places + middle], key, number, address):
            low = middle
        else:
            high = middle - 1
    chunk = m[places + low]
    start, end = 0, m[chunk]
    while start < end:
        middle = (start + end) >> 1
        if precedes(m, chunk + middle, key, number, address):
            start = middle + 1
        else:
            end = middle
    return low, start


@function
def insert(m, home, key, block):
    at, i = locate(m, home, key, m[block + NUMBER], m[block + ADDRESS])
    if m[home + COUNT] == 0:
        add_chunk(m, home, 1)
    chunk = m[m[home + PLACES] + at]
    count = m[chunk]
    if count == CHUNK:  # the upper half moves to a new chunk
        half = CHUNK // 2
        add_chunk(m, home, at + 1)
        upper = m[m[home + PLACES] + at + 1]
        for k in range(half):
            m[upper + KEYS + k] = m[chunk + KEYS + half + k]
            m[upper + ENTRIES + k] = m[chunk + ENTRIES + half + k]
        m[chunk] = m[upper] = count = half
        if i > half:
            chunk, i = upper, i - half
    for k in range(count, i, -1):
        m[chunk + KEYS + k] = m[chunk + KEYS + k - 1]
        m[chunk + ENTRIES + k] = m[chunk + ENTRIES + k - 1]
    m[chunk + KEYS + i] = key
    m[chunk + ENTRIES + i] = block
    m[chunk] = count + 1


@function
def add_chunk(m, home, at):
    if m[home + COUNT] + 1 >= m[home + ROOM]:
        m[home + PLACES] = enlarge(m, m[home + PLACES], m[home + ROOM])
        m[home + ROOM] *= 2
    chunk = make_record(m, FREE_CHUNK, CHUNK_WORDS)
    m[chunk] = 0
    m[home + COUNT] += 1
    places = m[home + PLACES]
    for k in range(m[home + COUNT], at, -1):
        m[places + k] = m[places + k - 1]
    m[places + at] = chunk


@function
def remove_chunk(m, home, at):
    places = m[home + PLACES]
    drop_record(m, FREE_CHUNK, m[places + at])
    for k in range(at, m[home + COUNT]):
        m[places + k] = m[places + k + 1]
    m[home + COUNT] -= 1


@function
def erase(m, home, key, block):
    """Take a block out of a list; one that is not there breaks the replay off, as it does the readable model."""
    at, i = locate(m, home, key, m[block + NUMBER], m[block + ADDRESS])
    if m[home + COUNT]:
        if i == m[m[m[home + PLACES] + at]] and at < m[home + COUNT]:
            at, i = at + 1, 0
        chunk = m[m[home + PLACES] + at]
        if i < m[chunk] and m[chunk + ENTRIES + i] == block:
            erase_at(m, home, at, i)
            return
    m[STATUS] = BROKEN


@function
def erase_at(m, home, at, i):
    places = m[home + PLACES]
    chunk = m[places + at]
    count = m[chunk] - 1
    m[chunk] = count
    for k in range(i, count):
        m[chunk + KEYS + k] = m[chunk + KEYS + k + 1]
        m[chunk + ENTRIES + k] = m[chunk + ENTRIES + k + 1]
    if count == 0:
        remove_chunk(m, home, at)
    elif count <= CHUNK // 4:  # never two small chunks side by side: that bounds their number
        if at > 1 and m[m[places + at - 1]] + count <= CHUNK * 3 // 4:
            join_chunks(m, home, at - 1)
        elif at < m[home + COUNT] and m[m[places + at + 1]] + count <= CHUNK * 3 // 4:
            join_chunks(m, home, at)


@function
def join_chunks(m, home, at):
    left, right = m[m[home + PLACES] + at], m[m[home + PLACES] + at + 1]
    for k in range(m[right]):
        m[left + KEYS + m[left] + k] = m[right + KEYS + k]
        m[left + ENTRIES + m[left] + k] = m[right + ENTRIES + k]
    m[left] += m[right]
    remove_chunk(m, home, at + 1)


# A position in a list is CHUNK times the place in the directory plus that in the chunk, or -1 past either end.
@function
def first_at_least(m, home, key):
    at, i = locate(m, home, key, -1, -1)
    if m[home + COUNT] == 0:
        return -1
    return following(m, home, CHUNK * at + i - 1) if i else CHUNK * at


@function
def following(m, home, position):
    at, i = position // CHUNK, position % CHUNK + 1
    if i < m[m[m[home + PLACES] + at]]:
        return CHUNK * at + i
    return CHUNK * (at + 1) if at < m[home + COUNT] else -1


@function
def preceding(m, home, position):
    at = position // CHUNK
    if position % CHUNK:
        return position - 1
    return CHUNK * (at - 1) + m[m[m[home + PLACES] + at - 1]] - 1 if at > 1 else -1


@function
def last(m, home):
    at = m[home + COUNT]
    return CHUNK * at + m[m[m[home + PLACES] + at]] - 1 if at else -1


@function
def block_at(m, home, position):
    return m[m[m[home + PLACES] + position // CHUNK] + ENTRIES + position % CHUNK]


@function
def snapshot(m, pool, small):
    """The free blocks of a pool as they stand, in order, at the far end of the memory: (place, how many)."""
    place, count = len(m) - m[BLOCKS], 0
    for pair in range(m[PAIRS], m[PAIRS] + PAIR_WORDS * m[PAIR_COUNT], PAIR_WORDS):
        if m[pair + POOL] == pool:
            home = pair + LISTS + SMALL * small
            for at in range(1, m[home + COUNT] + 1):
                chunk = m[m[home + PLACES] + at]
                for i in range(m[chunk]):
                    m[place + count] = m[chunk + ENTRIES + i]
                    count += 1
    return place, count


@function
def collect_blocks(m):
    """The places of all blocks at the far end of the memory; FOUND says how many."""
    place, block = len(m) - m[BLOCKS], m[LAST_MADE]
    m[FOUND] = 0
    while block:
        if m[block + IN_USE] == 1:
            m[place + m[FOUND]] = block
            m[FOUND] += 1
        block = m[block + MADE_BEFORE]
