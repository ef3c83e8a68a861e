"""The events of a snapshot as the requests of a program, each with what the allocator asked of the driver for it.

Segments that are given back belong to an allocation that the driver had refused, or to an empty_cache. The stacks tell, where
there are any; else the room that was there at an out-of-memory does, and else empty_cache is taken, and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from helpers.allocator.snapshot import MIB, Event, Snapshot
from helpers.allocator.trace import DriverCall, Op, StartSegment, Trace, TraceError
from helpers.settings.table import CONF_NAMES

_CALLS = {
    "segment_alloc": "malloc",
    "segment_free": "free",
    "segment_map": "map",
    "segment_unmap": "unmap",
    "oom": "oom",
}
_GIVES = ("segment_free", "segment_unmap")


def check(events: Sequence[Event], kinds: set[str]) -> None:
    """Passes where each address is allocated and freed in turn; else TraceError names the first event at fault."""
    frees = kinds & {"free_requested", "free_completed"}
    if "alloc" not in kinds and any(_reuses(events, kind) for kind in frees):
        raise TraceError(
            "addresses are freed twice and no alloc is recorded: allocs were skipped; record again without "
            "skip_actions"
        )
    if not frees and _reuses(events, "alloc"):
        raise TraceError(
            "addresses are allocated twice and no free is recorded: frees were skipped; record again without "
            "skip_actions"
        )
    last: dict[int, Event] = {}
    for event in events:
        action, before = event.action, last.get(event.address)
        was = before.action if before else ""
        if action == "alloc":
            if was == "alloc" or was == "free_requested" and "free_completed" in kinds:
                raise _fault(
                    event,
                    f"is at an address where the block of event {before.number if before else 0} still lives",
                )
        elif action == "free_requested":
            if was.startswith("free"):
                raise _fault(
                    event, f"frees what event {before.number if before else 0} freed already"
                )
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


class _Builder:
    """Collects the columns of the trace."""

    def __init__(
        self,
        snapshot: Snapshot,
        kinds: set[str],
        start: Sequence[StartSegment],
        pool_of: dict[int, int],
    ) -> None:
        self.snapshot, self.kinds, self.pool_of = snapshot, kinds, pool_of
        self.rows: list[tuple[int, ...]] = []  # op id size stream pool address frame time
        self.driver: list[DriverCall] = []
        self.waiting: list[Event] = []  # segment events since the last request
        self.ids = {
            segment.address + block.offset: block.id
            for segment in start
            for block in segment.blocks
            if block.id >= 0
        }
        self.made = len(self.ids)
        self.pending = {
            segment.address + block.offset
            for segment in snapshot.segments
            for block in segment.blocks
            if block.state == "P"
        }
        self.guessed = 0
        self.reserved = sum(segment.size for segment in start)
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
        for event in events:
            call = DriverCall(
                len(self.rows) - 1, _CALLS[event.action], event.address, event.size, event.stream
            )
            self.driver.append(call)
            self.reserved += {"malloc": call.size, "map": call.size, "oom": 0}.get(
                call.action, -call.size
            )

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
                    self.row(
                        Op.FREE_COMPLETED if "free_requested" in self.kinds else Op.FREE,
                        event,
                        ident,
                    )
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
        given = 0
        while given < len(self.waiting) and self.waiting[given].action in _GIVES:
            given += 1
        if given and not self._mine(self.waiting[:given], self.waiting[given:], event):
            rest, self.waiting = self.waiting[given:], self.waiting[:given]
            self._give_back()
            self.waiting = rest
            given = 0
        late = []  # frees completed by the synchronisation in front of the release: the pool is not searched after it
        while given and self.rows and self.rows[-1][0] == Op.FREE_COMPLETED:
            late.append(self.rows.pop())
        oom = event.action == "oom"
        self.row(Op.ALLOC, event, self.made, -1 if oom else event.address)
        self.call([*self.waiting, event] if oom else self.waiting)
        self.waiting = []
        self.rows += reversed(late)
        if not oom:
            self.ids[event.address] = self.made
        self.made += 1

    def _mine(self, given: Sequence[Event], rest: Sequence[Event], event: Event) -> bool:
        """Whether the segments were given back for this allocation, and not by an empty_cache before it."""
        frames = self.snapshot.frames
        if given[0].frame >= 0 and event.frame >= 0:
            return given[0].frame == event.frame and not any(
                line.endswith(" empty_cache") for line in frames[event.frame]
            )
        if event.action == "oom":
            return True
        if not rest:
            return False
        self.guessed += 1
        return (
            self.room is not None and self.reserved + sum(other.size for other in rest) > self.room
        )


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
    columns = list(zip(*builder.rows, strict=True)) or [()] * 8
    op, ident, size, stream, pool, address, frame, time = (
        np.array(column, np.int64) for column in columns
    )
    timed = bool(snapshot.events) and all(event.time_us is not None for event in snapshot.events)
    header = _header(snapshot)
    capacity, said = _capacity(builder, start)
    if capacity:
        header["vram"] = capacity
    more = (
        (
            builder.guessed,
            f"{builder.guessed} times segments were given back just before a new one: without stacks it is a guess which of them "
            "were an empty_cache and which the retry of a refused allocation",
        ),
        (
            builder.waiting,
            f"the last {len(builder.waiting)} segment events belong to an allocation that is not recorded",
        ),
    )
    notes = [*notes, *said, *(note for holds, note in more if holds)]
    for kind, has in (("free_completed", "free_requested"), ("free_requested", "free_completed")):
        if has in kinds and kind not in kinds and not builder.pending:
            notes.append(f"no {kind} is recorded: each free is taken to be complete at its {has}")
    if snapshot.pools:
        notes.append(
            f"{len(snapshot.pools)} private pools, numbered from 1 in the order of their ids' first sight"
        )
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
    return next(
        (text for key in CONF_NAMES if type(text := snapshot.settings.get(key)) is str and text), ""
    )


def _header(snapshot: Snapshot) -> dict[str, Any]:
    live = [
        block for segment in snapshot.segments for block in segment.blocks if block.state != "I"
    ]
    return {
        "label": "recorded on a GPU",
        "device": snapshot.device,
        "conf": conf_of(snapshot),
        "vram": None,
        "fraction": None,
        "torch": None,
        "foreign": 0,
        "env": {},
        "final_reserved_bytes": sum(segment.size for segment in snapshot.segments),
        "final_active_bytes": sum(block.size for block in live),
        "final_allocated_bytes": sum(block.size for block in live if block.state == "A"),
    }


def _room(events: Sequence[Event], start: Sequence[StartSegment]) -> int | None:
    """The least that the process had and could have had at an out-of-memory: bytes reserved plus bytes free."""
    reserved, seen = sum(segment.size for segment in start), []
    for event in events:
        if event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in _GIVES:
            reserved -= event.size
        elif event.action == "oom":
            seen.append(reserved + event.address)
    return min(seen, default=None)


def _capacity(builder: _Builder, start: Sequence[StartSegment]) -> tuple[int | None, list[str]]:
    """What the process could have of the device, as far as refusals tell, and how that is known.

    Where segments were given back for a new one, it is less than what was reserved before plus the new one, unless garbage
    collection may have been the reason.
    """
    reserved = peak = sum(segment.size for segment in start)
    refused = []
    for _, group in groupby(builder.driver, key=lambda call: call.event):
        calls = list(group)
        taken = sum(call.size for call in calls if call.action in ("malloc", "map"))
        given = sum(call.size for call in calls if call.action in ("free", "unmap"))
        if taken and given and calls[-1].action != "oom":
            refused.append(reserved + taken - 2 * MIB)
        reserved += taken - given
        peak = max(peak, reserved)
    limited = sum(
        call.action == "oom" and call.address > max(2 * call.size, 64 * MIB)
        for call in builder.driver
    )
    notes = [
        f"{limited} out-of-memory errors came while the driver had room: a memory fraction or another limit of the "
        "process refused them; give it with --fraction"
    ][:limited]
    if builder.room is not None:
        notes.append(
            "the capacity for this process is inferred: bytes reserved plus bytes free at the out-of-memory"
        )
        return max(peak, builder.room), notes
    if refused and not builder.collects:
        notes.append(
            "the capacity for this process is inferred: segments were given back to make room for a new one"
        )
        return max(peak, min(refused)), notes
    return None, notes
