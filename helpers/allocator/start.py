"""The requests of a recording as a what-if asks them, and what was there before the first of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.allocator.capacity import lower_bound
from helpers.allocator.driver import Card
from helpers.allocator.trace import Op, StartSegment, Trace
from helpers.settings.text import LARGE_STEP_BYTES, Settings


def clashes(settings: Settings, start: tuple[StartSegment, ...]) -> bool:
    """Whether the start cannot have come about under these settings: segments above max_split_size_mb are never split."""
    above = settings.max_split_bytes + LARGE_STEP_BYTES
    return any(
        len(segment.blocks) > 1 and not segment.expandable and segment.size >= above
        for segment in start
    )


def prepared(trace: Trace, card: Card, anew: bool = False) -> tuple[Trace, np.ndarray, list[str]]:
    """The requests to replay, the recorded operation of each (-1: none), and what was changed, a sentence each.

    A recorded request that ran out of memory is asked again, and given back at once: what it was for is not recorded. A start
    that is larger than the card loses the segments without a live block, which the allocator would have given back; where that
    is not enough, or with anew, its live blocks are allocated anew in the order of their addresses.
    """
    said = []
    origin = np.arange(len(trace))
    refused = np.array(
        sorted({call.event for call in trace.driver if call.action == "oom"}), np.int64
    )
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))]
    refused = refused[(trace.op[refused] == Op.ALLOC) & ~np.isin(trace.id[refused], frees)]
    trace = replace(
        trace, time_ns=None, address=None, driver=()
    )  # recorded beside each operation, and not used
    if len(refused):
        said.append(
            f"{len(refused)} recorded requests ran out of memory; each is asked again and, if served, freed at once"
        )
        origin = np.insert(origin, refused + 1, refused)
        trace = replace(
            trace,
            op=np.insert(trace.op, refused + 1, int(Op.FREE)),
            id=trace.id[origin],
            size=trace.size[origin],
            stream=trace.stream[origin],
            pool=trace.pool[origin],
        )
    if (trace.op == Op.SET_CONF).any():
        said.append(
            "the program sets allocator settings itself while it runs; those are kept on top of each setting tried"
        )
    reserved, room = (
        sum(segment.size for segment in trace.start),
        card.capacity_bytes - card.held_bytes,
    )
    if trace.start and (reserved > room or anew):
        kept = tuple(
            segment for segment in trace.start if any(block.id >= 0 for block in segment.blocks)
        )
        live = [(block, segment) for segment in kept for block in segment.blocks if block.id >= 0]
        need = sum(block.size for block, _ in live)
        said.append(
            f"{reserved:,} bytes were reserved before the first operation, {need:,} of them live; "
        )
        if need > room:
            raise ValueError(
                f"capacity of {card.capacity_bytes:,} bytes, {card.held_bytes:,} held by others: {said[-1]}the "
                f"peak of live bytes needs {lower_bound(trace, card)[0]:,}; give at least that"
            )
        if sum(segment.size for segment in kept) <= room and not anew:
            said[-1] += (
                "segments without a live block are left out, the others lie as recorded under every setting"
            )
            return replace(trace, start=kept), origin, said
        said[-1] += "the live blocks are allocated anew, in the order of their addresses"
        rows = [
            (Op.ALLOC, block.id, block.requested or block.size, segment.stream, segment.pool)
            for block, segment in live
        ]
        rows += [(Op.FREE_REQUESTED, block.id, 0, 0, 0) for block, _ in live if block.state == "P"]
        new = np.array(rows, np.int64).reshape(-1, 5).T
        trace = replace(
            trace,
            start=(),
            op=np.append(new[0].astype(np.int8), trace.op),
            id=np.append(new[1], trace.id),
            size=np.append(new[2], trace.size),
            stream=np.append(new[3], trace.stream),
            pool=np.append(new[4].astype(np.int32), trace.pool),
        )
        origin = np.append(np.full(len(rows), -1), origin)
    elif trace.start:
        said.append(
            f"{reserved:,} bytes were reserved before the first operation; they lie as recorded under every setting"
        )
    return trace, origin, said
