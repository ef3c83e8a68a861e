"""The events of a snapshot as the requests of a program, each with what the allocator asked of the driver for it.

Segments that are given back belong to an allocation that the driver had refused, or to an empty_cache. The stacks tell, where
there are any; else the room that was there at an out-of-memory does, and else empty_cache is taken, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any

import numpy as np

from helpers.allocator.snapshot import MIB, Event, Snapshot
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

_CALLS = {
    "segment_alloc": "malloc",
    "segment_free": "free",
    "segment_map": "map",
    "segment_unmap": "unmap",
    "oom": "oom",
}
SKIPPED = "were skipped; record again without skip_actions"
_GIVES = ("segment_free", "segment_unmap")


def check(events: Sequence[Event], kinds: set[str]) -> None:
    """Passes where each address is allocated and freed in turn; else TraceError names the first event at fault."""
    frees = kinds & {"free_requested", "free_completed"}
    if "alloc" not in kinds and any(_reuses(events, kind) for kind in frees):
        raise TraceError(f"addresses are freed twice and no alloc is recorded: allocs {SKIPPED}")
    if not frees and _reuses(events, "alloc"):
        raise TraceError(f"addresses are allocated twice and no free is recorded: frees {SKIPPED}")
    last: dict[int, Event] = {}
    for event in events:
        action, before = event.action, last.get(event.address)
        was, number = (before.action, before.number) if before else ("", 0)
        if action == "alloc":
            if was == "alloc" or was == "free_requested" and "free_completed" in kinds:
                lives = f"where the block of event {number} still lives"
                raise _fault(event, f"is at an address {lives}")
        elif action == "free_requested":
            if was.startswith("free"):
                raise _fault(event, f"frees what event {number} freed already")
        elif action == "free_completed":
            if was == "free_completed" or was == "alloc" and "free_requested" in kinds:
                raise _fault(event, "completes a free that nobody requested")
        else:
            continue
        last[event.address] = event


def _reuses(events: Sequence[Event], action: str) -> bool:
    places = [event.address for event in events if event.action == action]
    return len(set(places)) < len(places)


def _fault(event: Event, why: str) -> TraceError:
    return TraceError(
        f"event {event.number} ({event.action} of {event.size:,} bytes at {event.address:#x}) {why}: such a "
        "trace cannot have happened; record it again"
    )


def growth(event: Event) -> int:
    """Bytes by which an event makes what is reserved larger."""
    grows = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    return grows.get(event.action, 0) * event.size


def placed(segments: Sequence[StartSegment]) -> Iterator[tuple[int, StartBlock]]:
    """Every block of the segments with its address."""
    for segment in segments:
        for block in segment.blocks:
            yield segment.address + block.offset, block


class _Builder:
    """Collects the columns of the trace."""

    def __init__(
        self,
        snapshot: Snapshot,
        kinds: set[str],
        start: Sequence[StartSegment],
        pool_of: dict[int, int],
    ):
        self.snapshot, self.kinds, self.pool_of = snapshot, kinds, pool_of
        self.rows: list[tuple[int, ...]] = []  # op id size stream pool address frame time
        self.driver: list[DriverCall] = []
        self.waiting: list[Event] = []  # segment events since the last request
        self.ids = {place: block.id for place, block in placed(start) if block.id >= 0}
        self.made = len(self.ids)
        self.pending = {place for place, block in placed(snapshot.segments) if block.state == "P"}
        self.guessed = 0
        self.reserved = start_bytes(start)
        self.room = _room(snapshot.events, start)
        threshold = snapshot.settings.get("garbage_collection_threshold")
        self.collects = type(threshold) is float and threshold > 0

    def row(self, op: Op, event: Event, ident: int = -1, address: int = -1) -> None:
        size = stream = pool = 0
        frame, time_ns = -1, (event.time_us or 0) * 1000
        if op == Op.ALLOC:
            size, stream, frame = event.size, event.stream, event.frame
            pool = self.pool_of.get(event.number, event.pool)
        self.rows.append((op, ident, size, stream, pool, address, frame, time_ns))

    def call(self, events: Sequence[Event]) -> None:
        """The events belong to the request that was added last."""
        at = len(self.rows) - 1
        for event in events:
            place = (event.address, event.size, event.stream)
            self.driver.append(DriverCall(at, _CALLS[event.action], *place))
            self.reserved += growth(event)

    def build(self) -> None:
        """One row for each request, in order."""
        events, at = self.snapshot.events, 0
        while at < len(events):
            event = events[at]
            at += 1
            if event.action in ("alloc", "oom"):
                self._alloc(event)
            elif event.action.startswith("segment_"):
                self.waiting.append(event)
            else:
                self._give_back()
                ident = self.ids[event.address]
                if event.action == "free_completed":
                    requested = "free_requested" in self.kinds
                    self.row(Op.FREE_COMPLETED if requested else Op.FREE, event, ident)
                    continue
                after = [(one.action, one.address) for one in events[at : at + 1]]
                done = after == [("free_completed", event.address)]
                at += done
                skipped = "free_completed" not in self.kinds and event.address not in self.pending
                self.row(Op.FREE if done or skipped else Op.FREE_REQUESTED, event, ident)
        self._give_back()

    def _give_back(self) -> None:
        """An empty_cache where the segments that wait were given back and no allocation followed."""
        if self.waiting and all(event.action in _GIVES for event in self.waiting):
            self.row(Op.EMPTY_CACHE, self.waiting[0])
            self.call(self.waiting)
            self.waiting = []

    def _alloc(self, event: Event) -> None:
        back = list(takewhile(lambda one: one.action in _GIVES, self.waiting))
        rest = self.waiting[len(back) :]
        if back and not self._mine(back, rest, event):
            self.waiting = back
            self._give_back()
            self.waiting, back = rest, []
        late = []  # frees completed by the synchronisation in front of the release: the pool is not searched after it
        while back and self.rows and self.rows[-1][0] == Op.FREE_COMPLETED:
            late.append(self.rows.pop())
        oom = event.action == "oom"
        self.row(Op.ALLOC, event, self.made, -1 if oom else event.address)
        self.call([*self.waiting, event] if oom else self.waiting)
        self.waiting = []
        self.rows += reversed(late)
        if not oom:
            self.ids[event.address] = self.made
        self.made += 1

    def _mine(self, back: Sequence[Event], rest: Sequence[Event], event: Event) -> bool:
        """Whether the segments were given back for this allocation, and not by an empty_cache before it."""
        frames = self.snapshot.frames
        if back[0].frame >= 0 and event.frame >= 0:
            empties = any(line.endswith(" empty_cache") for line in frames[event.frame])
            return back[0].frame == event.frame and not empties
        if event.action == "oom":
            return True
        if not rest:
            return False
        self.guessed += 1
        wanted = self.reserved + sum(other.size for other in rest)
        return self.room is not None and wanted > self.room


def trace(
    snapshot: Snapshot,
    kinds: set[str],
    start: tuple[StartSegment, ...],
    pool_of: dict[int, int],
    notes: Sequence[str],
) -> Trace:
    """The trace of the snapshot from the given start. ``pool_of``: the private pool of the events that are allocations."""
    builder = _Builder(snapshot, kinds, start, pool_of)
    builder.build()
    columns = np.array(builder.rows, np.int64).reshape(-1, 8).T
    op, ident, size, stream, pool, address, frame, time = map(np.ascontiguousarray, columns)
    timed = bool(snapshot.events) and all(event.time_us is not None for event in snapshot.events)
    header = _header(snapshot)
    capacity, remarks = _capacity(builder, start)
    if capacity:
        header["vram"] = capacity
    notes = [*notes, *remarks]
    if builder.guessed:
        notes.append(
            f"{builder.guessed} times segments were given back just before a new one: without stacks it is a guess which of them "
            "were an empty_cache and which the retry of a refused allocation"
        )
    if builder.waiting:
        last = f"the last {len(builder.waiting)} segment events"
        notes.append(f"{last} belong to an allocation that is not recorded")
    for kind, has in (("free_completed", "free_requested"), ("free_requested", "free_completed")):
        if has in kinds and kind not in kinds and not builder.pending:
            notes.append(f"no {kind} is recorded: each free is taken to be complete at its {has}")
    if snapshot.pools:
        order = "numbered from 1 in the order of their ids' first sight"
        notes.append(f"{len(snapshot.pools)} private pools, {order}")
    return Trace(
        op.astype(np.int8),
        ident,
        size,
        stream,
        pool.astype(np.int32),
        time_ns=time if timed else None,
        start=start,
        address=address,
        driver=tuple(builder.driver),
        frame=frame.astype(np.int32) if snapshot.frames else None,
        frames=snapshot.frames,
        header=header,
        notes=tuple(notes),
    )


def conf_of(snapshot: Snapshot) -> str:
    """The settings string of the recorded process."""
    texts = (snapshot.settings.get(key) for key in CONF_NAMES)
    return next((text for text in texts if type(text) is str and text), "")


def _header(snapshot: Snapshot) -> dict[str, Any]:
    live = [block for _, block in placed(snapshot.segments) if block.state != "I"]
    return {
        "label": "recorded on a GPU",
        "device": snapshot.device,
        "conf": conf_of(snapshot),
        "vram": None,
        "fraction": None,
        "torch": None,
        "foreign": 0,
        "env": {},
        "final_reserved_bytes": start_bytes(snapshot.segments),
        "final_active_bytes": sum(block.size for block in live),
        "final_allocated_bytes": sum(block.size for block in live if block.state == "A"),
    }


def _room(events: Sequence[Event], start: Sequence[StartSegment]) -> int | None:
    """The least that the process had and could have had at an out-of-memory: bytes reserved plus bytes free."""
    reserved, rooms = start_bytes(start), []
    for event in events:
        reserved += growth(event)
        if event.action == "oom":
            rooms.append(reserved + event.address)
    return min(rooms, default=None)


def _capacity(builder: _Builder, start: Sequence[StartSegment]) -> tuple[int | None, list[str]]:
    """What the process could have of the device, as far as refusals tell, and how that is known.

    Where segments were given back for a new one, it is less than what was reserved before plus the new one, unless garbage
    collection may have been the reason.
    """
    reserved = peak = start_bytes(start)
    refused = []
    for _, group in groupby(builder.driver, key=lambda call: call.event):
        calls = list(group)
        new = sum(call.size for call in calls if call.action in ("malloc", "map"))
        back = sum(call.size for call in calls if call.action in ("free", "unmap"))
        if new and back and calls[-1].action != "oom":
            refused.append(reserved + new - 2 * MIB)
        reserved += new - back
        peak = max(peak, reserved)
    ooms = [call for call in builder.driver if call.action == "oom"]
    limited = sum(call.address > max(2 * call.size, 64 * MIB) for call in ooms)
    inferred, notes = "the capacity for this process is inferred", []
    if limited:
        notes.append(
            f"{limited} out-of-memory errors came while the driver had room: a memory fraction or another limit of the "
            "process refused them; give it with --fraction"
        )
    if builder.room is not None:
        notes.append(f"{inferred}: bytes reserved plus bytes free at the out-of-memory")
        return max(peak, builder.room), notes
    if refused and not builder.collects:
        notes.append(f"{inferred}: segments were given back to make room for a new one")
        return max(peak, min(refused)), notes
    return None, notes
