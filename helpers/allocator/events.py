"""Freeing a block: at once, after the events of other streams, or when a recording says that the
free was complete.

Names and order follow DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp.

``a`` is the record of the allocator (records.py); its other records are read by their places, as
in ``use_at(a, place)``, and the one at NONE stands for none. A Use is a stream that uses a block,
and becomes an event in the Queue of that stream when the block is freed. Events are numbered in
order over all streams; the first ``a.events_done`` of them have completed.
"""

from __future__ import annotations

from helpers.allocator.blocks import (
    OVERSIZE_ALLOCATIONS,
    add_to_stat,
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
    """Take a block back from the program. It becomes free at once, unless other streams use it
    still: then it waits for their events, or in a recording for the operation FREE_COMPLETED.

    ``pending``: the place of the Ident of which the trace has that FREE_COMPLETED, else NONE.
    """
    block.allocated = 0
    count_allocated(a, block, -1)
    if block.size >= conf(a).max_split_bytes:  # oversize in torch's statistics
        add_to_stat(a, OVERSIZE_ALLOCATIONS, -1)
    if pending != NONE:
        wait_for(a, block, pending)
    elif block.uses != NONE:
        insert_events(a, block)
    else:
        free_block(a, block)


def record_stream(a: Allocator, block: Block, stream: int) -> None:
    """Note that another stream uses the block, so that its free waits for that stream. A stream is
    noted once; the block's own stream is not, since work of one stream is done in order.
    """
    last = use_at(a, NONE)  # behind which the new Use goes
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
    """Turn the uses of a freed block by other streams into events for which it waits.

    torch keeps the streams of a block in a hash set and records their events in the order of its
    slots. So the uses are first put into such a set (the map USES), and then read from its slots.
    """
    streams = map_at(a, USES)
    use = use_at(a, block.uses)
    block.uses = NONE
    while use.at != NONE:
        place = 1  # of the first queue; each stream of the trace has one
        while queue_at(a, place).stream != use.stream:
            place += 1
        queue_at(a, place).use = use.at
        put(a, streams, place)
        use = use_at(a, use.next)
    for at in range(streams.first, map_end(streams)):
        slot = slot_at(a, at)
        if slot.far:  # the slot is not empty
            slot.far = 0  # now it is
            put(a, map_at(a, EVENTS), slot.queue)
            insert_event(a, queue_at(a, slot.queue), block)
    streams.bits = streams.count = 0  # the next block has a new set, which begins small


def insert_event(a: Allocator, queue: Queue, block: Block) -> None:
    """Record the block's event in a stream: put it behind the other events of that stream. It
    counts as completed at once unless the trace holds events back (Op.EVENTS_HOLD).
    """
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


def free_completed_blocks(a: Allocator) -> None:
    """process_events: free the blocks whose events have completed, stream by stream, in the order
    in which torch walks its map of streams with events.
    """
    streams = map_at(a, EVENTS)
    at = streams.first
    # Without a Use no stream has an event, so the map need not be walked.
    while a.use_count and at < map_end(streams):
        slot = slot_at(a, at)
        if slot.far:  # the slot is not empty
            queue = queue_at(a, slot.queue)
            process_queue(a, queue)
            if queue.first == NONE:
                take_out(a, streams, at)
                continue  # the slot may now hold the queue that came behind it
        at += 1


def process_queue(a: Allocator, queue: Queue) -> None:
    """Take the events of a stream out of its queue, up to the first that has not completed, and
    free each block that waits for no further one.
    """
    while queue.first != NONE:
        use = use_at(a, queue.first)
        if use.event > a.events_done:
            return
        queue.first = use.next
        block = block_at(a, use.block)
        drop(a, use_at, use)
        a.use_count -= 1
        block.event_count -= 1
        if block.event_count == 0:
            free_block(a, block)


def wait_for(a: Allocator, block: Block, place: int) -> None:
    """Let a freed block wait for the FREE_COMPLETED of an Ident, which is given by its place.

    Idents that wait are linked in a ring through the one at NONE, in the order in which they
    began to wait; an Ident that waits already keeps its turn.
    """
    block.event_count = 1  # so that the block is not taken or merged meanwhile
    entry = ident_at(a, place)
    ring = ident_at(a, NONE)
    if entry.pending == NONE:
        entry.before = ring.before
        entry.after = NONE
        ident_at(a, ring.before).after = place
        ring.before = place
    entry.pending = block.at


def complete(a: Allocator, place: int) -> bool:
    """Free the block that waits for this Ident. False, and nothing done, where none waits."""
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
    """synchronize_and_free_events: wait for every event and free the blocks that waited for them.

    Blocks that wait for a recorded FREE_COMPLETED are freed, too: that operation stands where the
    recorded allocator saw their events complete, and here the events are waited for.
    """
    a.num_sync_all_streams += 1
    a.events_done = a.events
    free_completed_blocks(a)
    while ident_at(a, NONE).after != NONE:
        complete(a, ident_at(a, NONE).after)
