"""What was there when a recording began: the final segments with every event undone, last one
first.

A snapshot has the state at its end and the events before it; a replay needs the state at their
start. Free space needs no bookkeeping: what no block holds is free, and neighbouring free bytes
of a segment are always one block. The one thing that no event says is how much more than it
asked for a block kept: a block that survived has its size in the snapshot, another is taken to
keep what the allocator would not have split off (1 MiB in the large pool, any rest from
max_split_size up).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from helpers.allocator.blocks import round_size
from helpers.allocator.snapshot import MIB, Snapshot, TraceEntry
from helpers.allocator.snapshot_trace import conf_of, placed, trace_of
from helpers.allocator.trace import StartBlock, StartSegment, Trace, TraceError
from helpers.settings.allocator_text import UNLIMITED, SettingsError
from helpers.settings.in_force import (
    SMALL_MAX_BYTES,
    SMALL_SEGMENT_BYTES,
    Settings,
    parse,
)
from helpers.settings.releases import NEWEST, behaviour

GONE = "neither freed later nor in the final segments"
T = TypeVar("T")


class _ByAddress(Generic[T]):
    """Ranges or blocks by their addresses, in order."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.values: dict[int, T] = {}

    def put(self, address: int, value: T) -> None:
        insort(self.addresses, address)
        self.values[address] = value

    def pop(self, address: int) -> T:
        del self.addresses[bisect_left(self.addresses, address)]
        return self.values.pop(address)

    def below(self, address: int) -> int | None:
        """The last address that is not above this one."""
        at = bisect_right(self.addresses, address)
        return self.addresses[at - 1] if at else None

    def above(self, address: int, end: int) -> int:
        """The first address above this one, or the end where that comes sooner."""
        at = bisect_right(self.addresses, address)
        return min(end, self.addresses[at]) if at < len(self.addresses) else end


@dataclass
class _Range:
    """A segment or a mapped range while events are undone; ``small`` is None until a block in
    it tells.
    """

    size: int
    stream: int
    small: bool | None
    pool: int
    expandable: bool


@dataclass
class _Live:
    size: int
    requested: int
    state: str
    survived: bool


def rewind(snapshot: Snapshot) -> Trace:
    """The trace of a snapshot with the state at its start.

    TraceError names an event that cannot have happened.
    """
    state = _State(snapshot)
    for event in reversed(snapshot.events):
        state.undo(event)
    start, notes = state.start()
    return trace_of(snapshot, start, state.pool_of, (*snapshot.notes, *notes))


def _settings_of(snapshot: Snapshot) -> Settings:
    """The settings of the recording: its string as the newest release reads it, and what the
    snapshot lists by name.
    """
    rules = behaviour(".".join(map(str, NEWEST)))
    try:
        named = parse(conf_of(snapshot), rules)
    except SettingsError as error:
        named = error.left or parse("", rules)
    limit = snapshot.settings.get("max_split_size")
    if type(limit) is not int or limit <= 0:
        limit = UNLIMITED
    return replace(
        named,
        roundup_divisions=snapshot.divisions,
        max_split_bytes=limit,
    )


class _State:
    """The segments and live blocks at one moment, moved back event by event."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.settings = _settings_of(snapshot)
        self.ranges: _ByAddress[_Range] = _ByAddress()
        self.live: _ByAddress[_Live] = _ByAddress()
        self.pool_of: dict[int, int] = {}  # event -> private pool
        self.has_events = bool(snapshot.events)
        self.ids = 0  # of the live blocks at the start
        self.unsure = 0  # of those whose size is a guess
        for segment in snapshot.segments:
            home = _Range(
                size=segment.size,
                stream=segment.stream,
                small=segment.small,
                pool=segment.pool,
                expandable=segment.expandable,
            )
            self.ranges.put(segment.address, home)
        for address, block in placed(snapshot.segments):
            if block.state != "I":
                live = _Live(block.size, block.requested, block.state, survived=True)
                self.live.put(address, live)

    def undo(self, event: TraceEntry) -> None:
        """The state just before the event."""
        if event.action == "alloc":
            self._undo_alloc(event)
        elif event.action == "free_completed":
            self._undo_free(event)
        elif event.action == "free_requested":
            block = self.live.values.get(event.address)
            if block is None or block.state != "P":
                never = "of a block that is not waiting afterwards and whose free never completes"
                raise _impossible(event, never)
            block.state = "A"  # allocated; P: freed, but awaiting events
        elif event.action in ("segment_alloc", "segment_map"):
            self._undo_segment(event)
        elif event.action == "segment_free":
            self._give_again(event)
        elif event.action == "segment_unmap":
            self._map_again(event)

    def _undo_alloc(self, event: TraceEntry) -> None:
        block = self.live.values.get(event.address)
        if block is None:
            raise _impossible(event, f"of a block that is {GONE}")
        if block.state != "A":
            raise _impossible(
                event, "of a block whose free completes and nobody requested"
            )
        self.live.pop(event.address)
        home = self._range_at(event.address)
        pool = 0 if home is None else self.ranges.values[home].pool
        self.pool_of[event.number] = event.pool or pool

    def _undo_free(self, event: TraceEntry) -> None:
        """The block that the event freed waits again."""
        address = event.address
        size = round_size(event.size, self.settings.roundup_divisions)
        if address in self.live.values:
            again = (
                "of a block that is live afterwards without an allocation in between"
            )
            raise _impossible(event, again)
        other = self._block_in(address, address + size)
        if other is not None:
            raise _impossible(
                event, f"of bytes that the live block at {other:#x} holds"
            )
        first = self._range_at(address)
        if first is None:
            raise _impossible(event, "at an address in no segment")
        home = self.ranges.values[first]
        end = first + home.size
        if address + size > end:
            raise _impossible(event, "of more bytes than its segment has")
        if home.small is None:
            home.small = size <= SMALL_MAX_BYTES
        self.live.put(address, _Live(size, event.size, "P", False))
        if not home.small and not home.expandable:
            before = self.live.below(address - 1)
            if before is not None and before >= first:
                self._keep_rest(before, address)
            self._keep_rest(address, self.live.above(address, end))

    def _keep_rest(self, address: int, end: int) -> None:
        """The block keeps a rest of at most 1 MiB before ``end``: no free block of the large
        pool is as small as that.
        """
        block = self.live.values[address]
        if not block.survived and end - address - block.size <= MIB:
            block.size = end - address

    def start(self) -> tuple[tuple[StartSegment, ...], list[str]]:
        """The state that is left, ids in address order, and what was guessed."""
        segments = []
        for address in self.ranges.addresses:
            home = self.ranges.values[address]
            blocks = tuple(self._blocks_in(address, home))
            small = home.small
            if small is None:
                odd = home.size % self.settings.large_segment_bytes != 0
                small = home.expandable and odd
            segment = StartSegment(
                address=address,
                size=home.size,
                stream=home.stream,
                small=small,
                pool=home.pool,
                expandable=home.expandable,
                blocks=blocks,
            )
            segments.append(segment)
        return tuple(segments), self._notes(len(segments))

    def _blocks_in(self, address: int, home: _Range) -> Iterator[StartBlock]:
        """The live blocks of a range, and the free ones between them."""
        end = address + home.size
        free_from = address
        place = self.live.above(address - 1, end)
        while place < end:
            block = self.live.values[place]
            following = self.live.above(place, end)
            if not block.survived and not home.small and not home.expandable:
                self._take_rest(block, following - place)
            if place > free_from:
                yield StartBlock(free_from - address, place - free_from, 0, "I", -1)
            yield StartBlock(
                place - address, block.size, block.requested, block.state, self.ids
            )
            self.ids += 1
            free_from = place + block.size
            place = following
        if free_from < end:
            yield StartBlock(free_from - address, end - free_from, 0, "I", -1)

    def _take_rest(self, block: _Live, most: int) -> None:
        """A block above max_split_size has all up to the next, ``most``; whether another has
        more than it is taken to have may be unsure.
        """
        rest = most - block.size
        is_oversize = block.size >= self.settings.max_split_bytes
        if is_oversize and rest < self.settings.non_split_rounding_bytes:
            block.size = most
        rounded = round_size(block.requested, self.settings.roundup_divisions)
        if rest > MIB and block.size == rounded:
            self.unsure += 1

    def _notes(self, segments: int) -> list[str]:
        notes = []
        if segments and self.has_events:
            notes.append(
                f"{segments} segments with {self.ids} live blocks were there before the first event; their order of creation is "
                "not recorded and is taken to be the order of their addresses, and the ages for garbage collection begin at 0"
            )
        if self.unsure:
            notes.append(
                f"{self.unsure} blocks live at the start may have kept up to 1 MiB more "
                "than they are taken to: nothing recorded tells"
            )
        return notes

    def _range_at(self, address: int) -> int | None:
        """Where the segment or mapped range begins that has this address."""
        first = self.ranges.below(address)
        if first is not None and address < first + self.ranges.values[first].size:
            return first
        return None

    def _block_in(self, address: int, end: int) -> int | None:
        """A live block that has a byte in the range."""
        before = self.live.below(address)
        if before is not None and before + self.live.values[before].size > address:
            return before
        after = self.live.above(address, end)
        return after if after < end else None

    def _give_again(self, event: TraceEntry) -> _Range:
        """Undoes a segment_free or segment_unmap: what it gave back is there."""
        end = event.address + event.size
        overlaps = self._range_at(event.address) is not None
        if overlaps or self.ranges.above(event.address, end) < end:
            raise _impossible(event, "of bytes that are in a segment afterwards")
        again = _Range(
            size=event.size,
            stream=event.stream,
            small=None,
            pool=event.pool,
            expandable=event.action == "segment_unmap",
        )
        if not again.expandable and event.size == SMALL_SEGMENT_BYTES:
            again.small = True
        self.ranges.put(event.address, again)
        return again

    def _map_again(self, event: TraceEntry) -> None:
        """A range is as long as it is mapped without a gap."""
        again = self._give_again(event)
        address = event.address
        end = address + again.size
        if self._joins(end, again):
            after = self.ranges.pop(end)
            again.size += after.size
            again.small = after.small
            again.pool = after.pool
        before = self._range_at(address - 1)
        if before is not None and self._joins(before, again):
            self.ranges.pop(address)
            self.ranges.values[before].size += again.size

    def _joins(self, address: int, new: _Range) -> bool:
        """Whether an expandable range that begins there and a new one are one."""
        old = self.ranges.values.get(address)
        if old is None or not old.expandable or old.stream != new.stream:
            return False
        return new.small is None or new.small == old.small

    def _undo_segment(self, event: TraceEntry) -> None:
        """Undoes a segment_alloc or segment_map: what it made must be free and goes."""
        address = event.address
        end = address + event.size
        other = self._block_in(address, end)
        if other is not None:
            raise _impossible(
                event, f"of memory in which the block at {other:#x} lived already"
            )
        first = self._range_at(address)
        if first is None or end > first + self.ranges.values[first].size:
            raise _impossible(event, f"of memory that is {GONE}")
        home = self.ranges.pop(first)
        last = first + home.size
        if event.action == "segment_alloc" and (first, last) != (address, end):
            raise _impossible(event, f"of memory that is {GONE}")
        for place, size in ((first, address - first), (end, last - end)):
            if size:
                self.ranges.put(place, replace(home, size=size))


def _impossible(event: TraceEntry, why: str) -> TraceError:
    return TraceError(
        f"event {event.number} ({event.action} at {event.address:#x}, {event.size:,} bytes) is {why}: such a trace "
        "cannot have happened; record it again, without skip_actions"
    )
