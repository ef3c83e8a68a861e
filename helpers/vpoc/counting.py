"""The profile of each session, and the six ways of counting it that are compared.

Each way gives the same bits at another price. Those that need torch run in
``under_torch/volume_profiles.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from helpers.vpoc.kernels import LANES, STRIDE, count
from helpers.vpoc.layout import Layout, survey
from helpers.vpoc.trades import Array, Trades, TradesError

_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}
SMALL = 100_000
"""Trades that one thread counts sooner than a second one wakes."""


@dataclass(frozen=True)
class Strategy:
    """A way of counting, in a line.

    ``chunked``: it goes by chunks of trades; ``torch``: torch runs it.
    """

    shows: str
    chunked: bool = False
    torch: bool = False


STRATEGIES = {
    "fused": Strategy("one compiled pass, every core; the one to use"),
    "chunked": Strategy("np.add.at by chunks of trades", chunked=True),
    "flat": Strategy("torch: all at once, scatter_add_ over one index", torch=True),
    "one_hot": Strategy(
        "torch: one_hot x volume, summed: the blow-up", chunked=True, torch=True
    ),
    "list_cat": Strategy(
        "torch: chunks, results kept in a list and joined", chunked=True, torch=True
    ),
    "preallocated": Strategy(
        "torch: chunks into buffers made once", chunked=True, torch=True
    ),
}
GONE = {
    "fused_one_thread": "fused",
    "session_bincount": "chunked",
    "session_add_at": "chunked",
    "session_histogram": "chunked",
    "flat_bincount": "flat",
    "chunks_bincount": "chunked",
    "arena": "preallocated",
    "cleanup": "list_cat",
    "dataloader": "preallocated",
    "stream_read": "fused",
    "stream_parquet": "fused",
}
"""Ways that are no longer counted by, each with the one to use instead."""


def strategy_of(name: str) -> Strategy:
    """The way of counting of that name. Raises TradesError in one line."""
    if name in GONE:
        raise TradesError(f"strategy {name!r} is gone; use {GONE[name]}")
    if name not in STRATEGIES:
        raise TradesError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def together(jobs: Sequence[Callable[[], int]]) -> list[int]:
    """Run the jobs at the same time, one in this thread, and return what they return.

    The other threads stay for the next call, and are made anew after a fork.
    """
    if len(jobs) < 2:
        return [job() for job in jobs]
    key = (os.getpid(), len(jobs) - 1)
    if key not in _POOLS:
        _POOLS[key] = ThreadPoolExecutor(len(jobs) - 1, "profile")
    others = [_POOLS[key].submit(job) for job in jobs[1:]]
    try:
        first = jobs[0]()
    finally:
        wait(
            others
        )  # also where the first failed: what they read from may be closed next
    return [first, *(other.result() for other in others)]


def parts(trades: int, count: int) -> list[tuple[int, int]]:
    """The first and the end of so many parts of as many trades, whatever the sessions' lengths."""
    edges = [trades * number // count for number in range(count + 1)]
    pairs = zip(edges, edges[1:], strict=False)
    return [(first, end) for first, end in pairs if first < end]


def profiles(trades: Trades, layout: Layout | None = None, workers: int = 0) -> Array:
    """Volume at each tick: [sessions, bins], of the layout's type, counted in one compiled pass.

    Row i begins at tick ``layout.lows[i]``. ``workers`` is the number of threads, by default
    one for each core. Raises TradesError where the trades are not those of the layout.
    """
    rows = layout or survey(trades)
    out = np.zeros((trades.sessions, rows.bins), rows.counts)
    if not workers:
        workers = threads() if len(trades) >= SMALL else 1
    jobs = []
    shared_rows = []
    for first_trade, end in parts(len(trades), workers):
        session = int(np.searchsorted(trades.starts, first_trade, side="right")) - 1
        # Where a part begins inside a session, the thread before owns that row: what this one
        # counts of it is added at the end.
        shared_row = np.zeros(rows.bins, out.dtype)
        job = partial(
            count,
            trades.price,
            trades.volume,
            trades.starts,
            rows.lows,
            rows.widths,
            np.zeros(LANES * STRIDE, out.dtype),
            shared_row,
            out,
            session,
            first_trade,
            end,
        )
        jobs.append(job)
        shared_rows.append((session, shared_row))
    if any(together(jobs)):
        outside = "trades lie outside the rows of this layout"
        raise TradesError(f"{outside}: survey the same trades again")
    for session, shared_row in shared_rows:
        out[session] += shared_row
    return out


def chunked(trades: Trades, layout: Layout, chunk_trades: int) -> Array:
    """The same by numpy: an index for each chunk of trades, added with ``np.add.at``."""
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    row_starts = np.arange(trades.sessions) * layout.bins - layout.lows
    for first in range(0, len(trades), chunk_trades):
        end = min(len(trades), first + chunk_trades)
        lengths = np.diff(np.clip(trades.starts, first, end))
        index = np.repeat(row_starts, lengths)
        index += trades.price[first:end]
        volume = trades.volume[first:end].astype(out.dtype, copy=False)
        np.add.at(out.reshape(-1), index, volume)
        del index, volume  # else they live on while the next chunk's are made
    return out


def run(
    name: str, trades: Trades, layout: Layout, chunk_trades: int = 1 << 20
) -> Array:
    """The profiles by ``fused`` or ``chunked``. Raises TradesError for another name."""
    if strategy_of(name).torch:
        raise TradesError(f"strategy {name!r} needs torch: measure it in a child")
    if name == "fused":
        return profiles(trades, layout)
    return chunked(trades, layout, max(1, chunk_trades))
