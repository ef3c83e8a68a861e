"""The requests of a recording as a what-if asks them, from what was there before the first of
them, and the smallest card on which they pass, under one setting or the best of many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from helpers.allocator.call_sites import requests_of
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import chosen_engine, replay
from helpers.allocator.trace import Op, StartSegment, Trace, rearranged, start_bytes
from helpers.ground.units import halved
from helpers.settings.in_force import LARGE_STEP_BYTES, Settings
from helpers.settings.releases import behaviour


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
        raise ValueError(
            f"capacity of {size}: {before}the peak of live bytes needs "
            f"{least_bytes:,}; give at least that"
        )
    used = tuple(
        segment
        for segment in trace.start
        if any(block.id >= 0 for block in segment.blocks)
    )
    if start_bytes(used) <= room and not anew:
        notes.append(
            f"{before}segments without a live block are left out, the others lie as "
            "recorded under every setting"
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


Progress = Callable[[int, int], None]
Result = TypeVar("Result")
RULES_FOR_ADDRESSES = ("firstfit", "topdown", "monotonic")
NEIGHBOURS = 4
DOUBLINGS = 10
"""How often the room of a replay is doubled before it is said to fail for another reason."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Replays of one trace on cards like one card.

    Where a release tells equal blocks apart by address (through 2.11), what the driver returns
    matters, and three rules for addresses count; else one. Threads share the work where it is
    compiled. others: the trace for settings that need another form of it.
    """

    trace: Trace
    card: Card
    torch: str = "2.14.1"
    build: str = "cuda"
    fraction: float | None = None
    engine: str = "auto"
    others: dict[str, Trace] = field(default_factory=dict)

    def of(self, conf: str) -> Trace:
        return self.others.get(conf, self.trace)

    @property
    def policies(self) -> tuple[str, ...]:
        by_address = behaviour(self.torch, self.build).order == "address"
        return RULES_FOR_ADDRESSES if by_address else RULES_FOR_ADDRESSES[:1]

    def replays(self, conf: str, capacity_bytes: int) -> Iterator[Outcome]:
        """One replay for each rule for addresses that matters on this release."""
        for policy in self.policies:
            yield replay(
                self.of(conf),
                conf,
                replace(self.card, capacity_bytes=capacity_bytes, policy=policy),
                torch=self.torch,
                build=self.build,
                fraction=self.fraction,
                engine=self.engine,
            )

    def passes(self, conf: str, capacity_bytes: int) -> bool:
        """Whether nothing runs out of memory, under any of the rules for addresses."""
        if capacity_bytes < self.card.held_bytes + start_bytes(self.of(conf).start):
            return False
        return not any(outcome.ooms for outcome in self.replays(conf, capacity_bytes))

    def map(
        self,
        work: Callable[[Runs, str], Result],
        confs: Sequence[str],
        progress: Progress | None = None,
    ) -> list[Result]:
        """work(runs, conf) of each of several settings, in order, compiled on all cores;
        progress(done, all) after each.
        """
        results = []
        operations = len(self.trace) * len(confs) * len(self.policies)
        runs = replace(self, engine=chosen_engine(self.engine, operations))
        pool = ThreadPoolExecutor(os.cpu_count() if runs.engine == "compiled" else 1)
        try:
            for result in pool.map(partial(work, runs), confs):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(confs))
            return results
        finally:
            pool.shutdown(cancel_futures=True)


def least_capacity(trace: Trace, card: Card) -> tuple[int, int]:
    """The bytes of a card below which no setting can pass, by arithmetic, and the operation that
    needs them: the peak of what is live, in whole granules, and what others hold then.
    """
    foreign = np.flatnonzero(trace.op == Op.FOREIGN)
    at = np.searchsorted(foreign, np.arange(len(trace)), side="right")
    held_bytes = np.concatenate(([card.held_bytes], trace.size[foreign]))[at]
    live = requests_of(trace).live
    needed = round_up(live, GRANULE_BYTES) + held_bytes
    # Of the operations that need as much, the one with most live bytes.
    worst = int(np.where(needed == needed.max(), live, -1).argmax())
    return int(needed[worst]), worst


def smallest(runs: Runs, conf: str, *, above: int = 0, below: int | None = None) -> int:
    """The smallest card in bytes, to 2 MiB, on which the trace passes under one setting; one
    granule below it fails.

    By bisection from the peak of a replay with room to spare, then NEIGHBOURS granules further
    down: a pass below those is not excluded (garbage collection and fractions make such cases).
    ``above`` is a capacity known to fail: only larger ones are looked at; ``below`` one known
    to pass. ValueError where no capacity passes.
    """
    held_bytes = runs.card.held_bytes
    trace = runs.of(conf)
    needed_bytes, _ = least_capacity(trace, runs.card)
    floor = max(needed_bytes, held_bytes + start_bytes(trace.start), above + 1)
    low = held_bytes + round_up(floor - held_bytes, GRANULE_BYTES) - GRANULE_BYTES
    enough = below or _enough(runs, conf, floor)
    high = held_bytes + round_up(enough - held_bytes, GRANULE_BYTES)
    while True:
        high, _ = halved(partial(runs.passes, conf), high, low, GRANULE_BYTES)
        neighbours = (high - (more + 2) * GRANULE_BYTES for more in range(NEIGHBOURS))
        lower = next(
            (at for at in neighbours if at >= floor and runs.passes(conf, at)), None
        )
        if lower is None:
            return high
        high = lower


def _enough(runs: Runs, conf: str, floor: int) -> int:
    """A capacity that passes: the peak reserved of a replay with room to spare, or that room."""
    room = floor + floor // 2 + (256 << 20)
    for _ in range(DOUBLINGS):
        outcomes = list(runs.replays(conf, room))
        if not any(outcome.ooms for outcome in outcomes):
            peak = max(outcome.peak_reserved_bytes for outcome in outcomes)
            enough = peak + runs.card.held_bytes
            if floor <= enough < room and runs.passes(conf, enough):
                return enough
            return room
        room *= 2
    name = conf if conf else "the default settings"
    raise ValueError(
        f"under {name!r} the trace fails on a card of "
        f"{room // 2:,} bytes still: it fails for another reason than capacity (a call "
        "made to fail, or a fraction near 0)"
    )


def smallest_of(runs: Runs, confs: Sequence[str], above: int = 0) -> tuple[str, int]:
    """The setting of several that passes on the smallest card, and that card; the others fail
    one granule below it.
    """
    conf, *left = confs
    size = smallest(runs, conf, above=above)
    while left and (target := size - GRANULE_BYTES) > above:
        passed = runs.map(partial(Runs.passes, capacity_bytes=target), left)
        left = [conf for conf, ok in zip(left, passed, strict=True) if ok]
        if left:
            conf = left.pop(0)
            size = smallest(runs, conf, above=above, below=target)
    return conf, size
