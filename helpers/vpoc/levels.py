"""Point of control and value area of volume profiles, under each rule in use.

Volume POC (VPOC): the tick with the most volume. It is not the naked or *virgin* POC (which others
call VPOC): that is the POC of an earlier session at which no trade was made since.

The value area is the run of ticks around the POC that has 70 % of the volume. It grows from the
POC: the two-row rule (CBOT, Dalton) compares the sum of the next two ticks on each side and adds
the larger pair, the one-row rule compares one tick on each side. Of equal sums the upper one is
added. A tick without trades counts as a row without volume.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.vpoc.kernels import SHARE_UNITS, areas
from helpers.vpoc.layout import Layout
from helpers.vpoc.ticks import to_price
from helpers.vpoc.trades import Array, Trades

TIES = ("lowest", "highest", "centre")
"""Which of the ticks with the most volume is the POC, numbered as kernels.areas takes them."""
VALUE_AREAS = ("one-row", "two-row")
SHARE = 0.70
"""The share of the volume in the value area, the same in every rule here."""


@dataclass(frozen=True)
class LevelRule:
    """A rule for the levels.

    ``tie``: one of TIES (Linnsoft takes the tick closest to the centre, numpy's argmax the lowest).
    ``value_area``: one of VALUE_AREAS.
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
    """POC, VAL and VAH (the low and the high end of the value area) of each session, in ticks.

    ``traded`` is False for a session without volume, whose levels have no meaning.
    """

    poc: Array
    val: Array
    vah: Array
    traded: Array
    rule: LevelRule

    def prices(self, tick: float) -> tuple[Array, Array, Array]:
        """POC, VAL and VAH in points; NaN for a session without volume."""
        poc, val, vah = (
            np.where(self.traded, to_price(level, tick), np.nan)
            for level in (self.poc, self.val, self.vah)
        )
        return poc, val, vah


def levels(counts: Array, layout: Layout, rule: LevelRule = USUAL) -> Levels:
    """POC and value area of every session of ``counts``, as ``profiles`` gives them."""
    poc, val, vah = (np.empty(len(counts), np.int32) for _ in range(3))
    tie = TIES.index(rule.tie)
    two_rows = rule.value_area == "two-row"
    share = SHARE * SHARE_UNITS
    areas(counts, layout.widths, share, tie, two_rows, poc, val, vah)
    return Levels(
        poc=poc + layout.lows,
        val=val + layout.lows,
        vah=vah + layout.lows,
        traded=poc >= 0,
        rule=rule,
    )


@dataclass(frozen=True)
class SessionLevels:
    """POC, VAL and VAH of one session in points, under a rule."""

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
