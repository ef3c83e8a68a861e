"""What is the smallest card on which a trace passes, under one setting or the best of many?

It is asked of the requests of a recording, from what was there before the first of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.engine import choose, replay
from helpers.allocator.outcome import Outcome
from helpers.allocator.trace import Op, StartSegment, Trace, start_bytes
from helpers.ground.units import halved
from helpers.settings.releases import behaviour
from helpers.settings.text import LARGE_STEP_BYTES, MIN_BLOCK_BYTES, Settings

Progress = Callable[[int, int], None]
BY_ADDRESS = ("firstfit", "topdown", "monotonic")
NEIGHBOURS = 4


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
        return BY_ADDRESS if by_address else BY_ADDRESS[:1]

    def one(self, conf: str, capacity_bytes: int, policy: str = "firstfit") -> Outcome:
        card = replace(self.card, capacity_bytes=capacity_bytes, policy=policy)
        how: dict[str, Any] = {"fraction": self.fraction, "engine": self.engine}
        return replay(self.of(conf), conf, card, torch=self.torch, build=self.build, **how)

    def passes(self, conf: str, capacity_bytes: int) -> bool:
        """Whether nothing runs out of memory, under any of the rules for addresses."""
        if capacity_bytes < self.card.held_bytes + start_bytes(self.of(conf).start):
            return False
        return not any(self.one(conf, capacity_bytes, policy).ooms for policy in self.policies)

    def map(
        self, work: Callable[[Runs, Any], Any], items: Sequence, progress: Progress | None = None
    ) -> list:
        """work(runs, item) of each item, in order, compiled on all cores; progress(done, all)
        after each.
        """
        done: list = []
        runs = replace(self, engine=choose(self.engine, len(self.trace) * len(items)))
        side_by_side = os.cpu_count() if runs.engine == "compiled" else 1
        pool = ThreadPoolExecutor(side_by_side)
        try:
            for result in pool.map(partial(work, runs), items):
                done.append(result)
                (progress or (lambda *_: None))(len(done), len(items))
            return done
        finally:
            pool.shutdown(cancel_futures=True)


def live_bytes(trace: Trace) -> np.ndarray:
    """Bytes that must be on the card after each operation, whatever the settings: live
    requests, each rounded to 512.
    """
    rounded = -(-np.maximum(trace.size, 0) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    alloc = (trace.op == Op.ALLOC) & (trace.id >= 0)
    of_id = np.zeros(trace.ids + 1, np.int64)
    for block in (block for segment in trace.start for block in segment.blocks):
        if block.state == "A":
            of_id[block.id] = block.size
    before = of_id.sum()
    of_id[trace.id[alloc]] = rounded[alloc]
    change = np.where(alloc, rounded, 0)
    freed = np.flatnonzero(np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED)) & (trace.id >= 0))
    _, first = np.unique(trace.id[freed], return_index=True)
    change[freed[first]] = -of_id[trace.id[freed[first]]]
    return before + np.cumsum(change)


def lower_bound(trace: Trace, card: Card) -> tuple[int, int]:
    """(bytes, operation): the peak of live and held bytes in whole granules; with less no
    setting can pass. By arithmetic.
    """
    foreign = np.flatnonzero(trace.op == Op.FOREIGN)
    at = np.searchsorted(foreign, np.arange(len(trace)), side="right")
    held = np.concatenate(([card.held_bytes], trace.size[foreign]))[at]
    live = live_bytes(trace)
    need = -(-live // card.granule_bytes) * card.granule_bytes + held
    worst = int(np.where(need == need.max(), live, -1).argmax())
    return int(need[worst]), worst


def smallest(runs: Runs, conf: str, *, above: int = 0, below: int | None = None) -> int:
    """The smallest card in bytes, to 2 MiB, on which the trace passes under one setting; one
    granule below it fails.

    By bisection from the peak of a replay with room to spare, then NEIGHBOURS granules further
    down: a pass below those is not excluded (garbage collection and fractions make such cases).
    ``above`` is a capacity known to fail: only larger ones are looked at; ``below`` one known
    to pass. ValueError where no capacity passes.
    """
    held = runs.card.held_bytes
    trace = runs.of(conf)
    floor = max(lower_bound(trace, runs.card)[0], held + start_bytes(trace.start), above + 1)
    under = held + round_up(floor - held, GRANULE_BYTES) - GRANULE_BYTES
    high = held + round_up((below or _enough(runs, conf, floor)) - held, GRANULE_BYTES)
    low = under
    while True:
        high, _ = halved(partial(runs.passes, conf), high, low, GRANULE_BYTES)
        tried = (high - (more + 2) * GRANULE_BYTES for more in range(NEIGHBOURS))
        lower = next((at for at in tried if at >= floor and runs.passes(conf, at)), None)
        if lower is None:
            return high
        high = lower


def _enough(runs: Runs, conf: str, floor: int) -> int:
    """A capacity that passes: the peak reserved of a replay with room to spare, or that room."""
    for room in ((floor + floor // 2 + (256 << 20)) << doubling for doubling in range(10)):
        outcomes = [runs.one(conf, room, policy) for policy in runs.policies]
        if not any(outcome.ooms for outcome in outcomes):
            peak = max(runs.card.held_bytes + outcome.peak_reserved_bytes for outcome in outcomes)
            return peak if floor <= peak < room and runs.passes(conf, peak) else room
    reason = "for another reason than capacity (a call made to fail, or a fraction near 0)"
    name = repr(conf or "the default settings")
    raise ValueError(
        f"under {name} the trace fails on a card of {room:,} bytes still: it fails {reason}"
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


# The requests of a recording as a what-if asks them, and what was there before the first of them.


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
    calls = sorted({call.event for call in trace.driver if call.action == "oom"})
    refused = np.array(calls, np.int64)
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))]
    refused = refused[(trace.op[refused] == Op.ALLOC) & ~np.isin(trace.id[refused], frees)]
    trace = replace(trace, time_ns=None, address=None, driver=())
    if len(refused):
        origin = np.insert(origin, refused + 1, refused)
        names = ("id", "size", "stream", "pool", *["frame"] * (trace.frame is not None))
        others = {name: getattr(trace, name)[origin] for name in names}
        trace = replace(trace, op=np.insert(trace.op, refused + 1, int(Op.FREE)), **others)
    return trace, origin, len(refused)


def prepared(trace: Trace, card: Card, anew: bool = False) -> tuple[Trace, np.ndarray, list[str]]:
    """The requests to replay, the recorded operation of each (-1: none), and what was changed,
    a sentence each.

    A recorded request that ran out of memory is asked again, and given back at once: what it
    was for is not recorded. A start that is larger than the card loses the segments without a
    live block, which the allocator would have given back; where that is not enough, or with
    anew, its live blocks are allocated anew in the order of their addresses.
    """
    trace, origin, refused = asked_again(trace)
    notes = []
    if refused:
        again = "asked again and, if served, freed at once"
        notes.append(f"requests that ran out of memory when it was recorded, {again}: {refused}")
    if (trace.op == Op.SET_CONF).any():
        notes.append(
            "the program sets allocator settings itself while it runs; those are kept on top of each setting tried"
        )
    reserved = start_bytes(trace.start)
    room = card.capacity_bytes - card.held_bytes
    before = f"{reserved:,} bytes were reserved before the first operation"
    if not trace.start:
        return trace, origin, notes
    if reserved <= room and not anew:
        notes.append(f"{before}; they lie as recorded under every setting")
        return trace, origin, notes
    segments = [one for one in trace.start if any(block.id >= 0 for block in one.blocks)]
    live = [(block, segment) for segment in segments for block in segment.blocks if block.id >= 0]
    need = sum(block.size for block, _ in live)
    before += f", {need:,} of them live; "
    if need > room:
        peak = f"the peak of live bytes needs {lower_bound(trace, card)[0]:,}; give at least that"
        card_words = (
            f"capacity of {card.capacity_bytes:,} bytes, {card.held_bytes:,} held by others"
        )
        raise ValueError(f"{card_words}: {before}{peak}")
    if start_bytes(segments) <= room and not anew:
        left_out = "segments without a live block are left out"
        notes.append(f"{before}{left_out}, the others lie as recorded under every setting")
        return replace(trace, start=tuple(segments)), origin, notes
    notes.append(f"{before}the live blocks are allocated anew, in the order of their addresses")
    rows = [
        (Op.ALLOC, block.id, block.requested or block.size, segment.stream, segment.pool)
        for block, segment in live
    ]
    rows += [(Op.FREE_REQUESTED, block.id, 0, 0, 0) for block, _ in live if block.state == "P"]
    columns = dict(
        zip(("op", "id", "size", "stream", "pool"), np.array(rows).reshape(-1, 5).T, strict=True)
    )
    for name, new in columns.items():
        old = getattr(trace, name)
        columns[name] = np.append(new.astype(old.dtype), old)
    if trace.frame is not None:
        columns["frame"] = np.append(np.full(len(rows), -1, trace.frame.dtype), trace.frame)
    return replace(trace, start=(), **columns), np.append(np.full(len(rows), -1), origin), notes
