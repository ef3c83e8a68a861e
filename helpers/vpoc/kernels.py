"""The compiled loops: trades to rows of counts in one pass, and what else runs over every trade
or every row.

All release Python's lock, so that plain threads carry them (no OpenMP, whose barrier stretches
when others use the cores). Indices are unsigned throughout: for a signed one numba tests for
"counts from the end" at every access, which made the counting loop twice as slow and kept it
from using vector loads (measured with numba 0.68.1).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from helpers.vpoc.trades import Array

LANES = 8
STRIDE = 1040
"""Eight private rows a thread.

Neighbouring trades print at the same price, and one row would make each add wait for the one
before it: 1.07 ns a trade with one row, 0.37 with four, 0.33 with eight (measured). The stride
is fixed, so that an address is one add, and no power of two, so that equal ticks of two rows do
not share a cache set (0.37 against 0.46 ns).
"""
FAST_WIDTH = 1024


@njit(nogil=True)
def _place(ticks: Array, j: np.uint64, lane: int, low: int) -> np.uint32:
    """In its row, of one of the eight trades from ``j`` on."""
    place: np.uint32 = np.uint32(ticks[j + np.uint64(lane)] - low)
    return place


@njit(nogil=True)
def _add_one(
    volume: Array, j: np.uint64, lane: int, rows: Array, place: np.uint32
) -> None:
    """Add one of the eight trades from ``j`` on to its private row."""
    rows[np.uint64(place) + np.uint64(lane * STRIDE)] += volume[j + np.uint64(lane)]


@njit(cache=True, nogil=True)
def _add(
    ticks: Array, volume: Array, low: int, width: int, rows: Array, out: Array
) -> int:
    """Add one session's trades to its row ``out``; the number of groups of trades that lie
    outside of it.
    """
    bad = 0
    n = np.uint64(len(ticks))
    done = np.uint64(0)
    wide = np.uint32(width)
    # The eight are tested together, by their bits: against the next power of two.
    top = np.uint32(1)
    while top < wide:
        top *= np.uint32(2)
    if width <= FAST_WIDTH:
        groups = n // np.uint64(8)
        done = groups * np.uint64(8)
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
                bad += 1
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
            bad += 1
            continue
        out[np.uint64(k)] += volume[j]
    if width <= FAST_WIDTH:
        w = np.uint64(wide)
        for lane in range(np.uint64(LANES)):
            base = lane * np.uint64(STRIDE)
            for k in range(w):
                out[k] += rows[base + k]
                rows[base + k] = 0
            # A tick between the row's end and the next power of two was let through: it must
            # not be there.
            for k in range(w, np.uint64(top)):
                bad += rows[base + k] != 0
                rows[base + k] = 0
    return bad


@njit(cache=True, nogil=True)
def count(
    price: Array,
    volume: Array,
    starts: Array,
    lows: Array,
    widths: Array,
    rows: Array,
    edge: Array,
    out: Array,
    first: int,
    a: int,
    b: int,
) -> int:
    """Add trades ``a`` to ``b`` to ``out``, from session ``first`` on.

    Where ``a`` lies inside session ``first``, that session's trades go to ``edge`` instead:
    another thread owns its row. Returns the number of groups of trades outside their rows.
    """
    bad = 0
    s = first
    i = a
    while i < b:
        e = min(b, starts[s + 1])
        row = edge if (s == first and a > starts[s]) else out[s]
        bad += _add(price[i:e], volume[i:e], lows[s], widths[s], rows, row)
        i = e
        s += 1
    return bad


@njit(cache=True, nogil=True)
def extremes(
    price: Array, volume: Array, starts: Array, low: Array, high: Array, totals: Array
) -> None:
    """Lowest and highest tick and the sum of volume of each session; sessions without trades
    keep what they have.
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
    """Reads every byte of both and does next to nothing with them: the limit that any pass over
    the trades has.
    """
    t = np.int64(0)
    for j in range(np.uint64(len(price))):
        t += price[j] ^ volume[j]
    return int(t)


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
    """POC and value area of every row of ``counts``, as positions in the row; -1 where there is
    no volume.

    ``tie``: 0 the lowest of the tied rows, 1 the highest, 2 the one nearest the middle of the
    profile (of two, the lower).
    """
    for s in range(len(widths)):
        row = counts[s]
        first = -1
        last = -1
        best = row[0] * 0
        total = 0.0
        for k in range(widths[s]):
            if row[k] > 0:
                first = k if first < 0 else first
                last = k
                best = max(best, row[k])
                total += np.float64(row[k])
        poc[s] = val[s] = vah[s] = -1
        if first < 0:
            continue
        at = -1
        both = first + last
        for k in range(first, last + 1):
            nearer = tie == 2 and abs(2 * k - both) < abs(2 * at - both)
            if row[k] == best and (at < 0 or tie == 1 or nearer):
                at = k
        lo = at
        hi = at
        inside = np.float64(row[at])
        step = 2 if two_rows else 1
        # Tenths of a per mille in whole numbers: exact while a session's volume is below 2**53
        # / 10,000.
        while inside * 10000.0 < total * share:
            up = -1.0
            down = -1.0
            if hi < last:
                second = np.float64(row[hi + 2]) if two_rows and hi + 2 <= last else 0.0
                up = np.float64(row[hi + 1]) + second
            if lo > first:
                second = (
                    np.float64(row[lo - 2]) if two_rows and lo - 2 >= first else 0.0
                )
                down = np.float64(row[lo - 1]) + second
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
