"""Trades by session: by a column's keys, or by CME trade date in Chicago.

The trade date of a CME session starts at 17:00 Chicago time of the evening before. There is no
table of holidays: a short session is a session.
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
"""From 17:00, when the next trade date starts, to midnight."""


def with_zone(times: ChunkedArray, zone: str, notes: list[str]) -> ChunkedArray:
    """Wall-clock times as UTC. Of two times in the hour that a clock shows
    twice the earlier is taken, and a note counts them.

    Raises TradesError for a zone that is not known.
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
    """Times with a zone as the wall clock of Chicago shows them, in ns."""
    wall = compute.local_timestamp(times.cast(pa.timestamp("ns", CHICAGO)))
    return np.asarray(wall.cast(pa.int64()))


def in_order_of(trades: Trades, values: Array, note: str) -> Trades:
    """The trades sorted by a value of each, those of one value in their order; ``note`` says so."""
    order = np.argsort(values, kind="stable")
    return replace(
        trades,
        price=trades.price[order],
        volume=trades.volume[order],
        notes=(*trades.notes, note),
    )


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
        note = (
            f"the trades go back to an earlier session {turns} times: sorted by session"
        )
        trades = in_order_of(trades, rank, note)
    labels = np.empty(len(names), object)
    labels[order] = names.astype(str)
    starts = np.cumsum([0, *np.bincount(rank, minlength=len(names))], dtype=np.int64)
    return replace(trades, starts=starts, labels=tuple(map(str, labels)))


def by_date(trades: Trades, wall_ns: Array) -> Trades:
    """The trades by trade date, labelled YYYY-MM-DD; times out of order are sorted, and a note
    counts them. ``wall_ns`` are their times in Chicago.
    """
    late = int((np.diff(wall_ns) < 0).sum())
    if late:
        note = f"{late} trades are earlier than the one before them: sorted by time"
        trades = in_order_of(trades, wall_ns, note)
        wall_ns = np.sort(wall_ns)
    dated = group(trades, (wall_ns + EVENING_NS) // DAY_NS)
    days = np.array(dated.labels, np.int64).astype("datetime64[D]")
    return replace(dated, labels=tuple(days.astype(str).tolist()))
