"""Finds the fewest requests that still fail in the same way.

There are two ways: the layout at the failure is built anew from a few repeated requests, or
allocations of the recording are left out with their frees (delta debugging). The model of the
allocator replays every candidate. A candidate counts only if its last request is refused and
none before it, for the same reason (``RefusedRequest.invariants``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import ceil
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
"""Where the layout could be built anew, so many requests of the recording are not tried as well:
each of them costs a replay or more.
"""
DEFAULT_SECONDS = 240.0
"""Of `casebook shrink` too; most traces take less."""


ANEW = "built anew"
RECORDED = "requests of the recording"


@dataclass(frozen=True)
class Shrunk:
    """The smaller trace, with its circumstances in its header.

    ``requests`` and ``before`` count its allocations and those of the whole trace; fewer than
    ``least`` cannot fill the card. ``replays`` and ``seconds``: what the search took. ``way``: how
    it was found, in words.
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
    study: Study, *, smaller_card: bool = False, seconds: float = DEFAULT_SECONDS
) -> Shrunk:
    """The smallest program found that fails as the study's trace does on its card under its
    settings; it ends with the refused request.

    ``smaller_card``: where the layout is the reason, the card may be as small as the segments that
    show it. ``seconds`` bounds the search; a note says where it was too short. Raises ValueError
    where nothing fails, or where it fails for this reason only with the recorded segments.
    """
    began = time.monotonic()
    if not len(study.trace):
        raise ValueError(NO_OPERATION)
    search = ReplaySearch(study, until=began + seconds)
    stream, failure, notes = _failing(search)
    search.target = replace(failure, saved=_saving(search, stream, failure))
    small, way = _smallest(search, _simplest(search, stream, failure))
    # A fraction is of the whole card, so it would be another limit on a smaller one.
    may_be_smaller = failure.kind == "fragmentation" and search.study.fraction is None
    if smaller_card and may_be_smaller:
        small = on_smaller_card(search, small)
        notes.append(
            f"the card is smaller: it gave {failure.room_bytes:,} bytes before"
        )
    if search.late:
        notes.append(
            f"the search was ended after {seconds:g} s; a longer one may find fewer"
        )
    after = search.failure(small, search.outcome(small)) or failure
    after = replace(
        after, saved=search.target.saved, largest_bytes=failure.largest_bytes
    )
    return Shrunk(
        trace=replace(small, header=_header(search.study), notes=()),
        failure=after,
        requests=_allocations(small),
        before=_allocations(stream),
        least=ceil(after.room_bytes / max(failure.largest_bytes, 1)),
        replays=search.replays,
        seconds=time.monotonic() - began,
        way=way,
        notes=notes,
    )


def _failing(search: ReplaySearch) -> tuple[Trace, RefusedRequest, list[str]]:
    """The requests up to the first that is refused, that failure, and notes on what was changed in
    the recording. Raises ValueError where nothing fails, and where it fails in another way, or not
    at all, once what was live at the start is allocated anew.
    """
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
    if stream.start:  # a program cannot begin with segments
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
    """The study's settings with expandable segments added, if every request is met under these. A
    smaller trace then has to pass under them too, so that it shows a failure that they prevent.

    "" where the requests fail under them as well, where the release has none or they are on
    already, and for a card that is too small, which no layout helps.
    """
    conf = search.study.conf
    usable = grid(behaviour(search.study.torch, search.study.build))
    if failure.kind != "fragmentation" or EXPANDABLE not in usable:
        return ""
    if conf == EXPANDABLE:
        return ""
    wider = EXPANDABLE
    if conf:
        wider = f"{conf},{EXPANDABLE}"
    if search.outcome(stream, wider).first_oom is not None:
        return ""
    return wider


def _simplest(search: ReplaySearch, stream: Trace, failure: RefusedRequest) -> Trace:
    """The simplest form of the requests that fails alike. Sets the study of ``search`` to the card
    of that form. Forms are tried in this order: allocations and frees on one stream, on a card of
    just the room and without a fraction; the same on the recorded streams and card; every operation
    except looks at statistics; all of ``stream``.
    """
    study = search.study
    search.study = replace(study, card=Card(failure.room_bytes), fraction=None)
    on_one_stream = _plain(stream, np.zeros_like(stream.stream))
    if search.fails_alike(on_one_stream):
        return on_one_stream
    search.study = study
    # RESET_PEAK and SNAPSHOT are the last of Op.
    without_probes = rearranged(stream, np.flatnonzero(stream.op < Op.RESET_PEAK))
    forms = (_plain(stream, stream.stream), without_probes, stream)
    return next(filter(search.fails_alike, forms), stream)


def _smallest(search: ReplaySearch, simple: Trace) -> tuple[Trace, str]:
    """The smallest trace found, and how it was found: ANEW or RECORDED. A layout that was built
    anew is compared with the requests of the recording only where these are few (MOST_ALLOCATIONS).
    """
    built = next(filter(search.fails_alike, rebuilt(search, simple)), None)
    if built is None:
        return fewest(search, simple), RECORDED
    anew = fewest(search, built)
    if _allocations(simple) >= MOST_ALLOCATIONS:
        return anew, ANEW
    recorded = fewest(search, simple)
    if len(anew) <= len(recorded):
        return anew, ANEW
    return recorded, RECORDED


def _header(study: Study) -> dict[str, Any]:
    """The circumstances under which the smaller trace fails."""
    return {
        "label": f"shrunk under {study.circumstances_words}",
        "conf": study.conf,
        "torch": study.torch,
        "build": study.build,
        "vram": study.card.capacity_bytes,
        "foreign": study.card.held_bytes,
        "fraction": study.fraction,
    }


def _plain(trace: Trace, stream: np.ndarray) -> Trace:
    """Only the allocations and frees of a trace, on these streams and the default pools; a free
    that waited for its completion is done when it was requested.
    """
    op = np.where(trace.op == Op.FREE_REQUESTED, int(Op.FREE), trace.op).astype(np.int8)
    plain = replace(trace, op=op, stream=stream, pool=np.zeros_like(trace.pool))
    return rearranged(plain, np.flatnonzero(np.isin(op, (Op.ALLOC, Op.FREE))))


def _allocations(trace: Trace) -> int:
    """How many requests a trace makes."""
    return int((trace.op == Op.ALLOC).sum())
