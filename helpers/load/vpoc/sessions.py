"""Which session does a trade belong to? Sessions from a column, or cut at a stated time in a stated zone; windows such as RTH.

The trade date of a CME session starts at 17:00 Chicago time of the evening before. RTH has two definitions in use, 08:30-15:00
(cash) and 08:30-15:15: say which. There is no table of holidays: a short session is a session.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from helpers.load.vpoc.trades import Array, Trades, TradesError

ZONE, CUT = "America/Chicago", "17:00"
WINDOWS = {"RTH 15:00": ("08:30", "15:00"), "RTH 15:15": ("08:30", "15:15")}
_NS = 1_000_000_000
_QUARTER = 900 * _NS
"""Zones change their offset on a quarter of an hour."""


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name. Raises TradesError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TradesError(f"time zone {name!r} is not known here: give a name such as America/Chicago or UTC") from None


def _clock(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise TradesError(f"time of day {text!r}: expected HH:MM, such as 17:00") from None


def _by_quarter(times_ns: Array, offset_s: Any) -> Array:
    quarters, place = np.unique(times_ns // _QUARTER, return_inverse=True)
    return np.array([offset_s(int(q) * 900) for q in quarters], np.int64)[place] * _NS


def local_to_utc(times_ns: Array, zone: str) -> tuple[Array, int]:
    """Wall-clock times (ns since 1970 as the clock shows) as UTC, and how many stand in the hour that a clock shows twice.

    Of the two the earlier is taken; a time that the clock skipped in spring is read with the offset before.
    """
    tz, twice = zone_of(zone), set()

    def offset(seconds: int) -> int:
        wall = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        first, second = (wall.replace(tzinfo=tz, fold=fold).utcoffset() for fold in (0, 1))
        assert first is not None and second is not None
        if first > second:
            twice.add(seconds // 900)
        return int(first.total_seconds())

    utc = times_ns - _by_quarter(times_ns, offset)
    return utc, int(np.isin(times_ns // _QUARTER, list(twice)).sum())


def utc_to_local(times_ns: Array, zone: str) -> Array:
    """UTC as the wall clock of a zone shows it, both in ns since 1970."""
    tz = zone_of(zone)

    def offset(seconds: int) -> int:
        shift = (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds)).astimezone(tz).utcoffset()
        assert shift is not None
        return int(shift.total_seconds())

    return times_ns + _by_quarter(times_ns, offset)


def trade_dates(times_ns: Array, zone: str = ZONE, cut: str = CUT) -> Array:
    """The trade date of each UTC time, in days since 1970: the next day's from ``cut`` on; cut at 00:00, the day's own."""
    local = utc_to_local(times_ns, zone)
    at = _clock(cut)
    shift = (86400 - (at.hour * 3600 + at.minute * 60 + at.second)) % 86400
    return (local + shift * _NS) // (86400 * _NS)


def in_window(times_ns: Array, window: tuple[str, str], zone: str = ZONE) -> Array:
    """Whether each UTC time lies in the window of local times, its end not included; a window may span midnight."""
    begin, end = ((c.hour * 3600 + c.minute * 60 + c.second) * _NS for c in map(_clock, window))
    of_day = utc_to_local(times_ns, zone) % (86400 * _NS)
    return (of_day >= begin) & (of_day < end) if begin <= end else (of_day >= begin) | (of_day < end)


def group(price: Array, volume: Array, keys: Array, tick: float, notes: tuple[str, ...] = ()) -> Trades:
    """Trades by session. ``keys`` that are text stand in the order in which they first come, numbers in their own.

    Trades that do not come session by session are sorted by it, their order within a session kept, and a note says so.
    """
    names, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.arange(len(names)) if names.dtype.kind in "iu" else np.argsort(np.argsort(first))
    rank = order[place]
    if len(rank) and (np.diff(rank) < 0).any():
        back = int((np.diff(rank) < 0).sum())
        notes += (f"the trades go back to an earlier session {back} times: sorted by session",)
        by = np.argsort(rank, kind="stable")
        price, volume, rank = price[by], volume[by], rank[by]
    labels = np.empty(len(names), object)
    labels[order] = names.astype(str)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rank, minlength=len(names)))]).astype(np.int64)
    return Trades(price, volume, starts, tick, tuple(map(str, labels)), notes)


def by_date(price: Array, volume: Array, times_ns: Array, tick: float, zone: str = ZONE, cut: str = CUT,
            notes: tuple[str, ...] = ()) -> Trades:
    """Trades by trade date, labelled YYYY-MM-DD; times out of order are sorted, and a note counts them."""
    late = int((np.diff(times_ns) < 0).sum()) if len(times_ns) else 0
    if late:
        notes += (f"{late} trades are earlier than the one before them: sorted by time",)
        by = np.argsort(times_ns, kind="stable")
        price, volume, times_ns = price[by], volume[by], times_ns[by]
    trades = group(price, volume, trade_dates(times_ns, zone, cut), tick, notes)
    return replace(trades, labels=tuple(str(date(1970, 1, 1) + timedelta(days=int(label))) for label in trades.labels))
