"""Giving memory back in the compiled replay: releases, garbage collection, pending frees, starting states. See release.py."""

from __future__ import annotations

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_blocks import (
    drop_block,
    erase_free,
    erase_unmapped,
    free_block,
    insert_free,
    insert_unmapped,
    is_small,
    is_split,
    new_block,
    new_segment,
    remove_segment,
    searches,
    splice,
    wait_for,
)
from helpers.allocator.compiled_driver import free as free_memory
from helpers.allocator.compiled_driver import keep_in_place, round_up
from helpers.allocator.compiled_expandable import new_range, page_and_span, unmap_block
from helpers.allocator.compiled_state import (
    add,
    block_at,
    change,
    drop_record,
    first_at_least,
    function,
    last,
    preceding,
    snapshot,
)
from helpers.settings.text import UNLIMITED

FREE, LIVE, PENDING = range(3)  # state of a block at the start


@function
def release_block(m, block):
    """cudaFree of a whole free segment."""
    size, small, segment = m[block + c.SIZE], is_small(m, block), m[block + c.SEGMENT]
    m[c.DEVICE_FREE] += 1
    free_memory(m, m[segment + c.ORDINAL], m[segment + c.BASE], size)
    m[c.MAPPED_BYTES] -= size
    change(m, small, c.SEGMENT_COUNT, -1)
    change(m, small, c.RESERVED_BYTES, -size)
    if size >= m[c.MAX_SPLIT]:
        add(m, c.OVERSIZE_SEGMENTS, -1)
    erase_free(m, block)
    remove_segment(m, segment)
    if is_split(m, block):  # an oversize part of an expandable segment (2.4), or after max_split_size_mb became smaller
        m[c.STATUS] = c.BROKEN
    else:
        drop_block(m, block)
        drop_record(m, c.FREE_SEGMENT, segment)


@function
def release_blocks(m, pool, small):
    """Free every whole segment of a pool, then unmap the whole pages of its free expandable blocks."""
    scratch, count = snapshot(m, pool, small)
    to_unmap = 0
    for k in range(count):
        block = m[scratch + k]
        if m[block + c.EXPANDABLE]:
            m[scratch + to_unmap] = block
            to_unmap += 1
        elif not is_split(m, block):
            release_block(m, block)
    for k in range(to_unmap):
        if m[c.STATUS] == c.FINE:
            unmap_block(m, m[scratch + k])


@function
def release_cached_blocks(m, private):
    """What empty_cache does, and the last resort before an out-of-memory."""
    synchronize_and_free_events(m)
    for k in range(4 if private else 2):  # large before small, but not so in a private pool
        release_blocks(m, private * (k >> 1), (k >> 1) ^ (k & 1))


@function
def release_available_cached_blocks(m, home, size):
    """Free just enough oversize blocks (max_split_size_mb) for the request; what was freed stays so when it fails."""
    limit = m[c.MAX_SPLIT]
    if limit >= UNLIMITED:
        return False
    wanted = max(size, limit)
    position = first_at_least(m, home, wanted)
    if position >= 0 and not (m[c.SKIPS] and m[block_at(m, home, position) + c.EXPANDABLE]):
        release_block(m, block_at(m, home, position))
        return True
    position = preceding(m, home, position) if position >= 0 else last(m, home)
    released, count, scratch = 0, 0, len(m) - m[c.BLOCKS]
    while position >= 0:
        block = block_at(m, home, position)
        if released >= wanted or m[block + c.SIZE] < limit:
            break
        if not m[block + c.EXPANDABLE]:
            released += m[block + c.SIZE]
            m[scratch + count] = block
            count += 1
        position = preceding(m, home, position)
    for k in range(count):
        release_block(m, m[scratch + k])
    return released >= wanted


@function
def garbage_collect(m):
    """Free whole large segments that have waited longer than the average, while the threshold is passed."""
    threshold = m[c.GC_BYTES]
    if m[c.MAPPED_BYTES] <= threshold:
        return
    target = m[c.MAPPED_BYTES] - threshold
    scratch, free = snapshot(m, 0, 0)
    total_age = count = 0
    for k in range(free):
        block = m[scratch + k]
        if not is_split(m, block):
            total_age += searches(m, m[block + c.LIST]) - m[block + c.GC_BASE]
            count += 1
    reclaimed, freed = 0, True
    while reclaimed < target and freed and count > 0:
        age_threshold = total_age / count
        freed = False
        scratch, free = snapshot(m, 0, 0)
        for k in range(free):
            block = m[scratch + k]
            age = searches(m, m[block + c.LIST]) - m[block + c.GC_BASE]
            if not is_split(m, block) and not m[block + c.EXPANDABLE] and age >= age_threshold:
                freed = True
                reclaimed += m[block + c.SIZE]
                total_age -= age
                count -= 1
                release_block(m, block)


# pending frees ----------------------------------------------------------------------------------------------------------
@function
def complete(m, at):
    """The recorded end of a pending free, by its place in the table: whether it was still pending."""
    block, before, after = m[at], m[at + 1], m[at + 2]
    if block < 0:
        return False
    m[at] = -1
    m[before + 2 if before >= 0 else c.WAIT_HEAD] = after
    m[after + 1 if after >= 0 else c.WAIT_TAIL] = before
    m[block + c.EVENT_COUNT] = 0
    free_block(m, block)
    return True


@function
def pop_event(m, queue):
    node = m[queue + c.HEAD]
    block = m[node + 1]
    m[queue + c.HEAD] = m[node + 2]
    drop_record(m, c.FREE_NODE, node)
    m[c.QUEUED] -= 1
    m[block + c.EVENT_COUNT] -= 1
    if m[block + c.EVENT_COUNT] == 0:
        free_block(m, block)


@function
def process_events(m, all_of_them):
    """Free what waited for events that have completed, per stream in event_turn's order, up to the first that has not."""
    if m[c.QUEUED]:
        turns = m[c.QUEUES] + 3 * m[c.QUEUE_COUNT]  # which queue is whose turn
        for k in range(m[c.QUEUE_COUNT]):
            queue = m[c.QUEUES] + 3 * m[turns + k]
            while m[queue + c.HEAD] >= 0 and (all_of_them or m[m[queue + c.HEAD]] <= m[c.EVENTS_DONE]):
                m[c.EVENTS_DONE] = max(m[c.EVENTS_DONE], m[m[queue + c.HEAD]])
                pop_event(m, queue)


@function
def synchronize_and_free_events(m):
    """Wait for every event and free what waited for it; also the pending frees of a recording."""
    m[c.SYNCS] += 1
    process_events(m, True)
    while m[c.WAIT_HEAD] >= 0:
        complete(m, m[c.WAIT_HEAD])


# starting states --------------------------------------------------------------------------------------------------------
@function
def restore(m, live, start, parts):
    """Put the allocator into the state that a recording starts from.

    start: [address, size, list, expandable, parts before, parts] of each segment; parts: [offset, size,
    requested, state, index into live].
    """
    for k in range(len(start)):
        address, size, home = start[k, 0], start[k, 1], start[k, 2]
        if start[k, 3]:
            restore_range(m, live, start[k], parts)
            continue
        segment = new_segment(m, address, size, home, m[c.MALLOCS], 0, 0)
        m[c.MALLOCS] += 1
        m[c.USED] += round_up(size, m[c.GRANULE])
        keep_in_place(m, address, size)
        m[c.MAPPED_BYTES] += size
        change(m, m[home + c.IS_SMALL], c.SEGMENT_COUNT, 1)
        change(m, m[home + c.IS_SMALL], c.RESERVED_BYTES, size)
        restore_blocks(m, live, start[k], parts, segment, -1)


@function
def restore_blocks(m, live, known, parts, segment, before):
    small = m[known[2] + c.IS_SMALL]
    for k in range(known[4], known[4] + known[5]):
        size, state = parts[k, 1], parts[k, 3]
        block = new_block(m, segment, known[0] + parts[k, 0], size, m[segment + c.RANK])
        m[block + c.REQUESTED] = parts[k, 2]
        splice(m, block, before, -1)
        before = block
        if state == FREE:
            insert_free(m, block)
            if known[5] > 1 and not known[3]:
                change(m, small, c.INACTIVE_SPLIT, 1)
                change(m, small, c.INACTIVE_SPLIT_BYTES, size)
            continue
        change(m, small, c.ACTIVE, 1)
        change(m, small, c.ACTIVE_BYTES, size)
        change(m, small, c.REQUESTED_BYTES, parts[k, 2])
        if state == LIVE:
            m[block + c.ALLOCATED] = 1
            change(m, small, c.ALLOCATION, 1)
            change(m, small, c.ALLOCATED_BYTES, size)
            live[parts[k, 4]] = block
        else:
            m[block + c.EVENT_COUNT] = 1
            wait_for(m, block, parts[k, 4])
    return before


@function
def restore_range(m, live, known, parts):
    """A mapped range of an expandable segment: earlier ranges of the same stream and pool are taken to lie in one."""
    address, size, home = known[0], known[1], known[2]
    segment, tail, position = -1, -1, last(m, home + c.UNMAPPED)
    while position >= 0:
        block = block_at(m, home + c.UNMAPPED, position)
        holder = m[block + c.SEGMENT]
        if m[holder + c.BASE] <= address < m[holder + c.BASE] + m[holder + c.SPAN] and (
                segment < 0 or m[holder + c.ORDINAL] < m[segment + c.ORDINAL]):
            segment, tail = holder, block
        position = preceding(m, home + c.UNMAPPED, position)
    if segment < 0:
        page, span = page_and_span(m, home)
        tail = new_range(m, home, page, span, address, m[c.RESERVES])
        segment = m[tail + c.SEGMENT]
        m[c.RESERVES] += 1
    erase_unmapped(m, tail)
    before, gap = m[tail + c.PREV], address - m[tail + c.ADDRESS]
    low, end = m[tail + c.ADDRESS], m[tail + c.ADDRESS] + m[tail + c.SIZE]
    drop_block(m, tail)
    rank = m[segment + c.RANK]
    if gap:
        before = restore_hole(m, segment, low, gap, rank, before)
    before = restore_blocks(m, live, known, parts, segment, before)
    restore_hole(m, segment, address + size, end - address - size, rank, before)
    m[c.USED] += size
    m[c.MAPPED_BYTES] += size
    change(m, m[home + c.IS_SMALL], c.RESERVED_BYTES, size)


@function
def restore_hole(m, segment, address, size, rank, before):
    hole = new_block(m, segment, address, size, rank)
    m[hole + c.MAPPED] = 0
    splice(m, hole, before, -1)
    insert_unmapped(m, hole)
    return hole
