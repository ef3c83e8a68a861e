"""The card under the allocator: so many bytes, some held by others, and a rule for addresses.

The rules are those of the fake runtime in tests/oracle: cudaMalloc takes whole granules of 2 MiB and fails only when
used + held + asked is more than the capacity; addresses come from the lowest free range (firstfit), the highest
(topdown), are never used twice (monotonic), or are those of a recording (recorded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from helpers.allocator.trace import StartSegment

MALLOC_BASE = 0x100000000000
RESERVE_BASE = 0x200000000000
MALLOC_SPAN = 8 << 40
RESERVE_SPAN = 32 << 40
POLICIES = ("firstfit", "topdown", "monotonic", "recorded")
GRANULE_BYTES = 2 << 20


@dataclass(frozen=True)
class Card:
    """The device to replay on.

    capacity_bytes is both what torch sees as the total and what can be given out; held_bytes is what others hold.
    """

    capacity_bytes: int
    held_bytes: int = 0
    policy: str = "firstfit"
    granule_bytes: int = GRANULE_BYTES

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"address policy {self.policy!r}: expected one of {', '.join(POLICIES)}")
        if self.capacity_bytes <= 0:
            raise ValueError(f"capacity of {self.capacity_bytes} bytes: expected more than 0")


class Arena:
    """Free address ranges, in order."""

    def __init__(self, low: int, size: int, policy: str) -> None:
        self.free = [[low, low + size]]
        self.policy = policy

    def take(self, size: int) -> int:
        order = reversed(self.free) if self.policy == "topdown" else self.free
        for extent in order:
            if extent[1] - extent[0] >= size:
                if self.policy == "topdown":
                    extent[1] -= size
                    at = extent[1]
                else:
                    at = extent[0]
                    extent[0] += size
                if extent[0] == extent[1]:
                    self.free.remove(extent)
                return at
        raise OverflowError("the modelled address space is used up")

    def give(self, low: int, size: int) -> None:
        if self.policy in ("monotonic", "recorded"):
            return
        high = low + size
        index = next((i for i, extent in enumerate(self.free) if extent[0] >= low), len(self.free))
        left = self.free[index - 1] if index and self.free[index - 1][1] == low else None
        right = self.free[index] if index < len(self.free) and self.free[index][0] == high else None
        if left and right:
            left[1] = right[1]
            del self.free[index]
        elif left:
            left[1] = high
        elif right:
            right[0] = low
        else:
            self.free.insert(index, [low, high])


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def event_turn(stream: int) -> int:
    """Sorts streams as the hash table that torch keeps its events in walks them (ska::flat_hash_map, Fibonacci hashing).

    It changes no byte and no address, only how inactive_split's accumulated counts come about (measured, 2.6 to 2.14).
    """
    return 0x9E3779B97F4A7C15 * (1 << 56 | stream) & (1 << 64) - 1


def clear_of(start: Sequence[StartSegment], card: Card) -> int:
    """The address above everything that a recording starts with, reserved ranges included."""
    range_bytes = card.capacity_bytes + card.capacity_bytes // 8 + (1 << 30)
    return max((s.address + (range_bytes if s.expandable else s.size) for s in start), default=0)


class Driver:
    """cudaMalloc, cuMemCreate and events, as far as the allocator can tell.

    log holds what was called in the present operation: a name of outcome.CALLS and what that call has.
    """

    def __init__(self, card: Card, recorded: tuple[int, ...] = (), above: int = 0) -> None:
        self.capacity = card.capacity_bytes
        self.held = card.held_bytes
        self.granule = card.granule_bytes
        self.used = 0
        self.fail_next = 0
        if recorded:  # clear of what a recording starts with and, no segment being larger than the card, of all it hands out
            above = max(above, max(recorded) + card.capacity_bytes)
        base = max(round_up(above, card.granule_bytes), MALLOC_BASE)
        self.memory = Arena(base, MALLOC_SPAN, card.policy)
        self.reserved = Arena(max(base + MALLOC_SPAN, RESERVE_BASE), RESERVE_SPAN, card.policy)
        self.recorded = list(reversed(recorded))
        self.given: dict[int, int] = {}  # segments at recorded addresses: address -> bytes
        self.mallocs = self.reserves = 0
        self.events = self.events_done = 0
        self.events_held = False
        self.log: list[list] = []

    def room_for(self, size: int) -> bool:
        """Take size bytes of the card if there are as many; a call that was told to fail fails."""
        if self.fail_next:
            self.fail_next -= 1
            return False
        if self.used + self.held + size > self.capacity:
            return False
        self.used += size
        return True

    def malloc(self, size: int) -> tuple[int, int] | None:
        """(ordinal, address), or None where the card is full."""
        physical = round_up(size, self.granule)
        if not self.room_for(physical):
            self.log.append(["malloc_fail", size])
            return None
        address = self._recorded(physical) or self.memory.take(physical)
        ordinal = self.mallocs
        self.mallocs += 1
        self.log.append(["malloc", ordinal, address, size])
        return ordinal, address

    def _recorded(self, size: int) -> int:
        """The next address of the recording; 0 where there is none or a replay that went another way has it in use."""
        if not self.recorded:
            return 0
        address = self.recorded.pop()
        if any(address < other + held and other < address + size for other, held in self.given.items()):
            return 0
        self.given[address] = size
        return address

    def free(self, ordinal: int, address: int, size: int) -> None:
        physical = round_up(size, self.granule)
        self.used -= physical
        self.given.pop(address, None)
        self.memory.give(address, physical)
        self.log.append(["free", ordinal])

    def reserve(self, size: int) -> tuple[int, int]:
        address = self.reserved.take(round_up(size, self.granule))
        ordinal = self.reserves
        self.reserves += 1
        self.log.append(["reserve", ordinal, address, size])
        return ordinal, address

    def unreserve(self, ordinal: int, address: int, size: int) -> None:
        self.reserved.give(address, round_up(size, self.granule))
        self.log.append(["unreserve", ordinal])

    def map(self, ordinal: int, offset: int, size: int, page: int) -> bool:
        """Create and map the pages of a range: all of them, or none."""
        for made in range(size // page):
            if not self.room_for(page):
                self.used -= made * page
                self.log.append(["create_fail", made, page])
                return False
        self._note("map", ordinal, offset, size)
        return True

    def unmap(self, ordinal: int, offset: int, size: int) -> None:
        self.used -= size
        self._note("unmap", ordinal, offset, size)

    def _note(self, what: str, ordinal: int, offset: int, size: int) -> None:
        last: list = self.log[-1] if self.log else [""]
        if last[:2] == [what, ordinal] and last[2] + last[3] == offset:
            last[3] += size
        else:
            self.log.append([what, ordinal, offset, size])

    def record_event(self) -> int:
        self.events += 1
        if not self.events_held:
            self.events_done = self.events
        return self.events

    def hold_events(self, on: bool) -> None:
        self.events_held = on
        if not on:
            self.complete_events()

    def complete_events(self) -> None:
        self.events_done = self.events
