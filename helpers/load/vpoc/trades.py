"""Trades of many sessions, one after the other, and what must be known of them before they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
EXACT_BELOW = {"int32": 2 ** 31, "float32": 2 ** 24, "int64": 2 ** 63, "float64": 2 ** 53}
"""A sum of whole numbers below this is exact and does not depend on the order, in this type."""
WIDER = {"int32": "int64", "float32": "float64"}


class TradesError(ValueError):
    """Trades that cannot be used: one line, seen, expected, what to do."""


@dataclass(frozen=True, eq=False)
class Trades:
    """Trades in memory or mapped from a file. Session i is ``starts[i]:starts[i + 1]``.

    ``price`` is int32 ticks, or float32 or float64 in points with ``tick`` as the grid; ``volume`` is int32, int64, float32 or
    float64. ``labels`` name the sessions; ``notes`` say what was guessed, promoted or mended, one sentence each.
    """

    price: Array
    volume: Array
    starts: Array
    tick: float
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.price)

    @property
    def sessions(self) -> int:
        return len(self.starts) - 1

    @property
    def bytes_a_trade(self) -> int:
        return int(self.price.itemsize + self.volume.itemsize)

    def session(self, index: int) -> tuple[Array, Array]:
        """Ticks and volumes of one session."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return ticks_of(self.price[part], self.tick), self.volume[part]

    def take(self, first: int, last: int) -> Trades:
        """Sessions ``first`` to ``last`` (not included) as views."""
        a, b = int(self.starts[first]), int(self.starts[last])
        return replace(self, price=self.price[a:b], volume=self.volume[a:b], starts=self.starts[first:last + 1] - a,
                       labels=self.labels[first:last])


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each session's row begins (``lows``, in ticks) and how many ticks it spans (0: no trades).

    ``bins`` is the width of the result, ``counts`` its type: that of the volume, or a wider one where a session's volume is
    beyond what it counts exactly (``notes`` say so). ``totals`` are the sessions' volumes.
    """

    lows: Array
    widths: Array
    bins: int
    counts: str
    totals: Array
    notes: tuple[str, ...] = ()

    def take(self, first: int, last: int) -> Layout:
        return replace(self, lows=self.lows[first:last], widths=self.widths[first:last], totals=self.totals[first:last])


def ticks_of(price: Array, tick: float) -> Array:
    """Prices of any kind that Trades has, as int32 ticks."""
    if price.dtype == np.int32:
        return price
    scaled = price.astype(np.float64)
    scaled /= tick
    return np.rint(scaled, out=scaled).astype(np.int32)


def survey(trades: Trades, bins: int | None = None) -> Layout:
    """One pass: lowest and highest tick and volume of each session. ``bins`` widens the result, say to rows of a fixed width.

    Raises TradesError where ``bins`` is less than the widest session or prices are no numbers.
    """
    from helpers.load.vpoc.kernels import extremes

    sessions = trades.sessions
    low, high = np.zeros(sessions), np.full(sessions, -1.0)
    totals = np.zeros(sessions, np.int64 if trades.volume.dtype.kind == "i" else np.float64)
    extremes(trades.price, trades.volume, trades.starts, low, high, totals)
    if trades.price.dtype != np.int32:
        some = np.diff(trades.starts) > 0
        low[some], high[some] = np.rint(low[some] / trades.tick), np.rint(high[some] / trades.tick)
    widths = high - low + 1
    if not (np.isfinite(widths).all() and (np.abs(low) < 2 ** 31).all() and (widths <= 2 ** 31).all()):
        raise TradesError("prices that are no numbers, or beyond 32-bit numbers of ticks: read the file with read_trades, "
                          "which sets such rows aside")
    widest = int(widths.max(initial=0))
    if bins is not None and bins < widest:
        raise TradesError(f"{bins} bins: the widest session spans {widest} ticks; give at least that many")
    counts, notes = counts_type(str(trades.volume.dtype), float(totals.max(initial=0)))
    return Layout(low.astype(np.int32), widths.astype(np.int32), max(1, bins or widest), counts, totals, notes)


def counts_type(volume: str, largest_total: float) -> tuple[str, tuple[str, ...]]:
    """The type that a profile is counted in, and a sentence where it is wider than the volume's."""
    if largest_total < EXACT_BELOW[volume] or volume not in WIDER:
        return volume, ()
    return WIDER[volume], (f"a session's volume is {largest_total:.0f}, which {volume} does not count exactly: "
                           f"profiles are {WIDER[volume]}",)


def from_sessions(sessions: Sequence[tuple[Array, Array]], tick: float, labels: Sequence[str] = ()) -> Trades:
    """Trades from one (price, volume) pair of arrays a session."""
    starts = np.concatenate([[0], np.cumsum([len(price) for price, _ in sessions], dtype=np.int64)]).astype(np.int64)
    empty = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    price, volume = (np.concatenate([pair[i] for pair in sessions or empty]) for i in (0, 1))
    return Trades(price, volume, starts, tick, tuple(labels) or tuple(map(str, range(len(sessions)))))
