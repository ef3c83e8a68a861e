"""The profile of each session, and the six ways of counting it that are compared.

All ways give the same bits, and differ in time and memory. Those that need torch run in
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
"""The threads of ``together``, by the process and by how many there are."""
CHUNK_TRADES = 1 << 20
"""Trades of a chunk where nobody plans it: 8 MiB of index, which fits the cache of most servers."""
SMALL = 100_000
"""Below so many trades one thread is done before a second one has started."""


@dataclass(frozen=True)
class Strategy:
    """A way of counting. ``shows``: what it does and shows, in a line.

    ``chunked``: it counts a chunk of trades at a time. ``torch``: it runs under torch, in a child.
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
"""Names of ways that were removed, each with the one to use instead."""


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
    """Run the jobs at the same time, the first in this thread. Returns their results, in order.

    The other threads are kept for the next call; a fork of this process has threads of its own.
    """
    if len(jobs) < 2:
        return [job() for job in jobs]
    others = len(jobs) - 1
    key = (os.getpid(), others)
    if key not in _POOLS:
        _POOLS[key] = ThreadPoolExecutor(others, "profile")
    futures = [_POOLS[key].submit(job) for job in jobs[1:]]
    try:
        first = jobs[0]()
    finally:
        # Also where the first job failed, since the caller may close the files that they read.
        wait(futures)
    return [first, *(future.result() for future in futures)]


def parts(trades: int, count: int) -> list[tuple[int, int]]:
    """Up to ``count`` parts of equal length, each as its first trade and the one after its last.

    Their edges may be inside a session.
    """
    edges = [trades * number // count for number in range(count + 1)]
    pairs = zip(edges, edges[1:], strict=False)
    return [(first, end) for first, end in pairs if first < end]


def profiles(trades: Trades, layout: Layout | None = None, workers: int = 0) -> Array:
    """Volume at each tick, counted in one compiled pass: an array [sessions, bins] of the layout's
    type.

    Row i begins at tick ``layout.lows[i]``. ``layout``: by default that of these trades.
    ``workers``: the number of threads (0: one for each core, or one for few trades). Raises
    TradesError where the trades are not those of the layout.
    """
    if layout is None:
        layout = survey(trades)
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    if not workers:
        workers = 1
        if len(trades) >= SMALL:
            workers = threads()
    jobs = []
    shared_rows = []
    for first_trade, end in parts(len(trades), workers):
        session = int(np.searchsorted(trades.starts, first_trade, side="right")) - 1
        # If a part begins inside a session, an earlier thread writes that session's row of `out`:
        # this one counts into a row of its own, which is added at the end.
        shared_row = np.zeros(layout.bins, out.dtype)
        job = partial(
            count,
            trades.price,
            trades.volume,
            trades.starts,
            layout.lows,
            layout.widths,
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
    """The profiles by numpy: an index for each chunk of trades, added with ``np.add.at``."""
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    # What to add to a tick of a session to get its index in the flat table.
    row_starts = np.arange(trades.sessions) * layout.bins - layout.lows
    for first in range(0, len(trades), chunk_trades):
        end = min(len(trades), first + chunk_trades)
        # How many trades of the chunk each session has.
        lengths = np.diff(np.clip(trades.starts, first, end))
        index = np.repeat(row_starts, lengths)
        index += trades.price[first:end]
        volume = trades.volume[first:end].astype(out.dtype, copy=False)
        np.add.at(out.reshape(-1), index, volume)
        del index, volume  # so that they do not add to the peak of the next chunk
    return out


def run(
    name: str, trades: Trades, layout: Layout, chunk_trades: int = CHUNK_TRADES
) -> Array:
    """The profiles by ``fused`` or ``chunked``. Raises TradesError for another name."""
    if strategy_of(name).torch:
        raise TradesError(f"strategy {name!r} needs torch: measure it in a child")
    if name == "fused":
        return profiles(trades, layout)
    return chunked(trades, layout, max(1, chunk_trades))
