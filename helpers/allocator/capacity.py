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

from helpers.allocator.call_sites import requests_of
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import choose, replay
from helpers.allocator.trace import Op, Trace, start_bytes
from helpers.ground.units import halved
from helpers.settings.releases import behaviour

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

    def replay(self, conf: str, capacity_bytes: int, policy: str) -> Outcome:
        return replay(
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
        replays = (self.replay(conf, capacity_bytes, policy) for policy in self.policies)
        return not any(outcome.ooms for outcome in replays)

    def map(
        self,
        work: Callable[[Runs, Any], Any],
        items: Sequence[Any],
        progress: Progress | None = None,
    ) -> list[Any]:
        """work(runs, item) of each item, in order, compiled on all cores; progress(done, all)
        after each.
        """
        results = []
        runs = replace(self, engine=choose(self.engine, len(self.trace) * len(items)))
        pool = ThreadPoolExecutor(os.cpu_count() if runs.engine == "compiled" else 1)
        try:
            for result in pool.map(partial(work, runs), items):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(items))
            return results
        finally:
            pool.shutdown(cancel_futures=True)


def lower_bound(trace: Trace, card: Card) -> tuple[int, int]:
    """(bytes, operation): the peak of live and held bytes in whole granules; with less no
    setting can pass. By arithmetic.
    """
    foreign = np.flatnonzero(trace.op == Op.FOREIGN)
    at = np.searchsorted(foreign, np.arange(len(trace)), side="right")
    held = np.concatenate(([card.held_bytes], trace.size[foreign]))[at]
    live = requests_of(trace).live
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
        outcomes = [runs.replay(conf, room, policy) for policy in runs.policies]
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
