"""malloc of the compiled replay: which block is taken, in the order of fallbacks that the source has. See model.py."""

from __future__ import annotations

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_blocks import insert_free, is_small, new_block, new_segment, next_number, splice
from helpers.allocator.compiled_driver import malloc as malloc_memory
from helpers.allocator.compiled_expandable import allocate, reach
from helpers.allocator.compiled_release import (
    garbage_collect,
    process_events,
    release_available_cached_blocks,
    release_cached_blocks,
)
from helpers.allocator.compiled_state import add, block_at, change, erase_at, first_at_least, following, function
from helpers.settings.text import (
    INTERVALS,
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)

FAILED, REJECTED = -1, -2


@function
def bit_length(n):
    bits = 0
    while n:
        n >>= 1
        bits += 1
    return bits


@function
def round_size(m, n):
    if n < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    if m[c.DIVIDES]:
        bits = bit_length(n)
        divisions = m[c.DIVISIONS + min(max(bits - 21, 0), INTERVALS - 1)]
        if divisions > 1 and n > MIN_BLOCK_BYTES * divisions:
            if n & (n - 1) == 0:
                return n
            step = 1 << (bits - bit_length(divisions))
            return (n + step - 1) & -step
    return (n + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES


@function
def segment_size_of(m, rounded):
    if rounded <= SMALL_MAX_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return m[c.LARGE_SEGMENT]
    return (rounded + LARGE_STEP_BYTES - 1) & -LARGE_STEP_BYTES


@function
def pair_of(m, pool, stream):
    """The pair of a pool and stream."""
    pair = m[c.LAST_PAIR]
    if m[pair + c.STREAM] == stream and m[pair + c.POOL] == pool:
        return pair
    low, high = 0, m[c.PAIR_COUNT] - 1
    while low < high:
        middle = (low + high) >> 1
        pair = m[c.PAIRS] + c.PAIR_WORDS * middle
        if m[pair + c.POOL] < pool or (m[pair + c.POOL] == pool and m[pair + c.STREAM] < stream):
            low = middle + 1
        else:
            high = middle
    m[c.LAST_PAIR] = m[c.PAIRS] + c.PAIR_WORDS * low
    return m[c.LAST_PAIR]


@function
def malloc(m, requested, stream, pool):
    """The block that is handed out, or -1."""
    if not pool:
        process_events(m, False)
    size = round_size(m, requested)
    pair = pair_of(m, pool, stream)
    small = size <= SMALL_MAX_BYTES
    home = pair + c.LISTS + c.SMALL * small
    collects = m[c.COLLECTS] and m[c.ALLOWED] != c.NO_LIMIT
    if collects:
        m[m[pair + c.FIRST] + c.SEARCHES + small] += 1
    block = get_free_block(m, home, size)
    if block < 0:
        if collects:
            garbage_collect(m)
        block = alloc_block(m, home, size)
        if block == FAILED and release_available_cached_blocks(m, home, size):
            block = alloc_block(m, home, size)
        if block == FAILED and not pool:
            release_cached_blocks(m, 0)
            m[c.RETRIES] += 1
            block = alloc_block(m, home, size)
        if block < 0:
            m[c.REJECTIONS if block == REJECTED else c.OOMS] += 1
            return -1
    return hand_out(m, block, size, requested)


@function
def get_free_block(m, home, size):
    """The best fitting free block, taken out of its list; -1 where none may be used."""
    position = first_at_least(m, home, size)
    if position < 0:
        return -1
    block = block_at(m, home, position)
    if m[block + c.EXPANDABLE]:
        if m[c.EXPANDABLES]:
            while m[block + c.EXPANDABLE]:
                after = following(m, home, position)
                if after < 0 or reach(m, block_at(m, home, after)) >= reach(m, block):
                    break
                position, block = after, block_at(m, home, after)
        else:
            while m[block + c.EXPANDABLE]:
                position = following(m, home, position)
                if position < 0:
                    return -1
                block = block_at(m, home, position)
    limit, found = m[c.MAX_SPLIT], m[block + c.SIZE]
    if size < limit <= found or (size >= limit and found >= size + m[c.NON_SPLIT_ROUNDING]):
        return -1
    erase_at(m, home, position // c.CHUNK, position % c.CHUNK)
    return block


@function
def alloc_block(m, home, size):
    """A new segment or newly mapped pages; REJECTED where throw_on_cudamalloc_oom says so, FAILED without room."""
    segment_size, small = segment_size_of(m, size), m[home + c.IS_SMALL]
    if m[c.ALLOWED] != c.NO_LIMIT and segment_size > m[c.ALLOWED] - m[c.MAPPED_BYTES]:
        return FAILED
    if m[c.THROW] and segment_size > m[c.CONFIG_LIMIT] - m[c.MAPPED_BYTES]:
        return REJECTED
    if m[c.EXPANDABLES]:
        return allocate(m, home, size)
    given, address = malloc_memory(m, segment_size)
    if not given:
        return FAILED
    segment = new_segment(m, address, segment_size, home, m[c.MALLOCS] - 1, 0, 0)
    m[c.MAPPED_BYTES] += segment_size
    change(m, small, c.SEGMENT_COUNT, 1)
    change(m, small, c.RESERVED_BYTES, segment_size)
    if segment_size >= m[c.MAX_SPLIT]:
        add(m, c.OVERSIZE_SEGMENTS, 1)
    m[c.DEVICE_ALLOC] += 1
    return new_block(m, segment, address, segment_size, m[segment + c.RANK])


@function
def should_split(m, small, size, remaining):
    if small or m[c.EXPANDABLES]:
        return remaining >= MIN_BLOCK_BYTES
    return size < m[c.MAX_SPLIT] and remaining > SMALL_MAX_BYTES


@function
def hand_out(m, block, size, requested):
    """Split off the front where the rest is worth keeping, and count the block as allocated."""
    small = is_small(m, block)
    already_split = m[block + c.PREV] >= 0 or m[block + c.NEXT] >= 0
    counted = not m[block + c.EXPANDABLE]
    if should_split(m, small, size, m[block + c.SIZE] - size):
        rest, segment = block, m[block + c.SEGMENT]
        block = new_block(m, segment, m[rest + c.ADDRESS], size, next_number(m, segment))
        splice(m, block, m[rest + c.PREV], rest)
        m[rest + c.ADDRESS] += size
        m[rest + c.SIZE] -= size
        insert_free(m, rest)
        if already_split and counted:
            change(m, small, c.INACTIVE_SPLIT_BYTES, -size)
        elif counted:
            change(m, small, c.INACTIVE_SPLIT_BYTES, m[rest + c.SIZE])
            change(m, small, c.INACTIVE_SPLIT, 1)
    elif already_split and counted:
        change(m, small, c.INACTIVE_SPLIT_BYTES, -m[block + c.SIZE])
        change(m, small, c.INACTIVE_SPLIT, -1)
    given = m[block + c.SIZE]
    m[block + c.ALLOCATED] = 1
    m[block + c.REQUESTED] = requested
    change(m, small, c.ALLOCATION, 1)
    change(m, small, c.ALLOCATED_BYTES, given)
    change(m, small, c.ACTIVE, 1)
    change(m, small, c.ACTIVE_BYTES, given)
    change(m, small, c.REQUESTED_BYTES, requested)
    if given >= m[c.MAX_SPLIT]:
        add(m, c.OVERSIZE_ALLOCATIONS, 1)
    return block
