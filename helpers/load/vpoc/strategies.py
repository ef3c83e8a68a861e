"""The ways of counting under study, as one table: each gives the profiles of histogram.py bit for bit, at another price.

``run(name, trades, layout, chunk_trades)`` gives [sessions, bins]. Those that need torch are in helpers/torchside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.trades import Array, Layout, Trades


@dataclass(frozen=True)
class Strategy:
    """A row of strategies.json. ``chunked``: it goes by chunks of trades; ``torch``: run by torch; ``shows`` is one line."""

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
        rows, starts = slice(first, last + 1), np.clip(trades.starts[first : last + 2], a, b)
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
    """A session at a time, by the numpy function that the name ends with. Only add_at counts int64 exactly beyond 2**53."""
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
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
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
