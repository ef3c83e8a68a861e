"""The events of a snapshot as the requests of a program, each with what the allocator asked of
the driver for it.

Segments that are given back belong to an allocation that the driver had refused, or to an
empty_cache. The stacks tell, where there are any; else the room that was there at an
out-of-memory does, and else empty_cache is taken, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.card_size import card_size, reserved_change, room_at_refusals
from helpers.allocator.snapshot import Event, Snapshot
from helpers.allocator.trace import (
    DriverCall,
    Op,
    StartBlock,
    StartSegment,
    Trace,
    TraceError,
    start_bytes,
)
from helpers.settings.table import CONF_NAMES

SKIPPED = "were skipped; record again without skip_actions"
_CALLS = {
    "segment_alloc": "malloc",
    "segment_free": "free",
    "segment_map": "map",
    "segment_unmap": "unmap",
    "oom": "oom",
}
_GIVES_BACK = ("segment_free", "segment_unmap")


def check(events: Sequence[Event], kinds: set[str]) -> None:
    """Passes where each address is allocated and freed in turn; else TraceError names the first
    event at fault.
    """
    frees = kinds & {"free_requested", "free_completed"}
    if "alloc" not in kinds and any(_reuses(events, kind) for kind in frees):
        raise TraceError(f"addresses are freed twice and no alloc is recorded: allocs {SKIPPED}")
    if not frees and _reuses(events, "alloc"):
        raise TraceError(f"addresses are allocated twice and no free is recorded: frees {SKIPPED}")
    last: dict[int, Event] = {}
    for event in events:
        if event.action not in ("alloc", "free_requested", "free_completed"):
            continue
        before = last.get(event.address)
        if before is not None:
            _check_turn(event, before, kinds)
        last[event.address] = event


def _check_turn(event: Event, before: Event, kinds: set[str]) -> None:
    """Passes where an event can follow the last one at its address."""
    if event.action == "alloc":
        waits = before.action == "free_requested" and "free_completed" in kinds
        if before.action == "alloc" or waits:
            lives = f"where the block of event {before.number} still lives"
            raise _fault(event, f"is at an address {lives}")
    elif event.action == "free_requested":
        if before.action.startswith("free"):
            raise _fault(event, f"frees what event {before.number} freed already")
    else:
        not_requested = before.action == "alloc" and "free_requested" in kinds
        if before.action == "free_completed" or not_requested:
            raise _fault(event, "completes a free that nobody requested")


def _reuses(events: Sequence[Event], action: str) -> bool:
    places = [event.address for event in events if event.action == action]
    return len(set(places)) < len(places)


def _fault(event: Event, why: str) -> TraceError:
    return TraceError(
        f"event {event.number} ({event.action} of {event.size:,} bytes at {event.address:#x}) {why}: such a "
        "trace cannot have happened; record it again"
    )


def placed(segments: Sequence[StartSegment]) -> Iterator[tuple[int, StartBlock]]:
    """Every block of the segments with its address."""
    for segment in segments:
        for block in segment.blocks:
            yield segment.address + block.offset, block


class _Row(NamedTuple):
    """One operation of the trace."""

    op: Op
    id: int = -1
    size: int = 0
    stream: int = 0
    pool: int = 0
    address: int = -1
    frame: int = -1
    time_ns: int = 0


class _Builder:
    """Collects the operations of the trace and the calls of the driver."""

    def __init__(
        self,
        snapshot: Snapshot,
        kinds: set[str],
        start: Sequence[StartSegment],
        pool_of: dict[int, int],
    ):
        self.snapshot = snapshot
        self.kinds = kinds
        self.pool_of = pool_of
        self.rows: list[_Row] = []
        self.driver: list[DriverCall] = []
        self.waiting: list[Event] = []  # segment events since the last request
        self.ids = {place: block.id for place, block in placed(start) if block.id >= 0}
        self.next_id = len(self.ids)
        self.pending = {place for place, block in placed(snapshot.segments) if block.state == "P"}
        self.guessed = 0
        self.reserved = start_bytes(start)
        self.room = room_at_refusals(snapshot.events, start)

    def _request(self, op: Op, event: Event, ident: int = -1) -> None:
        self.rows.append(_Row(op, ident, time_ns=(event.time_us or 0) * 1000))

    def _allocation(self, event: Event) -> None:
        address = event.address
        if event.action == "oom":
            address = -1
        else:
            self.ids[event.address] = self.next_id
        self.rows.append(
            _Row(
                Op.ALLOC,
                id=self.next_id,
                size=event.size,
                stream=event.stream,
                pool=self.pool_of.get(event.number, event.pool),
                address=address,
                frame=event.frame,
                time_ns=(event.time_us or 0) * 1000,
            )
        )
        self.next_id += 1

    def _called_for_last(self, events: Sequence[Event]) -> None:
        """The events belong to the request that was added last."""
        at = len(self.rows) - 1
        for event in events:
            action = _CALLS[event.action]
            call = DriverCall(at, action, event.address, event.size, event.stream)
            self.driver.append(call)
            self.reserved += reserved_change(event)

    def build(self) -> None:
        """One operation for each request, in order."""
        events = self.snapshot.events
        at = 0
        while at < len(events):
            event = events[at]
            at += 1
            if event.action in ("alloc", "oom"):
                self._add_allocation(event)
            elif event.action.startswith("segment_"):
                self.waiting.append(event)
            else:
                following = events[at] if at < len(events) else None
                if self._add_free(event, following):
                    at += 1
        self._give_back()

    def _add_free(self, event: Event, following: Event | None) -> bool:
        """Adds a free; returns whether the event that follows completes it."""
        self._give_back()
        ident = self.ids[event.address]
        if event.action == "free_completed":
            was_requested = "free_requested" in self.kinds
            self._request(Op.FREE_COMPLETED if was_requested else Op.FREE, event, ident)
            return False
        completed = (
            following is not None
            and following.action == "free_completed"
            and following.address == event.address
        )
        never_said = "free_completed" not in self.kinds and event.address not in self.pending
        at_once = completed or never_said
        self._request(Op.FREE if at_once else Op.FREE_REQUESTED, event, ident)
        return completed

    def _give_back(self) -> None:
        """An empty_cache where the segments that wait were given back and no allocation followed."""
        if self.waiting and all(event.action in _GIVES_BACK for event in self.waiting):
            self._request(Op.EMPTY_CACHE, self.waiting[0])
            self._called_for_last(self.waiting)
            self.waiting = []

    def _add_allocation(self, event: Event) -> None:
        back = list(takewhile(lambda waiting: waiting.action in _GIVES_BACK, self.waiting))
        rest = self.waiting[len(back) :]
        if back and not self._are_for(event, back, rest):
            self.waiting = back
            self._give_back()
            self.waiting = rest
            back = []
        # The synchronisation in front of a release completes frees; the pool is not searched
        # after it.
        completed_late = []
        while back and self.rows and self.rows[-1].op == Op.FREE_COMPLETED:
            completed_late.append(self.rows.pop())
        self._allocation(event)
        if event.action == "oom":
            self.waiting.append(event)
        self._called_for_last(self.waiting)
        self.waiting = []
        self.rows += reversed(completed_late)

    def _are_for(self, event: Event, back: Sequence[Event], rest: Sequence[Event]) -> bool:
        """Whether segments were given back for this allocation, and not by an empty_cache before
        it. ``rest``: the segment events after those.
        """
        if back[0].frame >= 0 and event.frame >= 0:
            stack = self.snapshot.frames[event.frame]
            empties = any(frame.endswith(" empty_cache") for frame in stack)
            return back[0].frame == event.frame and not empties
        if event.action == "oom":
            return True
        if not rest:
            return False
        self.guessed += 1
        wanted = self.reserved + sum(other.size for other in rest)
        return self.room is not None and wanted > self.room

    def notes(self) -> list[str]:
        """What was guessed or is missing."""
        notes = []
        if self.guessed:
            notes.append(
                f"{self.guessed} times segments were given back just before a new one: without "
                "stacks it is a guess which of them were an empty_cache and which the retry of a "
                "refused allocation"
            )
        if self.waiting:
            last = f"the last {len(self.waiting)} segment events"
            notes.append(f"{last} belong to an allocation that is not recorded")
        frees = self.kinds & {"free_requested", "free_completed"}
        if len(frees) == 1 and not self.pending:
            (recorded,) = frees
            missing = "free_completed" if recorded == "free_requested" else "free_requested"
            complete = f"each free is taken to be complete at its {recorded}"
            notes.append(f"no {missing} is recorded: {complete}")
        return notes


def trace_of(
    snapshot: Snapshot,
    kinds: set[str],
    start: tuple[StartSegment, ...],
    pool_of: dict[int, int],
    notes: Sequence[str],
) -> Trace:
    """The trace of the snapshot from the given start.

    ``kinds``: the actions of its events; ``pool_of``: the private pool of the events that are
    allocations; ``notes``: what is known of the start.
    """
    builder = _Builder(snapshot, kinds, start, pool_of)
    builder.build()
    columns = np.array(builder.rows, np.int64).reshape(-1, len(_Row._fields)).T
    op, ident, size, stream, pool, address, frame, time_ns = map(np.ascontiguousarray, columns)
    timed = bool(snapshot.events) and all(event.time_us is not None for event in snapshot.events)
    threshold = snapshot.settings.get("garbage_collection_threshold")
    collects_garbage = type(threshold) is float and threshold > 0
    capacity, remarks = card_size(builder.driver, start, builder.room, collects_garbage)
    all_notes = [*notes, *remarks, *builder.notes()]
    if snapshot.pools:
        order = "numbered from 1 in the order of their ids' first sight"
        all_notes.append(f"{len(snapshot.pools)} private pools, {order}")
    return Trace(
        op.astype(np.int8),
        ident,
        size,
        stream,
        pool.astype(np.int32),
        time_ns=time_ns if timed else None,
        start=start,
        address=address,
        driver=tuple(builder.driver),
        frame=frame.astype(np.int32) if snapshot.frames else None,
        frames=snapshot.frames,
        header=_header(snapshot, capacity),
        notes=tuple(all_notes),
    )


def conf_of(snapshot: Snapshot) -> str:
    """The settings string of the recorded process."""
    texts = (snapshot.settings.get(key) for key in CONF_NAMES)
    return next((text for text in texts if type(text) is str and text), "")


def _header(snapshot: Snapshot, capacity: int | None) -> dict[str, Any]:
    live = [block for _, block in placed(snapshot.segments) if block.state != "I"]
    return {
        "label": "recorded on a GPU",
        "device": snapshot.device,
        "conf": conf_of(snapshot),
        "vram": capacity or None,
        "fraction": None,
        "torch": None,
        "foreign": 0,
        "env": {},
        "final_reserved_bytes": start_bytes(snapshot.segments),
        "final_active_bytes": sum(block.size for block in live),
        "final_allocated_bytes": sum(block.size for block in live if block.state == "A"),
    }
