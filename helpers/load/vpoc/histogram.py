"""The profile of each session in one pass: of trades in memory, mapped from a store, read piece by piece, or out of Parquet.

Nothing is in memory but the result and what a thread needs for itself. All give the same bits.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc.trades import (
    Array,
    Layout,
    Store,
    Trades,
    TradesError,
    counts_type,
    survey,
    to_ticks,
    total_type,
)

_POOL: dict[tuple[int, int], ThreadPoolExecutor] = {}
SMALL = 100_000
"""Trades that one thread counts sooner than a second one wakes."""
BLOCK_TRADES = 1 << 16
"""Trades read at a time: 512 KiB of int32 price and volume, which the second-level cache holds until they are counted."""
BATCH_ROWS = 1 << 16
COLUMNS = ("session", "price", "volume")


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the jobs at the same time, one in this thread. The threads stay for the next call, and are made anew after a fork."""
    if len(jobs) < 2:
        return [job() for job in jobs]
    key = (os.getpid(), len(jobs) - 1)
    if key not in _POOL:
        _POOL[key] = ThreadPoolExecutor(len(jobs) - 1, "profile")
    others = [_POOL[key].submit(job) for job in jobs[1:]]
    try:
        mine = jobs[0]()
    finally:
        wait(others)  # also where this one failed: what they read from may be closed next
    return [mine, *(other.result() for other in others)]


def parts(trades: int, count: int) -> list[tuple[int, int]]:
    """So many parts, each of as many trades, whatever the sessions' lengths: the first and the end of each that has any."""
    at = [trades * i // count for i in range(count + 1)]
    return [(a, b) for a, b in zip(at, at[1:], strict=False) if a < b]


def _session_of(starts: Array, trade: int) -> int:
    return int(np.searchsorted(starts, trade, side="right")) - 1


class Counter:
    """What one thread needs to count: its private rows, its part of a session that another thread also counts, a block."""

    def __init__(self, layout: Layout, floats: bool):
        from helpers.load.vpoc.kernels import BLOCK, LANES, STRIDE, count

        self._count, kind = count, np.dtype(layout.counts)
        self._rows, self.edge = np.zeros(LANES * STRIDE, kind), np.zeros(layout.bins, kind)
        self._scratch = np.empty(BLOCK if floats else 0, np.int32)

    def add(
        self,
        trades: Trades,
        layout: Layout,
        out: Array,
        a: int,
        b: int,
        first: int,
        offset: int = 0,
    ) -> None:
        """Count trades ``a`` to ``b`` from session ``first`` on; the columns of ``trades`` begin at trade ``offset``.

        Raises TradesError where some lie outside the rows of the layout.
        """
        columns = trades.price, trades.volume, trades.starts
        tick = 0.0 if trades.price.dtype == np.int32 else trades.tick
        place = layout.lows, layout.widths, tick
        own = self._rows, self._scratch, self.edge
        if self._count(*columns, *place, *own, out, first, a, b, offset):
            raise TradesError(
                "trades lie outside the rows of this layout: survey the same trades again"
            )

    def go_on(self, block: Trades, layout: Layout, out: Array, a: int, b: int) -> None:
        """Count a block where this thread owns every row: for the kernel the session at ``a`` begins there."""
        first, last = _session_of(block.starts, a), _session_of(block.starts, b - 1) + 1
        starts = np.array(block.starts[first : last + 1])
        starts[0] = a
        rows = layout.take(first, last)
        self.add(replace(block, starts=starts), rows, out[first:last], a, b, 0, a)


def _shared(
    trades: Trades,
    layout: Layout,
    workers: int,
    count: Callable[[Counter, Array, int, int, int], None],
) -> Array:
    """The profiles by so many threads: each counts its part, from the session on in which that begins.

    Where it begins inside one, the thread before owns the row; what this one counts of it is added at the end.
    """
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    jobs, edges = [], []
    for a, b in parts(len(trades), workers):
        counter, first = (
            Counter(layout, trades.price.dtype != np.int32),
            _session_of(trades.starts, a),
        )
        jobs.append(partial(count, counter, out, a, b, first))
        edges.append((first, counter.edge))
    together(jobs)
    for first, edge in edges:
        out[first] += edge
    return out


def profiles(trades: Trades, layout: Layout | None = None, workers: int = 0) -> Array:
    """Volume at each tick: [sessions, bins], of the layout's type; row i begins at tick ``layout.lows[i]``.

    ``workers``: threads, by default one for each core. Raises TradesError where the trades are not those of the layout.
    """
    rows = layout or survey(trades)

    def count(counter: Counter, out: Array, a: int, b: int, first: int) -> None:
        counter.add(trades, rows, out, a, b, first)

    return _shared(trades, rows, workers or (threads() if len(trades) >= SMALL else 1), count)


def stream_mapped(store: Store, sessions: int = 64) -> Array:
    """Counts straight from the mapped files, ``sessions`` at a time, and lets the pages of those that are done go again.

    Its private memory is the result alone; the file's pages are the page cache's, which the kernel takes back at need.
    """
    trades, layout = store.trades, store.layout
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for first in range(0, trades.sessions, sessions):
        last = min(trades.sessions, first + sessions)
        out[first:last] = profiles(trades.take(first, last), layout.take(first, last))
        for array in (trades.price, trades.volume):
            mapped = getattr(array, "_mmap", None)
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)
    return out


def stream_read(store: Store, block_trades: int = BLOCK_TRADES, workers: int = 0) -> Array:
    """Reads blocks into one pair of buffers a thread, and counts each before the next. Needs no mapping.

    Raises TradesError where a file ends before its trades do.
    """
    trades, layout = store.trades, store.layout
    files = [os.open(store.folder / name, os.O_RDONLY) for name in ("price.bin", "volume.bin")]

    def count(counter: Counter, out: Array, a: int, b: int, first: int) -> None:
        price, volume = (
            np.empty(block_trades, column.dtype) for column in (trades.price, trades.volume)
        )
        buffers = replace(trades, price=price, volume=volume)
        edge = int(trades.starts[first + 1]) if a > trades.starts[first] else a
        while a < b:
            # A block ends with the session that another thread also counts, so that its row stays apart.
            end = min(a + block_trades, b, edge if a < edge else b)
            for file, buffer in zip(files, (price, volume), strict=True):
                _read(file, buffer[: end - a], a)
            if a < edge:
                counter.add(buffers, layout, out, a, end, first, a)
            else:
                counter.go_on(buffers, layout, out, a, end)
            a = end

    try:
        return _shared(trades, layout, workers or threads(), count)
    finally:
        for file in files:
            os.close(file)


def _read(file: int, into: Array, first: int) -> None:
    view, at = into.view(np.uint8).data, first * into.itemsize
    while len(view):
        got = os.preadv(file, [view], at)
        if not got:
            raise TradesError(
                "a file of the store ended before its trades did: it was cut short after it was opened"
            )
        view, at = view[got:], at + got


def stream_parquet(
    path: Path, tick: float, batch_rows: int = BATCH_ROWS, columns: Sequence[str] = COLUMNS
) -> tuple[tuple[str, ...], Layout, Array]:
    """Labels, layout and profiles of a Parquet file in two passes, a batch in memory at a time; sessions in any order.

    ``columns``: those of session, price and volume. Raises TradesError for a file that is no Parquet file or lacks one.
    """
    extremes: dict[Any, list[Any]] = {}
    kind: np.dtype[Any] = np.dtype(np.int32)
    for key, ticks, volume in _runs(path, tick, batch_rows, columns):
        kind = np.promote_types(kind, volume.dtype)
        low, high = int(ticks.min()), int(ticks.max())
        held = extremes.setdefault(key, [low, high, 0])
        total = held[2] + volume.sum(dtype=total_type(volume)).item()
        held[:] = min(held[0], low), max(held[1], high), total
    places = {key: place for place, key in enumerate(extremes)}
    lows, highs, totals = (np.array([held[i] for held in extremes.values()]) for i in range(3))
    widths = highs - lows + 1
    kind = kind if kind.name in ("int32", "int64", "float32", "float64") else np.dtype(np.float64)
    counts, notes = counts_type(kind.name, float(totals.max(initial=0)))
    bins, rows = (
        max(1, int(widths.max(initial=0))),
        (lows.astype(np.int32), widths.astype(np.int32)),
    )
    layout = Layout(*rows, bins, counts, totals, notes)
    out, counter = np.zeros((len(places), layout.bins), counts), Counter(layout, False)
    for key, ticks, volume in _runs(path, tick, batch_rows, columns):
        row, starts = slice(places[key], places[key] + 1), np.array([0, len(ticks)])
        part = Trades(ticks, volume.astype(kind, copy=False), starts, tick, (str(key),))
        counter.add(part, layout.take(row.start, row.stop), out[row], 0, len(ticks), 0)
    return tuple(map(str, places)), layout, out


def _runs(
    path: Path, tick: float, batch_rows: int, columns: Sequence[str]
) -> Iterator[tuple[Any, Array, Array]]:
    """Session, int32 ticks and volume of each run of trades of one session in a batch; whole numbers as prices are ticks."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_rows, columns=list(columns), use_threads=False):
                keys, price, volume = (
                    batch.column(name).to_numpy(zero_copy_only=False) for name in columns
                )
                if len(volume) and not volume.min() >= 0:
                    why = (
                        "volumes below 0, or no numbers: load the file, which sets such rows aside"
                    )
                    raise TradesError(f"{path}: {why}")
                whole = price.dtype.kind in "iu"
                ticks = price.astype(np.int32) if whole else to_ticks(price, tick)
                turns = (np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()
                for a, b in zip([0, *turns], [*turns, len(keys)], strict=True):
                    if a < b:
                        yield keys[a], ticks[a:b], volume[a:b]
    except (ArrowException, OSError, KeyError) as error:
        why = f"{str(error).splitlines()[0]}: expected a whole Parquet file with the columns"
        raise TradesError(f"{path}: {why} {', '.join(columns)}") from None
