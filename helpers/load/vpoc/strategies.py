"""The strategies under study that need no torch: one interface, the same result bit for bit.

``run(name, trades, layout, chunk_trades)`` gives [sessions, bins]. Those that need torch are in helpers/torchside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.trades import Array, Layout, Trades, ticks_of


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
        index[i - a:e - a] += (s - first) * layout.bins - int(layout.lows[s])
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
        out[first:first + len(counts)] += counts.astype(out.dtype)
    return out


def _each_session(trades: Trades, layout: Layout, count: Callable[[Array, Array, int], Array]) -> Array:
    out = np.zeros((trades.sessions, layout.bins), layout.counts)
    for s in range(trades.sessions):
        part = slice(int(trades.starts[s]), int(trades.starts[s + 1]))
        ticks, volume = ticks_of(trades.price[part], trades.tick), trades.volume[part]
        if len(volume):
            out[s] = count(ticks - layout.lows[s], volume.astype(out.dtype, copy=False), layout.bins)
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
    return _each_session(trades, layout, lambda k, v, bins: np.histogram(k, bins, (-0.5, bins - 0.5), weights=v)[0])


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


STRATEGIES: dict[str, Strategy] = {one.name: one for one in (
    Strategy("fused", "one compiled pass, every core; the one to use", False, lambda t, y, c: profiles(t, y)),
    Strategy("fused_one_thread", "the same on one core", False, lambda t, y, c: profiles(t, y, 1)),
    Strategy("session_bincount", "np.bincount, a session at a time", False, _session_bincount),
    Strategy("session_add_at", "np.add.at, a session at a time", False, _session_add_at),
    Strategy("session_histogram", "np.histogram on the tick grid, a session at a time", False, _session_histogram),
    Strategy("flat_bincount", "np.bincount of all sessions at once", False, _flat),
    Strategy("chunks_bincount", "np.bincount by chunks of trades", True, _chunks),
    Strategy("one_hot", "torch: one_hot x volume, summed: the blow-up", True, None),
    Strategy("flat", "torch: all at once, scatter_add_ over one index", False, None),
    Strategy("list_cat", "torch: chunks, results kept in a list and joined", True, None),
    Strategy("preallocated", "torch: chunks into buffers made once", True, None),
    Strategy("arena", "torch: the same buffers cut from one aligned slab", True, None),
    Strategy("cleanup", "torch: list and cat, with gc and empty_cache every few chunks", True, None),
    Strategy("dataloader", "torch: a Dataset that computes each session at its start, read by a DataLoader", False, None),
)}
NUMPY = tuple(name for name, one in STRATEGIES.items() if one.runs)
TORCH = tuple(name for name, one in STRATEGIES.items() if not one.runs)


def run(name: str, trades: Trades, layout: Layout, chunk_trades: int = 1 << 20) -> Array:
    """The profiles by the named strategy. Raises ValueError for a name that is none of NUMPY."""
    if name not in NUMPY:
        raise ValueError(f"strategy {name!r}: expected one of {', '.join(NUMPY)}")
    runs = STRATEGIES[name].runs
    assert runs is not None
    return runs(trades, layout, max(1, chunk_trades))
