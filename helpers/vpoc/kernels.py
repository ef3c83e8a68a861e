"""The compiled loops over all trades or all rows: counting in one pass, and what a layout and the
levels need.

All release Python's lock, so that plain threads can run them (not OpenMP, whose barrier waits
longer when other programs use the cores). Indices are unsigned throughout: for a signed one numba
tests at every access whether it counts from the end, which made the counting loop twice as slow and
kept it from using vector loads (measured with numba 0.68.1).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from helpers.vpoc.trades import Array

LANES = 8
STRIDE = 1040
"""Each thread counts into eight private rows (LANES), which begin STRIDE entries apart.

Neighbouring trades often have the same price, and with one row each add would wait for the one
before it: 1.07 ns a trade with one row, 0.37 with four, 0.33 with eight (measured). The stride is a
constant, so that an address is one add. It is not a power of two, so that equal ticks of two rows
are not in the same set of the cache (0.37 against 0.46 ns).
"""
FAST_WIDTH = 1024
"""The widest session, in ticks, that is counted so: a power of two below STRIDE."""
SHARE_UNITS = 10_000
"""``areas`` takes the share of a value area in so many parts, to compare whole numbers."""


@njit(nogil=True)
def _place(ticks: Array, j: np.uint64, lane: int, low: int) -> np.uint32:
    """The place in its row of trade ``j + lane``. A tick below ``low`` wraps to a large number."""
    place: np.uint32 = np.uint32(ticks[j + np.uint64(lane)] - low)
    return place


@njit(nogil=True)
def _add_one(
    volume: Array, j: np.uint64, lane: int, rows: Array, place: np.uint32
) -> None:
    """Add trade ``j + lane`` to the private row of its lane."""
    rows[np.uint64(place) + np.uint64(lane * STRIDE)] += volume[j + np.uint64(lane)]


@njit(cache=True, nogil=True)
def _add(
    ticks: Array, volume: Array, low: int, width: int, rows: Array, out: Array
) -> int:
    """Add one session's trades to its row ``out``, of ``width`` ticks from ``low`` on.

    ``rows``: the private rows, all zero. Returns 0, or how many groups of trades are outside of the
    row.
    """
    outside = 0
    n = np.uint64(len(ticks))
    done = np.uint64(0)
    wide = np.uint32(width)
    # Eight places are tested at once, by their bits, so against the next power of two.
    top = np.uint32(1)
    while top < wide:
        top *= np.uint32(2)
    if width <= FAST_WIDTH:
        groups = n // np.uint64(8)
        done = groups * np.uint64(8)
        # Written out for eight lanes, so that their adds do not wait for each other. A group with a
        # place beyond is counted as outside, and not added: the caller refuses the whole table.
        for g in range(groups):
            j = g * np.uint64(8)
            k0 = _place(ticks, j, 0, low)
            k1 = _place(ticks, j, 1, low)
            k2 = _place(ticks, j, 2, low)
            k3 = _place(ticks, j, 3, low)
            k4 = _place(ticks, j, 4, low)
            k5 = _place(ticks, j, 5, low)
            k6 = _place(ticks, j, 6, low)
            k7 = _place(ticks, j, 7, low)
            if (k0 | k1 | k2 | k3 | k4 | k5 | k6 | k7) >= top:
                outside += 1
                continue
            _add_one(volume, j, 0, rows, k0)
            _add_one(volume, j, 1, rows, k1)
            _add_one(volume, j, 2, rows, k2)
            _add_one(volume, j, 3, rows, k3)
            _add_one(volume, j, 4, rows, k4)
            _add_one(volume, j, 5, rows, k5)
            _add_one(volume, j, 6, rows, k6)
            _add_one(volume, j, 7, rows, k7)
    for j in range(done, n):
        k = np.uint32(ticks[j] - low)
        if k >= wide:
            outside += 1
            continue
        out[np.uint64(k)] += volume[j]
    if width <= FAST_WIDTH:
        w = np.uint64(wide)
        for lane in range(np.uint64(LANES)):
            base = lane * np.uint64(STRIDE)
            for k in range(w):
                out[k] += rows[base + k]
                rows[base + k] = 0
            # The test above let a tick between the row's end and the next power of two through.
            for k in range(w, np.uint64(top)):
                outside += rows[base + k] != 0
                rows[base + k] = 0
    return outside


@njit(cache=True, nogil=True)
def count(
    price: Array,
    volume: Array,
    starts: Array,
    lows: Array,
    widths: Array,
    rows: Array,
    shared_row: Array,
    out: Array,
    first_session: int,
    first_trade: int,
    end: int,
) -> int:
    """Add the trades from ``first_trade`` up to ``end`` to ``out``; ``first_session`` has the
    first.

    If ``first_trade`` is inside that session, the session's trades are added to ``shared_row``
    instead, because another thread writes its row. Returns 0, or how many groups of trades are
    outside of their rows.
    """
    outside = 0
    session = first_session
    trade = first_trade
    while trade < end:
        session_end = min(end, starts[session + 1])
        row = out[session]
        if session == first_session and first_trade > starts[session]:
            row = shared_row
        outside += _add(
            price[trade:session_end],
            volume[trade:session_end],
            lows[session],
            widths[session],
            rows,
            row,
        )
        trade = session_end
        session += 1
    return outside


@njit(cache=True, nogil=True)
def extremes(
    price: Array, volume: Array, starts: Array, low: Array, high: Array, totals: Array
) -> None:
    """Set the lowest and highest tick and the total volume of each session.

    A session without trades keeps what ``low``, ``high`` and ``totals`` have.
    """
    for s in range(len(starts) - 1):
        p = price[starts[s] : starts[s + 1]]
        v = volume[starts[s] : starts[s + 1]]
        if len(p) == 0:
            continue
        least = p[0]
        most = p[0]
        total = totals[s]
        for j in range(np.uint64(len(p))):
            least = min(least, p[j])
            most = max(most, p[j])
            total += v[j]
        low[s] = least
        high[s] = most
        totals[s] = total


@njit(cache=True, nogil=True)
def total(price: Array, volume: Array) -> int:
    """Read every byte of both arrays and do as little as possible with them: no pass over the
    trades can take less time. The result has no meaning.
    """
    t = np.int64(0)
    for j in range(np.uint64(len(price))):
        t += price[j] ^ volume[j]
    return int(t)


@njit(nogil=True)
def _poc(row: Array, first: int, last: int, most: float, tie: int) -> int:
    """The tick of a row with the most volume; of several, the one that ``tie`` names
    (see areas).
    """
    at = -1
    twice_centre = first + last
    for k in range(first, last + 1):
        if row[k] != most:
            continue
        is_nearer = abs(2 * k - twice_centre) < abs(2 * at - twice_centre)
        if at < 0 or tie == 1 or (tie == 2 and is_nearer):
            at = k
    return at


@njit(nogil=True)
def _next_volume(row: Array, at: int, step: int, end: int, two_rows: bool) -> float:
    """The volume of the next tick, or the next two, beyond ``at``; -1 where ``at`` is the ``end``.

    ``step``: 1 upwards, -1 downwards.
    """
    if at == end:
        return -1.0
    volume: float = np.float64(row[at + step])
    if two_rows and at + step != end:
        volume += np.float64(row[at + 2 * step])
    return volume


@njit(cache=True, nogil=True)
def areas(
    counts: Array,
    widths: Array,
    share: float,
    tie: int,
    two_rows: bool,
    poc: Array,
    val: Array,
    vah: Array,
) -> None:
    """Set the POC and the ends of the value area of every row of ``counts``, as places in the row;
    -1 for a row without volume.

    ``share``: of the volume in the value area, in SHARE_UNITS. ``tie``: which of the ticks with the
    most volume is the POC, as levels.TIES numbers them: 0 the lowest, 1 the highest, 2 the nearest
    to the centre of the profile (of two, the lower). ``two_rows``: see levels.py.
    """
    for s in range(len(widths)):
        row = counts[s]
        first = -1
        last = -1
        best = row[0] * 0  # zero in the type of the counts
        total = 0.0
        for k in range(widths[s]):
            if row[k] > 0:
                if first < 0:
                    first = k
                last = k
                best = max(best, row[k])
                total += np.float64(row[k])
        poc[s] = val[s] = vah[s] = -1
        if first < 0:
            continue
        at = _poc(row, first, last, best, tie)
        lo = at
        hi = at
        inside = np.float64(row[at])
        step = 1
        if two_rows:
            step = 2
        # Whole numbers, and exact while a session's volume is below 2**53 / SHARE_UNITS.
        while inside * SHARE_UNITS < total * share:
            up = _next_volume(row, hi, 1, last, two_rows)
            down = _next_volume(row, lo, -1, first, two_rows)
            # Both ends are reached: rounding of fractional or very large volumes can lead here.
            if up < 0 and down < 0:
                break
            if up >= down:
                hi = min(last, hi + step)
                inside = inside + up
            else:
                lo = max(first, lo - step)
                inside = inside + down
        poc[s] = at
        val[s] = lo
        vah[s] = hi
