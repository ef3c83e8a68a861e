"""The map in which torch keeps the events of each stream: ska::flat_hash_map of
c10/util/flat_hash_map.h, a table with robin-hood hashing. Each queue has a slot of its own, which
its hash names, and may be some slots behind it; a queue that is near to its own slot makes room for
one that is farther from its own.

The order in which it is walked changes no byte and no address, only the peak and the accumulated
count of inactive_split (measured, 2.6 to 2.15, ROCm 2.6).
"""

from __future__ import annotations

from helpers.allocator.records import NONE, Allocator, Map, map_at, queue_at, slot_at

EVENTS, USES, TODO = range(3)
"""Places of the maps: the allocator's streams with events, the streams of one block that is freed,
and a list to work through (``put``).
"""
MAPS = 3
FEWEST_LOOKUPS = 4
"""min_lookups in flat_hash_map.h."""
FEWEST_BITS = 2
"""An empty map grows to 4 slots (grow)."""
GOLDEN = 0x9E3779B97F4A7C15
"""2 ** 64 divided by the golden ratio: fibonacci_hash_policy."""
ALL_BITS = (1 << 64) - 1
TURN_BITS = 63


def stream_turn(stream: int, device_type: int) -> int:
    """The number whose highest bits are the slot of a stream of device 0: Stream::hash
    (c10/core/Stream.h) times GOLDEN, halved so that it fits a signed number.
    """
    stream_hash = device_type << 56 | stream
    return (GOLDEN * stream_hash & ALL_BITS) >> 1


def most_lookups(m: Map) -> int:
    """How many slots from its own one a queue may be in: compute_max_lookups."""
    return max(FEWEST_LOOKUPS, m.bits)


def map_end(m: Map) -> int:
    """The place behind the last slot: the last queue may be ``most_lookups`` slots further on."""
    return m.first + (1 << m.bits) + most_lookups(m)


def attempt(a: Allocator, m: Map, queue: int) -> int:
    """Put a queue into a map, unless it is there (emplace). Returns NONE where every queue has a
    slot, else the queue that is left without one, for which the map has to grow: the new queue, or
    another that made room for it.
    """
    if m.bits == 0:
        return queue
    own_slot = queue_at(a, queue).turn >> (TURN_BITS - m.bits)  # the highest bits
    at = m.first + own_slot
    far = 1  # 1 more than the distance from its own slot
    most = most_lookups(m)
    # Queues that are as far from their slots as this one would be come before it.
    while slot_at(a, at).far >= far:
        if slot_at(a, at).queue == queue:
            return NONE
        at = at + 1
        far = far + 1
    is_half_full = 2 * (m.count + 1) > 1 << m.bits  # max_load_factor is 0.5
    if far > most or is_half_full:
        return queue
    begin = slot_at(a, at)  # where this queue goes
    while far <= most:
        slot = slot_at(a, at)
        if slot.far == 0:
            slot.queue = queue
            slot.far = far
            m.count += 1
            return NONE
        if slot.far < far:  # the queue that is nearer to its own slot makes room
            slot.queue, queue = queue, slot.queue
            slot.far, far = far, slot.far
        at = at + 1
        far = far + 1
    # No slot is left for the last one that made room: it gets this queue's, and this one none
    # (emplace_new_key).
    begin.queue, queue = queue, begin.queue
    return queue


def put(a: Allocator, m: Map, queue: int) -> None:
    """Put a queue into a map. A map without room is doubled, and its queues are put again in
    order, as rehash does.

    The map TODO is the list of queues to put: ``count`` of them, ``done`` of which have a slot.
    """
    todo = map_at(a, TODO).first
    count = 1
    done = 0
    slot_at(a, todo).queue = queue
    while done < count:
        left = attempt(a, m, slot_at(a, todo + done).queue)
        if left == NONE:
            done += 1
            continue
        # The list begins anew: the queues of the map, the one without a slot, and those that
        # followed. The latter stay where they are: at the first growth there are none, and later
        # the map holds as many queues as are done.
        kept = 0
        for at in range(m.first, map_end(m)):
            slot = slot_at(a, at)
            if slot.far:
                slot_at(a, todo + kept).queue = slot.queue
                slot.far = 0
                kept += 1
        slot_at(a, todo + kept).queue = left
        count += kept - done
        m.bits = max(FEWEST_BITS, m.bits + 1)
        m.count = 0
        done = 0


def take_out(a: Allocator, m: Map, at: int) -> None:
    """Empty a slot; each queue behind it that is not in its own slot moves up by one (erase)."""
    m.count -= 1
    while slot_at(a, at + 1).far > 1:
        slot = slot_at(a, at)
        after = slot_at(a, at + 1)
        slot.queue = after.queue
        slot.far = after.far - 1
        at += 1
    slot_at(a, at).far = 0
