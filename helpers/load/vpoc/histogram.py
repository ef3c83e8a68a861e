"""The profile of each session, in one pass over the trades and with nothing in memory but the result: the one to use."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from helpers.load.vpoc.trades import Array, Layout, Trades, TradesError, survey

_POOL: dict[tuple[int, int], ThreadPoolExecutor] = {}
SMALL = 100_000
"""Trades that one thread counts sooner than a second one wakes."""


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def together(jobs: Sequence[Callable[[], int]]) -> list[int]:
    """Run the jobs at the same time, one in this thread. The threads stay for the next call, and are made anew after a fork."""
    if len(jobs) == 1:
        return [jobs[0]()]
    key = (os.getpid(), len(jobs) - 1)
    if key not in _POOL:
        _POOL[key] = ThreadPoolExecutor(len(jobs) - 1, "profile")
    others = [_POOL[key].submit(job) for job in jobs[1:]]
    try:
        mine = jobs[0]()
    finally:
        wait(others)  # also where this one failed: what they read from may be closed next
    return [mine, *(other.result() for other in others)]


def cuts(trades: int, parts: int) -> list[int]:
    """Where to cut, so that each part has as many trades, whatever the sessions' lengths."""
    return [trades * i // parts for i in range(parts + 1)]


def first_session(starts: Array, trade: int) -> int:
    return int(np.searchsorted(starts, trade, side="right")) - 1


class Counter:
    """What one thread needs to count: its private rows, its part of a session that another thread also counts, a block."""

    def __init__(self, layout: Layout, floats: bool):
        from helpers.load.vpoc.kernels import BLOCK, LANES, STRIDE, count

        self._count = count
        kind = np.dtype(layout.counts)
        self.rows, self.edge = np.zeros(LANES * STRIDE, kind), np.zeros(layout.bins, kind)
        self.scratch = np.empty(BLOCK if floats else 0, np.int32)

    def add(
        self,
        trades: Trades,
        layout: Layout,
        out: Array,
        a: int,
        b: int,
        first: int,
        offset: int = 0,
        starts: Array | None = None,
    ) -> int:
        tick = 0.0 if trades.price.dtype == np.int32 else trades.tick
        return int(
            self._count(
                trades.price,
                trades.volume,
                trades.starts if starts is None else starts,
                layout.lows,
                layout.widths,
                tick,
                self.rows,
                self.scratch,
                out,
                self.edge,
                first,
                a,
                b,
                offset,
            )
        )


def profiles(trades: Trades, layout: Layout | None = None, workers: int = 0) -> Array:
    """Volume at each tick: [sessions, bins], of the layout's type; row i begins at tick ``layout.lows[i]``.

    ``workers``: threads, by default one for each core. Raises TradesError where the trades are not those of the layout.
    """
    layout = layout or survey(trades)
    workers = max(1, workers or (threads() if len(trades) >= SMALL else 1))
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    at = cuts(len(trades), workers)
    firsts = [first_session(trades.starts, a) for a in at[:-1]]
    counters = [Counter(layout, trades.price.dtype != np.int32) for _ in range(workers)]

    def job(i: int) -> Callable[[], int]:
        return lambda: (
            counters[i].add(trades, layout, out, at[i], at[i + 1], firsts[i])
            if at[i] < at[i + 1]
            else 0
        )

    refuse(sum(together([job(i) for i in range(workers)])))
    merge(out, counters, firsts)
    return out


def merge(out: Array, counters: Sequence[Counter], firsts: Sequence[int]) -> None:
    """Add what each thread counted of the session that it shares with the one before it."""
    for counter, first in zip(counters, firsts, strict=True):
        if 0 <= first < len(out):
            out[first] += counter.edge


def refuse(outside: int) -> None:
    if outside:
        raise TradesError(
            "trades lie outside the rows of this layout: survey the same trades again"
        )
