"""The state in which a recording began: the final segments with every event undone, the last
event first.

A snapshot has the state at its end and the events before it; a replay needs the state at their
start. Free space needs no bookkeeping: bytes that no block holds are free, and neighbouring free
bytes of a segment are always one block. No event says how much larger a block was than its
request. A block that *survived* is in the snapshot, with its size. Of any other it is assumed
that it kept what the allocator would not have split off: a rest of up to 1 MiB in the large pool,
and any rest of a block from max_split_size up (should_split in CUDACachingAllocator.cpp).
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
Kind = TypeVar("Kind")


class _ByAddress(Generic[Kind]):
    """Ranges or blocks, found by their addresses. ``addresses`` are those of all ``values``, in
    ascending order.
    """

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self.values: dict[int, Kind] = {}

    def put(self, address: int, value: Kind) -> None:
        insort(self.addresses, address)
        self.values[address] = value

    def pop(self, address: int) -> Kind:
        del self.addresses[bisect_left(self.addresses, address)]
        return self.values.pop(address)

    def below(self, address: int) -> int | None:
        """The last address up to this one, itself included; None where there is none."""
        at = bisect_right(self.addresses, address)
        return self.addresses[at - 1] if at else None

    def above(self, address: int, end: int) -> int:
        """The first address above this one; ``end`` where none comes before that."""
        at = bisect_right(self.addresses, address)
        if at == len(self.addresses):
            return end
        return min(end, self.addresses[at])


@dataclass
class _Range:
    """A segment or a mapped range while events are undone. ``small``: whether it is of the small
    pool, None until a block in it shows that.
    """

    size: int
    stream: int
    small: bool | None
    pool: int
    expandable: bool


@dataclass
class _Live:
    """A block that is not free. ``state``: as of StartBlock, A for allocated, P for a block that
    was freed and waits for its events. ``survived``: it is in the snapshot, so its size is known.
    """

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
    """The settings of the recording: its text as the newest release reads it, since a snapshot does
    not say its release. Divisions and max_split_size are taken from the numbers that the snapshot
    lists.
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
    """The segments and live blocks at one moment, which goes back event by event. ``pool_of``: by
    the number of each event that is an allocation its private pool, 0 for the default pools.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.settings = _settings_of(snapshot)
        self.ranges: _ByAddress[_Range] = _ByAddress()
        self.live: _ByAddress[_Live] = _ByAddress()
        self.pool_of: dict[int, int] = {}
        self.has_events = bool(snapshot.events)
        # Both are counted by ``start``: live blocks at the start, which get the first ids, and
        # those of them whose size is a guess.
        self.ids = 0
        self.unsure = 0
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
            if block.state != "I":  # not free
                live = _Live(block.size, block.requested, block.state, survived=True)
                self.live.put(address, live)

    def undo(self, event: TraceEntry) -> None:
        """Goes back to the state just before the event; an oom changed nothing."""
        if event.action == "alloc":
            self._undo_alloc(event)
        elif event.action == "free_completed":
            self._undo_free(event)
        elif event.action == "free_requested":
            # The events that follow were undone already: what they freed waits again.
            block = self.live.values.get(event.address)
            if block is None or block.state != "P":
                never = "of a block that is not waiting afterwards and whose free never completes"
                raise _impossible(event, never)
            block.state = "A"
        elif event.action in ("segment_alloc", "segment_map"):
            self._undo_segment(event)
        elif event.action == "segment_free":
            self._restore_range(event)
        elif event.action == "segment_unmap":
            self._map_again(event)

    def _undo_alloc(self, event: TraceEntry) -> None:
        """Undoes an allocation: the block is gone again. Notes its private pool.

        Since events are undone from the last to the first, the block must be live and allocated here. A
        block that only waits for its free to be completed was freed without a request to free it.
        """
        block = self.live.values.get(event.address)
        if block is None:
            raise _impossible(event, f"of a block that is {GONE}")
        if block.state != "A":
            raise _impossible(
                event, "of a block whose free completes and nobody requested"
            )
        self.live.pop(event.address)
        pool = event.pool
        home = self._range_at(event.address)
        if not pool and home is not None:  # events of old releases have no pool
            pool = self.ranges.values[home].pool
        self.pool_of[event.number] = pool

    def _undo_free(self, event: TraceEntry) -> None:
        """The block that the event freed is live again, and waits for its free to be completed.
        Where a block of the large pool is close to the next, it gets the rest between them
        (``_keep_rest``).
        """
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
        if home.small is None:  # the first block in it shows its pool
            home.small = size <= SMALL_MAX_BYTES
        self.live.put(address, _Live(size, event.size, "P", survived=False))
        # In the small pool and in expandable segments every rest is split off (should_split).
        if not home.small and not home.expandable:
            before = self.live.below(address - 1)
            if before is not None and before >= first:
                self._keep_rest(before, address)
            self._keep_rest(address, self.live.above(address, end))

    def _keep_rest(self, address: int, end: int) -> None:
        """The block at ``address`` gets the bytes behind it up to ``end`` if these are at most 1
        MiB, since the large pool splits off no free block as small as that. A block that survived
        keeps its size.
        """
        block = self.live.values[address]
        if not block.survived and end - address - block.size <= MIB:
            block.size = end - address

    def start(self) -> tuple[tuple[StartSegment, ...], list[str]]:
        """The present state as the start of a trace, ids in address order, and notes on what was
        guessed.
        """
        segments = []
        for address in self.ranges.addresses:
            home = self.ranges.values[address]
            blocks = tuple(self._blocks_in(address, home))
            small = home.small
            if small is None:
                # No block showed the pool. A range of the large pool consists of pages of this
                # size.
                is_odd = home.size % self.settings.large_segment_bytes != 0
                small = home.expandable and is_odd
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
        """The live blocks of a range at ``address``, and the free ones between them."""
        end = address + home.size
        free_from = address
        place = self.live.above(address - 1, end)  # the first live block
        while place < end:
            block = self.live.values[place]
            following = self.live.above(place, end)
            # As in _undo_free: elsewhere every rest is split off, so no size is a guess.
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
        """Gives the rest behind it to a block from max_split_size up, which the allocator never
        splits, if it would have handed out so large a block for the request. ``most``: the bytes
        from the block's address up to the next live block.

        Counts in ``unsure`` the other blocks whose size is a guess: a rest of more than 1 MiB
        follows them, of which they may have kept up to 1 MiB.
        """
        rest = most - block.size
        is_oversize = block.size >= self.settings.max_split_bytes
        if is_oversize and rest < self.settings.non_split_rounding_bytes:
            block.size = most
        rounded = round_size(block.requested, self.settings.roundup_divisions)
        # A block that is larger than its rounded request has got its rest already.
        if rest > MIB and block.size == rounded:
            self.unsure += 1

    def _notes(self, segments: int) -> list[str]:
        """Notes on what was guessed of the start, which has so many segments."""
        notes = []
        if segments and self.has_events:  # without events there is nothing to replay
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
        """The begin of the segment or mapped range that has this address; None for none."""
        first = self.ranges.below(address)
        if first is not None and address < first + self.ranges.values[first].size:
            return first
        return None

    def _block_in(self, address: int, end: int) -> int | None:
        """The address of a live block with a byte from ``address`` up to ``end``; None for none."""
        before = self.live.below(address)
        if before is not None and before + self.live.values[before].size > address:
            return before
        after = self.live.above(address, end)
        return after if after < end else None

    def _restore_range(self, event: TraceEntry) -> _Range:
        """Undoes a segment_free or segment_unmap: its bytes are reserved again. Returns them as a
        range of their own, which ``_map_again`` may join with its neighbours.
        """
        end = event.address + event.size
        overlaps = self._range_at(event.address) is not None
        if overlaps or self.ranges.above(event.address, end) < end:
            raise _impossible(event, "of bytes that are in a segment afterwards")
        restored = _Range(
            size=event.size,
            stream=event.stream,
            small=None,
            pool=event.pool,
            expandable=event.action == "segment_unmap",
        )
        if not restored.expandable and event.size == SMALL_SEGMENT_BYTES:
            # only the small pool has cudaMalloc segments of this size
            restored.small = True
        self.ranges.put(event.address, restored)
        return restored

    def _map_again(self, event: TraceEntry) -> None:
        """Undoes a segment_unmap; ranges without a gap between them become one."""
        restored = self._restore_range(event)
        address = event.address
        end = address + restored.size
        if self._joins(end, restored):
            after = self.ranges.pop(end)
            restored.size += after.size
            # What the event does not say of the range, its neighbour knows.
            restored.small = after.small
            restored.pool = after.pool
        before = self._range_at(address - 1)
        if before is not None and self._joins(before, restored):
            self.ranges.pop(address)
            self.ranges.values[before].size += restored.size

    def _joins(self, address: int, new: _Range) -> bool:
        """Whether an expandable range begins at ``address`` with which the new range beside it
        becomes one: it is of the same stream, and of the same pool as far as that of the new range
        is known.
        """
        old = self.ranges.values.get(address)
        if old is None or not old.expandable or old.stream != new.stream:
            return False
        return new.small is None or new.small == old.small

    def _undo_segment(self, event: TraceEntry) -> None:
        """Undoes a segment_alloc or segment_map: its bytes, which must be free, are reserved no
        longer. Of an expandable range a part may be left on either side; cudaMalloc makes whole
        segments only.
        """
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
    """The error for an event that cannot have happened. ``why`` follows "is" in its sentence."""
    return TraceError(
        f"event {event.number} ({event.action} at {event.address:#x}, {event.size:,} bytes) is {why}: such a trace "
        "cannot have happened; record it again, without skip_actions"
    )
