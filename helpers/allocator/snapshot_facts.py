"""What a memory snapshot shows of a failure, for the judge: the allocator at the out-of-memory
event, and what grows.

The segments of a snapshot are the state after its last event. What they were at the
out-of-memory event is reckoned back over the events in between
(torch/csrc/cuda/memory_snapshot.cpp: alloc, free_completed, segment_alloc, segment_free, map,
unmap).
"""

from __future__ import annotations

from pathlib import Path

from helpers.allocator.growth import growth_of_trace
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import Snapshot, load
from helpers.allocator.trace import TraceError
from helpers.judge.evidence import CaseEvidence
from helpers.judge.snapshot_evidence import GrowingSite, Refusal, SnapshotFacts

ALLOCATED = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""By how much of its size an event changes what is allocated, and what is reserved."""


def evidence_from_snapshot(path: str | Path) -> CaseEvidence:
    """Evidence of a snapshot file.

    Raises TraceError, one line, where it is none; runs no code of it.
    """
    return CaseEvidence(snapshot=snapshot_facts(load(path)))


def snapshot_facts(snapshot: Snapshot) -> SnapshotFacts:
    """The facts that the judge weighs of a snapshot."""
    return SnapshotFacts(
        reserved_bytes=sum(segment.size for segment in snapshot.segments),
        refusal=refusal(snapshot),
        growing=growing_sites(snapshot),
    )


def refusal(snapshot: Snapshot) -> Refusal | None:
    """The allocator at the last out-of-memory event; None where the recording has none."""
    refused = [at for at, event in enumerate(snapshot.events) if event.action == "oom"]
    if not refused:
        return None
    event = snapshot.events[refused[-1]]
    later = snapshot.events[refused[-1] + 1 :]
    blocks = [block for segment in snapshot.segments for block in segment.blocks]
    allocated = sum(block.size for block in blocks if block.state != "I")
    reserved = sum(segment.size for segment in snapshot.segments)
    for change in later:
        allocated -= ALLOCATED.get(change.action, 0) * change.size
        reserved -= RESERVED.get(change.action, 0) * change.size
    largest = None
    if not any(change.action in ALLOCATED or change.action in RESERVED for change in later):
        largest = max((block.size for block in blocks if block.state == "I"), default=0)
    return Refusal(
        request_bytes=event.size,
        device_free_bytes=event.address,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        largest_bytes=largest,
        where=snapshot.frames[event.frame][0] if event.frame >= 0 else "",
    )


def growing_sites(snapshot: Snapshot) -> tuple[GrowingSite, ...]:
    """The call sites that keep more with each step; none where the events cannot be replayed."""
    try:
        growth = growth_of_trace(rewind(snapshot))
    except TraceError:  # segments alone, or events that contradict each other: nothing to count
        return ()
    if growth is None:
        return ()
    first, last = growth.window
    steps = last - first
    return tuple(
        GrowingSite(grower.site.name, round(grower.bytes_per_step * steps), steps)
        for grower in growth.growers
    )
