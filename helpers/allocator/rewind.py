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

from bisect import bisect_right, insort
from dataclasses import dataclass, replace

from helpers.allocator.blocks import round_size
from helpers.allocator.snapshot import MIB, Event, Snapshot
from helpers.allocator.snapshot_trace import check, conf_of, placed, trace_of
from helpers.allocator.trace import StartBlock, StartSegment, Trace, TraceError
from helpers.settings.allocator_text import UNLIMITED, SettingsError
from helpers.settings.releases import NEWEST, behaviour
from helpers.settings.text import SMALL_MAX_BYTES, SMALL_SEGMENT_BYTES, Settings, parse

GONE = "neither freed later nor in the final segments"
SILENT = (
    "no segment event is recorded: the driver was asked for nothing, or such events were skipped"
)
_VERBS = {
    "alloc": "allocates",
    "free_requested": "frees",
    "free_completed": "frees",
    "segment_alloc": "makes",
    "segment_free": "gives back",
    "segment_map": "maps",
    "segment_unmap": "unmaps",
}


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
    kinds = {event.action for event in snapshot.events}
    check(snapshot.events, kinds)
    state = _State(snapshot, kinds)
    for event in reversed(snapshot.events):
        state.undo(event)
    start, notes = state.start()
    return trace_of(snapshot, kinds, start, state.pool_of, (*snapshot.notes, *notes))


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
    return replace(
        named,
        roundup_divisions=snapshot.divisions,
        max_split_bytes=limit if type(limit) is int and limit > 0 else UNLIMITED,
    )


class _State:
    """The segments and live blocks at one moment, moved back event by event."""

    def __init__(self, snapshot: Snapshot, kinds: set[str]) -> None:
        self.snapshot = snapshot
        self.kinds = kinds
        self.settings = _settings_of(snapshot)
        self.ranges: dict[int, _Range] = {}
        self.starts: list[int] = []  # addresses of the ranges, sorted
        self.live: dict[int, _Live] = {}
        self.places: list[int] = []  # addresses of the live blocks, sorted
        self.pool_of: dict[int, int] = {}  # event -> private pool
        self.unseen = 0
        self.unlike = 0
        self.unmade = 0
        for segment in snapshot.segments:
            home = _Range(
                segment.size, segment.stream, segment.small, segment.pool, segment.expandable
            )
            self._add(segment.address, home)
        for address, block in placed(snapshot.segments):
            if block.state != "I":
                self._put(address, _Live(block.size, block.requested, block.state, True))

    def undo(self, event: Event) -> None:
        """The state just before the event."""
        action = event.action
        address = event.address
        size = event.size
        if action == "alloc":
            if (block := self.live.get(address)) is None:
                raise _impossible(event, f"a block that is {GONE}")
            if block.survived and block.requested != size:
                self.unlike += 1
            self._take(address)
            home = self._range_at(address)
            self.pool_of[event.number] = event.pool or (home.pool if home else 0)
        elif action == "free_completed":
            if address in self.live:
                again = "a block that is live afterwards without an allocation in between"
                raise _impossible(event, again)
            self._carve(event, "P" if "free_requested" in self.kinds else "A")
        elif action == "free_requested":
            block = self.live.get(address)
            if block is None and "free_completed" not in self.kinds:
                self._carve(event, "A")
            elif block is None or block.state != "P":
                never = "a block that is not waiting afterwards and whose free never completes"
                raise _impossible(event, never)
            else:
                block.state = "A"
        elif action in ("segment_alloc", "segment_map"):
            self._remove(event)
        elif action == "segment_free":
            small = size == SMALL_SEGMENT_BYTES or None
            self._add(address, _Range(size, event.stream, small, event.pool, False), event)
        elif action == "segment_unmap":
            self._add(address, _Range(size, event.stream, None, event.pool, True), event)

    def start(self) -> tuple[tuple[StartSegment, ...], list[str]]:
        """The state that is left, ids in address order, and what was guessed."""
        segments = []
        unsure = 0
        number = 0
        at = 0
        for address in self.starts:
            home = self.ranges[address]
            end = address + home.size
            here = address
            blocks = []
            while at < len(self.places) and self.places[at] < end:
                place = self.places[at]
                block = self.live[place]
                at += 1
                if not block.survived and not home.small and not home.expandable:
                    after = min(end, self.places[at]) if at < len(self.places) else end
                    gap = after - place - block.size
                    oversize = self.settings.max_split_bytes
                    if block.size >= oversize and gap < self.settings.non_split_rounding_bytes:
                        block.size += gap
                    unsure += gap > MIB and block.size == self.round_size(block.requested)
                if place > here:
                    blocks.append(StartBlock(here - address, place - here, 0, "I", -1))
                found = (block.size, block.requested, block.state, number)
                blocks.append(StartBlock(place - address, *found))
                number += 1
                here = place + block.size
            if here < end:
                blocks.append(StartBlock(here - address, end - here, 0, "I", -1))
            whole_pages = home.size % self.settings.large_segment_bytes == 0
            small = home.small if home.small is not None else home.expandable and not whole_pages
            of = (home.stream, small, home.pool, home.expandable)
            segments.append(StartSegment(address, home.size, *of, tuple(blocks)))
        return tuple(segments), self._notes(segments, number, unsure)

    def _notes(self, segments: list[StartSegment], live: int, unsure: int) -> list[str]:
        if live != len(self.places):
            raise TraceError(
                f"{len(self.places) - live} blocks that were live when the recording began lie in segments that "
                "it does not show: record again with the segment events (without skip_actions)"
            )
        events = self.snapshot.events
        notes = []
        if segments and events:
            notes.append(
                f"{len(segments)} segments with {live} live blocks were there before the first event; their order of creation is "
                "not recorded and is taken to be the order of their addresses, and the ages for garbage collection begin at 0"
            )
        if unsure:
            more = "may have kept up to 1 MiB more than they are taken to: nothing recorded tells"
            notes.append(f"{unsure} blocks live at the start {more}")
        if events and not self._segment_events():
            notes.append(SILENT)
        counted = {
            "allocations lie in segments that the recording does not show": self.unseen,
            "segments were made and are gone without a recorded segment_free": self.unmade,
            "allocations differ in size from what the final segments say was requested there": self.unlike,
        }
        return [*notes, *(f"{count} {says}" for says, count in counted.items() if count)]

    def _segment_events(self) -> bool:
        return any(kind.startswith("segment_") for kind in self.kinds)

    def _range_at(self, address: int) -> _Range | None:
        at = bisect_right(self.starts, address) - 1
        home = self.ranges[self.starts[at]] if at >= 0 else None
        return home if home and address < self.starts[at] + home.size else None

    def round_size(self, size: int) -> int:
        return round_size(size, self.settings.roundup_divisions)

    def _put(self, address: int, block: _Live) -> None:
        self.live[address] = block
        insort(self.places, address)

    def _take(self, address: int) -> None:
        del self.live[address]
        del self.places[bisect_right(self.places, address) - 1]

    def _held(self, address: int, end: int) -> int | None:
        """A live block that has a byte in the range."""
        at = bisect_right(self.places, address) - 1
        if at >= 0 and self.places[at] + self.live[self.places[at]].size > address:
            return self.places[at]
        after = self.places[at + 1] if at + 1 < len(self.places) else end
        return after if after < end else None

    def _carve(self, event: Event, state: str) -> None:
        """The block that the event freed is live again."""
        size = self.round_size(event.size)
        end = event.address + size
        home = self._range_at(event.address)
        if (other := self._held(event.address, end)) is not None:
            raise _impossible(event, f"bytes that the live block at {other:#x} holds")
        if home is None:
            if self._segment_events():
                raise _impossible(event, "an address in no segment")
            self.unseen += 1
        elif self._range_at(end - 1) is not home:
            raise _impossible(event, "more bytes than its segment has")
        elif home.small is None:
            home.small = size <= SMALL_MAX_BYTES
        self._put(event.address, _Live(size, event.size, state, False))
        if home and not home.small and not home.expandable:
            at = bisect_right(self.places, event.address)
            first = self.starts[bisect_right(self.starts, event.address) - 1]
            last = first + home.size
            if at > 1 and self.places[at - 2] >= first:
                self._keep(self.places[at - 2], event.address)
            self._keep(event.address, min(last, self.places[at]) if at < len(self.places) else last)

    def _keep(self, address: int, end: int) -> None:
        """The block keeps a rest of at most 1 MiB before ``end``: no free block of the large
        pool is as small as that.
        """
        block = self.live[address]
        if not block.survived and end - address - block.size <= MIB:
            block.size = end - address

    def _add(self, address: int, new: _Range, event: Event | None = None) -> None:
        at = bisect_right(self.starts, address)
        before = self.starts[at - 1] if at else None
        after = self.starts[at] if at < len(self.starts) else None
        end = address + new.size
        reached = 0 if before is None else before + self.ranges[before].size
        if event and (reached > address or (after is not None and after < end)):
            raise _impossible(event, "bytes that are in a segment afterwards")
        if event and new.expandable:  # a range is as long as it is mapped without a gap
            if after == end and self._joins(after, new):
                old = self.ranges.pop(after)
                self.starts.pop(at)
                new = _Range(new.size + old.size, old.stream, old.small, old.pool, True)
            if before is not None and reached == address and self._joins(before, new):
                self.ranges[before].size += new.size
                return
        self.ranges[address] = new
        self.starts.insert(at, address)

    def _joins(self, address: int, new: _Range) -> bool:
        old = self.ranges[address]
        alike = new.small is None or new.small == old.small
        return old.expandable and old.stream == new.stream and alike

    def _remove(self, event: Event) -> None:
        """Undoes a segment_alloc or segment_map: what it made must be free and goes."""
        address = event.address
        end = event.address + event.size
        if (other := self._held(address, end)) is not None:
            raise _impossible(event, f"memory in which the block at {other:#x} lived already")
        home = self._range_at(address)
        whole = event.action == "segment_alloc"
        if home is None and ("segment_free" if whole else "segment_unmap") not in self.kinds:
            self.unmade += 1
            return
        at = bisect_right(self.starts, address) - 1
        first = self.starts[at] if home else 0
        exactly = not whole or (home is not None and (first, home.size) == (address, event.size))
        if home is None or end > first + home.size or not exactly:
            raise _impossible(event, f"memory that is {GONE}")
        pieces = [(first, address - first), (end, first + home.size - end)]
        del self.starts[at], self.ranges[first]
        for place, size in reversed(pieces):
            if size:
                self.starts.insert(at, place)
                self.ranges[place] = replace(home, size=size)


def _impossible(event: Event, what: str) -> TraceError:
    return TraceError(
        f"event {event.number} ({event.action} at {event.address:#x}, {event.size:,} bytes) "
        f"{_VERBS[event.action]} {what}: such a trace cannot have happened; record it again"
    )
