"""Fewer requests of a recording that fail alike: delta debugging over allocations with their
frees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.shrinking.search import Search, without
from helpers.allocator.trace import Op, Trace


def without_early(search: Search, trace: Trace) -> Trace:
    """Without what was freed early: as much of it as the failure does not need, each try three
    quarters of the one before.
    """
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))].tolist()
    cut = len(frees)
    while cut and not search.fails_alike(without(trace, frees[:cut])):
        cut = cut * 3 // 4
    return without(trace, frees[:cut])


def fewest(search: Search, trace: Trace) -> Trace:
    """Without the allocations that the failure does not need: in chunks, halved down to one,
    until none more can go.
    """
    chunk = max(len(trace) // 4, 1)
    went = True
    while not search.late and (chunk > 1 or went):
        ids = _allocations_before_last(trace)
        chunk = max(chunk // 2, 1)
        went = False
        at = 0
        while at < len(ids) and not search.late:
            smaller = without(trace, ids[at : at + chunk])
            if search.fails_alike(smaller):
                trace = smaller
                went = True
                del ids[at : at + chunk]
            else:
                at += chunk
    return trace


def merged(search: Search, trace: Trace) -> Trace:
    """Sizes in whole 2 MiB where that fails as well, and neighbouring allocations put together
    up to the largest request.
    """
    largest = search.target.largest_bytes if search.target else 0
    trace = _rounded(search, trace, largest)
    at = 0
    while True:
        pair = np.flatnonzero(trace.op[:-1] == Op.ALLOC)[at : at + 2].tolist()
        if len(pair) < 2:
            return trace
        first, second = pair
        sizes = trace.size.copy()
        sizes[first] += sizes[second]
        joined = without(replace(trace, size=sizes), [int(trace.id[second])])
        same_stream = trace.stream[first] == trace.stream[second]
        may_join = same_stream and sizes[first] <= largest and not search.late
        if may_join and search.fails_alike(joined):
            trace = joined
        else:
            at += 1


def _rounded(search: Search, trace: Trace, largest: int) -> Trace:
    """Sizes in whole 2 MiB but the last, where that fails as well."""
    rounded = round_up(trace.size, GRANULE_BYTES)
    sizes = np.where(trace.size > GRANULE_BYTES, rounded, trace.size)
    sizes[-1] = trace.size[-1]
    rounder = replace(trace, size=np.minimum(sizes, np.maximum(largest, trace.size)))
    return rounder if search.fails_alike(rounder) else trace


def on_smaller_card(search: Search, trace: Trace) -> Trace:
    """Without the requests that only fill the card, on a card that is smaller by their bytes."""
    for chunk in (8, 2, 1):
        ids = _allocations_before_last(trace)
        sizes = _sizes(trace)
        for at in range(0, len(ids), chunk):
            leaving = ids[at : at + chunk]
            card = search.card
            fewer_bytes = sum(round_up(sizes[ident], GRANULE_BYTES) for ident in leaving)
            if card.capacity_bytes <= fewer_bytes:
                continue
            search.card = Card(card.capacity_bytes - fewer_bytes)
            smaller = without(trace, leaving)
            if search.fails_alike(smaller):
                trace = smaller
            else:
                search.card = card
    return trace


def _allocations_before_last(trace: Trace) -> list[int]:
    return trace.id[:-1][trace.op[:-1] == Op.ALLOC].tolist()


def _sizes(trace: Trace) -> dict[int, int]:
    """Bytes of each allocated block but the last."""
    allocates = trace.op[:-1] == Op.ALLOC
    ids = trace.id[:-1][allocates].tolist()
    return dict(zip(ids, trace.size[:-1][allocates].tolist(), strict=True))
