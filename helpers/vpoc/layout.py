"""The layout of the table of profiles: where each session's row begins, and how wide
the table is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from helpers.vpoc.kernels import extremes
from helpers.vpoc.ticks import INT32_MOST
from helpers.vpoc.trades import Array, Trades, TradesError


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of a table of profiles, with a row for each session and a column for each tick.

    ``lows``: the lowest tick of each row. ``widths``: how many ticks a session spans (0: no
    trades). ``bins``: the width of the table. ``counts``: its type, that of the volume, or int64
    where a session's volume does not fit int32 (``notes`` say so). ``totals``: the volume of each
    session.
    """

    lows: Array
    widths: Array
    bins: int
    counts: str
    totals: Array
    notes: tuple[str, ...] = ()


def survey(trades: Trades, bins: int | None = None) -> Layout:
    """The layout of these trades, by one pass over them.

    ``bins``: the width of the table, by default that of the widest session. Raises TradesError
    where it is less.
    """
    # A session without trades keeps these, which make its width 0.
    lows = np.zeros(trades.sessions, np.int64)
    highs = np.full(trades.sessions, -1)
    kind = trades.volume.dtype.name
    totals = np.zeros(trades.sessions, np.int64)
    if kind == "float64":
        totals = np.zeros(trades.sessions, np.float64)
    extremes(trades.price, trades.volume, trades.starts, lows, highs, totals)
    widths = highs - lows + 1
    widest = int(widths.max(initial=0))
    if bins is not None and bins < widest:
        seen = f"{bins} bins: the widest session spans {widest} ticks"
        raise TradesError(f"{seen}; give at least that many")
    if bins is None:
        bins = max(1, widest)
    layout = Layout(
        lows=lows.astype(np.int32),
        widths=widths.astype(np.int32),
        bins=bins,
        counts=kind,
        totals=totals,
    )
    largest = totals.max(initial=0)
    if kind != "int32" or largest <= INT32_MOST:
        return layout
    why = f"a session's volume is {largest}, which int32 does not count exactly"
    return replace(layout, counts="int64", notes=(f"{why}: profiles are int64",))
