"""The events of a snapshot as the requests of a program, each with what the allocator asked of
the driver for it.

Segments that are given back belong to an allocation that the driver had refused, or to an
empty_cache. The stacks tell, where there are any; else empty_cache is taken, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.snapshot import MIB, Snapshot, TraceEntry
from helpers.allocator.trace import (
    RECORDED_ON_GPU,
    DriverCall,
    Op,
    StartBlock,
    StartSegment,
    Trace,
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
_GIVES_BACK = ("segment_free", "segment_unmap")
INFERRED = "the size of the recorded card is inferred: bytes reserved plus bytes free when the program ran out of memory"


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
        start: Sequence[StartSegment],
        pool_of: dict[int, int],
    ):
        self.snapshot = snapshot
        self.pool_of = pool_of
        self.rows: list[_Row] = []
        self.driver: list[DriverCall] = []
        self.waiting: list[TraceEntry] = []  # segment events since the last request
        self.ids = {place: block.id for place, block in placed(start) if block.id >= 0}
        self.next_id = len(self.ids)
        self.guessed = 0

    def _request(self, op: Op, event: TraceEntry, ident: int = -1) -> None:
        self.rows.append(_Row(op, ident, time_ns=(event.time_us or 0) * 1000))

    def _allocation(self, event: TraceEntry) -> None:
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

    def _called_for_last(self, events: Sequence[TraceEntry]) -> None:
        """The events belong to the request that was added last."""
        at = len(self.rows) - 1
        for event in events:
            action = _CALLS[event.action]
            call = DriverCall(at, action, event.address, event.size, event.stream)
            self.driver.append(call)

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

    def _add_free(self, event: TraceEntry, following: TraceEntry | None) -> bool:
        """Adds a free; returns whether the event that follows completes it."""
        self._give_back()
        ident = self.ids[event.address]
        if event.action == "free_completed":
            self._request(Op.FREE_COMPLETED, event, ident)
            return False
        completed = (
            following is not None
            and following.action == "free_completed"
            and following.address == event.address
        )
        self._request(Op.FREE if completed else Op.FREE_REQUESTED, event, ident)
        return completed

    def _give_back(self) -> None:
        """An empty_cache where the segments that wait were given back and no allocation followed."""
        if self.waiting and all(event.action in _GIVES_BACK for event in self.waiting):
            self._request(Op.EMPTY_CACHE, self.waiting[0])
            self._called_for_last(self.waiting)
            self.waiting = []

    def _add_allocation(self, event: TraceEntry) -> None:
        back = list(
            takewhile(lambda waiting: waiting.action in _GIVES_BACK, self.waiting)
        )
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

    def _are_for(
        self, event: TraceEntry, back: Sequence[TraceEntry], rest: Sequence[TraceEntry]
    ) -> bool:
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
        return False

    def notes(self) -> list[str]:
        """What was guessed."""
        if not self.guessed:
            return []
        return [
            f"{self.guessed} times segments were given back just before a new one: without "
            "stacks it is a guess that an empty_cache did, and not the retry of a refused allocation"
        ]


def trace_of(
    snapshot: Snapshot,
    start: tuple[StartSegment, ...],
    pool_of: dict[int, int],
    notes: Sequence[str],
) -> Trace:
    """The trace of the snapshot from the given start.

    ``pool_of``: the private pool of the events that are allocations; ``notes``: what is known
    of the start.
    """
    builder = _Builder(snapshot, start, pool_of)
    builder.build()
    columns = np.array(builder.rows, np.int64).reshape(-1, len(_Row._fields)).T
    op, ident, size, stream, pool, address, frame, time_ns = map(
        np.ascontiguousarray, columns
    )
    timed = bool(snapshot.events) and all(
        event.time_us is not None for event in snapshot.events
    )
    capacity, remarks = card_size(snapshot.events, start)
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
        notes=(*notes, *remarks, *builder.notes()),
    )


def card_size(
    events: Sequence[TraceEntry], start: Sequence[StartSegment]
) -> tuple[int | None, list[str]]:
    """Bytes that the process could have of the card, the least at any out-of-memory, and notes
    of how that is known; None where no request was refused.
    """
    reserved = start_bytes(start)
    peak = reserved
    rooms = []
    limited = 0
    for event in events:
        if event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in ("segment_free", "segment_unmap"):
            reserved -= event.size
        elif event.action == "oom":
            free_bytes = event.address
            rooms.append(reserved + free_bytes)
            limited += free_bytes > max(2 * event.size, 64 * MIB)
        peak = max(peak, reserved)
    if not rooms:
        return None, []
    notes = [INFERRED]
    if limited:
        notes.append(
            f"{limited} out-of-memory errors came while the driver had room: a memory fraction or another limit "
            "of the process refused them; give it with --fraction"
        )
    return max(peak, min(rooms)), notes


def conf_of(snapshot: Snapshot) -> str:
    """The settings string of the recorded process."""
    texts = (snapshot.settings.get(key) for key in CONF_NAMES)
    return next((text for text in texts if type(text) is str and text), "")


def _header(snapshot: Snapshot, capacity: int | None) -> dict[str, Any]:
    return {
        "label": RECORDED_ON_GPU,
        "recorded_by_gpu": True,
        "device": snapshot.device,
        "conf": conf_of(snapshot) if snapshot.settings else None,
        "vram": capacity or None,
        "final_reserved_bytes": start_bytes(snapshot.segments),
    }
