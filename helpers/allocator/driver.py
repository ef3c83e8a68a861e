"""The card under the allocator: so many bytes, some held by others, and a rule for addresses.

The rules are those of the fake runtime in tests/oracle: cudaMalloc takes whole granules of 2
MiB and fails only when used + held + asked is more than the capacity; addresses come from the
lowest free range (firstfit), the highest (topdown), are never used twice (monotonic), or are
those of a recording (recorded).
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
POLICIES = ("firstfit", "topdown", "monotonic", "recorded")
GRANULE_BYTES = 2 << 20
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
    return -(-size // unit) * unit


def take(a: Allocator, arena: int, size: int) -> int:
    """An address of so many free bytes, by the card's rule."""
    before = chosen_before = range_at(a, arena)
    chosen = range_at(a, NONE)
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
    """The addresses are free again, where the card's rule uses any twice; they join what is
    free beside them.
    """
    if not a.reuses:
        return
    before = range_at(a, arena)
    while before.next != NONE and range_at(a, before.next).low < low:
        before = range_at(a, before.next)
    after = range_at(a, before.next)
    high = low + size
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
    """The next address of the recording; 0 where there is none, or a replay that went another
    way has it in use.
    """
    if a.next_recorded == a.recorded_count:
        return 0
    address = recorded_at(a, a.next_recorded).value
    a.next_recorded += 1
    for place in range(1, a.segment_last + 1):
        other = segment_at(a, place)
        if other.size and not other.expandable:
            end = other.address + round_up(other.size, GRANULE_BYTES)
            if address < end and other.address < address + size:
                return 0
    return address


def log(a: Allocator, call: int, ordinal: int, address: int, size: int) -> None:
    """Keep the call for the driver log; ranges mapped or unmapped one behind the other are one
    call.
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
    """Take size bytes of the card if there are as many; a call that was told to fail fails."""
    if a.fail_next:
        a.fail_next -= 1
        return False
    if size > a.capacity - a.foreign - a.used:
        return False
    a.used += size
    return True


def cuda_malloc(a: Allocator, size: int) -> int:
    """The address, or -1 where the card is full."""
    physical = round_up(size, GRANULE_BYTES)
    if not room_for(a, physical):
        log(a, MALLOC_FAIL, -1, -1, size)
        return -1
    address = recorded_address(a, physical)
    if not address:
        address = take(a, MEMORY, physical)
    log(a, MALLOC, a.mallocs, address, size)
    return address


def cuda_free(a: Allocator, segment: Segment) -> None:
    physical = round_up(segment.size, GRANULE_BYTES)
    a.used -= physical
    give(a, MEMORY, segment.address, physical)
    log(a, FREE, segment.ordinal, -1, -1)


def reserve(a: Allocator, size: int) -> int:
    """The address of a range without memory."""
    address = take(a, RESERVED, round_up(size, GRANULE_BYTES))
    log(a, RESERVE, a.reserves, address, size)
    return address


def unreserve(a: Allocator, segment: Segment) -> None:
    give(a, RESERVED, segment.address, round_up(segment.size, GRANULE_BYTES))
    log(a, UNRESERVE, segment.ordinal, -1, -1)


def map_pages(a: Allocator, segment: Segment, offset: int, size: int) -> bool:
    """Create and map the pages of a part of a reserved range: all of them, or none."""
    for page in range(size // segment.page_bytes):
        if not room_for(a, segment.page_bytes):
            a.used -= page * segment.page_bytes  # give back the pages before it
            log(a, CREATE_FAIL, page, -1, segment.page_bytes)
            return False
    log(a, MAP, segment.ordinal, offset, size)
    return True


def unmap_pages(a: Allocator, segment: Segment, offset: int, size: int) -> None:
    a.used -= size
    log(a, UNMAP, segment.ordinal, offset, size)
