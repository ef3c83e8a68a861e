"""The requests of a recording as a what-if asks them, and what was there before the first of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.allocator.capacity import least_capacity
from helpers.allocator.driver import Card
from helpers.allocator.trace import Op, StartSegment, Trace, rearranged, start_bytes
from helpers.settings.in_force import LARGE_STEP_BYTES, Settings


def clashes(settings: Settings, start: tuple[StartSegment, ...]) -> bool:
    """Whether the start cannot have come about under these settings: segments above
    max_split_size_mb are never split.
    """
    above = settings.max_split_bytes + LARGE_STEP_BYTES
    return any(
        len(segment.blocks) > 1 and not segment.expandable and segment.size >= above
        for segment in start
    )


def asked_again(trace: Trace) -> tuple[Trace, np.ndarray, int]:
    """The requests without what was recorded beside them, each that the card refused given back
    at once; the recorded operation of each, and how many were refused.
    """
    origin = np.arange(len(trace))
    refused = np.array(sorted({*trace.refused}), np.int64)
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))]
    refused = refused[
        (trace.op[refused] == Op.ALLOC) & ~np.isin(trace.id[refused], frees)
    ]
    origin = np.insert(origin, refused + 1, refused)
    op = np.insert(trace.op, refused + 1, int(Op.FREE))
    trace = rearranged(trace, origin, op=op)
    return trace, origin, len(refused)


def prepared(
    trace: Trace, card: Card, anew: bool = False
) -> tuple[Trace, np.ndarray, list[str]]:
    """The requests to replay, the recorded operation of each (-1: none), and what was changed,
    a sentence each.

    A recorded request that ran out of memory is asked again, and given back at once: what it
    was for is not recorded. A start that is larger than the card loses the segments without a
    live block, which the allocator would have given back; where that is not enough, or with
    anew, its live blocks are allocated anew in the order of their addresses. Raises ValueError
    where the card is smaller than what was live.
    """
    trace, origin, refused = asked_again(trace)
    notes = []
    if refused:
        requests = "1 request" if refused == 1 else f"{refused} requests"
        notes.append(
            f"{requests} failed in the recording; the replay asks again and frees at once what it gets"
        )
    if (trace.op == Op.SET_CONF).any():
        notes.append(
            "the program changes allocator settings while it runs; the replay adds those to each setting it tries"
        )
    if not trace.start:
        return trace, origin, notes
    reserved = start_bytes(trace.start)
    room = card.capacity_bytes - card.held_bytes
    before = f"{reserved:,} bytes were reserved before the first operation"
    if reserved <= room and not anew:
        notes.append(f"{before}; every replay begins with them as recorded")
        return trace, origin, notes
    need = sum(block.size for _, block in trace.live_at_start)
    before += f", {need:,} of them live; "
    if need > room:
        size = f"{card.capacity_bytes:,} bytes, {card.held_bytes:,} held by others"
        least_bytes, _ = least_capacity(trace, card)
        peak = f"the peak of live bytes needs {least_bytes:,}; give at least that"
        raise ValueError(f"capacity of {size}: {before}{peak}")
    used = tuple(
        segment
        for segment in trace.start
        if any(block.id >= 0 for block in segment.blocks)
    )
    if start_bytes(used) <= room and not anew:
        left_out = "segments without a live block are left out"
        notes.append(
            f"{before}{left_out}, the others lie as recorded under every setting"
        )
        return replace(trace, start=used), origin, notes
    notes.append(
        f"{before}the live blocks are allocated anew, in the order of their addresses"
    )
    trace, added = _allocated_anew(trace)
    return trace, np.append(np.full(added, -1), origin), notes


def _allocated_anew(trace: Trace) -> tuple[Trace, int]:
    """The trace from an empty start, with requests for what was live, and how many those are."""
    rows = [
        (
            Op.ALLOC,
            block.id,
            block.requested or block.size,
            segment.stream,
            segment.pool,
        )
        for segment, block in trace.live_at_start
    ]
    rows += [
        (Op.FREE_REQUESTED, block.id, 0, 0, 0)
        for _, block in trace.live_at_start
        if block.state == "P"
    ]
    op, ids, sizes, streams, pools = np.array(rows, np.int64).reshape(-1, 5).T
    frame = trace.frame
    if frame is not None:
        frame = np.append(np.full(len(rows), -1, frame.dtype), frame)
    anew = replace(
        trace,
        start=(),
        op=np.append(op.astype(np.int8), trace.op),
        id=np.append(ids, trace.id),
        size=np.append(sizes, trace.size),
        stream=np.append(streams, trace.stream),
        pool=np.append(pools.astype(trace.pool.dtype), trace.pool),
        frame=frame,
    )
    return anew, len(rows)
