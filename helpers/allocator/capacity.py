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
from helpers.allocator.replay import chosen_engine, replay
from helpers.allocator.trace import Op, Trace, start_bytes
from helpers.ground.units import halved
from helpers.settings.releases import behaviour

Progress = Callable[[int, int], None]
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
        replays = (
            self.replay(conf, capacity_bytes, policy) for policy in self.policies
        )
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
        operations = len(self.trace) * len(items)
        runs = replace(self, engine=chosen_engine(self.engine, operations))
        pool = ThreadPoolExecutor(os.cpu_count() if runs.engine == "compiled" else 1)
        try:
            for result in pool.map(partial(work, runs), items):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(items))
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
    needed = round_up(live, card.granule_bytes) + held_bytes
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
        outcomes = [runs.replay(conf, room, policy) for policy in runs.policies]
        if not any(outcome.ooms for outcome in outcomes):
            peak = max(
                runs.card.held_bytes + outcome.peak_reserved_bytes
                for outcome in outcomes
            )
            return peak if floor <= peak < room and runs.passes(conf, peak) else room
        room *= 2
    reason = (
        "for another reason than capacity (a call made to fail, or a fraction near 0)"
    )
    name = repr(conf or "the default settings")
    raise ValueError(
        f"under {name} the trace fails on a card of {room // 2:,} bytes still: it fails {reason}"
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
