"""The profile of each session in one pass: of trades in memory or mapped, read block by block
from a store, or out of Parquet.

Nothing is in memory but the result and what a thread needs for itself. All give the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from helpers.vpoc.trades import (
    Array,
    Layout,
    Store,
    Trades,
    TradesError,
    layout_of,
    survey,
    to_price,
    to_ticks,
    total_type,
)

_POOL: dict[tuple[int, int], ThreadPoolExecutor] = {}
SMALL = 100_000
"""Trades that one thread counts sooner than a second one wakes."""
BLOCK_TRADES = 1 << 18
"""Trades read at a time: 2 MiB of int32 price and volume, enough for every thread to have its
part of a block.
"""
BATCH_ROWS = 1 << 16
COLUMNS = ("session", "price", "volume")


def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the jobs at the same time, one in this thread.

    The threads stay for the next call, and are made anew after a fork.
    """
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
    """So many parts, each of as many trades, whatever the sessions' lengths: the first and the
    end of each that has any.
    """
    at = [trades * i // count for i in range(count + 1)]
    return [(a, b) for a, b in zip(at, at[1:], strict=False) if a < b]


def _session_of(starts: Array, trade: int) -> int:
    return int(np.searchsorted(starts, trade, side="right")) - 1


def profiles(
    trades: Trades, layout: Layout | None = None, workers: int = 0, out: Array | None = None
) -> Array:
    """Volume at each tick: [sessions, bins], of the layout's type; row i begins at tick
    ``layout.lows[i]``.

    ``workers``: threads, by default one for each core; each counts its part, from the session
    on in which that begins. Where it begins inside one, the thread before owns the row; what
    this one counts of it is added at the end. ``out`` is added to. Raises TradesError where the
    trades are not those of the layout.
    """
    from helpers.vpoc.kernels import LANES, STRIDE, count

    rows = layout or survey(trades)
    out = np.zeros((trades.sessions, rows.bins), rows.counts) if out is None else out
    columns = trades.price, trades.volume, trades.starts, rows.lows, rows.widths
    jobs = []
    edges = []
    for a, b in parts(len(trades), workers or (threads() if len(trades) >= SMALL else 1)):
        first = _session_of(trades.starts, a)
        edge = np.zeros(rows.bins, out.dtype)
        own = np.zeros(LANES * STRIDE, out.dtype), edge
        jobs.append(partial(count, *columns, *own, out, first, a, b))
        edges.append((first, edge))
    if any(together(jobs)):
        outside = "trades lie outside the rows of this layout"
        raise TradesError(f"{outside}: survey the same trades again")
    for first, edge in edges:
        out[first] += edge
    return out


def stream_read(store: Store, block_trades: int = BLOCK_TRADES, workers: int = 0) -> Array:
    """Reads blocks of the store's files into one pair of buffers, and counts each before the next.

    Needs no mapping.
    """
    trades = store.trades
    layout = store.layout
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    buffers = [np.empty(block_trades, column.dtype) for column in (trades.price, trades.volume)]
    with (
        (store.folder / "price.bin").open("rb", 0) as price,
        (store.folder / "volume.bin").open("rb", 0) as volume,
    ):
        for a in range(0, len(trades), block_trades):
            b = min(len(trades), a + block_trades)
            ticks, volumes = (buffer[: b - a] for buffer in buffers)
            price.readinto(ticks.data)
            volume.readinto(volumes.data)
            first = _session_of(trades.starts, a)
            last = _session_of(trades.starts, b - 1) + 1
            starts = np.clip(trades.starts[first : last + 1], a, b) - a
            some = Trades(ticks, volumes, starts, trades.tick, trades.labels[first:last])
            profiles(some, layout.take(first, last), workers or threads(), out[first:last])
    return out


def stream_parquet(
    path: Path, tick: float, batch_rows: int = BATCH_ROWS, columns: Sequence[str] = COLUMNS
) -> tuple[tuple[str, ...], Layout, Array]:
    """Labels, layout and profiles of a Parquet file in two passes, a batch in memory at a time;
    sessions in any order.

    ``columns``: those of session, price and volume. Raises TradesError for a file that is no
    Parquet file or lacks one.
    """
    extremes: dict[Any, list[Any]] = {}
    kind: np.dtype[Any] = np.dtype(np.int32)
    for key, ticks, volume in _runs(path, tick, batch_rows, columns):
        kind = np.promote_types(kind, volume.dtype)
        low, high, total = extremes.get(key, (ticks[0], ticks[0], 0))
        total += volume.sum(dtype=total_type(volume)).item()
        extremes[key] = [min(low, int(ticks.min())), max(high, int(ticks.max())), total]
    places = {key: place for place, key in enumerate(extremes)}
    lows, highs, totals = (np.array([held[i] for held in extremes.values()]) for i in range(3))
    layout = layout_of(
        lows, highs - lows + 1, totals, kind.name if kind.kind == "i" else "float64", None
    )
    out = np.zeros((len(places), layout.bins), layout.counts)
    for key, ticks, volume in _runs(path, tick, batch_rows, columns):
        np.add.at(out[places[key]], ticks - lows[places[key]], volume.astype(out.dtype))
    return tuple(map(str, places)), layout, out


def _runs(
    path: Path, tick: float, batch_rows: int, columns: Sequence[str]
) -> Iterator[tuple[Any, Array, Array]]:
    """Session, int32 ticks and volume of each run of trades of one session in a batch; whole
    numbers as prices are ticks.
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
                    aside = "load the file, which sets such rows aside"
                    raise TradesError(f"{path}: volumes below 0, or no numbers: {aside}")
                whole = price.dtype.kind in "iu"
                ticks = price.astype(np.int32) if whole else to_ticks(price, tick)
                turns = (np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()
                for a, b in zip([0, *turns], [*turns, len(keys)], strict=True):
                    if a < b:
                        yield keys[a], ticks[a:b], volume[a:b]
    except (ArrowException, OSError, KeyError) as error:
        why = f"{str(error).splitlines()[0]}: expected a whole Parquet file with the columns"
        raise TradesError(f"{path}: {why} {', '.join(columns)}") from None


# The ways of counting under study, as one table: each gives the profiles of histogram.py bit
# for bit, at another price.
#
# ``run(name, trades, layout, chunk_trades)`` gives [sessions, bins]. Those that need torch are
# in helpers/trials/under_torch.


@dataclass(frozen=True)
class Strategy:
    """A row of strategies.json.

    ``chunked``: it goes by chunks of trades; ``torch``: run by torch; ``shows`` is one line.
    """

    name: str
    chunked: bool
    torch: bool
    shows: str


def _chunks(trades: Trades, layout: Layout, chunk: int) -> Array:
    """One np.bincount for the whole rows of the sessions in each chunk of trades."""
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for a in range(0, len(trades), chunk):
        b = min(len(trades), a + chunk)
        first, last = (np.searchsorted(trades.starts, at, "right") - 1 for at in (a, b - 1))
        rows = slice(first, last + 1)
        starts = np.clip(trades.starts[first : last + 2], a, b)
        base = np.arange(last + 1 - first) * layout.bins - layout.lows[rows]
        index = trades.price[a:b] + np.repeat(base, np.diff(starts))
        counts = _bincount(index, trades.volume[a:b], len(base) * layout.bins, layout)
        out[rows] += counts.reshape(-1, layout.bins).astype(out.dtype)
    return out


def _bincount(index: Array, volume: Array, bins: int, layout: Layout) -> Array:
    """np.bincount, whose weights are float64: beyond 2**53 they are summed in two halves."""
    if layout.counts != "int64":
        return np.bincount(index, volume, bins)
    low, high = (np.bincount(index, half, bins) for half in (volume & 0xFFFFFF, volume >> 24))
    return low.astype(np.int64) + (high.astype(np.int64) << 24)


def _sessions(name: str, trades: Trades, layout: Layout) -> Array:
    """A session at a time, by the numpy function that the name ends with.

    Only add_at counts int64 exactly beyond 2**53.
    """
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s, row in enumerate(out):
        ticks, volume = trades.session(s)
        index = ticks - layout.lows[s]
        if name == "session_bincount":
            row += _bincount(index, volume, layout.bins, layout).astype(out.dtype)
        elif name == "session_add_at" or layout.counts == "int64":
            np.add.at(row, index, volume.astype(out.dtype, copy=False))
        else:
            edges = (-0.5, layout.bins - 0.5)
            weights = volume.astype(out.dtype, copy=False)
            row += np.histogram(index, layout.bins, edges, weights=weights)[0].astype(out.dtype)
    return out


STRATEGIES = {
    name: Strategy(name, *row)
    for name, row in json.loads(Path(__file__).with_name("strategies.json").read_text()).items()
}
NUMPY = tuple(name for name, one in STRATEGIES.items() if not one.torch)
TORCH = tuple(name for name, one in STRATEGIES.items() if one.torch)


def run(name: str, trades: Trades, layout: Layout, chunk_trades: int = 1 << 20) -> Array:
    """The profiles by the named strategy. Raises ValueError for a name that is none of NUMPY."""
    if name not in NUMPY:
        raise ValueError(f"strategy {name!r}: expected one of {', '.join(NUMPY)}")
    if name.startswith("session_"):
        return _sessions(name, trades, layout)
    if name.startswith("fused"):
        return profiles(trades, layout, 1 if name == "fused_one_thread" else 0)
    chunk = chunk_trades if STRATEGIES[name].chunked else len(trades)
    return _chunks(trades, layout, max(1, chunk))


# Point of control, value area and nodes of volume profiles, under each rule in use.
#
# Volume POC (VPOC): the tick with the most volume. A naked POC (others write VPOC for *virgin*
# POC) is another thing: the POC of an earlier session that price has not traded at since. The
# value area is the run of ticks around the POC that holds 70 % of the volume: the two-row rule
# (CBOT, Dalton) compares the sum of the next two ticks on each side and adds the larger pair,
# the one-row rule compares one tick each side; equal sums go up. Ticks without trades count as
# rows of no volume.

TIES = ("lowest", "highest", "centre")
VALUE_AREAS = ("one-row", "two-row")
SHARE = 0.70


@dataclass(frozen=True)
class Rule:
    """``tie``: which of tied rows is the POC (Linnsoft: the one closest to the centre of the
    profile; numpy's argmax: the lowest). ``value_area``: one-row or two-row.
    """

    tie: str = "centre"
    value_area: str = "two-row"

    def __str__(self) -> str:
        return f"{self.value_area} {SHARE:.0%}, tie {self.tie}"


USUAL = Rule()
RULES = tuple(Rule(tie, area) for area in VALUE_AREAS for tie in TIES)
"""Each rule in use, for a value area of 70 %."""


@dataclass(frozen=True, eq=False)
class Levels:
    """POC, VAL and VAH of each session in ticks; ``there`` is False for a session without volume."""

    poc: Array
    val: Array
    vah: Array
    there: Array
    rule: Rule

    def prices(self, tick: float) -> tuple[Array, Array, Array]:
        """POC, VAL and VAH in points; NaN for a session without volume."""
        points = (to_price(one, tick) for one in (self.poc, self.val, self.vah))
        poc, val, vah = (np.where(self.there, one, np.nan) for one in points)
        return poc, val, vah


def levels(counts: Array, layout: Layout, rule: Rule = USUAL) -> Levels:
    """POC and value area of every session of ``counts``, as ``histogram.profiles`` gives them."""
    from helpers.vpoc.kernels import areas

    poc, val, vah = (np.empty(len(counts), np.int32) for _ in range(3))
    tie = TIES.index(rule.tie)
    two_rows = rule.value_area == "two-row"
    areas(counts, layout.widths, SHARE * 10000, tie, two_rows, poc, val, vah)
    return Levels(poc + layout.lows, val + layout.lows, vah + layout.lows, poc >= 0, rule)


def by_rule(windows: Mapping[str, Trades]) -> list[dict[str, Any]]:
    """Why does mine differ: POC, VAL and VAH of every session under each rule and window
    (``{"all": ..., "RTH": ...}``).
    """
    rows = []
    for window, trades in windows.items():
        layout = survey(trades)
        counts = profiles(trades, layout)
        for rule in RULES:
            about = {"window": window, "value_area": rule.value_area, "tie": rule.tie}
            rows += [row | about for row in level_rows(trades, levels(counts, layout, rule))]
    return sorted(rows, key=lambda row: (row["session"], row["window"]))


def level_rows(trades: Trades, found: Levels) -> list[dict[str, Any]]:
    """POC, VAL and VAH of every session with volume, in points."""
    rows = zip(trades.labels, found.there, *found.prices(trades.tick), strict=True)
    return [
        {"session": label, "poc": float(poc), "val": float(val), "vah": float(vah)}
        for label, there, poc, val, vah in rows
        if there
    ]


def nodes(row: Array, window: int = 10) -> tuple[list[int], list[int]]:
    """High and low volume nodes of one profile, as positions in its row.

    A high node (HVN) has the most volume within ``window`` ticks on each side and at least a
    tenth of the POC's; of equal neighbours the first counts. A low node (LVN) lies between two
    high ones, one in each gap: the least volume there.
    """
    row = np.asarray(row, np.float64)
    if not row.size or row.max() <= 0:
        return [], []
    padded = np.pad(row, window, constant_values=-1.0)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1)
    peaks = (around.argmax(axis=1) == window) & (row >= 0.1 * row.max())
    high = np.flatnonzero(peaks).tolist()
    gaps = [(a + 1, b) for a, b in zip(high, high[1:], strict=False) if b > a + 1]
    return high, [a + int(np.argmin(row[a:b])) for a, b in gaps]
