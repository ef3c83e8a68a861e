"""What is the smallest card on which a trace passes, under one setting or the best of many?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import choose, replay
from helpers.allocator.trace import Op, Trace
from helpers.settings.releases import behaviour
from helpers.settings.text import MIN_BLOCK_BYTES

Progress = Callable[[int, int], None]
BY_ADDRESS = ("firstfit", "topdown", "monotonic")


@dataclass(frozen=True, eq=False)
class Runs:
    """Replays of one trace on cards like one card. Where a release tells equal blocks apart by address (through 2.11), what the
    driver returns matters, and three rules for addresses count; else one. Threads share the work where it is compiled.
    others: the trace for settings that need another form of it."""

    trace: Trace
    card: Card
    torch: str = "2.14.1"
    build: str = "cuda"
    fraction: float | None = None
    engine: str = "auto"
    threads: int | None = None
    others: dict[str, Trace] = field(default_factory=dict)

    def of(self, conf: str) -> Trace:
        return self.others.get(conf, self.trace)

    @property
    def policies(self) -> tuple[str, ...]:
        return (
            BY_ADDRESS if behaviour(self.torch, self.build).order == "address" else BY_ADDRESS[:1]
        )

    def one(self, conf: str, capacity_bytes: int, policy: str = "firstfit") -> Outcome:
        card = replace(self.card, capacity_bytes=capacity_bytes, policy=policy)
        return replay(
            self.of(conf),
            conf,
            card,
            torch=self.torch,
            build=self.build,
            fraction=self.fraction,
            engine=self.engine,
        )

    def passes(self, conf: str, capacity_bytes: int) -> bool:
        """Whether nothing runs out of memory, under any of the rules for addresses."""
        room = (
            capacity_bytes
            - self.card.held_bytes
            - sum(segment.size for segment in self.of(conf).start)
        )
        return room >= 0 and all(
            self.one(conf, capacity_bytes, policy).ooms == 0 for policy in self.policies
        )

    def map(
        self, work: Callable[[Runs, Any], Any], items: Sequence, progress: Progress | None = None
    ) -> list:
        """work(runs, item) of each item, in order, compiled on all cores; progress(done, all) after each."""
        done: list = []
        runs = replace(self, engine=choose(self.engine, len(self.trace) * len(items)))
        pool = ThreadPoolExecutor(
            self.threads or os.cpu_count() if runs.engine == "compiled" else 1
        )
        try:
            for result in pool.map(partial(work, runs), items):
                done.append(result)
                (progress or (lambda *_: None))(len(done), len(items))
            return done
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Smallest:
    """The trace passes under `settings` at capacity_bytes and fails one granule of 2 MiB below, both replayed.

    tried_below: how many further granules failed too. A pass below those is not excluded (garbage collection and fractions
    make such cases), but below floor_bytes it is, by arithmetic or because it was known.
    """

    settings: str
    capacity_bytes: int
    tried_below: int
    floor_bytes: int

    @property
    def proved(self) -> bool:
        """Whether every smaller capacity is excluded."""
        return self.capacity_bytes - (self.tried_below + 2) * GRANULE_BYTES < self.floor_bytes


def live_bytes(trace: Trace) -> np.ndarray:
    """Bytes that must be on the card after each operation, whatever the settings: live requests, each rounded to 512."""
    rounded = np.where(
        trace.size > 0, -(-np.maximum(trace.size, 1) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES, 0
    )
    alloc = (trace.op == Op.ALLOC) & (trace.id >= 0)
    of_id = np.zeros(trace.ids + 1, np.int64)
    for block in (
        block for segment in trace.start for block in segment.blocks if block.state == "A"
    ):
        of_id[block.id] = block.size
    before = of_id.sum()
    of_id[trace.id[alloc]] = rounded[alloc]
    change = np.where(alloc, rounded, 0)
    freed = np.flatnonzero(np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED)) & (trace.id >= 0))
    _, first = np.unique(trace.id[freed], return_index=True)
    change[freed[first]] = -of_id[trace.id[freed[first]]]
    return before + np.cumsum(change)


def lower_bound(trace: Trace, card: Card) -> tuple[int, int]:
    """(bytes, operation): the peak of live and held bytes in whole granules; with less no setting can pass. By arithmetic."""
    foreign = np.flatnonzero(trace.op == Op.FOREIGN)
    at = np.searchsorted(foreign, np.arange(len(trace)), side="right")
    held = np.concatenate(([card.held_bytes], trace.size[foreign]))[at]
    live = live_bytes(trace)
    need = -(-live // card.granule_bytes) * card.granule_bytes + held
    worst = int(np.where(need == need.max(), live, -1).argmax())
    return int(need[worst]), worst


def smallest(
    runs: Runs, conf: str, *, above: int = 0, below: int | None = None, neighbours: int = 4
) -> Smallest:
    """The smallest card, to 2 MiB, on which the trace passes under one setting.

    By bisection from the peak of a replay with room to spare, then as many granules below as `neighbours` says. `above` is a
    capacity known to fail: only larger ones are looked at; `below` one known to pass. ValueError where no capacity passes.
    """
    held, trace = runs.card.held_bytes, runs.of(conf)
    floor = max(
        lower_bound(trace, runs.card)[0],
        held + sum(segment.size for segment in trace.start),
        above + 1,
    )
    under = held + round_up(floor - held, GRANULE_BYTES) - GRANULE_BYTES
    low, high = under, held + round_up((below or _enough(runs, conf, floor)) - held, GRANULE_BYTES)
    while True:
        while high - low > GRANULE_BYTES:
            middle = low + (high - low) // GRANULE_BYTES // 2 * GRANULE_BYTES
            low, high = (low, middle) if runs.passes(conf, middle) else (middle, high)
        tried = 0
        while tried < neighbours and (at := high - (tried + 2) * GRANULE_BYTES) >= floor:
            if runs.passes(conf, at):
                low, high = under, at
                break
            tried += 1
        else:
            return Smallest(conf, high, tried, floor)


def _enough(runs: Runs, conf: str, floor: int) -> int:
    """A capacity that passes: the peak reserved of a replay with room to spare, or that room."""
    for room in ((floor + floor // 2 + (256 << 20)) << doubling for doubling in range(10)):
        outcomes = [runs.one(conf, room, policy) for policy in runs.policies]
        if not any(outcome.ooms for outcome in outcomes):
            peak = max(runs.card.held_bytes + outcome.peak_reserved_bytes for outcome in outcomes)
            return peak if floor <= peak < room and runs.passes(conf, peak) else room
    raise ValueError(
        f"under {conf or 'the default settings'!r} the trace fails on a card of {room:,} bytes still: it fails "
        "for another reason than capacity (a call made to fail, or a fraction near 0)"
    )


def _passes(capacity_bytes: int, runs: Runs, conf: str) -> bool:
    return runs.passes(conf, capacity_bytes)


def smallest_of(runs: Runs, confs: Sequence[str], above: int = 0) -> Smallest:
    """The smallest card over several settings; every other one fails one granule below the answer."""
    best, left = smallest(runs, confs[0], above=above), list(confs[1:])
    while left and (target := best.capacity_bytes - GRANULE_BYTES) > above:
        passed = runs.map(partial(_passes, target), left)
        left = [conf for conf, ok in zip(left, passed, strict=True) if ok]
        if left:
            best = smallest(runs, left.pop(0), above=above, below=target)
    return best
