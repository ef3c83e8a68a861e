"""Trades by session: by a column's keys, or by CME trade date in Chicago.

The trade date of a CME session starts at 17:00 Chicago time of the evening before. RTH has two
definitions in use, 08:30-15:00 (cash) and 08:30-15:15: say which. There is no table of
holidays: a short session is a session.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import Any

import numpy as np

from helpers.vpoc.trades import Array, Trades, TradesError

CHICAGO = "America/Chicago"
CUT = "17:00"
DAY_NS = 86400 * 10**9


def clock_ns(text: str) -> int:
    """A time of day such as 17:00, in ns since midnight. Raises TradesError."""
    try:
        clock = time.fromisoformat(text)
    except ValueError:
        raise TradesError(f"time of day {text!r}: expected HH:MM, such as 17:00") from None
    return (clock.hour * 3600 + clock.minute * 60 + clock.second) * 10**9


def with_zone(times: Any, zone: str, notes: list[str]) -> Any:
    """Wall-clock times (a pyarrow column) as UTC. Of two times in the hour that a clock shows
    twice the earlier is taken, and a note counts them.

    Raises TradesError for a zone that is not known.
    """
    import pyarrow as pa
    from pyarrow import compute

    try:
        earlier, later = (
            compute.assume_timezone(times, zone, ambiguous=which, nonexistent=which)
            for which in ("earliest", "latest")
        )
    except pa.ArrowInvalid:
        why = "is not known here: give a name such as America/Chicago or UTC"
        raise TradesError(f"time zone {zone!r} {why}") from None
    twice = compute.sum(compute.not_equal(earlier, later)).as_py()
    if twice:
        hour = "times stand in the hour that the clock shows twice: the earlier is taken"
        notes.append(f"{twice} {hour}")
    return earlier


def chicago_ns(times: Any) -> Array:
    """Times with a zone (a pyarrow column) as the wall clock of Chicago shows them, in ns."""
    import pyarrow as pa
    from pyarrow import compute

    wall = compute.local_timestamp(times.cast(pa.timestamp("ns", CHICAGO)))
    return np.asarray(wall.cast(pa.int64()))


def in_window(wall_ns: Array, window: tuple[str, str]) -> Array:
    """Whether each wall-clock time lies in the window, its end not included; a window may span
    midnight.
    """
    begin, end = map(clock_ns, window)
    of_day = wall_ns % DAY_NS
    after = of_day >= begin
    before = of_day < end
    return after & before if begin <= end else after | before


def trade_dates(wall_ns: Array, cut: str = CUT) -> Array:
    """The trade date of each time in Chicago, in days since 1970: from ``cut`` on the next day's."""
    return (wall_ns + -clock_ns(cut) % DAY_NS) // DAY_NS


def group(trades: Trades, keys: Array) -> Trades:
    """The trades of one row of sessions as those of each key.

    Keys that are text stand in the order in which they first come, numbers in their own. Trades
    that do not come session by session are sorted by it, their order within a session kept, and
    a note says so.
    """
    names, first, place = np.unique(keys, return_index=True, return_inverse=True)
    order = np.arange(len(names))
    if names.dtype.kind not in "iu":
        order = np.argsort(np.argsort(first))
    rank = order[place]
    turns = int((np.diff(rank) < 0).sum())
    if turns:
        note = f"the trades go back to an earlier session {turns} times: sorted by session"
        by_session = np.argsort(rank, kind="stable")
        trades = replace(
            trades,
            price=trades.price[by_session],
            volume=trades.volume[by_session],
            notes=(*trades.notes, note),
        )
    labels = np.empty(len(names), object)
    labels[order] = names.astype(str)
    starts = np.cumsum([0, *np.bincount(rank, minlength=len(names))], dtype=np.int64)
    return replace(trades, starts=starts, labels=tuple(map(str, labels)))


def by_date(trades: Trades, wall_ns: Array, cut: str = CUT) -> Trades:
    """The trades by trade date, labelled YYYY-MM-DD; times out of order are sorted, and a note
    counts them. ``wall_ns`` are their times in Chicago.
    """
    late = int((np.diff(wall_ns) < 0).sum())
    if late:
        note = f"{late} trades are earlier than the one before them: sorted by time"
        by_time = np.argsort(wall_ns, kind="stable")
        wall_ns = wall_ns[by_time]
        trades = replace(
            trades,
            price=trades.price[by_time],
            volume=trades.volume[by_time],
            notes=(*trades.notes, note),
        )
    dated = group(trades, trade_dates(wall_ns, cut))
    days = np.array(dated.labels, np.int64).astype("datetime64[D]")
    return replace(dated, labels=tuple(days.astype(str).tolist()))
