"""The fewest requests that still fail in the same way: the layout at the failure built anew
from a few repeated requests, or delta debugging over whole allocations with their frees.
Every candidate is replayed by the model of the allocator.

A candidate counts only where its last request is refused and none before it, with the same
arithmetic at that moment: what that means stands in ``Failure.invariants``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from helpers.allocator.capacity import prepared
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.engine import limit, replay
from helpers.allocator.outcome import BLOCK_COLUMNS, STATES, Outcome, ReplayError
from helpers.allocator.trace import NO_OPERATION, Op, Trace
from helpers.settings.releases import behaviour
from helpers.settings.text import (
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_MAX_BYTES,
    grid,
)

EXPANDABLE = "expandable_segments:True"
MOST_ASKED = 400
"""Allocations up to which the requests of the recording are tried even where the layout could
be built anew.
"""
Rows = list[tuple[int, int, int]]
"""(op, id, size) of each operation."""


@dataclass(frozen=True)
class Failure:
    """A request that is refused, and what was there, in bytes. room: what the allocator may
    take of the card; live: requests in use, each rounded up to 512; free: within segments
    that are held; largest: the largest request up to it; saved: settings under which the
    same requests pass, "" for none. kind: fragmentation where what is live and the request
    fit the room together.
    """

    index: int
    kind: str
    request_bytes: int
    rounded_bytes: int
    room_bytes: int
    live_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_bytes: int
    saved: str = ""

    @property
    def stranded(self) -> bool:
        """Whether the free bytes within held segments alone would be enough for the request."""
        return self.kind == "fragmentation" and self.free_bytes >= self.rounded_bytes

    @property
    def invariants(self) -> list[str]:
        """What every candidate keeps, in words."""
        fits = "fit the card: it fails for the layout alone"
        fits = fits if self.kind == "fragmentation" else "are more than the card has"
        return [
            f"{self.kind}: what is live and the request together {fits}",
            *["free bytes within held segments would be enough for it"] * self.stranded,
            *[f"under {self.saved} every request is met"] * bool(self.saved),
            f"the same request of {self.request_bytes:,} bytes fails, none before it",
            f"the allocator may take {self.room_bytes:,} bytes of the card",
            f"no request is larger than the largest before it, {self.largest_bytes:,} bytes",
        ]


@dataclass(frozen=True)
class Shrunk:
    """The smaller trace, with its circumstances in its header. requests and before count
    allocations; fewer than least cannot fill the card.
    """

    trace: Trace
    failure: Failure
    requests: int
    before: int
    least: int
    replays: int
    seconds: float
    way: str
    notes: list[str]


@dataclass(eq=False)
class _Trial:
    """Replays of candidates on one card, until a moment; target: how they are to fail."""

    conf: str
    card: Card
    how: dict[str, Any]
    until: float
    target: Failure | None = None
    replays: int = 0

    def outcome(self, trace: Trace, conf: str = "", stop: int | None = None) -> Outcome:
        self.replays += 1
        return replay(trace, conf or self.conf, self.card, stop=stop, **self.how)

    def failure(self, trace: Trace, done: Outcome) -> Failure | None:
        """The first request that is refused, None where none is."""
        if (index := done.first_oom) is None:
            return None
        if index + 1 < len(trace):
            done = self.outcome(trace, stop=index + 1)
        size, requested, state, mapped = _columns(done, "size requested state mapped")
        used = state != STATES.index("I")
        free = (mapped == 1) & (state == STATES.index("I"))
        foreign = trace.size[:index][trace.op[:index] == Op.FOREIGN]
        held = int(foreign[-1]) if len(foreign) else self.card.held_bytes
        rules = behaviour(self.how["torch"], self.how["build"])
        room = min(self.card.capacity_bytes - held, limit(self.how["fraction"], self.card, rules))
        live = int((-(-requested[used] // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES).sum())
        return Failure(
            index,
            "fragmentation" if live + done.first_oom_bytes <= room else "capacity",
            int(trace.size[index]),
            done.first_oom_bytes,
            int(room),
            live,
            int(size[mapped == 1].sum()),
            int(size[free].sum()),
            int(trace.size[: index + 1][trace.op[: index + 1] == Op.ALLOC].max()),
        )

    def same(self, trace: Trace) -> bool:
        """Whether the candidate fails as the target does, with its last request."""
        target = self.target
        try:
            done = self.outcome(trace)
            if target is None or done.first_oom != len(trace) - 1:
                return False
            found = self.failure(trace, done)
            if found is None or found.kind != target.kind or trace.size[-1] != target.request_bytes:
                return False
            met = not target.saved or self.outcome(trace, target.saved).first_oom is None
            return met and (found.stranded or not target.stranded)
        except ReplayError:
            return False

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until


def shrink(
    trace: Trace,
    card: Card,
    *,
    conf: str = "",
    torch: str = "2.14.1",
    build: str = "cuda",
    fraction: float | None = None,
    smaller_card: bool = False,
    seconds: float = 240.0,
) -> Shrunk:
    """The smallest program found that fails as the trace does on that card under ``conf``; it
    ends with the refused request.

    smaller_card: where the layout is what fails, the card may be as small as the segments that
    show it. seconds bounds the search, which says so. Raises ValueError where nothing fails, or
    as it did before only while segments lie as recorded.
    """
    began = time.monotonic()
    if not len(trace):
        raise ValueError(NO_OPERATION)
    how = {"torch": torch, "build": build, "fraction": fraction}
    trial = _Trial(conf, card, how, began + seconds)
    stream, _, notes = prepared(trace, card)
    done = trial.outcome(stream)
    found = trial.failure(stream, done)
    if found is None:
        why = f"nothing runs out of memory under {conf or 'the default settings'} on a card of"
        peak = f"{done.peak_reserved_bytes + card.held_bytes:,} bytes, its peak"
        raise ValueError(f"{why} {card.capacity_bytes:,} bytes; give a --capacity below {peak}")
    if stream.start:
        kind = found.kind
        stream, _, notes = prepared(trace, card, anew=True)
        found = trial.failure(stream, trial.outcome(stream))
        if found is None or found.kind != kind:
            lay = "the failure hangs on how segments lay when the recording began"
            raise ValueError(f"{lay}; record again from the program's start")
    stream = kept(stream, np.arange(len(stream)) <= found.index)
    target = found
    wider = ",".join(filter(None, (conf, EXPANDABLE)))
    if found.kind == "fragmentation" and EXPANDABLE in set(grid(behaviour(torch, build))) - {conf}:
        passes = trial.outcome(stream, wider).first_oom is None
        target = replace(found, saved=wider if passes else "")
    trial.target = target
    trial.card = Card(found.room_bytes)
    trial.how = {**how, "fraction": None}
    if not trial.same(simple := _plain(stream, stream.stream * 0)):
        trial.card = card
        trial.how = how
        forms = (_plain(stream, stream.stream), kept(stream, stream.op < Op.RESET_PEAK), stream)
        simple = next(filter(trial.same, forms), stream)
    small = next(filter(trial.same, _rebuilt(trial, simple)), None)
    way = "built anew"
    small = None if small is None else _fewer(trial, small)
    if small is None or (simple.op == Op.ALLOC).sum() < MOST_ASKED:
        own = _merged(trial, _fewer(trial, _sliced(trial, simple)))
        if small is None or len(own) < len(small):
            small = own
            way = "requests of the recording"
    if smaller_card and found.kind == "fragmentation" and trial.how["fraction"] is None:
        small = _smaller_card(trial, small)
        notes = [*notes, f"the card is smaller: it gave {found.room_bytes:,} bytes before"]
    if trial.late:
        notes = [*notes, f"the search was ended after {seconds:g} s; a longer one may find fewer"]
    after = trial.failure(small, trial.outcome(small)) or found
    label = f"shrunk under torch {torch}, {build}, {conf or 'default settings'}"
    head = {"label": label, "conf": conf, "torch": torch, "build": build}
    card = trial.card
    about: dict[str, Any] = {"vram": card.capacity_bytes, "foreign": card.held_bytes}
    about["fraction"] = trial.how["fraction"]
    return Shrunk(
        trace=replace(small, header={**head, **about}, notes=()),
        failure=replace(after, saved=target.saved, largest_bytes=found.largest_bytes),
        requests=int((small.op == Op.ALLOC).sum()),
        before=int((stream.op == Op.ALLOC).sum()),
        least=-(-after.room_bytes // max(found.largest_bytes, 1)),
        replays=trial.replays,
        seconds=time.monotonic() - began,
        way=way,
        notes=notes,
    )


def _columns(done: Outcome, names: str) -> np.ndarray:
    return done.blocks[:, [BLOCK_COLUMNS.index(name) for name in names.split()]].T


# Forms of a trace.


def kept(trace: Trace, which: np.ndarray) -> Trace:
    """The operations of a mask, without what was recorded beside them."""
    columns = {name: getattr(trace, name)[which] for name in ("op", "id", "size", "stream", "pool")}
    frame = None if trace.frame is None else trace.frame[which]
    return replace(trace, **columns, frame=frame, time_ns=None, address=None, driver=(), names=())


def _plain(trace: Trace, stream: np.ndarray) -> Trace:
    """Allocations and frees alone, outside private pools, on those streams; each free where it
    was asked for.
    """
    op = np.where(trace.op == Op.FREE_REQUESTED, int(Op.FREE), trace.op).astype(np.int8)
    trace = replace(trace, op=op, stream=stream, pool=trace.pool * 0)
    return kept(trace, np.isin(op, (Op.ALLOC, Op.FREE)))


def _without(trace: Trace, ids: Sequence[int]) -> Trace:
    return kept(trace, ~np.isin(trace.id, ids))


# The layout built anew.


def _rebuilt(trial: _Trial, trace: Trace) -> Iterator[Trace]:
    """Candidates from what lay on the card at the failure, those with the fewest requests first."""
    target = trial.target
    assert target is not None
    if target.kind == "capacity":
        yield _program(_filled(target.room_bytes, target.largest_bytes), trace)
        return
    for _, segment, live, count in sorted(_pins(trial.outcome(trace), target)):
        rows = _filled(target.room_bytes - count * segment, target.largest_bytes)
        hole = segment - live
        held = list[int]()
        for _ in range(count):
            if segment <= target.largest_bytes:  # else the smaller request makes the segment
                rows += [(Op.ALLOC, len(rows), segment), (Op.FREE, len(rows), 0)]
            rows.append((Op.ALLOC, len(rows), live))
            if live <= hole:  # the next one would lie in this hole
                parts = -(-hole // target.largest_bytes)
                size = hole // parts // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
                held += range(len(rows), len(rows) + parts)
                rows += [(Op.ALLOC, len(rows) + part, size) for part in range(parts)]
        yield _program([*rows, *((Op.FREE, ident, 0) for ident in held)], trace)


def _program(rows: Rows, like: Trace) -> Trace:
    """The rows and then the last request of another trace, with its stack."""
    op, ident, size = np.array([*rows, (Op.ALLOC, len(rows), like.size[-1])], np.int64).T
    frame = np.full(len(op), -1, np.int32)
    frame[-1] = -1 if like.frame is None else like.frame[-1]
    zero = np.zeros(len(op), np.int64)
    columns = (op.astype(np.int8), ident, size, zero, zero.astype(np.int32))
    return Trace(*columns, frame=frame, frames=like.frames)


def _pins(done: Outcome, target: Failure) -> Iterator[tuple[int, int, int, int]]:
    """(requests, segment, live, how many such segments): holes that are enough together, by the
    shapes seen at the failure.
    """
    kind, ordinal, size, state = _columns(done, "kind ordinal size state")
    _, place = np.unique(ordinal * 2 + kind, return_inverse=True)
    spans = np.bincount(place, size).astype(np.int64).tolist()
    used = np.bincount(place, size * (state != STATES.index("I"))).astype(np.int64).tolist()
    largest = target.largest_bytes
    for segment, live in set(zip(spans, used, strict=True)):
        live = max(round_up(live, GRANULE_BYTES), GRANULE_BYTES)
        hole = segment - live
        whole = segment <= largest
        first = whole or (segment == LARGE_STEP_BYTES and live < MIN_LARGE_BYTES)
        if not (first and live <= largest and 0 < hole < target.rounded_bytes):
            continue
        enough = -(-target.rounded_bytes // hole)
        # More than enough where other settings, which round otherwise, are to pass.
        for count in {enough, enough + 1, enough + enough // 8 + 2, 2 * enough}:
            if count * segment <= target.room_bytes:
                each = 1 + whole + (live <= hole) * -(-hole // largest)
                rest = (target.room_bytes - count * segment) // largest
                yield count * each + rest, segment, live, count


def _filled(size: int, largest: int) -> Rows:
    """Requests that take so many bytes of the card in whole segments, as few as the largest
    request allows.
    """
    unit = largest // GRANULE_BYTES * GRANULE_BYTES
    sizes = []
    if largest >= MIN_LARGE_BYTES:
        rest = size % unit // GRANULE_BYTES * GRANULE_BYTES
        sizes = [unit] * (size // unit) + [rest] * (rest >= MIN_LARGE_BYTES)
    elif largest:
        segment = LARGE_STEP_BYTES if largest > SMALL_MAX_BYTES else GRANULE_BYTES
        parts = -(-segment // largest)
        part = max(segment // parts // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES)
        sizes = [part] * (size // segment * parts)
    return [(Op.ALLOC, at, one) for at, one in enumerate(sizes)]


def _smaller_card(trial: _Trial, trace: Trace) -> Trace:
    """Without the requests that only fill the card, on a card that is smaller by their bytes."""
    for chunk in (8, 2, 1):
        asked = trace.op[:-1] == Op.ALLOC
        ids = trace.id[:-1][asked].tolist()
        sizes = trace.size[:-1][asked].tolist()
        for at in range(0, len(ids), chunk):
            card = trial.card
            less = sum(round_up(size, GRANULE_BYTES) for size in sizes[at : at + chunk])
            if card.capacity_bytes > less:
                trial.card = Card(card.capacity_bytes - less)
                smaller = _without(trace, ids[at : at + chunk])
                trace, trial.card = (smaller, trial.card) if trial.same(smaller) else (trace, card)
    return trace


# Delta debugging.


def _sliced(trial: _Trial, trace: Trace) -> Trace:
    """Without what was freed early: as much of it as the failure does not need, by what is left
    of three quarters.
    """
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))]
    cut = len(frees)
    while cut and not trial.same(_without(trace, frees[:cut].tolist())):
        cut = cut * 3 // 4
    return _without(trace, frees[:cut].tolist())


def _fewer(trial: _Trial, trace: Trace) -> Trace:
    """Without the allocations that the failure does not need: in chunks, halved down to one,
    until none more can go.
    """
    chunk = max(len(trace) // 4, 1)
    found = True
    while not trial.late and (chunk > 1 or found):
        ids = trace.id[:-1][trace.op[:-1] == Op.ALLOC].tolist()
        at = 0
        found = False
        chunk = max(chunk // 2, 1)
        while at < len(ids) and not trial.late:
            if trial.same(smaller := _without(trace, ids[at : at + chunk])):
                trace = smaller
                found = True
                del ids[at : at + chunk]
            else:
                at += chunk
    return trace


def _merged(trial: _Trial, trace: Trace) -> Trace:
    """Sizes in whole 2 MiB where that fails as well, and neighbouring allocations put together
    up to the largest request.
    """
    most = trial.target.largest_bytes if trial.target else 0
    whole = np.where(trace.size > GRANULE_BYTES, round_up(trace.size, GRANULE_BYTES), trace.size)
    whole[-1] = trace.size[-1]
    rounder = replace(trace, size=np.minimum(whole, np.maximum(most, trace.size)))
    trace = rounder if trial.same(rounder) else trace
    at = 0
    while len(pair := np.flatnonzero(trace.op[:-1] == Op.ALLOC)[at : at + 2]) == 2:
        sizes = trace.size.copy()
        (one, other) = pair
        sizes[one] += sizes[other]
        joined = _without(replace(trace, size=sizes), [int(trace.id[other])])
        alike = trace.stream[one] == trace.stream[other] and sizes[one] <= most
        if alike and not trial.late and trial.same(joined):
            trace = joined
        else:
            at += 1
    return trace
