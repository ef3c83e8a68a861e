"""Prices as whole numbers of ticks, and whether a tick size is the one that the prices have.

``rint(price / tick)`` is right for every tick here; ``floor`` puts 10 % of CL, 35 % of GC and
31 % of 6E prices one tick too low, because 0.01, 0.10 and 0.00005 are no binary fractions
(measured on 100,000 consecutive prices each; ES and ZN: none).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from helpers.vpoc.trades import Array, TradesError

TICKS = {"ES": 0.25, "NQ": 0.25, "CL": 0.01, "GC": 0.10, "6E": 0.00005, "ZN": 1 / 64}
"""Outright tick sizes in price units (contract specifications of CME Group)."""
# 1, 2.5 and 5 times each power of ten from 100 to a millionth, rounded to shed the binary error.
DECIMAL_TICKS = [
    round(digit * 10.0**-e, e + 2) for e in range(-2, 7) for digit in (1, 2.5, 5)
]
BINARY_TICKS = [2.0**-e for e in range(9)]
"""1 to 1/256, as bonds are quoted."""
USUAL_TICKS = sorted({*DECIMAL_TICKS, *BINARY_TICKS}, reverse=True)
LEAST_PRICES = 8
"""Fewer different prices say too little about the grid."""
MOST_OFF_GRID = 0.001
"""The share of prices off the grid in data of a vendor: bad prints, and averages of spreads."""
OFF_BY_TICKS = 1e-4
"""A price is off the grid by more than this share of a tick; less is the error of a
stored number.
"""
MOST_LISTED = 3
INT32_MOST = 2**31 - 1


def tick_size(tick: float | str) -> float:
    """A tick as a number, or that of a product such as "ES". Raises TradesError."""
    if isinstance(tick, str) and tick.upper() in TICKS:
        return TICKS[tick.upper()]
    try:
        size = float(tick)
    except ValueError:
        size = 0.0
    if size <= 0 or not np.isfinite(size):
        raise TradesError(
            f"tick {tick!r}: expected a number above 0 or one of {', '.join(TICKS)}"
        )
    return size


def to_ticks(prices: ArrayLike, tick: float) -> Array:
    """Prices as int32 numbers of ticks, the nearest where a price is off the grid.

    Raises TradesError beyond int32.
    """
    scaled = np.rint(np.asarray(prices, np.float64) / tick)
    largest = float(np.abs(scaled).max(initial=0))  # nan where a price is none
    if not largest <= INT32_MOST:
        raise TradesError(
            f"prices in ticks of {tick:g} are beyond 32-bit numbers, or no numbers: "
            "give the right tick size, and leave out prices that are no numbers"
        )
    return scaled.astype(np.int32)


def to_price(ticks: ArrayLike, tick: float) -> Array:
    """Ticks as prices, rounded to ten decimals, since 0.01 times a number has a binary error."""
    return np.round(np.asarray(ticks, np.float64) * tick, 10)


def _is_off(prices: Array, tick: float) -> Array:
    """Which prices are off the grid of ``tick``, as an array of truth values."""
    scaled = prices / tick
    return np.abs(scaled - np.rint(scaled)) > OFF_BY_TICKS


def off_grid(prices: Array, tick: float) -> str:
    """A sentence about prices off the grid of ``tick``, with the first of them; empty if there are
    none.
    """
    off = _is_off(prices, tick)
    if not off.any():
        return ""
    # Among the first thousand, to bound the time.
    different = list(dict.fromkeys(prices[off][:1000].tolist()))
    shown = ", ".join(f"{price:g}" for price in different[:MOST_LISTED])
    count = (
        f"{int(off.sum())} of {prices.size} prices are off the {tick:g} grid ({shown})"
    )
    return f"{count}: each counts at its nearest tick"


def guess_tick(prices: Array) -> float | None:
    """The largest usual tick on whose grid the different prices are, up to MOST_OFF_GRID of them.

    None for fewer than LEAST_PRICES, and where no usual tick fits.
    """
    prices = np.unique(prices)
    if prices.size < LEAST_PRICES:
        return None
    for tick in USUAL_TICKS:
        if _is_off(prices, tick).mean() <= MOST_OFF_GRID:
            return tick
    return None


def wrong_tick(prices: Array, tick: float) -> str:
    """A sentence if the prices are on the grid of another tick than ``tick``; else empty.

    A wrong tick makes profiles wrong, and may take much memory.
    """
    guess = guess_tick(prices)
    if guess is None or math.isclose(guess, tick):
        return ""
    head = f"tick {tick:g} looks wrong: the prices lie on a grid of {guess:g}"
    if guess > tick:
        rows = f"{guess / tick:.0f} x as many rows are made, most of them empty"
        return f"{head}, so that {rows}, and memory grows alike"
    return f"{head}: {tick / guess:.0f} prices share one row"
