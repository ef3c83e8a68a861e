"""Point of control and value area of volume profiles, under each rule in use.

Volume POC (VPOC): the tick with the most volume. A naked POC (others write VPOC for *virgin*
POC) is another thing: the POC of an earlier session that price has not traded at since. The
value area is the run of ticks around the POC that holds 70 % of the volume: the two-row rule
(CBOT, Dalton) compares the sum of the next two ticks on each side and adds the larger pair,
the one-row rule compares one tick each side; equal sums go up. Ticks without trades count as
rows of no volume.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.vpoc.kernels import areas
from helpers.vpoc.layout import Layout
from helpers.vpoc.ticks import to_price
from helpers.vpoc.trades import Array, Trades

TIES = ("lowest", "highest", "centre")
VALUE_AREAS = ("one-row", "two-row")
SHARE = 0.70


@dataclass(frozen=True)
class LevelRule:
    """``tie``: which of tied rows is the POC (Linnsoft: the one closest to the centre of the
    profile; numpy's argmax: the lowest). ``value_area``: one-row or two-row.
    """

    tie: str = "centre"
    value_area: str = "two-row"

    def __str__(self) -> str:
        return f"{self.value_area} {SHARE:.0%}, tie {self.tie}"


USUAL = LevelRule()
RULES = tuple(LevelRule(tie, area) for area in VALUE_AREAS for tie in TIES)
"""Each rule in use, for a value area of 70 %."""


@dataclass(frozen=True, eq=False)
class Levels:
    """POC, VAL and VAH of each session in ticks; ``traded`` is False for one without volume."""

    poc: Array
    val: Array
    vah: Array
    traded: Array
    rule: LevelRule

    def prices(self, tick: float) -> tuple[Array, Array, Array]:
        """POC, VAL and VAH in points; NaN for a session without volume."""
        points = [to_price(level, tick) for level in (self.poc, self.val, self.vah)]
        poc, val, vah = (np.where(self.traded, level, np.nan) for level in points)
        return poc, val, vah


def levels(counts: Array, layout: Layout, rule: LevelRule = USUAL) -> Levels:
    """POC and value area of every session of ``counts``, as ``profiles`` gives them."""
    poc, val, vah = (np.empty(len(counts), np.int32) for _ in range(3))
    tie = TIES.index(rule.tie)
    two_rows = rule.value_area == "two-row"
    areas(counts, layout.widths, SHARE * 10000, tie, two_rows, poc, val, vah)
    return Levels(
        poc=poc + layout.lows,
        val=val + layout.lows,
        vah=vah + layout.lows,
        traded=poc >= 0,
        rule=rule,
    )


@dataclass(frozen=True)
class SessionLevels:
    """POC, VAL and VAH of one session in points, and the rule they stand under."""

    session: str
    poc: float
    val: float
    vah: float
    rule: LevelRule


def level_rows(trades: Trades, session_levels: Levels) -> list[SessionLevels]:
    """The levels of every session with volume."""
    rows = zip(trades.labels, *session_levels.prices(trades.tick), strict=True)
    return [
        SessionLevels(label, float(poc), float(val), float(vah), session_levels.rule)
        for label, poc, val, vah in rows
        if not np.isnan(poc)
    ]


def by_rule(trades: Trades, counts: Array, layout: Layout) -> list[SessionLevels]:
    """The levels of every session under each rule: why another program's differ."""
    rows = []
    for rule in RULES:
        rows += level_rows(trades, levels(counts, layout, rule))
    return rows
