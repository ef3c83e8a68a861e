"""What a memory snapshot of torch shows of a failure: its blocks, its out-of-memory event, and which call sites only allocate.

The segments of a snapshot are the state after its last event. What they were at the out-of-memory event is reckoned back over
the events in between (torch/csrc/cuda/memory_snapshot.cpp: alloc, free_completed, segment_alloc, segment_free, map, unmap).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.judge.evidence import CaseEvidence, Observation, note
from helpers.units import MIB, show_bytes

if TYPE_CHECKING:  # its packages are not the standard library's
    from helpers.allocator.snapshot import Snapshot

GROWN = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
FEWEST, KEPT_SHARE, PARTS = 30, 0.9, 6
"""A call site grows where of at least 30 allocations, made in every sixth of the recording, nine in ten are never freed."""


@dataclass(frozen=True)
class Moment:
    """The allocator at the out-of-memory event: bytes allocated, reserved and free on the device, and what was asked for.

    ``largest_bytes`` is the largest unused block, known where nothing happened between the event and the end.
    """

    request_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_bytes: int | None
    where: str


def evidence_from_snapshot(path: str | Path) -> CaseEvidence:
    """Evidence of a snapshot file. Raises allocator.trace.TraceError, one line, where it is none; runs no code of it."""
    from helpers.allocator.snapshot import load

    return CaseEvidence(snapshot=load(path))


def moment(snapshot: Snapshot) -> Moment | None:
    """The allocator at the last out-of-memory event; None where the recording has none."""
    failed = [at for at, event in enumerate(snapshot.events) if event.action == "oom"]
    if not failed:
        return None
    event, later = snapshot.events[failed[-1]], snapshot.events[failed[-1] + 1 :]
    blocks = [block for segment in snapshot.segments for block in segment.blocks]
    allocated = sum(block.size for block in blocks if block.state != "I")
    reserved = sum(segment.size for segment in snapshot.segments)
    for one in later:
        allocated -= GROWN.get(one.action, 0) * one.size
        reserved -= RESERVED.get(one.action, 0) * one.size
    changed = any(one.action in GROWN or one.action in RESERVED for one in later)
    idle = [block.size for block in blocks if block.state == "I"]
    largest = None if changed else max(idle, default=0)
    where = snapshot.frames[event.frame][0] if event.frame >= 0 else ""
    return Moment(event.size, event.address, allocated, reserved, largest, where)


def growth(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """(call site, bytes kept, allocations kept) of each call site that allocates all along and frees next to nothing."""
    live: dict[int, tuple[int, int, int]] = {}
    made: dict[int, list[int]] = defaultdict(list)
    for at, event in enumerate(snapshot.events):
        if event.action == "alloc" and event.frame >= 0:
            live[event.address] = (event.frame, event.size, at)
            made[event.frame].append(at)
        elif event.action in ("free_requested", "free_completed"):
            live.pop(event.address, None)
    kept: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for frame, size, at in live.values():
        kept[frame].append((at, size))
    length, found = max(1, len(snapshot.events)), []
    for frame, rows in kept.items():
        spread = {PARTS * at // length for at, _ in rows}
        enough = len(rows) >= max(FEWEST, KEPT_SHARE * len(made[frame]))
        if enough and len(spread) == PARTS:
            found.append((snapshot.frames[frame][0], sum(size for _, size in rows), len(rows)))
    return sorted(found, key=lambda row: -row[1])


def snapshot_observations(snapshot: Snapshot) -> list[Observation]:
    """What the blocks decide, and what grows."""
    found: list[Observation] = []

    def say(name: str, size: int, proof: bool = False, **words: str | int) -> None:
        found.append(note(name, size, "memory snapshot", "snapshot", "", True, proof, **words))

    say("snapshot-reserved", sum(segment.size for segment in snapshot.segments))
    m = moment(snapshot)
    if m is not None:
        stranded, request = m.reserved_bytes - m.allocated_bytes, show_bytes(m.request_bytes)
        free = show_bytes(m.device_free_bytes)
        say("snapshot-oom", m.request_bytes, where=m.where or "an unknown call site", free=free)
        lacks = m.allocated_bytes + m.request_bytes - m.reserved_bytes - m.device_free_bytes
        if lacks > 0:
            say("blocks-full", m.allocated_bytes, request=request, lacks=show_bytes(lacks))
        elif stranded >= m.request_bytes > m.device_free_bytes:
            most = m.largest_bytes
            if most is None or most < m.request_bytes:
                largest = show_bytes(most)
                say("blocks-stranded", stranded, most is not None, largest=largest, request=request)
    for site, size, count in growth(snapshot)[:3]:
        if size >= MIB:
            say("snapshot-grows", size, where=site, count=count)
    return found
