"""Blocks of the compiled replay: making, splitting, merging, freeing. See block.py and model.py."""

from __future__ import annotations

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_driver import record_event
from helpers.allocator.compiled_state import add, change, drop_record, erase, function, insert, make, make_record


@function
def new_segment(m, address, size, home, ordinal, is_range, page):
    segment = make_record(m, c.FREE_SEGMENT, c.SEGMENT_WORDS)
    m[c.NUMBERS] += 1
    m[segment + c.BASE], m[segment + c.SPAN], m[segment + c.HOME] = address, size, home
    m[segment + c.ORDINAL], m[segment + c.IS_RANGE], m[segment + c.PAGE], m[segment + c.GONE] = ordinal, is_range, page, 0
    m[segment + c.RANK] = 0 if m[c.ORDER] == c.BY_ADDRESS else m[c.NUMBERS]
    return segment


@function
def remove_segment(m, segment):
    """Each segment goes once; a second time is what the readable model stops at."""
    if m[segment + c.GONE]:
        m[c.STATUS] = c.BROKEN
    m[segment + c.GONE] = 1


@function
def new_block(m, segment, address, size, number):
    if not m[c.FREE_BLOCK]:
        block = make(m, c.BLOCK_WORDS)
        m[block + c.MADE_BEFORE] = m[c.LAST_MADE]
        m[c.LAST_MADE] = block
    else:
        block = make_record(m, c.FREE_BLOCK, c.BLOCK_WORDS)
    m[c.BLOCKS] += 1
    m[block + c.ADDRESS], m[block + c.SIZE], m[block + c.SEGMENT], m[block + c.NUMBER] = address, size, segment, number
    m[block + c.PREV] = m[block + c.NEXT] = m[block + c.USES] = -1
    m[block + c.REQUESTED] = m[block + c.GC_BASE] = m[block + c.ALLOCATED] = m[block + c.EVENT_COUNT] = 0
    m[block + c.MAPPED] = m[block + c.IN_USE] = 1
    m[block + c.LIST], m[block + c.EXPANDABLE] = m[segment + c.HOME], m[segment + c.IS_RANGE]
    return block


@function
def drop_block(m, block):
    m[block + c.IN_USE] = 0
    m[c.BLOCKS] -= 1
    drop_record(m, c.FREE_BLOCK, block)


@function
def next_number(m, segment):
    """The number of a new block: its segment's own (2.13 on), or the next of all (2.12)."""
    if m[c.ORDER] == c.BY_BLOCK:
        m[c.NUMBERS] += 1
        return m[c.NUMBERS]
    return m[segment + c.RANK]


@function
def splice(m, block, before, after):
    m[block + c.PREV], m[block + c.NEXT] = before, after
    if before >= 0:
        m[before + c.NEXT] = block
    if after >= 0:
        m[after + c.PREV] = block


@function
def is_split(m, block):
    return m[block + c.PREV] >= 0 or m[block + c.NEXT] >= 0


@function
def available(m, block):
    return m[block + c.ALLOCATED] == 0 and m[block + c.EVENT_COUNT] == 0 and m[block + c.USES] < 0


@function
def is_small(m, block):
    return m[m[block + c.LIST] + c.IS_SMALL]


@function
def searches(m, home):
    """How often the pool of a list was searched while garbage collection was on."""
    return m[m[m[home + c.PAIR] + c.FIRST] + c.SEARCHES + m[home + c.IS_SMALL]]


@function
def insert_free(m, block):
    home = m[block + c.LIST]
    m[block + c.GC_BASE] = searches(m, home)
    insert(m, home, m[block + c.SIZE], block)


@function
def erase_free(m, block):
    erase(m, m[block + c.LIST], m[block + c.SIZE], block)


@function
def insert_unmapped(m, block):
    insert(m, m[block + c.LIST] + c.UNMAPPED, m[block + c.ADDRESS], block)


@function
def erase_unmapped(m, block):
    erase(m, m[block + c.LIST] + c.UNMAPPED, m[block + c.ADDRESS], block)


@function
def try_merge(m, block, other):
    """Swallow a neighbour that is free and as mapped as the block: its bytes, or 0."""
    if other < 0 or not available(m, other) or m[other + c.MAPPED] != m[block + c.MAPPED]:
        return 0
    if m[other + c.MAPPED]:
        erase_free(m, other)
    else:
        erase_unmapped(m, other)
    if m[c.STATUS] != c.FINE:
        return 0
    if m[block + c.PREV] == other:
        m[block + c.ADDRESS] = m[other + c.ADDRESS]
        splice(m, block, m[other + c.PREV], m[block + c.NEXT])
    else:
        splice(m, block, m[block + c.PREV], m[other + c.NEXT])
    size = m[other + c.SIZE]
    m[block + c.SIZE] += size
    drop_block(m, other)
    return size


@function
def free_block(m, block):
    """Merge a block with its free neighbours and put it into its pool."""
    size, small, count = m[block + c.SIZE], is_small(m, block), 0
    before = try_merge(m, block, m[block + c.PREV])
    after = try_merge(m, block, m[block + c.NEXT])
    insert_free(m, block)
    if not m[block + c.EXPANDABLE]:
        split_bytes = -before - after
        count -= (before > 0) + (after > 0)
        if is_split(m, block):
            count += 1
            split_bytes += m[block + c.SIZE]
        change(m, small, c.INACTIVE_SPLIT, count)
        change(m, small, c.INACTIVE_SPLIT_BYTES, split_bytes)
    change(m, small, c.ACTIVE, -1)
    change(m, small, c.ACTIVE_BYTES, -size)
    change(m, small, c.REQUESTED_BYTES, -m[block + c.REQUESTED])


@function
def free(m, block, pending):
    """Take a block back: at once, when the other streams' events have completed, or (pending >= 0) at its recorded end."""
    small = is_small(m, block)
    m[block + c.ALLOCATED] = 0
    change(m, small, c.ALLOCATION, -1)
    change(m, small, c.ALLOCATED_BYTES, -m[block + c.SIZE])
    if m[block + c.SIZE] >= m[c.MAX_SPLIT]:
        add(m, c.OVERSIZE_ALLOCATIONS, -1)
    if pending >= 0:
        m[block + c.EVENT_COUNT] = 1
        wait_for(m, block, pending)
    elif m[block + c.USES] >= 0:
        node = m[block + c.USES]
        m[block + c.USES] = -1
        while node >= 0:
            after = m[node + 2]
            m[block + c.EVENT_COUNT] += 1
            enqueue(m, node, block)
            node = after
    else:
        free_block(m, block)


@function
def wait_for(m, block, pending):
    """Note a pending free under its id; one that is noted already keeps its place."""
    at = m[c.WAITING] + 3 * pending
    if m[at] < 0:
        m[at + 1], m[at + 2] = m[c.WAIT_TAIL], -1
        if m[c.WAIT_TAIL] >= 0:
            m[m[c.WAIT_TAIL] + 2] = at
        else:
            m[c.WAIT_HEAD] = at
        m[c.WAIT_TAIL] = at
    m[at] = block


@function
def enqueue(m, node, block):
    """Turn a stream's use of a block into an event that the block waits for."""
    stream, low, high = m[node], 0, m[c.QUEUE_COUNT] - 1
    while low < high:
        middle = (low + high) >> 1
        if m[m[c.QUEUES] + 3 * middle] < stream:
            low = middle + 1
        else:
            high = middle
    queue = m[c.QUEUES] + 3 * low
    m[node], m[node + 1], m[node + 2] = record_event(m), block, -1
    if m[queue + c.HEAD] < 0:
        m[queue + c.HEAD] = node
    else:
        m[m[queue + c.TAIL] + 2] = node
    m[queue + c.TAIL] = node
    m[c.QUEUED] += 1
