"""The ways of counting under study, as one table: each gives the profiles of histogram.py bit for bit, at another price.

``run(name, trades, layout, chunk_trades)`` gives [sessions, bins]. Those that need torch are in helpers/torchside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.load.vpoc.histogram import profiles, stream_mapped, stream_read
from helpers.load.vpoc.trades import Array, Layout, Store, Trades, ticks_of


@dataclass(frozen=True)
class Strategy:
    """``shows`` is one line; ``chunked``: it goes by chunks of trades; ``runs``: None where torch runs it."""

    name: str
    chunked: bool
    runs: Callable[[Trades, Layout, int], Array] | None
    shows: str


def _fused(trades: Trades, layout: Layout, chunk: int) -> Array:
    return profiles(trades, layout)


def _fused_one_thread(trades: Trades, layout: Layout, chunk: int) -> Array:
    return profiles(trades, layout, 1)


def _chunks(trades: Trades, layout: Layout, chunk: int) -> Array:
    """One np.bincount for the whole rows of the sessions in each chunk of trades."""
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for a in range(0, len(trades), chunk):
        part = slice(a, min(len(trades), a + chunk))
        first, last = (
            int(np.searchsorted(trades.starts, at, "right")) for at in (a, part.stop - 1)
        )
        rows, ends = (
            slice(first - 1, last),
            np.clip(trades.starts[first - 1 : last + 1], a, part.stop),
        )
        index = ticks_of(trades.price[part], trades.tick).astype(np.int64)
        for row, low in enumerate(layout.lows[rows].tolist()):
            index[ends[row] - a : ends[row + 1] - a] += row * layout.bins - low
        size = (last - first + 1) * layout.bins
        counts = _bincount(index, trades.volume[part], size, layout)
        out[rows] += counts.reshape(-1, layout.bins).astype(out.dtype)
    return out


def _bincount(index: Array, volume: Array, bins: int, layout: Layout) -> Array:
    """np.bincount, whose weights are float64: beyond 2**53 they are summed in two halves."""
    if layout.counts != "int64":
        return np.bincount(index, volume, bins)
    low, high = (np.bincount(index, half, bins) for half in (volume & 0xFFFFFF, volume >> 24))
    return low.astype(np.int64) + (high.astype(np.int64) << 24)


def _flat(trades: Trades, layout: Layout, chunk: int) -> Array:
    return _chunks(trades, layout, max(1, len(trades)))


def _each_session(
    trades: Trades, layout: Layout, count: Callable[[Array, Array, int], Array]
) -> Array:
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        ticks, volume = trades.session(s)
        if len(volume):
            out[s] = count(
                ticks - layout.lows[s], volume.astype(out.dtype, copy=False), layout.bins
            )
    return out


def _session_bincount(trades: Trades, layout: Layout, chunk: int) -> Array:
    if layout.counts == "int64":
        return _chunks(trades, layout, max(1, int(np.diff(trades.starts).max(initial=1))))
    return _each_session(trades, layout, np.bincount)


def _session_add_at(trades: Trades, layout: Layout, chunk: int) -> Array:
    def count(index: Array, volume: Array, bins: int) -> Array:
        row = np.zeros(bins, volume.dtype)
        np.add.at(row, index, volume)
        return row

    return _each_session(trades, layout, count)


def _session_histogram(trades: Trades, layout: Layout, chunk: int) -> Array:
    def count(index: Array, volume: Array, bins: int) -> Array:
        return np.histogram(index, bins, (-0.5, bins - 0.5), weights=volume)[0]

    if layout.counts == "int64":
        return _session_add_at(trades, layout, chunk)
    return _each_session(trades, layout, count)


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


_ROWS: tuple[tuple[str, bool, Callable[[Trades, Layout, int], Array] | None, str], ...] = (
    ("fused", False, _fused, "one compiled pass, every core; the one to use"),
    ("fused_one_thread", False, _fused_one_thread, "the same on one core"),
    ("session_bincount", False, _session_bincount, "np.bincount, a session at a time"),
    ("session_add_at", False, _session_add_at, "np.add.at, a session at a time"),
    (
        "session_histogram",
        False,
        _session_histogram,
        "np.histogram on the tick grid, a session at a time",
    ),
    ("flat_bincount", False, _flat, "np.bincount of all sessions at once"),
    ("chunks_bincount", True, _chunks, "np.bincount by chunks of trades"),
    ("one_hot", True, None, "torch: one_hot x volume, summed: the blow-up"),
    ("flat", False, None, "torch: all at once, scatter_add_ over one index"),
    ("list_cat", True, None, "torch: chunks, results kept in a list and joined"),
    ("preallocated", True, None, "torch: chunks into buffers made once"),
    ("arena", True, None, "torch: the same buffers cut from one aligned slab"),
    ("cleanup", True, None, "torch: list and cat, with gc and empty_cache every few chunks"),
    (
        "dataloader",
        False,
        None,
        "torch: a Dataset that computes each session at its start, read by a DataLoader",
    ),
)
STRATEGIES = {row[0]: Strategy(*row) for row in _ROWS}
NUMPY = tuple(name for name, one in STRATEGIES.items() if one.runs)
TORCH = tuple(name for name, one in STRATEGIES.items() if not one.runs)
STREAMS: dict[str, Callable[[Store], Array]] = {
    "stream_mapped": stream_mapped,
    "stream_read": stream_read,
}
"""Over files larger than memory; histogram.stream_parquet is the third, for a file that is no store."""


def run(name: str, trades: Trades, layout: Layout, chunk_trades: int = 1 << 20) -> Array:
    """The profiles by the named strategy. Raises ValueError for a name that is none of NUMPY."""
    runs = STRATEGIES[name].runs if name in NUMPY else None
    if runs is None:
        raise ValueError(f"strategy {name!r}: expected one of {', '.join(NUMPY)}")
    return runs(trades, layout, max(1, chunk_trades))
