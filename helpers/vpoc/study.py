"""Measurements of the ways of counting: beside the predicted peak, by chunk size, and under hard
limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from helpers.ground.units import MIB
from helpers.vpoc.counting import (
    CHUNK_TRADES,
    STRATEGIES,
    parts,
    profiles,
    threads,
    together,
)
from helpers.vpoc.kernels import total
from helpers.vpoc.measure import Measured, measure
from helpers.vpoc.planner import predicted_bytes, shape_of
from helpers.vpoc.store import TradeStore
from helpers.vpoc.trades import Trades

ONE_HOT_BYTES = 512 * MIB
"""The memory that one_hot may take while it is measured; its figures are then extrapolated."""
ONE_HOT_BIN_BYTES = 24
"""The most that one_hot takes for each trade and bin (planner._trade_bytes, with
float64 volumes).
"""
READS = 11
"""Reads of the inputs, of which the fastest counts: the first ones fill the cache."""


@dataclass(frozen=True)
class StrategyRow:
    """One strategy as it was measured, for a table or a figure.

    ``status`` is as of measure.Measured, and ``says`` its error. ``times_limit``: the seconds as a
    multiple of one read of the inputs. ``equal``: whether its counts have the same bits as those of
    the fused pass (None: it gave none). ``sessions``: set where the figures are extrapolated in a
    straight line from so many sessions. ``limit_mib``: the private memory that it was allowed.
    """

    strategy: str
    status: str
    says: str = ""
    chunk_trades: int = 0
    seconds: float | None = None
    times_limit: float | None = None
    measured_bytes: int | None = None
    predicted_bytes: int = 0
    equal: bool | None = None
    sessions: int | None = None
    limit_mib: int = 0


def row_of(measured: Measured, chunk_trades: int) -> StrategyRow:
    """A measurement as a row."""
    return StrategyRow(
        strategy=measured.strategy,
        status=measured.status,
        says=measured.why,
        chunk_trades=chunk_trades,
        seconds=measured.best_s,
        measured_bytes=measured.peak_bytes,
    )


def read_jobs(trades: Trades) -> list[Callable[[], int]]:
    """A job for each core; together they read every byte of price and volume once."""
    price = trades.price
    # As whole numbers, for the exclusive or in kernels.total.
    volume = trades.volume.view(f"i{trades.volume.itemsize}")
    return [
        partial(total, price[first:end], volume[first:end])
        for first, end in parts(len(trades), threads())
    ]


def limit_s(trades: Trades) -> float:
    """The seconds of the fastest of READS reads of all prices and volumes with every core: no way
    of counting can take less.
    """
    best = float("inf")
    jobs = read_jobs(trades)
    for _ in range(READS):
        began = time.perf_counter()
        together(jobs)
        best = min(best, time.perf_counter() - began)
    return best


def strategies(
    store: TradeStore,
    limit: float,
    names: Sequence[str] = tuple(STRATEGIES),
    chunk_trades: int = CHUNK_TRADES,
    repeats: int = 5,
) -> list[StrategyRow]:
    """Measure each strategy, and compare its counts with those of the fused pass. ``limit``: the
    seconds of limit_s.

    One-hot runs on as few sessions as fit ONE_HOT_BYTES, and its figures are extrapolated.
    """
    want = profiles(store.trades, store.layout)
    shape = shape_of(store.trades, store.layout)
    rows = []
    for name in names:
        if name == "one_hot":
            row, counts = _one_hot(store)
        else:
            measured = measure(
                name, store, chunk_trades=chunk_trades, repeats=repeats, counts=True
            )
            predicted = predicted_bytes(name, shape, chunk_trades)
            row = row_of(measured, chunk_trades)
            row = replace(row, predicted_bytes=predicted)
            counts = measured.counts
        if row.seconds is not None:
            row = replace(row, times_limit=row.seconds / limit)
        if counts is not None:  # those of one_hot are of the first sessions alone
            row = replace(row, equal=bool(np.array_equal(counts, want[: len(counts)])))
        rows.append(row)
    return rows


def _one_hot(store: TradeStore) -> tuple[StrategyRow, np.ndarray | None]:
    """One-hot over all trades at once, extrapolated from the first sessions; and the counts of
    these.
    """
    shape = shape_of(store.trades, store.layout)
    starts = store.trades.starts
    trades_that_fit = ONE_HOT_BYTES // (ONE_HOT_BIN_BYTES * shape.bins)
    # The number of whole sessions with at most so many trades.
    fits = int(np.searchsorted(starts, trades_that_fit, side="right")) - 1
    sessions = max(1, min(shape.sessions, fits))
    trades = max(1, int(starts[sessions]))
    measured = measure(
        "one_hot", store, chunk_trades=trades, sessions=sessions, counts=True
    )
    row = replace(
        row_of(measured, trades),
        sessions=sessions,
        predicted_bytes=predicted_bytes("one_hot", shape, shape.trades),
    )
    scale = shape.trades / trades
    if row.seconds is not None:
        row = replace(row, seconds=row.seconds * scale)
    if row.measured_bytes is not None:
        row = replace(row, measured_bytes=int(row.measured_bytes * scale))
    return row, measured.counts


def chunk_curve(
    store: TradeStore, chunks: Sequence[int], names: Sequence[str], repeats: int = 3
) -> list[StrategyRow]:
    """A row for each strategy and chunk size: the time, and the measured and predicted peak."""
    shape = shape_of(store.trades, store.layout)
    rows = []
    for name in names:
        for chunk in chunks:
            measured = measure(name, store, chunk_trades=chunk, repeats=repeats)
            model = predicted_bytes(name, shape, chunk)
            rows.append(replace(row_of(measured, chunk), predicted_bytes=model))
    return rows


def refusals(
    store: TradeStore, names: Sequence[str], limit_mib: int
) -> list[StrategyRow]:
    """Which strategies finish with at most so much private memory (RLIMIT_DATA), and the error of
    the allocator for the others.

    The inputs are loaded within the limit, as in a user's program. One-hot takes all trades at
    once.
    """
    rows = []
    for name in names:
        chunk = CHUNK_TRADES
        if name == "one_hot":
            chunk = len(store.trades)
        measured = measure(name, store, limit_bytes=limit_mib * MIB, chunk_trades=chunk)
        rows.append(replace(row_of(measured, chunk), limit_mib=limit_mib))
    return rows
