"""Ticks, points of control and value areas against a golden file and slow and obvious twins."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.vpoc.counting import profiles
from helpers.vpoc.layout import Layout, survey
from helpers.vpoc.levels import RULES, by_rule, levels
from helpers.vpoc.ticks import (
    TICKS,
    guess_tick,
    off_grid,
    tick_size,
    to_price,
    to_ticks,
    wrong_tick,
)
from helpers.vpoc.trades import TradesError, from_sessions

GOLDEN = json.loads((Path(__file__).parent / "data" / "vpoc_levels.json").read_text())


@pytest.mark.parametrize("product", TICKS)
def test_every_price_of_a_product_becomes_its_own_tick(product):
    tick = TICKS[product]
    wanted = np.arange(1, 100_000, dtype=np.int32)
    for prices in (wanted * tick, (wanted * tick).astype(np.float32)):
        assert np.array_equal(to_ticks(prices, tick), wanted)
    assert off_grid(wanted * tick, tick) == ""


def test_ticks_become_prices_without_last_binary_digits():
    assert to_price([3, 7], 0.1).tolist() == [0.3, 0.7]


@pytest.mark.parametrize("product", TICKS)
def test_the_tick_is_told_from_the_prices(product):
    tick = TICKS[product]
    prices = np.round(np.arange(4001, 4300) * tick, 10)
    assert guess_tick(prices) == pytest.approx(tick)
    assert guess_tick(prices[:3]) is None
    assert wrong_tick(prices, tick) == ""
    assert "looks wrong" in wrong_tick(prices, tick / 5)
    assert "share one row" in wrong_tick(prices, tick * 4)


def test_prices_off_the_grid_are_counted_and_named_and_count_at_the_nearest_tick():
    prices = np.array([10.0, 10.25, 10.30, 10.5])
    assert off_grid(prices, 0.25).startswith("1 of 4 prices are off the 0.25 grid (10.3)")
    assert to_ticks(prices, 0.25).tolist() == [40, 41, 41, 42]


@pytest.mark.parametrize("tick", ["XX", 0, -1, float("nan"), "inf"])
def test_a_tick_that_is_none_is_refused(tick):
    with pytest.raises(TradesError, match="expected"):
        tick_size(tick)


@pytest.mark.parametrize(("price", "tick"), [(1e9, 1e-4), (np.nan, 0.25)])
def test_prices_beyond_32_bit_ticks_are_refused(price, tick):
    with pytest.raises(TradesError, match="right tick size"):
        to_ticks([price], tick)


def layout_of(rows, low=0):
    """Rows of counts as one table, and their layout from this tick on."""
    bins = max(map(len, rows))
    counts = np.array([row + [0] * (bins - len(row)) for row in rows], np.int32)
    lows = np.full(len(rows), low, np.int32)
    widths = np.array(list(map(len, rows)), np.int32)
    return counts, Layout(lows, widths, bins, "int32", counts.sum(1))


def positions(rows, rule, kind=np.int32):
    """[POC, VAL, VAH] of each row as positions in it, None for one without volume."""
    counts, layout = layout_of(rows, 100)
    at = levels(counts.astype(kind), layout, rule)
    rows = zip(at.traded, at.poc - 100, at.val - 100, at.vah - 100, strict=True)
    return [list(map(int, row)) if traded else None for traded, *row in rows]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_levels_are_those_of_the_golden_file(rule):
    assert positions(GOLDEN["profiles"], rule) == GOLDEN["levels"][str(rule)]


def slow_levels(row, rule):
    """POC, VAL, VAH by lists and words."""
    used = [k for k, v in enumerate(row) if v]
    if not used:
        return None
    first = used[0]
    last = used[-1]
    best = max(row)
    tied = [k for k in used if row[k] == best]
    nearest = min(tied, key=lambda k: (abs(k - (first + last) / 2), k))
    poc = {"lowest": tied[0], "highest": tied[-1], "centre": nearest}[rule.tie]
    inside = [poc]
    step = 2 if rule.value_area == "two-row" else 1
    while sum(row[k] for k in inside) * 10 < sum(row) * 7:
        above = [k for k in range(max(inside) + 1, max(inside) + 1 + step) if k <= last]
        below = [k for k in range(min(inside) - step, min(inside)) if k >= first]
        more = sum(row[k] for k in above) >= sum(row[k] for k in below)
        inside += above if above and (not below or more) else below
    return [poc, min(inside), max(inside)]


ROW = st.lists(st.integers(0, 6), min_size=1, max_size=14)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=1, max_size=6))
def test_levels_are_those_of_the_slow_twin_under_every_rule(rows):
    for rule in RULES:
        want = [slow_levels(row, rule) for row in rows]
        assert positions(rows, rule) == positions(rows, rule, np.float64) == want, rule


def test_a_table_says_poc_and_value_area_under_each_rule():
    session = (np.array([1, 2, 2, 3], np.int32), np.array([1, 2, 2, 1], np.int32))
    trades = from_sessions([session], 0.25)
    layout = survey(trades)
    rows = by_rule(trades, profiles(trades, layout), layout)
    assert [row.rule for row in rows] == list(RULES)
    assert {row.poc for row in rows} == {0.5}
