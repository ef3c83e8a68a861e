"""Point of control, value area and nodes of volume profiles, under each rule in use.

Volume POC (VPOC): the tick with the most volume. A naked POC (others write VPOC for *virgin* POC) is another thing: the POC of
an earlier session that price has not traded at since. The value area is the run of ticks around the POC that holds 70 % of the
volume: the two-row rule (CBOT, Dalton) compares the sum of the next two ticks on each side and adds the larger pair, the
one-row rule compares one tick each side; equal sums go up. Ticks without trades count as rows of no volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.trades import Array, Layout, Trades, survey, to_price

TIES = ("lowest", "highest", "centre")
VALUE_AREAS = ("one-row", "two-row")
SHARE = 0.70


@dataclass(frozen=True)
class Rule:
    """``tie``: which of tied rows is the POC (Linnsoft: the one closest to the centre of the profile; numpy's argmax: the
    lowest). ``value_area``: one-row or two-row."""

    tie: str = "centre"
    value_area: str = "two-row"

    def __str__(self) -> str:
        return f"{self.value_area} {SHARE:.0%}, tie {self.tie}"


USUAL = Rule()
RULES = tuple(Rule(tie, area) for area in VALUE_AREAS for tie in TIES)
"""Each rule in use, for a value area of 70 %."""


@dataclass(frozen=True, eq=False)
class Levels:
    """POC, VAL and VAH of each session in ticks; ``there`` is False for a session without volume."""

    poc: Array
    val: Array
    vah: Array
    there: Array
    rule: Rule

    def prices(self, tick: float) -> tuple[Array, Array, Array]:
        """POC, VAL and VAH in points; NaN for a session without volume."""
        points = (to_price(one, tick) for one in (self.poc, self.val, self.vah))
        poc, val, vah = (np.where(self.there, one, np.nan) for one in points)
        return poc, val, vah


def levels(counts: Array, layout: Layout, rule: Rule = USUAL) -> Levels:
    """POC and value area of every session of ``counts``, as ``histogram.profiles`` gives them."""
    from helpers.load.vpoc.kernels import areas

    poc, val, vah = (np.empty(len(counts), np.int32) for _ in range(3))
    tie, two_rows = TIES.index(rule.tie), rule.value_area == "two-row"
    areas(counts, layout.widths, SHARE * 10000, tie, two_rows, poc, val, vah)
    return Levels(poc + layout.lows, val + layout.lows, vah + layout.lows, poc >= 0, rule)


def by_rule(windows: Mapping[str, Trades]) -> list[dict[str, Any]]:
    """Why does mine differ: POC, VAL and VAH of every session under each rule and window (``{"all": ..., "RTH": ...}``)."""
    rows = []
    for window, trades in windows.items():
        layout = survey(trades)
        counts = profiles(trades, layout)
        for rule in RULES:
            about = {"window": window, "value_area": rule.value_area, "tie": rule.tie}
            rows += [row | about for row in level_rows(trades, levels(counts, layout, rule))]
    return sorted(rows, key=lambda row: (row["session"], row["window"]))


def level_rows(trades: Trades, found: Levels) -> list[dict[str, Any]]:
    """POC, VAL and VAH of every session with volume, in points."""
    rows = zip(trades.labels, found.there, *found.prices(trades.tick), strict=True)
    return [
        {"session": label, "poc": float(poc), "val": float(val), "vah": float(vah)}
        for label, there, poc, val, vah in rows
        if there
    ]


def nodes(row: Array, window: int = 10) -> tuple[list[int], list[int]]:
    """High and low volume nodes of one profile, as positions in its row.

    A high node (HVN) has the most volume within ``window`` ticks on each side and at least a tenth of the POC's; of equal
    neighbours the first counts. A low node (LVN) lies between two high ones, one in each gap: the least volume there.
    """
    row = np.asarray(row, np.float64)
    if not row.size or row.max() <= 0:
        return [], []
    padded = np.pad(row, window, constant_values=-1.0)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * window + 1)
    peaks = (around.argmax(axis=1) == window) & (row >= 0.1 * row.max())
    high = np.flatnonzero(peaks).tolist()
    gaps = [(a + 1, b) for a, b in zip(high, high[1:], strict=False) if b > a + 1]
    return high, [a + int(np.argmin(row[a:b])) for a, b in gaps]
