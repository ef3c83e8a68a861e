"""Blocks of the caching allocator: the sorted sets of free ones, merging, freeing, and what
waits for events.

Names and order follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.2
to 2.15).
"""

from __future__ import annotations

from helpers.allocator.driver import EVENTS, USES, map_end, put, record_event, round_up, take_out
from helpers.allocator.memory import (
    BROKEN,
    BY_ADDRESS,
    BY_BLOCK,
    FINE,
    LEVELS,
    NONE,
    block_at,
    drop,
    fresh,
    ident_at,
    map_at,
    part_at,
    pool_at,
    queue_at,
    segment_at,
    setting_at,
    slot_at,
    stat_at,
    use_at,
)
from helpers.settings.allocator_text import INTERVALS
from helpers.settings.text import (
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
)

# Figures of torch.cuda.memory_stats in the order of a row of the timeline, and the counters
# beside them.
NAMES = tuple(
    "allocated_bytes reserved_bytes active_bytes requested_bytes inactive_split_bytes allocation active segment "
    "inactive_split".split()
)
ALLOCATED_BYTES, RESERVED_BYTES, ACTIVE_BYTES, REQUESTED_BYTES, INACTIVE_SPLIT_BYTES = range(5)
ALLOCATION, ACTIVE, SEGMENTS, INACTIVE_SPLIT = range(5, len(NAMES))
POOLS = ("all", "small_pool", "large_pool")
OVERSIZE_ALLOCATIONS, OVERSIZE_SEGMENTS = range(3 * len(NAMES), 3 * len(NAMES) + 2)
COUNTERS = tuple(
    "num_alloc_retries num_ooms num_device_alloc num_device_free num_sync_all_streams num_oom_rejections".split()
)
STATES = ("I", "A", "P")  # of a block: free, allocated, awaiting events
INACTIVE, LIVE, PENDING = range(len(STATES))


# sizes
# ------------------------------------------------------------------------------------------------------------------
def round_size(n, divisions):
    """round_size in CUDACachingAllocator.cpp: up to whole 512 B, or to a division of the power
    of two below.
    """
    if n < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    parts = divisions[min(max(bit_length(n) - 21, 0), INTERVALS - 1)]
    if parts > 1 and n > MIN_BLOCK_BYTES * parts:
        if n & (n - 1) == 0:
            return n
        step = 1 << (bit_length(n) - bit_length(parts))
        return -(-n // step) * step
    return -(-n // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def bit_length(n):
    bits = 0
    while n:
        n >>= 1
        bits += 1
    return bits


def segment_size(rounded, large_segment_bytes):
    """get_allocation_size: the small pool's 2 MiB, the large pool's, or from 10 MiB up the size
    in steps of 2 MiB.
    """
    if rounded <= SMALL_MAX_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return large_segment_bytes
    return -(-rounded // LARGE_STEP_BYTES) * LARGE_STEP_BYTES


# statistics
# -------------------------------------------------------------------------------------------------------------
def add(a, row, amount):
    stat = stat_at(a, row)
    stat.current += amount
    if amount >= 0:
        stat.peak = max(stat.peak, stat.current)
        stat.allocated += amount
    else:
        stat.freed -= amount


def change(a, small, figure, amount):
    """Add to a figure, for all pools together and for the small or large ones."""
    add(a, len(POOLS) * figure, amount)
    add(a, len(POOLS) * figure + 2 - small, amount)


def count_allocated(a, block, sign):
    change(a, is_small(a, block), ALLOCATION, sign)
    change(a, is_small(a, block), ALLOCATED_BYTES, sign * block.size)


def count_active(a, block, sign):
    """Allocated, or freed and awaiting events."""
    small = is_small(a, block)
    change(a, small, ACTIVE, sign)
    change(a, small, ACTIVE_BYTES, sign * block.size)
    change(a, small, REQUESTED_BYTES, sign * block.requested)


def count_split(a, block, count, size):
    """Free blocks beside others of their cudaMalloc segment; expandable ones are left out."""
    if not is_expandable(a, block):
        change(a, is_small(a, block), INACTIVE_SPLIT, count)
        change(a, is_small(a, block), INACTIVE_SPLIT_BYTES, size)


def count_reserved(a, small, segments, size):
    """Memory that the card gave (a segment, or with 0 of them pages), or got back."""
    a.mapped_bytes += size
    if segments:
        change(a, small, SEGMENTS, segments)
    change(a, small, RESERVED_BYTES, size)


def conf(a):
    """The settings that hold at present."""
    return setting_at(a, a.setting)


# blocks
# -----------------------------------------------------------------------------------------------------------------
def new_segment(a, address, size, expandable, ordinal, page_bytes):
    segment = fresh(a, segment_at)
    a.segment_last = max(a.segment_last, segment.at)
    a.numbers += 1
    segment.number = 0 if a.order == BY_ADDRESS else a.numbers
    segment.address = address
    segment.size = size
    segment.expandable = expandable
    segment.ordinal = ordinal
    segment.page_bytes = page_bytes
    return segment


def drop_segment(a, segment):
    segment.size = 0
    drop(a, segment_at, segment)


def new_block(a, segment, pool, stream, address, size, number):
    """A free and mapped block without neighbours."""
    block = fresh(a, block_at)
    a.block_count += 1
    block.segment = segment.at
    block.pool = pool
    block.stream = stream
    block.address = address
    block.size = size
    block.number = number
    block.requested = 0
    block.prev = block.next = block.uses = NONE
    block.allocated = block.event_count = block.gc_base = 0
    block.used = block.mapped = 1
    return block


def piece_of(a, block, address, size):
    """A new block beside one of the same segment.

    It takes the next number of all (2.12), or its segment's (2.13 on).
    """
    number = segment_at(a, block.segment).number
    if a.order == BY_BLOCK:
        a.numbers += 1
        number = a.numbers
    segment = segment_at(a, block.segment)
    return new_block(a, segment, block.pool, block.stream, address, size, number)


def drop_block(a, block):
    block.used = 0
    a.block_count -= 1
    drop(a, block_at, block)


def splice(a, block, before, after):
    """Put a block between two neighbours, given by their places."""
    block.prev = before
    block.next = after
    if before != NONE:
        block_at(a, before).next = block.at
    if after != NONE:
        block_at(a, after).prev = block.at


def is_split(block):
    return block.prev != NONE or block.next != NONE


def is_small(a, block):
    return pool_at(a, block.pool).small


def is_expandable(a, block):
    return segment_at(a, block.segment).expandable


def available(block):
    """Free to be taken or merged: not allocated and nothing pending on it."""
    return block.allocated == 0 and block.event_count == 0 and block.uses == NONE


# sets: skip lists in the order of stream, size, number and address, those of unmapped blocks of
# stream and address --------
def precedes(block, stream, size, number, address):
    if block.stream != stream:
        return block.stream < stream
    if block.mapped and block.size != size:
        return block.size < size
    if block.mapped and block.number != number:
        return block.number < number
    return block.address < address


def lower_bound(a, head, stream, size, number, address):
    """The first block of the set that does not precede these; a.path then has the last that
    does, for each level.
    """
    block = block_at(a, head)
    for level in range(a.levels - 1, -1, -1):
        after = block_at(a, block.forward[level])
        while precedes(after, stream, size, number, address):
            block = after
            after = block_at(a, after.forward[level])
        a.path[level] = block.at
    return block_at(a, block.forward[0])


def set_of(a, block):
    """The place in front of the set that a free or unmapped block belongs in."""
    pool = pool_at(a, block.pool)
    return pool.free if block.mapped else pool.unmapped


def insert(a, block):
    """Put a free or unmapped block into its set; it stands on one level more with a chance of
    one in four.
    """
    head = set_of(a, block)
    lower_bound(a, head, block.stream, block.size, block.number, block.address)
    block.gc_base = pool_at(a, block.pool).get_calls
    a.chance = (a.chance * 1103515245 + 12345) & 0x7FFFFFFF
    level = 0
    chance = a.chance >> 8
    while level < LEVELS:
        if level == a.levels:
            a.path[level] = head
            a.levels += 1
        before = block_at(a, a.path[level])
        block.forward[level] = before.forward[level]
        before.forward[level] = block.at
        if chance & 3:
            return
        level = level + 1
        chance = chance >> 2


def erase(a, block):
    """Take a block out of its set; one that is not there tears the replay."""
    found = lower_bound(a, set_of(a, block), block.stream, block.size, block.number, block.address)
    if found.at != block.at:
        a.status = BROKEN
        return
    for level in range(a.levels):
        before = block_at(a, a.path[level])
        if before.forward[level] != block.at:
            return
        before.forward[level] = block.forward[level]


def after_in_set(a, block):
    return block_at(a, block.forward[0])


# free
# -------------------------------------------------------------------------------------------------------------------
def try_merge(a, block, other):
    """Swallow a neighbour that is free and as mapped as the block: its bytes, or 0."""
    if other.at == NONE or not available(other) or other.mapped != block.mapped:
        return 0
    erase(a, other)
    if a.status != FINE:
        return 0
    if block.prev == other.at:
        block.address = other.address
        splice(a, block, other.prev, block.next)
    else:
        splice(a, block, block.prev, other.next)
    size = other.size
    block.size += size
    drop_block(a, other)
    return size


def free_block(a, block):
    """Merge a block with its free neighbours and put it into its pool."""
    count_active(a, block, -1)
    before = try_merge(a, block, block_at(a, block.prev))
    after = try_merge(a, block, block_at(a, block.next))
    insert(a, block)
    count = -int(before > 0) - int(after > 0)
    size = -before - after
    if is_split(block):
        count += 1
        size += block.size
    count_split(a, block, count, size)


def free(a, block, pending):
    """Take a block back: at once, when the events of other streams have completed, or when the
    recording says that the free of this id (pending, not below 0) was complete.
    """
    block.allocated = 0
    count_allocated(a, block, -1)
    if block.size >= conf(a).max_split_bytes:
        add(a, OVERSIZE_ALLOCATIONS, -1)
    if pending >= 0:
        block.event_count = 1
        wait_for(a, block, pending)
    elif block.uses != NONE:
        insert_events(a, block)
    else:
        free_block(a, block)


# events
# -----------------------------------------------------------------------------------------------------------------
def record_stream(a, block, stream):
    """Another stream uses the block: its free waits for that stream."""
    last = use_at(a, NONE)
    use = use_at(a, block.uses)
    while use.at != NONE:
        if use.stream == stream:
            return
        last = use
        use = use_at(a, use.next)
    if stream == block.stream:
        return
    use = fresh(a, use_at)
    a.use_count += 1
    use.stream = stream
    use.next = NONE
    if last.at == NONE:
        block.uses = use.at
    else:
        last.next = use.at


def insert_events(a, block):
    """Turn the uses of a block by other streams into events that it waits for, in the order of
    a map of those streams.
    """
    m = map_at(a, USES)
    use = use_at(a, block.uses)
    block.uses = NONE
    while use.at != NONE:
        place = 1
        while queue_at(a, place).stream != use.stream:
            place += 1
        queue_at(a, place).use = use.at
        put(a, m, place)
        use = use_at(a, use.next)
    for at in range(m.first, map_end(m)):
        slot = slot_at(a, at)
        if slot.far:
            slot.far = 0
            put(a, map_at(a, EVENTS), slot.queue)
            insert_event(a, queue_at(a, slot.queue), block)
    m.bits = m.count = 0


def insert_event(a, queue, block):
    use = use_at(a, queue.use)
    block.event_count += 1
    use.event = record_event(a)
    use.block = block.at
    use.next = NONE
    if queue.first == NONE:
        queue.first = use.at
    else:
        use_at(a, queue.last).next = use.at
    queue.last = use.at


def process_events(a, all_of_them):
    """Free what waited for events that have completed, per stream, up to the first that has not."""
    if a.use_count:
        m = map_at(a, EVENTS)
        at = map_at(a, EVENTS).first
        while at < map_end(m):
            if slot_at(a, at).far == 0:
                at += 1
                continue
            queue = queue_at(a, slot_at(a, at).queue)
            while queue.first != NONE:
                use = use_at(a, queue.first)
                if use.event > a.events_done and not all_of_them:
                    break
                a.events_done = max(a.events_done, use.event)
                queue.first = use.next
                block = block_at(a, use.block)
                drop(a, use_at, use)
                a.use_count -= 1
                block.event_count -= 1
                if block.event_count == 0:
                    free_block(a, block)
            if queue.first == NONE:
                take_out(a, m, at)
            else:
                at += 1


def wait_for(a, block, ident):
    """Note a pending free; one that is noted already keeps its turn."""
    entry = ident_at(a, ident + 1)
    ring = ident_at(a, NONE)
    place = ident + 1
    if entry.pending == NONE:
        entry.before = ring.before
        entry.after = NONE
        ident_at(a, ring.before).after = place
        ring.before = place
    entry.pending = block.at


def complete(a, place):
    """The recorded end of a pending free: whether it was still pending."""
    entry = ident_at(a, place)
    if entry.pending == NONE:
        return False
    block = block_at(a, entry.pending)
    entry.pending = NONE
    ident_at(a, entry.before).after = entry.after
    ident_at(a, entry.after).before = entry.before
    block.event_count = 0
    free_block(a, block)
    return True


def synchronize_and_free_events(a):
    """Wait for every event and free what waited for it; also the pending frees of a recording."""
    a.num_sync_all_streams += 1
    process_events(a, True)
    while ident_at(a, NONE).after != NONE:
        complete(a, ident_at(a, NONE).after)


# the starting state
# -----------------------------------------------------------------------------------------------------
def restore(a):
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
        number = segment.number
        block = new_block(a, segment, part.pool, part.stream, address, part.size, number)
        splice(a, block, before, NONE)
        before = block.at
        block.requested = part.requested
        block.mapped = part.mapped
        restore_state(a, block, part)


def restore_segment(a, part):
    segment = new_segment(a, part.base, part.span, part.expandable, a.mallocs, part.page_bytes)
    if part.expandable:
        segment.ordinal = a.reserves
        a.reserves += 1
        return segment
    a.mallocs += 1
    a.used += round_up(part.span, a.granule)
    count_reserved(a, pool_at(a, part.pool).small, 1, part.span)
    return segment


def restore_state(a, block, part):
    """Free, live or awaiting its free."""
    if part.expandable and part.mapped:
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
        ident_at(a, part.ident + 1).block = block.at
    else:
        block.event_count = 1
        wait_for(a, block, part.ident)
