"""Freeing a block, and what waits for the events of other streams or for the recorded end of a free.

Names and order follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from helpers.allocator.blocks import (
    OVERSIZE_ALLOCATIONS,
    add,
    conf,
    count_allocated,
    free_block,
)
from helpers.allocator.records import (
    NONE,
    Allocator,
    Block,
    Queue,
    block_at,
    drop,
    fresh,
    ident_at,
    map_at,
    queue_at,
    slot_at,
    use_at,
)
from helpers.allocator.stream_map import EVENTS, USES, map_end, put, take_out


def free(a: Allocator, block: Block, pending: int) -> None:
    """Take a block back: at once, when the events of other streams have completed, or when the
    recording says that the free of an id was complete (pending: its place, or NONE).
    """
    block.allocated = 0
    count_allocated(a, block, -1)
    if block.size >= conf(a).max_split_bytes:
        add(a, OVERSIZE_ALLOCATIONS, -1)
    if pending != NONE:
        block.event_count = 1
        wait_for(a, block, pending)
    elif block.uses != NONE:
        insert_events(a, block)
    else:
        free_block(a, block)


def record_stream(a: Allocator, block: Block, stream: int) -> None:
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


def insert_events(a: Allocator, block: Block) -> None:
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


def insert_event(a: Allocator, queue: Queue, block: Block) -> None:
    use = use_at(a, queue.use)
    block.event_count += 1
    a.events += 1
    if not a.events_held:
        a.events_done = a.events
    use.event = a.events
    use.block = block.at
    use.next = NONE
    if queue.first == NONE:
        queue.first = use.at
    else:
        use_at(a, queue.last).next = use.at
    queue.last = use.at


def process_events(a: Allocator, all_of_them: bool) -> None:
    """Free what waited for events that have completed, per stream, up to the first that has not."""
    m = map_at(a, EVENTS)
    at = m.first
    while a.use_count and at < map_end(m):
        slot = slot_at(a, at)
        if slot.far:
            queue = queue_at(a, slot.queue)
            process_queue(a, queue, all_of_them)
            if queue.first == NONE:
                take_out(a, m, at)
                continue
        at += 1


def process_queue(a: Allocator, queue: Queue, all_of_them: bool) -> None:
    while queue.first != NONE:
        use = use_at(a, queue.first)
        if use.event > a.events_done and not all_of_them:
            return
        a.events_done = max(a.events_done, use.event)
        queue.first = use.next
        block = block_at(a, use.block)
        drop(a, use_at, use)
        a.use_count -= 1
        block.event_count -= 1
        if block.event_count == 0:
            free_block(a, block)


def wait_for(a: Allocator, block: Block, place: int) -> None:
    """Note a pending free; one that is noted already keeps its turn."""
    entry = ident_at(a, place)
    ring = ident_at(a, NONE)
    if entry.pending == NONE:
        entry.before = ring.before
        entry.after = NONE
        ident_at(a, ring.before).after = place
        ring.before = place
    entry.pending = block.at


def complete(a: Allocator, place: int) -> bool:
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


def synchronize_and_free_events(a: Allocator) -> None:
    """Wait for every event and free what waited for it; also the pending frees of a recording."""
    a.num_sync_all_streams += 1
    process_events(a, True)
    while ident_at(a, NONE).after != NONE:
        complete(a, ident_at(a, NONE).after)
