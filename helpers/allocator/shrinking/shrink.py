"""The fewest requests that still fail in the same way.

The layout at the failure is built anew from a few repeated requests, or allocations of the
recording are left out with their frees (delta debugging). Every candidate is replayed by the
model of the allocator. It counts only where its last request is refused and none before it,
with the same arithmetic at that moment: ``RefusedRequest.invariants`` says what that means.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from helpers.allocator.capacity import prepared
from helpers.allocator.driver import Card
from helpers.allocator.shrinking.rebuilt import rebuilt
from helpers.allocator.shrinking.search import (
    RefusedRequest,
    ReplaySearch,
    fewest,
    on_smaller_card,
)
from helpers.allocator.study import Study
from helpers.allocator.trace import NO_OPERATION, Op, Trace, rearranged
from helpers.settings.in_force import grid
from helpers.settings.releases import behaviour

EXPANDABLE = "expandable_segments:True"
MOST_ALLOCATIONS = 400
"""Allocations up to which the requests of the recording are tried even where the layout could
be built anew.
"""


@dataclass(frozen=True)
class Shrunk:
    """The smaller trace, with its circumstances in its header.

    ``requests`` and ``before`` count allocations; fewer than ``least`` cannot fill the card.
    """

    trace: Trace
    failure: RefusedRequest
    requests: int
    before: int
    least: int
    replays: int
    seconds: float
    way: str
    notes: list[str]


def shrink(
    study: Study, *, smaller_card: bool = False, seconds: float = 240.0
) -> Shrunk:
    """The smallest program found that fails as the study's trace does on its card under its
    settings; it ends with the refused request.

    ``smaller_card``: where the layout is what fails, the card may be as small as the segments
    that show it. ``seconds`` bounds the search, which says so. Raises ValueError where nothing
    fails, or as it did before only while segments lie as recorded.
    """
    began = time.monotonic()
    if not len(study.trace):
        raise ValueError(NO_OPERATION)
    search = ReplaySearch(study, until=began + seconds)
    stream, failure, notes = _failing(search)
    search.target = replace(failure, saved=_saving(search, stream, failure))
    small, way = _smallest(search, _simplest(search, stream, failure))
    if (
        smaller_card
        and failure.kind == "fragmentation"
        and search.study.fraction is None
    ):
        small = on_smaller_card(search, small)
        notes.append(
            f"the card is smaller: it gave {failure.room_bytes:,} bytes before"
        )
    if search.late:
        notes.append(
            f"the search was ended after {seconds:g} s; a longer one may find fewer"
        )
    after = search.failure(small, search.outcome(small)) or failure
    return Shrunk(
        trace=replace(small, header=_header(search.study), notes=()),
        failure=replace(
            after, saved=search.target.saved, largest_bytes=failure.largest_bytes
        ),
        requests=_allocations(small),
        before=_allocations(stream),
        least=-(-after.room_bytes // max(failure.largest_bytes, 1)),
        replays=search.replays,
        seconds=time.monotonic() - began,
        way=way,
        notes=notes,
    )


def _failing(search: ReplaySearch) -> tuple[Trace, RefusedRequest, list[str]]:
    """The requests up to the first that is refused, that failure, and what was changed."""
    study = search.study
    stream, _, notes = prepared(study.trace, study.card)
    outcome = search.outcome(stream)
    failure = search.failure(stream, outcome)
    if failure is None:
        raise ValueError(
            f"nothing runs out of memory under {study.conf or 'the default settings'} "
            f"on a card of {study.card.capacity_bytes:,} bytes; give a --capacity "
            f"below {outcome.peak_reserved_bytes + study.card.held_bytes:,} bytes, its "
            "peak"
        )
    if stream.start:
        stream, _, notes = prepared(study.trace, study.card, anew=True)
        anew = search.failure(stream, search.outcome(stream))
        if anew is None or anew.kind != failure.kind:
            raise ValueError(
                "the failure depends on how segments lay when the recording began; "
                "record again from the program's start"
            )
        failure = anew
    stream = rearranged(stream, np.arange(failure.index + 1))
    return stream, failure, list(notes)


def _saving(search: ReplaySearch, stream: Trace, failure: RefusedRequest) -> str:
    """Expandable segments beside the settings, where they are others and every request is met
    under them; else "".
    """
    conf = search.study.conf
    others = set(grid(behaviour(search.study.torch, search.study.build))) - {conf}
    if failure.kind != "fragmentation" or EXPANDABLE not in others:
        return ""
    wider = ",".join(filter(None, (conf, EXPANDABLE)))
    return wider if search.outcome(stream, wider).first_oom is None else ""


def _simplest(search: ReplaySearch, stream: Trace, failure: RefusedRequest) -> Trace:
    """The plainest form of the requests that fails alike: on a card of just the room, without a
    fraction, on one stream, where that does.
    """
    study = search.study
    search.study = replace(study, card=Card(failure.room_bytes), fraction=None)
    on_one_stream = _plain(stream, np.zeros_like(stream.stream))
    if search.fails_alike(on_one_stream):
        return on_one_stream
    search.study = study
    without_probes = rearranged(stream, np.flatnonzero(stream.op < Op.RESET_PEAK))
    forms = (_plain(stream, stream.stream), without_probes, stream)
    return next(filter(search.fails_alike, forms), stream)


def _smallest(search: ReplaySearch, simple: Trace) -> tuple[Trace, str]:
    """The smallest trace found, and the way to it."""
    built = next(filter(search.fails_alike, rebuilt(search, simple)), None)
    anew = None if built is None else fewest(search, built)
    if anew is not None and _allocations(simple) >= MOST_ALLOCATIONS:
        return anew, "built anew"
    recorded = fewest(search, simple)
    if anew is not None and len(anew) <= len(recorded):
        return anew, "built anew"
    return recorded, "requests of the recording"


def _header(study: Study) -> dict[str, Any]:
    """The circumstances under which the smaller trace fails."""
    under = f"torch {study.torch}, {study.build}, {study.conf or 'default settings'}"
    return {
        "label": f"shrunk under {under}",
        "conf": study.conf,
        "torch": study.torch,
        "build": study.build,
        "vram": study.card.capacity_bytes,
        "foreign": study.card.held_bytes,
        "fraction": study.fraction,
    }


def _plain(trace: Trace, stream: np.ndarray) -> Trace:
    """Allocations and frees alone, outside private pools, on those streams; each free where it
    was asked for.
    """
    op = np.where(trace.op == Op.FREE_REQUESTED, int(Op.FREE), trace.op).astype(np.int8)
    plain = replace(trace, op=op, stream=stream, pool=np.zeros_like(trace.pool))
    return rearranged(plain, np.flatnonzero(np.isin(op, (Op.ALLOC, Op.FREE))))


def _allocations(trace: Trace) -> int:
    return int((trace.op == Op.ALLOC).sum())
