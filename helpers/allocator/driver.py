"""The card under the allocator: so many bytes, some held by others, and a rule for addresses.

It stands for the driver, which hands out memory in two ways: cudaMalloc gives a segment, and for
an expandable segment a range of addresses is reserved, into which pages of memory are mapped.

The rules are those of the simulated card (helpers/rehearse/device.c), so that both give the same
addresses: cudaMalloc takes whole granules of 2 MiB and fails only when used + held + asked is
more than the capacity; addresses come from the lowest free range (firstfit), the highest
(topdown), are never used twice (monotonic), or are those of a recording (recorded).

``a`` is the record of the allocator (records.py), which holds the state of the card, too.
``range_at(a, place)`` reads a range of free addresses by its place, and so on; the one at NONE
stands for none. An arena (MEMORY, RESERVED) is the place of a record in front of its ranges,
which are linked by ``next`` in the order of their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from helpers.allocator.records import (
    EXHAUSTED,
    MEMORY,
    NONE,
    RESERVED,
    Allocator,
    Segment,
    call_at,
    drop,
    fresh,
    range_at,
    recorded_at,
    segment_at,
)

MALLOC_BASE = 0x100000000000
RESERVE_BASE = 0x200000000000
MALLOC_SPAN = 8 << 40
RESERVE_SPAN = 32 << 40
"""Where the addresses for cudaMalloc and for reserved ranges begin, and how many bytes of them
there are (reserve_arena in device.c).
"""
POLICIES = ("firstfit", "topdown", "monotonic", "recorded")
GRANULE_BYTES = 2 << 20
"""The unit in which a card gives memory (FAKE_GRANULE in device.c)."""
CALLS = (
    "malloc",
    "malloc_fail",
    "free",
    "reserve",
    "unreserve",
    "map",
    "create_fail",
    "unmap",
)
MALLOC, MALLOC_FAIL, FREE, RESERVE, UNRESERVE, MAP, CREATE_FAIL, UNMAP = range(
    len(CALLS)
)
NO_VALUE = -1
"""What the log has for a figure that a call does not have."""


Size = TypeVar("Size", int, np.ndarray)


@dataclass(frozen=True)
class Card:
    """The device to replay on.

    capacity_bytes is both what torch sees as the total and what can be given out; held_bytes is
    what others hold.
    """

    capacity_bytes: int
    held_bytes: int = 0
    policy: str = "firstfit"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(
                f"address policy {self.policy!r}: expected one of {', '.join(POLICIES)}"
            )
        if self.capacity_bytes <= 0:
            raise ValueError(
                f"capacity of {self.capacity_bytes} bytes: expected more than 0"
            )


def round_up(size: Size, unit: int) -> Size:
    """``size`` rounded up to whole units."""
    return -(-size // unit) * unit


def take(a: Allocator, arena: int, size: int) -> int:
    """The address of ``size`` free bytes of an arena, which are taken from it: from the lowest free
    range that has as many, or with the rule topdown from the end of the highest one. Where none
    has as many, the replay ends (EXHAUSTED) and 0 is returned.
    """
    before = chosen_before = range_at(a, arena)
    chosen = range_at(a, NONE)
    # Topdown the last range that fits counts, so all are looked at.
    while before.next != NONE and (a.topdown or chosen.at == NONE):
        free_range = range_at(a, before.next)
        if free_range.high - free_range.low >= size:
            chosen_before = before
            chosen = free_range
        before = free_range
    if chosen.at == NONE:
        a.status = EXHAUSTED
        return 0
    if a.topdown:
        chosen.high -= size
        address = chosen.high
    else:
        address = chosen.low
        chosen.low += size
    if chosen.low == chosen.high:
        chosen_before.next = chosen.next
        drop(a, range_at, chosen)
    return address


def give(a: Allocator, arena: int, low: int, size: int) -> None:
    """Make ``size`` bytes of addresses from ``low`` on free again, and join them with the free
    ranges beside them. Does nothing under the rules monotonic and recorded, under which the model
    takes no address twice from its own ranges.
    """
    if not a.reuses:
        return
    before = range_at(a, arena)
    while before.next != NONE and range_at(a, before.next).low < low:
        before = range_at(a, before.next)
    after = range_at(a, before.next)
    high = low + size
    # The record at ``arena`` only begins the list, and is no range.
    joins_before = before.at != arena and before.high == low
    joins_after = after.at != NONE and after.low == high
    if joins_before and joins_after:
        before.high = after.high
        before.next = after.next
        drop(a, range_at, after)
    elif joins_before:
        before.high = high
    elif joins_after:
        after.low = low
    else:
        new = fresh(a, range_at)
        new.low = low
        new.high = high
        new.next = before.next
        before.next = new.at


def recorded_address(a: Allocator, size: int) -> int:
    """The next address that a cudaMalloc of the recording returned. 0 where the recording has no
    more, or where a segment of the replay lies at that address: under other settings a replay
    makes other segments than the recording.
    """
    if a.next_recorded == a.recorded_count:
        return 0
    address = recorded_at(a, a.next_recorded).value
    a.next_recorded += 1
    for place in range(1, a.segment_last + 1):
        other = segment_at(a, place)
        if other.size and not other.expandable:  # a record out of use has size 0
            end = other.address + round_up(other.size, GRANULE_BYTES)
            if address < end and other.address < address + size:
                return 0
    return address


def log(a: Allocator, call: int, ordinal: int, address: int, size: int) -> None:
    """Add a call to the driver log (outcome.CALL_COLUMNS), if the replay keeps one.

    Torch maps a run of pages page by page. In the log, mapping pages right behind those that the
    call before mapped, in the same operation and range, is one call with it; so with unmapping.
    """
    if not a.logs:
        return
    last = call_at(a, a.call_count)
    is_of_pages = call in (MAP, UNMAP)
    is_same_call = (
        last.event == a.operation and last.call == call and last.ordinal == ordinal
    )
    if is_of_pages and is_same_call and last.address + last.size == address:
        last.size += size
        return
    a.call_count += 1
    new = call_at(a, a.call_count)
    new.event = a.operation
    new.call = call
    new.ordinal = ordinal
    new.address = address
    new.size = size


def room_for(a: Allocator, size: int) -> bool:
    """Take ``size`` bytes of the card. False, and nothing taken, where fewer are free, or where
    the trace says that this call fails (Op.FAIL_NEXT).
    """
    if a.fail_next:
        a.fail_next -= 1
        return False
    if size > a.capacity - a.foreign - a.used:
        return False
    a.used += size
    return True


def cuda_malloc(a: Allocator, size: int) -> int:
    """The address of a new segment, or -1 where the card has too little memory left."""
    physical = round_up(size, GRANULE_BYTES)
    if not room_for(a, physical):
        log(a, MALLOC_FAIL, NO_VALUE, NO_VALUE, size)
        return -1
    address = recorded_address(a, physical)  # 0 also where nothing was recorded
    if not address:
        address = take(a, MEMORY, physical)
    log(a, MALLOC, a.mallocs, address, size)
    return address


def cuda_free(a: Allocator, segment: Segment) -> None:
    """Give a segment back to the card."""
    physical = round_up(segment.size, GRANULE_BYTES)
    a.used -= physical
    give(a, MEMORY, segment.address, physical)
    log(a, FREE, segment.ordinal, NO_VALUE, NO_VALUE)


def reserve(a: Allocator, size: int) -> int:
    """The address of a newly reserved range, without memory."""
    address = take(a, RESERVED, round_up(size, GRANULE_BYTES))
    log(a, RESERVE, a.reserves, address, size)
    return address


def unreserve(a: Allocator, segment: Segment) -> None:
    """Give up a reserved range without mapped pages."""
    give(a, RESERVED, segment.address, round_up(segment.size, GRANULE_BYTES))
    log(a, UNRESERVE, segment.ordinal, NO_VALUE, NO_VALUE)


def map_pages(a: Allocator, segment: Segment, offset: int, size: int) -> bool:
    """Map ``size`` bytes of pages at an offset in a reserved range. False, and nothing mapped,
    where the card has not enough memory for all of them.
    """
    for page in range(size // segment.page_bytes):
        if not room_for(a, segment.page_bytes):
            a.used -= page * segment.page_bytes  # give back the pages before it
            # A failure has in place of the ordinal how many pages were made before it.
            log(a, CREATE_FAIL, page, NO_VALUE, segment.page_bytes)
            return False
    log(a, MAP, segment.ordinal, offset, size)
    return True


def unmap_pages(a: Allocator, segment: Segment, offset: int, size: int) -> None:
    """Unmap ``size`` bytes of pages at an offset in a reserved range."""
    a.used -= size
    log(a, UNMAP, segment.ordinal, offset, size)
