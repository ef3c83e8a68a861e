"""Where each session's row begins and how wide the table of profiles is: known before a count."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from helpers.vpoc.kernels import extremes
from helpers.vpoc.ticks import INT32_MOST
from helpers.vpoc.trades import Array, Trades, TradesError


@dataclass(frozen=True, eq=False)
class Layout:
    """The lowest tick of each session's row (``lows``) and how many ticks it spans (0: no trades).

    ``bins`` is the width of the result, ``counts`` its type: that of the volume, or int64 where
    a session's volume is beyond int32 (``notes`` say so). ``totals`` are the sessions' volumes.
    """

    lows: Array
    widths: Array
    bins: int
    counts: str
    totals: Array
    notes: tuple[str, ...] = ()


def survey(trades: Trades, bins: int | None = None) -> Layout:
    """The layout of these trades, by one pass over them.

    ``bins`` widens the rows to a fixed width. Raises TradesError where that is less than the
    widest session.
    """
    lows = np.zeros(trades.sessions, np.int64)
    highs = np.full(trades.sessions, -1)
    kind = trades.volume.dtype.name
    totals = np.zeros(trades.sessions, np.float64 if kind == "float64" else np.int64)
    extremes(trades.price, trades.volume, trades.starts, lows, highs, totals)
    widths = highs - lows + 1
    widest = int(widths.max(initial=0))
    if bins is not None and bins < widest:
        seen = f"{bins} bins: the widest session spans {widest} ticks"
        raise TradesError(f"{seen}; give at least that many")
    layout = Layout(
        lows=lows.astype(np.int32),
        widths=widths.astype(np.int32),
        bins=bins or max(1, widest),
        counts=kind,
        totals=totals,
    )
    largest = totals.max(initial=0)
    if kind != "int32" or largest <= INT32_MOST:
        return layout
    why = f"a session's volume is {largest}, which int32 does not count exactly"
    return replace(layout, counts="int64", notes=(f"{why}: profiles are int64",))
