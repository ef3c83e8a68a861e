"""The strategies under study that need no torch, and streams over files larger than memory: the same result bit for bit.

``run(name, trades, layout, chunk_trades)`` gives [sessions, bins]. Those that need torch are in helpers/torchside. A stream
maps a store's files, reads them into buffers used again, or takes a Parquet file by batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers.load.vpoc.histogram import (
    Counter,
    cuts,
    first_session,
    merge,
    profiles,
    refuse,
    threads,
    together,
)
from helpers.load.vpoc.trades import (
    Array,
    Layout,
    Store,
    Trades,
    TradesError,
    counts_type,
    ticks_of,
    to_ticks,
)


@dataclass(frozen=True)
class Strategy:
    """``shows`` is one line; ``chunked``: it goes by chunks of trades; ``runs``: None where torch runs it."""

    name: str
    shows: str
    chunked: bool
    runs: Callable[[Trades, Layout, int], Array] | None


def segments(starts: Array, a: int, b: int) -> Iterator[tuple[int, int, int]]:
    """The sessions that trades ``a`` to ``b`` belong to, each with its part of them: (session, first, last)."""
    s = int(np.searchsorted(starts, a, side="right")) - 1
    while a < b:
        e = min(b, int(starts[s + 1]))
        if a < e:
            yield s, a, e
        a, s = e, s + 1


def _bincount(trades: Trades, layout: Layout, a: int, b: int) -> tuple[int, Array]:
    """Trades ``a`` to ``b`` in one np.bincount: its first session, and float64 counts of whole rows."""
    parts = list(segments(trades.starts, a, b))
    first = parts[0][0]
    index = ticks_of(trades.price[a:b], trades.tick).astype(np.int64)
    for s, i, e in parts:
        index[i - a : e - a] += (s - first) * layout.bins - int(layout.lows[s])
    rows = parts[-1][0] - first + 1
    # Its weights are float64: beyond 2**53 they are summed in two halves.
    if layout.counts != "int64":
        return first, np.bincount(index, trades.volume[a:b], rows * layout.bins).reshape(rows, -1)
    low = np.bincount(index, trades.volume[a:b] & 0xFFFFFF, rows * layout.bins).astype(np.int64)
    high = np.bincount(index, trades.volume[a:b] >> 24, rows * layout.bins).astype(np.int64)
    return first, (low + (high << 24)).reshape(rows, -1)


def _flat(trades: Trades, layout: Layout, chunk: int) -> Array:
    return _chunks(trades, layout, max(1, len(trades)))


def _chunks(trades: Trades, layout: Layout, chunk: int) -> Array:
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for a in range(0, len(trades), chunk):
        first, counts = _bincount(trades, layout, a, min(len(trades), a + chunk))
        out[first : first + len(counts)] += counts.astype(out.dtype)
    return out


def _each_session(
    trades: Trades, layout: Layout, count: Callable[[Array, Array, int], Array]
) -> Array:
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        part = slice(int(trades.starts[s]), int(trades.starts[s + 1]))
        ticks, volume = ticks_of(trades.price[part], trades.tick), trades.volume[part]
        if len(volume):
            out[s] = count(
                ticks - layout.lows[s], volume.astype(out.dtype, copy=False), layout.bins
            )
    return out


def _session_bincount(trades: Trades, layout: Layout, chunk: int) -> Array:
    if layout.counts == "int64":
        return _chunks(trades, layout, max(1, int(np.diff(trades.starts).max(initial=1))))
    return _each_session(trades, layout, lambda k, v, bins: np.bincount(k, v, bins))


def _session_add_at(trades: Trades, layout: Layout, chunk: int) -> Array:
    def count(k: Array, v: Array, bins: int) -> Array:
        row = np.zeros(bins, v.dtype)
        np.add.at(row, k, v)
        return row

    return _each_session(trades, layout, count)


def _session_histogram(trades: Trades, layout: Layout, chunk: int) -> Array:
    if layout.counts == "int64":
        return _session_add_at(trades, layout, chunk)
    return _each_session(
        trades, layout, lambda k, v, bins: np.histogram(k, bins, (-0.5, bins - 0.5), weights=v)[0]
    )


def case_histogram(trades: Trades, bins: int = 1000) -> Array:
    """What the case study computes on the CPU: np.histogram of ``bins`` linear bins over each session's own [low, high].

    No strategy: its bins are no ticks. It answers the left edge of a bin as the VPOC, here one a session, in points.
    """
    answers = np.full(trades.sessions, np.nan)
    for s in range(trades.sessions):
        ticks, volume = trades.session(s)
        if len(ticks):
            held, edges = np.histogram(ticks * trades.tick, bins, weights=volume)
            answers[s] = edges[int(np.argmax(held))]
    return answers


STRATEGIES: dict[str, Strategy] = {
    one.name: one
    for one in (
        Strategy(
            "fused",
            "one compiled pass, every core; the one to use",
            False,
            lambda t, y, c: profiles(t, y),
        ),
        Strategy(
            "fused_one_thread", "the same on one core", False, lambda t, y, c: profiles(t, y, 1)
        ),
        Strategy("session_bincount", "np.bincount, a session at a time", False, _session_bincount),
        Strategy("session_add_at", "np.add.at, a session at a time", False, _session_add_at),
        Strategy(
            "session_histogram",
            "np.histogram on the tick grid, a session at a time",
            False,
            _session_histogram,
        ),
        Strategy("flat_bincount", "np.bincount of all sessions at once", False, _flat),
        Strategy("chunks_bincount", "np.bincount by chunks of trades", True, _chunks),
        Strategy("one_hot", "torch: one_hot x volume, summed: the blow-up", True, None),
        Strategy("flat", "torch: all at once, scatter_add_ over one index", False, None),
        Strategy("list_cat", "torch: chunks, results kept in a list and joined", True, None),
        Strategy("preallocated", "torch: chunks into buffers made once", True, None),
        Strategy("arena", "torch: the same buffers cut from one aligned slab", True, None),
        Strategy(
            "cleanup", "torch: list and cat, with gc and empty_cache every few chunks", True, None
        ),
        Strategy(
            "dataloader",
            "torch: a Dataset that computes each session at its start, read by a DataLoader",
            False,
            None,
        ),
    )
}
NUMPY = tuple(name for name, one in STRATEGIES.items() if one.runs)
TORCH = tuple(name for name, one in STRATEGIES.items() if not one.runs)


def run(name: str, trades: Trades, layout: Layout, chunk_trades: int = 1 << 20) -> Array:
    """The profiles by the named strategy. Raises ValueError for a name that is none of NUMPY."""
    if name not in NUMPY:
        raise ValueError(f"strategy {name!r}: expected one of {', '.join(NUMPY)}")
    runs = STRATEGIES[name].runs
    assert runs is not None
    return runs(trades, layout, max(1, chunk_trades))


BLOCK_TRADES = 1 << 16
"""Trades read at a time: 512 KiB of int32 price and volume, which the second-level cache holds until they are counted."""


def stream_mapped(store: Store, sessions: int = 64) -> Array:
    """Counts straight from the mapped files, ``sessions`` at a time, and lets the pages of those that are done go again.

    Its private memory is the result alone; the file's pages are the page cache's, which the kernel takes back at need.
    """
    import mmap

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
    workers = max(1, workers or threads())
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    at = cuts(len(trades), workers)
    firsts = [first_session(trades.starts, a) for a in at[:-1]]
    counters = [Counter(layout, trades.price.dtype != np.int32) for _ in range(workers)]
    files = [os.open(store.folder / name, os.O_RDONLY) for name in ("price.bin", "volume.bin")]

    def job(i: int) -> Callable[[], int]:
        def work() -> int:
            buffers = [np.empty(block_trades, kind.dtype) for kind in (trades.price, trades.volume)]
            edge, bad = int(trades.starts[firsts[i] + 1]) if at[i] < at[i + 1] else 0, 0
            inside = at[i] > int(trades.starts[firsts[i]]) if at[i] < at[i + 1] else False
            a = at[i]
            while a < at[i + 1]:
                # A block ends with the session that another thread also counts, so that its row stays apart.
                b = min(a + block_trades, at[i + 1], edge if inside and a < edge else at[i + 1])
                for file, buffer in zip(files, buffers, strict=True):
                    _read(file, buffer[: b - a], a)
                block = replace(trades, price=buffers[0], volume=buffers[1])
                if inside and a < edge:
                    bad += counters[i].add(block, layout, out, a, b, firsts[i], a)
                else:
                    bad += _continue(counters[i], block, layout, out, a, b)
                a = b
            return bad

        return work

    try:
        refuse(sum(together([job(i) for i in range(workers)])))
    finally:
        for file in files:
            os.close(file)
    merge(out, counters, firsts)
    return out


def _continue(counter: Counter, block: Trades, layout: Layout, out: Array, a: int, b: int) -> int:
    """Count trades ``a`` to ``b`` where this thread owns every row: for the kernel the session at ``a`` begins there."""
    first = first_session(block.starts, a)
    last = first_session(block.starts, b - 1) + 1
    starts = np.array(block.starts[first : last + 1])
    starts[0] = a
    return counter.add(block, layout.take(first, last), out[first:last], a, b, 0, a, starts)


def _read(file: int, into: Array, first: int) -> None:
    view, at = into.view(np.uint8).data, first * into.itemsize
    while len(view):
        got = os.preadv(file, [view], at)
        if not got:
            raise TradesError(
                "a file of the store ended before its trades did: it was cut short after it was opened"
            )
        view, at = view[got:], at + got


def parquet_batches(
    path: Path,
    tick: float,
    batch_rows: int = 1 << 16,
    columns: tuple[str, str, str] = ("session", "price", "volume"),
) -> Iterator[tuple[Array, Array, Array]]:
    """Session, int32 ticks and volume of each batch. A price column of whole numbers is taken as ticks.

    Raises TradesError for a file that is no Parquet file or lacks a column.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_rows, columns=list(columns), use_threads=False):
                keys, price, volume = (
                    batch.column(name).to_numpy(zero_copy_only=False) for name in columns
                )
                if len(volume) and not volume.min() >= 0:
                    raise TradesError(
                        f"{path}: volumes below 0, or no numbers: load the file, which sets such rows aside"
                    )
                yield (
                    keys,
                    price.astype(np.int32) if price.dtype.kind in "iu" else to_ticks(price, tick),
                    volume,
                )
    except (ArrowException, OSError, KeyError) as error:
        raise TradesError(
            f"{path}: {str(error).splitlines()[0]}: expected a whole Parquet file with the columns "
            f"{', '.join(columns)}"
        ) from None


def stream_parquet(
    path: Path, tick: float, batch_rows: int = 1 << 16, **options: Any
) -> tuple[tuple[str, ...], Layout, Array]:
    """Labels, layout and profiles of a Parquet file in two passes, a batch in memory at a time; sessions in any order."""
    extremes: dict[Any, list[Any]] = {}
    kind: np.dtype[Any] = np.dtype(np.int32)
    for keys, ticks, volume in parquet_batches(path, tick, batch_rows, **options):
        kind = np.promote_types(kind, volume.dtype)
        for key, a, b in _runs(keys):
            low, high, total = (
                int(ticks[a:b].min()),
                int(ticks[a:b].max()),
                volume[a:b].sum(dtype=_sum(volume)).item(),
            )
            held = extremes.setdefault(key, [low, high, 0])
            held[:] = min(held[0], low), max(held[1], high), held[2] + total
    names = tuple(extremes)
    lows, highs, totals = (np.array([extremes[name][i] for name in names]) for i in range(3))
    kind = kind if kind.name in ("int32", "int64", "float32", "float64") else np.dtype(np.float64)
    counts, notes = counts_type(kind.name, float(totals.max(initial=0)))
    layout = Layout(
        lows.astype(np.int32),
        (highs - lows + 1).astype(np.int32),
        max(1, int((highs - lows + 1).max(initial=0))),
        counts,
        totals,
        notes,
    )
    out = np.zeros((len(names), layout.bins), counts)
    place = {name: i for i, name in enumerate(names)}
    counter = Counter(layout, False)
    for keys, ticks, volume in parquet_batches(path, tick, batch_rows, **options):
        for key, a, b in _runs(keys):
            i = place[key]
            part = Trades(
                ticks[a:b],
                volume[a:b].astype(kind, copy=False),
                np.array([0, b - a]),
                tick,
                (str(key),),
            )
            refuse(counter.add(part, layout.take(i, i + 1), out[i : i + 1], 0, b - a, 0))
    return tuple(map(str, names)), layout, out


def _sum(volume: Array) -> Any:
    return np.int64 if volume.dtype.kind in "iu" else np.float64


def _runs(keys: Array) -> Iterator[tuple[Any, int, int]]:
    """Runs of equal keys: (key, first, last)."""
    if len(keys):
        at = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        yield from (
            (keys[a].item() if hasattr(keys[a], "item") else keys[a], a, b)
            for a, b in zip(at, at[1:], strict=False)
        )
