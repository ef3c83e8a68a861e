"""Trades of many sessions: prices as whole numbers of ticks, what must be known before a count,
and plain files of them.

``rint(price / tick)`` is right for every tick here; ``floor`` puts 10 % of CL, 35 % of GC and
31 % of 6E prices one tick too low, because 0.01, 0.10 and 0.00005 are no binary fractions
(measured on 100,000 consecutive prices each; ES and ZN: none). A store's files are raw numbers
that any program reads without a library, maps, or reads piece by piece, so that they may be
larger than memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TICKS = {"ES": 0.25, "NQ": 0.25, "CL": 0.01, "GC": 0.10, "6E": 0.00005, "ZN": 1 / 64}
"""Outright tick sizes in price units (contract specifications of CME Group)."""
_CANDIDATES = sorted(
    {round(m * 10.0**-e, e + 2) for m in (1, 2.5, 5) for e in range(-2, 7)}
    | {2.0**-e for e in range(9)},
    reverse=True,
)
LEAST_PRICES = 8
"""Fewer different prices say too little about the grid."""
INT32_MOST = 2**31 - 1


class TickError(ValueError):
    """A tick size or a price that cannot be used; one line that says what to do."""


def tick_size(tick: float | str) -> float:
    """A tick as a number, or that of a product such as "ES". Raises TickError."""
    if isinstance(tick, str) and tick.upper() in TICKS:
        return TICKS[tick.upper()]
    try:
        size = float(tick)
    except ValueError:
        size = 0.0
    if not (size > 0 and np.isfinite(size)):
        raise TickError(f"tick {tick!r}: expected a number above 0 or one of {', '.join(TICKS)}")
    return size


def to_ticks(prices: Any, tick: float) -> Array:
    """Prices as int32 numbers of ticks, the nearest where a price is off the grid.

    Raises TickError beyond int32.
    """
    scaled = np.rint(np.asarray(prices, np.float64) / tick)
    if scaled.size and not float(np.abs(scaled).max()) <= INT32_MOST:
        raise TickError(
            f"prices in ticks of {tick:g} are beyond 32-bit numbers, or no numbers: give the right tick size, and "
            "set aside prices that are no numbers"
        )
    return scaled.astype(np.int32)


def to_price(ticks: Any, tick: float) -> Any:
    """Ticks as prices, without the last binary digits of 0.01 times a number."""
    return np.round(np.asarray(ticks, np.float64) * tick, 10)


def _off(prices: Array, tick: float) -> Array:
    """Which prices lie off the grid by more than what a price as stored may be off."""
    scaled = prices / tick
    return np.abs(scaled - np.rint(scaled)) > 1e-4


def off_grid(prices: Array, tick: float) -> str:
    """One sentence where prices are off the grid of ``tick``, with the first few of them, else
    empty.
    """
    off = _off(prices, tick)
    if not off.any():
        return ""
    shown = ", ".join(f"{p:g}" for p in list(dict.fromkeys(prices[off][:1000].tolist()))[:3])
    many = f"{int(off.sum())} of {prices.size} prices are off the {tick:g} grid ({shown})"
    return f"{many}: each counts at its nearest tick"


def guess_tick(prices: Array) -> float | None:
    """The largest usual tick that 99.9 % of the different prices lie on; None where too few say
    so.
    """
    prices = np.unique(prices)
    if prices.size < LEAST_PRICES:
        return None
    return next((tick for tick in _CANDIDATES if _off(prices, tick).mean() <= 0.001), None)


def wrong_tick(prices: Array, tick: float) -> str:
    """One sentence where the data say another tick than ``tick``, else empty: profiles and
    memory both go wrong with it.
    """
    found = guess_tick(prices)
    if found is None or abs(found - tick) < 1e-9 * tick:
        return ""
    if found > tick:
        return (
            f"tick {tick:g} looks wrong: the prices lie on a grid of {found:g}, so that {found / tick:.0f} x as many rows "
            "are made, most of them empty, and memory grows alike"
        )
    return f"tick {tick:g} looks wrong: the prices lie on a grid of {found:g}: {tick / found:.0f} prices share one row"


class TradesError(ValueError):
    """Trades that cannot be used: one line, seen, expected, what to do."""


@dataclass(frozen=True, eq=False)
class Trades:
    """Trades in memory or mapped from a file. Session i is ``starts[i]:starts[i + 1]``.

    ``price`` is int32 ticks of ``tick``; ``volume`` is int32, int64 or (with fractions)
    float64. ``labels`` name the sessions; ``notes`` say what was guessed, promoted or mended,
    one sentence each.
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

    def session(self, index: int) -> tuple[Array, Array]:
        """Ticks and volumes of one session."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self.price[part], self.volume[part]

    def take(self, first: int, last: int) -> Trades:
        """Sessions ``first`` to ``last`` (not included) as views."""
        part = slice(int(self.starts[first]), int(self.starts[last]))
        starts = self.starts[first : last + 1] - part.start
        labels = self.labels[first:last]
        return Trades(self.price[part], self.volume[part], starts, self.tick, labels, self.notes)

    def in_memory(self, trades: int | None = None) -> Trades:
        """Copies of the first so many trades, or of all, whatever file they are mapped from."""
        price = np.array(self.price[:trades])
        volume = np.array(self.volume[:trades])
        return replace(self, price=price, volume=volume, starts=np.minimum(self.starts, len(price)))


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each session's row begins (``lows``, in ticks) and how many ticks it spans (0: no
    trades).

    ``bins`` is the width of the result, ``counts`` its type: that of the volume, or int64 where
    a session's volume is beyond int32 (``notes`` say so). ``totals`` are the sessions' volumes.
    """

    lows: Array
    widths: Array
    bins: int
    counts: str
    totals: Array
    notes: tuple[str, ...] = ()

    def take(self, first: int, last: int) -> Layout:
        """The rows of sessions ``first`` to ``last`` (not included), as wide as all."""
        rows = slice(first, last)
        lows = self.lows[rows]
        widths = self.widths[rows]
        totals = self.totals[rows]
        return replace(self, lows=lows, widths=widths, totals=totals)


def survey(trades: Trades, bins: int | None = None) -> Layout:
    """One pass: lowest and highest tick and volume of each session.

    ``bins`` widens the result, say to rows of a fixed width.

    Raises TradesError where ``bins`` is less than the widest session.
    """
    from helpers.vpoc.kernels import extremes

    low = np.zeros(trades.sessions, np.int64)
    high = np.full(trades.sessions, -1)
    totals = np.zeros(trades.sessions, total_type(trades.volume))
    extremes(trades.price, trades.volume, trades.starts, low, high, totals)
    return layout_of(low, high - low + 1, totals, trades.volume.dtype.name, bins)


def layout_of(lows: Array, widths: Array, totals: Array, volume: str, bins: int | None) -> Layout:
    """The layout of rows with these lowest ticks, widths and sums, of volumes of that type.

    Raises TradesError as ``survey``.
    """
    widest = int(widths.max(initial=0))
    largest = totals.max(initial=0)
    if bins is not None and bins < widest:
        seen = f"{bins} bins: the widest session spans {widest} ticks"
        raise TradesError(f"{seen}; give at least that many")
    rows = lows.astype(np.int32), widths.astype(np.int32), max(1, bins or widest)
    if volume == "int32" and largest > INT32_MOST:
        exact = f"a session's volume is {largest}, which int32 does not count exactly"
        return Layout(*rows, "int64", totals, (f"{exact}: profiles are int64",))
    return Layout(*rows, volume, totals)


def total_type(volume: Array) -> Any:
    """The type that sums of volumes are kept in: int64, or float64 where they may have fractions."""
    return np.int64 if volume.dtype.kind in "iu" else np.float64


def from_sessions(
    sessions: Sequence[tuple[Array, Array]], tick: float, labels: Sequence[str] = ()
) -> Trades:
    """Trades from one (price, volume) pair of arrays a session."""
    starts = np.cumsum([0, *(len(price) for price, _ in sessions)], dtype=np.int64)
    empty = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    price, volume = (np.concatenate([pair[i] for pair in sessions or empty]) for i in (0, 1))
    names = tuple(labels) or tuple(map(str, range(len(sessions))))
    return Trades(price, volume, starts, tick, names)


@dataclass(frozen=True)
class Store:
    """Where the files are; ``trades`` maps them, ``layout`` is that of all sessions."""

    folder: Path
    trades: Trades
    layout: Layout


def write_store(folder: Path, parts: Iterable[Trades], bins: int | None = None) -> Store:
    """Write trades part by part, each of whole sessions, so that all of them need never be in
    memory. Returns the open store.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts = [np.zeros(1, np.int64)]
    layouts = []
    labels = list[str]()
    notes = dict[str, None]()
    with (folder / "price.bin").open("xb") as price, (folder / "volume.bin").open("xb") as volume:
        for part in parts:
            layouts.append(survey(part))
            part.price.tofile(price)
            part.volume.tofile(volume)
            starts.append(part.starts[1:] + starts[-1][-1])
            labels += part.labels
            notes |= dict.fromkeys(part.notes)
    lows, widths, totals = (
        np.concatenate([getattr(one, name) for one in layouts])
        for name in ("lows", "widths", "totals")
    )
    least = max(bins or 1, *(one.bins for one in layouts))
    kind = part.volume.dtype.name
    layout = layout_of(lows, widths, totals, kind, least)
    numbers = {"starts": np.concatenate(starts), "lows": layout.lows, "widths": layout.widths}
    for name, values in numbers.items():
        values.tofile(folder / f"{name}.bin")
    about: dict[str, Any] = {"price": "int32", "volume": kind, "tick": part.tick}
    about |= {"counts": layout.counts, "bins": layout.bins, "totals": totals.tolist()}
    about |= {"labels": labels, "notes": list(notes), "wider": list(layout.notes)}
    (folder / "layout.json").write_text(json.dumps(about))
    return open_store(folder)


def open_store(folder: Path) -> Store:
    """The store that ``write_store`` wrote, its prices and volumes mapped."""
    about = json.loads((folder / "layout.json").read_text())
    starts = np.fromfile(folder / "starts.bin", np.int64)
    lows, widths = (np.fromfile(folder / f"{name}.bin", np.int32) for name in ("lows", "widths"))
    price, volume = (
        np.memmap(folder / f"{name}.bin", about[name], "r")
        if starts[-1]
        else np.zeros(0, about[name])
        for name in ("price", "volume")
    )
    labels, notes, wider = (tuple(about[name]) for name in ("labels", "notes", "wider"))
    trades = Trades(price, volume, starts, about["tick"], labels, notes)
    totals = np.array(about["totals"], total_type(volume))
    layout = Layout(lows, widths, about["bins"], about["counts"], totals, wider)
    return Store(folder, trades, layout)
