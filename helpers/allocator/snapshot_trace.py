"""Turns the events of a snapshot into the requests of a program, each with the calls that the
allocator made to the driver for it.

Where segments were given back, either an allocation that the driver had refused did so, or an
empty_cache. The stacks show which; without stacks empty_cache is assumed, and a note says so.
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
"""Actions of events, and the words of DriverCall for them."""
_GIVES_BACK = ("segment_free", "segment_unmap")
NS_OF_US = 1000
INFERRED = "the size of the recorded card is inferred: bytes reserved plus bytes free when the program ran out of memory"


LIMITED_FROM_BYTES = 64 * MIB
"""A card with more free bytes would have granted a small request: this was chosen well above the
20 MiB to which torch rounds those.
"""


def placed(segments: Sequence[StartSegment]) -> Iterator[tuple[int, StartBlock]]:
    """Every block of the segments with its address."""
    for segment in segments:
        for block in segment.blocks:
            yield segment.address + block.offset, block


class _Row(NamedTuple):
    """One operation of the trace, with the columns of Trace; -1 for none."""

    op: Op
    id: int = -1
    size: int = 0
    stream: int = 0
    pool: int = 0
    address: int = -1
    frame: int = -1
    time_ns: int = 0


class _Builder:
    """Collects the operations of the trace (``rows``) and the calls of the driver (``driver``).

    ``ids``: the id of the block that was last allocated at an address. ``waiting``: the segment
    events since the last operation, of which it is not yet known for which one they were.
    ``guessed``: how often an empty_cache was assumed without any sign of it.
    """

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
        self.waiting: list[TraceEntry] = []
        self.ids = {place: block.id for place, block in placed(start) if block.id >= 0}
        self.next_id = len(self.ids)
        self.guessed = 0

    def _add_row(self, op: Op, event: TraceEntry, ident: int = -1) -> None:
        """Adds an operation that is no request, at the time of an event; ``ident``: -1 for no
        block.
        """
        self.rows.append(_Row(op, ident, time_ns=_time_ns(event)))

    def _add_alloc_row(self, event: TraceEntry) -> None:
        """Adds a request with a new id. A request that ran out of memory has no address in the
        trace; the address of its event is the free bytes of the card (TraceEntry).
        """
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
                time_ns=_time_ns(event),
            )
        )
        self.next_id += 1

    def _add_calls(self, events: Sequence[TraceEntry]) -> None:
        """Adds the calls to the driver that these events show, as calls made during the last row."""
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
            elif event.action == "free_completed":
                self._add_free(Op.FREE_COMPLETED, event)
            # What is left is a free_requested.
            elif at < len(events) and _completes(events[at], event):
                self._add_free(Op.FREE, event)
                at += 1  # both events are one operation
            else:
                self._add_free(Op.FREE_REQUESTED, event)
        self._add_empty_cache()

    def _add_free(self, op: Op, event: TraceEntry) -> None:
        """Adds a free, or one end of it. A free makes no call to the driver, so segments that were
        given back before it are those of an empty_cache.
        """
        self._add_empty_cache()
        self._add_row(op, event, self.ids[event.address])

    def _add_empty_cache(self) -> None:
        """Adds an empty_cache, if segments wait and all of them were given back. A segment that was
        taken is of an allocation whose event is still to come, so it goes on waiting.
        """
        if self.waiting and all(event.action in _GIVES_BACK for event in self.waiting):
            self._add_row(Op.EMPTY_CACHE, self.waiting[0])
            self._add_calls(self.waiting)
            self.waiting = []

    def _add_allocation(self, event: TraceEntry) -> None:
        """Adds an allocation with the segment events that wait; before it an empty_cache, where one
        gave back the segments that these events begin with.
        """
        back = list(
            takewhile(lambda waiting: waiting.action in _GIVES_BACK, self.waiting)
        )
        rest = self.waiting[len(back) :]
        if back and not self._are_for(event, back, rest):
            self.waiting = back
            self._add_empty_cache()
            self.waiting = rest
            back = []
        # Before it gives segments back an allocation synchronises, which completes frees that the
        # snapshot shows before it. They have to follow it: it does not search the pool again.
        completed_late = []
        while back and self.rows and self.rows[-1].op == Op.FREE_COMPLETED:
            completed_late.append(self.rows.pop())
        self._add_alloc_row(event)
        if event.action == "oom":
            self.waiting.append(event)
        self._add_calls(self.waiting)
        self.waiting = []
        self.rows += reversed(completed_late)

    def _are_for(
        self, event: TraceEntry, back: Sequence[TraceEntry], rest: Sequence[TraceEntry]
    ) -> bool:
        """Whether the segments ``back`` were given back for this allocation, and not by an
        empty_cache before it: both have the same stack, and no empty_cache is in it. Without stacks
        it is inferred. ``rest``: the segment events that follow those of ``back``.
        """
        if back[0].frame >= 0 and event.frame >= 0:
            stack = self.snapshot.frames[event.frame]
            empties = any(frame.endswith(" empty_cache") for frame in stack)
            return back[0].frame == event.frame and not empties
        # Before it fails, an allocation gives back all that it can.
        if event.action == "oom":
            return True
        # Without a new segment the allocation found a cached block, so nothing was refused.
        if rest:
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

    ``pool_of``: the private pool of each allocation, by the number of its event; ``notes``: those
    on the start.
    """
    builder = _Builder(snapshot, start, pool_of)
    builder.build()
    rows = np.array(builder.rows, np.int64).reshape(-1, len(_Row._fields))
    columns = {
        name: np.ascontiguousarray(rows[:, place])
        for place, name in enumerate(_Row._fields)
    }
    time_ns = None
    if snapshot.events and all(event.time_us is not None for event in snapshot.events):
        time_ns = columns["time_ns"]
    frame = None
    if snapshot.frames:
        frame = columns["frame"].astype(np.int32)
    capacity, remarks = card_size(snapshot.events, start)
    return Trace(
        op=columns["op"].astype(np.int8),
        id=columns["id"],
        size=columns["size"],
        stream=columns["stream"],
        pool=columns["pool"].astype(np.int32),
        time_ns=time_ns,
        start=start,
        address=columns["address"],
        driver=tuple(builder.driver),
        frame=frame,
        frames=snapshot.frames,
        header=_header(snapshot, capacity),
        notes=(*notes, *remarks, *builder.notes()),
    )


def _completes(event: TraceEntry, free: TraceEntry) -> bool:
    """Whether an event completes the free that another requests."""
    return event.action == "free_completed" and event.address == free.address


def _time_ns(event: TraceEntry) -> int:
    """The time of an event; 0 in a snapshot without times."""
    if event.time_us is None:
        return 0
    return event.time_us * NS_OF_US


def card_size(
    events: Sequence[TraceEntry], start: Sequence[StartSegment]
) -> tuple[int | None, list[str]]:
    """The bytes that the process could have of the card, and notes on how that is known. None and
    no notes where no request was refused.

    At an out-of-memory these bytes are what the process has reserved, plus what the event says is
    free. Of several out-of-memories the least sum counts: at that one other processes held most. It
    is never less than what the process once had reserved.
    """
    reserved = start_bytes(start)
    peak = reserved
    rooms = []  # at each out-of-memory
    limited = 0  # out-of-memories while the card had room
    for event in events:
        if event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in _GIVES_BACK:
            reserved -= event.size
        elif event.action == "oom":
            free_bytes = event.address
            rooms.append(reserved + free_bytes)
            # Twice the request: rounding (roundup_power2_divisions) at most doubles it.
            if free_bytes > max(2 * event.size, LIMITED_FROM_BYTES):
                limited += 1
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
    """The settings of the recorded process as text, empty where none were set; a snapshot lists
    them under the name of a variable.
    """
    for name in CONF_NAMES:
        text = snapshot.settings.get(name)
        if type(text) is str and text:
            return text
    return ""


def _header(snapshot: Snapshot, capacity: int | None) -> dict[str, Any]:
    """The header of the trace: ``vram``, the bytes of the card, and ``conf``, the settings as text,
    are None where they are not known; circumstances.py reads it.
    """
    conf = None
    if snapshot.settings:
        conf = conf_of(snapshot)
    return {
        "label": RECORDED_ON_GPU,
        "recorded_by_gpu": True,
        "device": snapshot.device,
        "conf": conf,
        "vram": capacity or None,
        "final_reserved_bytes": start_bytes(snapshot.segments),
    }
