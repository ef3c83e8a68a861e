"""Fewer requests of a recording that fail alike: delta debugging over allocations with their
frees.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.shrinking.search import ReplaySearch, without
from helpers.allocator.trace import Op, Trace


def fewest(search: ReplaySearch, trace: Trace) -> Trace:
    """Without the allocations that the failure does not need: in chunks, halved down to one,
    until none more can go.
    """
    chunk = max(len(trace) // 4, 1)
    went = True
    while not search.late and (chunk > 1 or went):
        ids = trace.id[_allocations_before_last(trace)].tolist()
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


def on_smaller_card(search: ReplaySearch, trace: Trace) -> Trace:
    """Without the requests that only fill the card, on a card that is smaller by their bytes."""
    allocations = _allocations_before_last(trace)
    sizes = round_up(trace.size[allocations], GRANULE_BYTES).tolist()
    for ident, size in zip(trace.id[allocations].tolist(), sizes, strict=True):
        study = search.study
        if study.card.capacity_bytes <= size:
            continue
        search.study = replace(study, card=Card(study.card.capacity_bytes - size))
        smaller = without(trace, [ident])
        if search.fails_alike(smaller):
            trace = smaller
        else:
            search.study = study
    return trace


def _allocations_before_last(trace: Trace) -> np.ndarray:
    """The operations that allocate, but the last."""
    return np.flatnonzero(trace.op[:-1] == Op.ALLOC)
