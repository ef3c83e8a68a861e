"""Trades by session: by a column's keys, or by CME trade date in Chicago.

The trade date of a CME session begins at 17:00 Chicago time of the evening before. There is no
table of holidays: a short session counts as a session.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyarrow import ChunkedArray, compute

from helpers.vpoc.trades import Array, Trades, TradesError

CHICAGO = "America/Chicago"
DAY_NS = 86400 * 10**9
EVENING_NS = 7 * 3600 * 10**9
"""From 17:00, when the next trade date begins, to midnight."""


def with_zone(times: ChunkedArray, zone: str, notes: list[str]) -> ChunkedArray:
    """Times of a wall clock in ``zone``, with that zone.

    In the hour that a clock shows twice in autumn the earlier time is taken, and a note counts
    these times. Raises TradesError for an unknown zone.
    """
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
        hour = "times stand in the hour that the clock shows twice"
        notes.append(f"{twice} {hour}: the earlier is taken")
    return earlier


def chicago_ns(times: ChunkedArray) -> Array:
    """Times with a zone as nanoseconds since 1970 on a wall clock in Chicago."""
    wall = compute.local_timestamp(times.cast(pa.timestamp("ns", CHICAGO)))
    return np.asarray(wall.cast(pa.int64()))


def in_order_of(trades: Trades, values: Array, note: str) -> Trades:
    """The trades sorted by ``values``, one of each trade; equal ones keep their order. ``note`` is
    added.
    """
    order = np.argsort(values, kind="stable")
    return replace(
        trades,
        price=trades.price[order],
        volume=trades.volume[order],
        notes=(*trades.notes, note),
    )


def group(trades: Trades, keys: Array) -> Trades:
    """The trades with a session for each different key; ``keys`` has one for each trade.

    Sessions are in the order of their numbers, or for text in that of their first trade. Trades
    that are not in the order of their sessions are sorted, which keeps their order within a
    session, and a note says so.
    """
    names, first, key_of_trade = np.unique(keys, return_index=True, return_inverse=True)
    # The place among the sessions of each name.
    place = np.arange(len(names))
    if names.dtype.kind not in "iu":
        place = np.argsort(np.argsort(first))  # the rank of its first trade
    session_of_trade = place[key_of_trade]
    turns = int((np.diff(session_of_trade) < 0).sum())
    if turns:
        note = (
            f"the trades go back to an earlier session {turns} times: sorted by session"
        )
        trades = in_order_of(trades, session_of_trade, note)
    labels = np.empty(len(names), object)
    labels[place] = names.astype(str)
    lengths = np.bincount(session_of_trade, minlength=len(names))
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    return replace(trades, starts=starts, labels=tuple(map(str, labels)))


def by_date(trades: Trades, wall_ns: Array) -> Trades:
    """The trades with a session for each trade date, labelled YYYY-MM-DD.

    ``wall_ns``: their times on a wall clock in Chicago. Trades that are not in the order of time
    are sorted, and a note counts them.
    """
    late = int((np.diff(wall_ns) < 0).sum())
    if late:
        note = f"{late} trades are earlier than the one before them: sorted by time"
        trades = in_order_of(trades, wall_ns, note)
        wall_ns = np.sort(wall_ns)
    days_since_1970 = (wall_ns + EVENING_NS) // DAY_NS
    dated = group(trades, days_since_1970)
    days = np.array(dated.labels, np.int64).astype("datetime64[D]")
    return replace(dated, labels=tuple(days.astype(str).tolist()))
