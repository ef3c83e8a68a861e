"""The map in which torch keeps the events of each stream (ska::flat_hash_map, c10/util).

The order in which it is walked changes no byte and no address, only how inactive_split's peak
and accumulated counts come about (measured, 2.6 to 2.15, ROCm 2.6).
"""

from __future__ import annotations

from helpers.allocator.records import NONE, Allocator, Map, map_at, queue_at, slot_at

EVENTS, USES, TODO = range(3)
"""Places of MAP: the allocator's streams with events, the streams of one block that is freed,
and room to work in.
"""


def stream_turn(stream: int, device_type: int) -> int:
    """Fibonacci hashing of a stream of device 0; its highest bits are the slot.

    Half of it, so that it fits a signed number.
    """
    return (0x9E3779B97F4A7C15 * (device_type << 56 | stream) & (1 << 64) - 1) >> 1


def map_end(m: Map) -> int:
    return m.first + (1 << m.bits) + max(4, m.bits)


def attempt(a: Allocator, m: Map, queue: int) -> int:
    """Put a queue into a map: NONE once it is there, else the queue that is to be put again
    when the map has grown.
    """
    if m.bits == 0:
        return queue
    at = m.first + (queue_at(a, queue).turn >> (63 - m.bits))
    far = 1
    most = max(4, m.bits)
    while slot_at(a, at).far >= far:
        if slot_at(a, at).queue == queue:
            return NONE
        at = at + 1
        far = far + 1
    if far > most or 2 * (m.count + 1) > 1 << m.bits:
        return queue
    begin = slot_at(a, at)
    while far <= most:
        slot = slot_at(a, at)
        if slot.far == 0:
            slot.queue = queue
            slot.far = far
            m.count += 1
            return NONE
        if slot.far < far:  # who is nearer to where it belongs makes room
            slot.queue, queue = queue, slot.queue
            slot.far, far = far, slot.far
        at = at + 1
        far = far + 1
    begin.queue, queue = queue, begin.queue
    return queue


def put(a: Allocator, m: Map, queue: int) -> None:
    """Put a queue into a map, which is made twice as large for it where it must be; what was in
    it is put again in order.
    """
    todo = map_at(a, TODO).first
    count = 1
    i = 0
    slot_at(a, todo).queue = queue
    while i < count:
        left = attempt(a, m, slot_at(a, todo + i).queue)
        if left == NONE:
            i += 1
            continue
        kept = 0
        for at in range(m.first, map_end(m)):
            slot = slot_at(a, at)
            if slot.far:
                slot_at(a, todo + kept).queue = slot.queue
                slot.far = 0
                kept += 1
        slot_at(a, todo + kept).queue = left
        count += kept - i
        m.bits = max(2, m.bits + 1)
        m.count = 0
        i = 0


def take_out(a: Allocator, m: Map, at: int) -> None:
    """Empty a slot; those behind it that are not where they belong move up."""
    m.count -= 1
    while slot_at(a, at + 1).far > 1:
        slot = slot_at(a, at)
        after = slot_at(a, at + 1)
        slot.queue = after.queue
        slot.far = after.far - 1
        at += 1
    slot_at(a, at).far = 0
