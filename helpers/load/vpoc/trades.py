"""Trades of many sessions: prices as whole numbers of ticks, what must be known before a count, and plain files of them.

``rint(price / tick)`` is right for every tick here; ``floor`` puts 10 % of CL, 35 % of GC and 31 % of 6E prices one tick too
low, because 0.01, 0.10 and 0.00005 are no binary fractions (measured on 100,000 consecutive prices each; ES and ZN: none).
A store's files are raw numbers that any program reads without a library, maps, or reads piece by piece, so that they may be
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


@dataclass(frozen=True)
class Grid:
    """How prices lie on a grid: ``off`` of them do not, ``examples`` are the first few of those."""

    tick: float
    prices: int
    off: int
    examples: tuple[float, ...]

    def note(self) -> str:
        """One sentence where prices are off the grid, else empty."""
        if not self.off:
            return ""
        shown = ", ".join(f"{price:g}" for price in self.examples)
        return f"{self.off} of {self.prices} prices are off the {self.tick:g} grid ({shown}): each counts at its nearest tick"


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
    """Prices as int32 numbers of ticks, the nearest where a price is off the grid. Raises TickError beyond int32."""
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


def _floats(prices: Any) -> Array:
    given = np.asarray(prices)
    return given if given.dtype == np.float32 else given.astype(np.float64)


def _off(prices: Array, tick: float) -> Array:
    # A price as stored is off by at most half a unit in its last place: far less than this for float64, 6E as float32 included.
    scaled = prices.astype(np.float64) / tick
    slack = np.maximum(1e-4, 2 * float(np.finfo(prices.dtype).eps) * np.abs(scaled))
    return np.abs(scaled - np.rint(scaled)) > slack


def grid(prices: Any, tick: float) -> Grid:
    """How ``prices`` (float32 or float64, all finite) lie on the grid of ``tick``."""
    prices = _floats(prices)
    off = _off(prices, tick)
    examples = tuple(dict.fromkeys(prices[off][:1000].tolist()))[:3]
    return Grid(tick, prices.size, int(off.sum()), examples)


def guess_tick(prices: Any) -> float | None:
    """The largest usual tick that 99.9 % of the different prices lie on; None where too few say so."""
    prices = np.unique(_floats(prices))
    if prices.size < LEAST_PRICES:
        return None
    return next((tick for tick in _CANDIDATES if _off(prices, tick).mean() <= 0.001), None)


def wrong_tick(prices: Any, tick: float) -> str:
    """One sentence where the data say another tick than ``tick``, else empty: profiles and memory both go wrong with it."""
    found = guess_tick(prices)
    if found is None or abs(found - tick) < 1e-9 * tick:
        return ""
    if found > tick:
        return (
            f"tick {tick:g} looks wrong: the prices lie on a grid of {found:g}, so that {found / tick:.0f} x as many rows "
            "are made, most of them empty, and memory grows alike"
        )
    return f"tick {tick:g} looks wrong: the prices lie on a grid of {found:g}: {tick / found:.0f} prices share one row"


EXACT_BELOW = {"int32": 2**31, "float32": 2**24, "int64": 2**63, "float64": 2**53}
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

    def session(self, index: int) -> tuple[Array, Array]:
        """Ticks and volumes of one session."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return ticks_of(self.price[part], self.tick), self.volume[part]

    def take(self, first: int, last: int) -> Trades:
        """Sessions ``first`` to ``last`` (not included) as views."""
        part = slice(int(self.starts[first]), int(self.starts[last]))
        starts, labels = self.starts[first : last + 1] - part.start, self.labels[first:last]
        return Trades(self.price[part], self.volume[part], starts, self.tick, labels, self.notes)

    def in_memory(self, trades: int | None = None) -> Trades:
        """Copies of the first so many trades, or of all, whatever file they are mapped from."""
        price, volume = np.array(self.price[:trades]), np.array(self.volume[:trades])
        return replace(self, price=price, volume=volume, starts=np.minimum(self.starts, len(price)))


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
        """The rows of sessions ``first`` to ``last`` (not included), as wide as all."""
        rows = slice(first, last)
        lows, widths, totals = self.lows[rows], self.widths[rows], self.totals[rows]
        return replace(self, lows=lows, widths=widths, totals=totals)


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
    totals = np.zeros(sessions, total_type(trades.volume))
    extremes(trades.price, trades.volume, trades.starts, low, high, totals)
    if trades.price.dtype != np.int32:
        some = np.diff(trades.starts) > 0
        low[some], high[some] = np.rint(low[some] / trades.tick), np.rint(high[some] / trades.tick)
    widths = high - low + 1
    if not (np.isfinite(widths).all() and (np.abs(low) < 2**31).all() and (widths <= 2**31).all()):
        raise TradesError(
            "prices that are no numbers, or beyond 32-bit numbers of ticks: read the file with read_trades, "
            "which sets such rows aside"
        )
    widest = int(widths.max(initial=0))
    if bins is not None and bins < widest:
        raise TradesError(
            f"{bins} bins: the widest session spans {widest} ticks; give at least that many"
        )
    counts, notes = counts_type(str(trades.volume.dtype), float(totals.max(initial=0)))
    rows = low.astype(np.int32), widths.astype(np.int32)
    return Layout(*rows, max(1, bins or widest), counts, totals, notes)


def total_type(volume: Array) -> Any:
    """The type that sums of volumes are kept in: int64, or float64 where they may have fractions."""
    return np.int64 if volume.dtype.kind in "iu" else np.float64


def counts_type(volume: str, largest_total: float) -> tuple[str, tuple[str, ...]]:
    """The type that a profile is counted in, and a sentence where it is wider than the volume's."""
    if largest_total < EXACT_BELOW[volume] or volume not in WIDER:
        return volume, ()
    return WIDER[volume], (
        f"a session's volume is {largest_total:.0f}, which {volume} does not count exactly: "
        f"profiles are {WIDER[volume]}",
    )


def from_sessions(
    sessions: Sequence[tuple[Array, Array]], tick: float, labels: Sequence[str] = ()
) -> Trades:
    """Trades from one (price, volume) pair of arrays a session."""
    starts = np.cumsum([0, *(len(price) for price, _ in sessions)], dtype=np.int64)
    empty = [(np.zeros(0, np.int32), np.zeros(0, np.int32))]
    price, volume = (np.concatenate([pair[i] for pair in sessions or empty]) for i in (0, 1))
    names = tuple(labels) or tuple(map(str, range(len(sessions))))
    return Trades(price, volume, starts, tick, names)


NUMBERS = {"starts": np.int64, "lows": np.int32, "widths": np.int32}
"""Files of a store beside price and volume, and the type of their numbers."""


@dataclass(frozen=True)
class Store:
    """Where the files are; ``trades`` maps them, ``layout`` is that of all sessions."""

    folder: Path
    trades: Trades
    layout: Layout


def write_store(folder: Path, parts: Iterable[Trades], bins: int | None = None) -> Store:
    """Write trades part by part, each of whole sessions, so that all of them need never be in memory. Returns the open store.

    Raises TradesError for parts of different types or ticks, FileExistsError where the folder already has trades.
    """
    folder.mkdir(parents=True, exist_ok=True)
    starts, layouts = [np.zeros(1, np.int64)], []
    labels: list[str] = []
    notes: dict[str, None] = {}
    kind: tuple[str, str, float] | None = None
    with (folder / "price.bin").open("xb") as price, (folder / "volume.bin").open("xb") as volume:
        for part in parts:
            now = (str(part.price.dtype), str(part.volume.dtype), part.tick)
            if kind not in (None, now):
                both = f"parts of {kind} and of {now}"
                raise TradesError(f"{both}: expected one type and tick for all")
            kind = now
            layouts.append(survey(part))
            np.ascontiguousarray(part.price).tofile(price)
            np.ascontiguousarray(part.volume).tofile(volume)
            starts.append(part.starts[1:] + starts[-1][-1])
            labels += part.labels
            notes |= dict.fromkeys(part.notes)
    if kind is None:
        raise TradesError("no trades were given: expected at least one part")
    columns = {name: [getattr(one, name) for one in layouts] for name in ("lows", "widths")}
    for name, values in {"starts": starts, **columns}.items():
        np.concatenate(values).astype(NUMBERS[name]).tofile(folder / f"{name}.bin")
    totals = np.concatenate([one.totals for one in layouts])
    counts, wider = counts_type(kind[1], float(totals.max(initial=0)))
    about = dict(zip(("price", "volume", "tick"), kind, strict=True)) | {
        "counts": counts,
        "labels": labels,
        "bins": max(bins or 1, *(one.bins for one in layouts)),
        "totals": totals.tolist(),
        "notes": list(notes),
        "wider": list(wider),
    }
    (folder / "layout.json").write_text(json.dumps(about))
    return open_store(folder)


def open_store(folder: Path) -> Store:
    """The store in a folder, its files mapped. Raises TradesError where a file is missing or cut short."""
    try:
        about = json.loads((folder / "layout.json").read_text())
        numbers = {
            name: np.fromfile(folder / f"{name}.bin", kind) for name, kind in NUMBERS.items()
        }
    except (OSError, ValueError) as error:
        why = f"no store of trades ({error}): write it with write_store"
        raise TradesError(f"{folder}: {why}") from None
    starts, lows, widths = numbers.values()
    arrays: list[Array] = []
    for name in ("price", "volume"):
        path, kind = folder / f"{name}.bin", np.dtype(about[name])
        have, need = path.stat().st_size, int(starts[-1]) * kind.itemsize
        if have != need:
            raise TradesError(
                f"{path}: {have} bytes, expected {need} for {int(starts[-1])} trades: the file was cut "
                "short or is another one; write it again"
            )
        arrays.append(np.memmap(path, kind, "r") if need else np.zeros(0, kind))
    labels, notes, wider = (tuple(about[name]) for name in ("labels", "notes", "wider"))
    trades = Trades(arrays[0], arrays[1], starts, about["tick"], labels, notes)
    totals = np.array(about["totals"], total_type(trades.volume))
    return Store(
        folder, trades, Layout(lows, widths, about["bins"], about["counts"], totals, wider)
    )
