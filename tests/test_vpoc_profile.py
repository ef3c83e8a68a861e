"""Ticks, sessions, points of control and value areas against slow and obvious twins."""

from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.load.vpoc import profile, reading
from helpers.load.vpoc.profile import Rule, levels
from helpers.load.vpoc.trades import (
    TICKS,
    Layout,
    TickError,
    TradesError,
    from_sessions,
    grid,
    guess_tick,
    tick_size,
    to_price,
    to_ticks,
    wrong_tick,
)


@pytest.mark.parametrize("product", TICKS)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_every_price_of_a_product_becomes_its_own_tick(product, kind):
    tick, wanted = TICKS[product], np.arange(1, 100_000, dtype=np.int32)
    prices = (wanted * tick).astype(kind)
    assert np.array_equal(to_ticks(prices, tick), wanted)
    assert grid(prices, tick).off == 0


def test_floor_would_misplace_prices_that_rint_does_not():
    ticks = np.arange(1, 100_000)
    assert (np.floor(ticks * 0.10 / 0.10) != ticks).any() or (
        np.floor(np.round(ticks * 0.1, 10) / 0.1) != ticks
    ).any()
    assert np.array_equal(to_ticks(np.round(ticks * 0.1, 10), 0.1), ticks)
    assert to_price([3, 7], 0.1).tolist() == [0.3, 0.7]


@pytest.mark.parametrize("product", TICKS)
def test_the_tick_is_told_from_the_prices(product):
    tick = TICKS[product]
    prices = np.round(np.arange(4001, 4300) * tick, 10)
    assert guess_tick(prices) == pytest.approx(tick)
    assert wrong_tick(prices, tick) == ""
    assert "looks wrong" in wrong_tick(prices, tick / 5)
    assert "share one row" in wrong_tick(prices, tick * 4)
    assert guess_tick(prices[:3]) is None


def test_prices_off_the_grid_are_counted_and_named_and_count_at_the_nearest_tick():
    prices = np.array([10.0, 10.25, 10.30, 10.5])
    found = grid(prices, 0.25)
    assert (found.off, found.examples) == (1, (10.30,))
    assert "10.3" in found.note()
    assert to_ticks(prices, 0.25).tolist() == [40, 41, 41, 42]


@pytest.mark.parametrize("tick", ["XX", 0, -1, float("nan"), "inf"])
def test_a_tick_that_is_none_is_refused(tick):
    with pytest.raises(TickError, match="expected"):
        tick_size(tick)


def test_prices_beyond_32_bit_ticks_are_refused():
    with pytest.raises(TickError, match="right tick size"):
        to_ticks([1e9], 1e-4)
    with pytest.raises(TickError):
        to_ticks([np.nan], 0.25)


def slow_levels(row, rule):
    """POC, VAL, VAH by lists and words."""
    row = [int(v) for v in row]
    used = [k for k, v in enumerate(row) if v]
    if not used:
        return None
    first, last, best = used[0], used[-1], max(row)
    tied = [k for k in used if row[k] == best]
    poc = {
        "lowest": tied[0],
        "highest": tied[-1],
        "centre": min(tied, key=lambda k: (abs(k - (first + last) / 2), k)),
    }[rule.tie]
    inside, step = [poc], 2 if rule.value_area == "two-row" else 1
    while sum(row[k] for k in inside) * 10_000 < sum(row) * round(rule.share * 10_000):
        above = [k for k in range(max(inside) + 1, max(inside) + 1 + step) if k <= last]
        below = [k for k in range(min(inside) - step, min(inside)) if k >= first]
        if above and (not below or sum(row[k] for k in above) >= sum(row[k] for k in below)):
            inside += above
        else:
            inside += below
    return poc, min(inside), max(inside)


RULES = [
    Rule(tie, area, share)
    for tie in profile.TIES
    for area in profile.VALUE_AREAS
    for share in (0.7, 0.682, 1.0)
]


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=14), min_size=1, max_size=6))
def test_levels_are_those_of_the_slow_twin_under_every_rule(rows):
    bins = max(map(len, rows))
    counts = np.array([row + [0] * (bins - len(row)) for row in rows], np.int32)
    layout = Layout(
        np.full(len(rows), 100, np.int32),
        np.array([len(row) for row in rows], np.int32),
        bins,
        "int32",
        counts.sum(1),
    )
    for rule in RULES:
        found = levels(counts, layout, rule)
        for s, row in enumerate(rows):
            want = slow_levels(row, rule)
            assert bool(found.there[s]) == (want is not None)
            if want:
                assert (found.poc[s] - 100, found.val[s] - 100, found.vah[s] - 100) == want, rule
        as_floats = levels(counts.astype(np.float64), layout, rule)
        assert np.array_equal(as_floats.vah, found.vah)


def test_the_two_rules_of_the_value_area_differ():
    # From the POC (10): one row up is 3, one down 4, but two rows up are 3 + 9 and two down 4 + 1.
    counts = np.array([[1, 4, 10, 3, 9, 0, 1]], np.int32)
    layout = Layout(np.zeros(1, np.int32), np.array([7], np.int32), 7, "int32", counts.sum(1))
    one, two = (levels(counts, layout, Rule("lowest", area)) for area in profile.VALUE_AREAS)
    assert (one.val[0], one.vah[0]) == (1, 4)
    assert (two.val[0], two.vah[0]) == (2, 4)


def test_a_rule_that_is_none_is_refused():
    for wrong in ({"tie": "last"}, {"value_area": "three"}, {"share": 0.0}):
        with pytest.raises(ValueError, match="expected"):
            Rule(**wrong)


def test_a_table_says_poc_and_value_area_under_each_rule_and_window():
    trades = from_sessions(
        [(np.array([1, 2, 2, 3], np.int32), np.array([1, 2, 2, 1], np.int32))], 0.25, ["day"]
    )
    rows = profile.by_rule({"all": trades, "RTH": trades.take(0, 1)})
    assert len(rows) == 12 and {row["poc"] for row in rows} == {0.5}


def test_high_nodes_are_peaks_of_their_neighbourhood_and_low_nodes_lie_between():
    row = np.array([0, 5, 20, 5, 1, 2, 15, 15, 3, 0, 1])
    assert profile.nodes(row, window=2) == ([2, 6], [4])
    assert profile.nodes(np.zeros(5)) == ([], [])


def ns(text, zone):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("wall", "day"),
    [
        ("2024-03-08T16:59:59", "2024-03-08"),
        ("2024-03-08T17:00:00", "2024-03-09"),  # the Friday before the clocks change
        ("2024-03-10T16:59:59", "2024-03-10"),
        ("2024-03-10T17:00:00", "2024-03-11"),  # the Sunday they changed
        ("2024-11-03T16:59:59", "2024-11-03"),
        ("2024-11-03T17:00:00", "2024-11-04"),
        ("2024-07-01T00:00:00", "2024-07-01"),
    ],
)
def test_the_trade_date_begins_at_five_in_chicago_summer_and_winter(wall, day):
    times = np.array([ns(wall, "America/Chicago")])
    trades = reading.by_date(np.ones(1, np.int32), np.ones(1, np.int32), times, 0.25)
    assert trades.labels == (day,)


@settings(max_examples=50)
@given(
    st.lists(st.integers(1_500_000_000, 1_800_000_000), min_size=1, max_size=30),
    st.sampled_from(
        ["America/Chicago", "Europe/London", "Asia/Tokyo", "Australia/Lord_Howe", "UTC"]
    ),
)
def test_wall_clocks_are_those_of_the_time_zone_database(seconds, zone):
    utc = np.array(seconds, np.int64) * 10**9
    local = reading.utc_to_local(utc, zone)
    for second, wall in zip(seconds, local, strict=True):
        want = (
            datetime.fromtimestamp(second, timezone.utc)
            .astimezone(ZoneInfo(zone))
            .replace(tzinfo=timezone.utc)
        )
        assert wall == int(want.timestamp()) * 10**9
    back, twice = reading.local_to_utc(local, zone)
    assert ((back == utc) | (twice > 0)).all()


def test_the_hour_that_a_clock_shows_twice_is_counted():
    wall = np.array([ns("2024-11-03T01:30:00", "UTC"), ns("2024-11-03T03:30:00", "UTC")])
    utc, twice = reading.local_to_utc(wall, "America/Chicago")
    assert twice == 1
    assert utc[0] == ns("2024-11-03T06:30:00", "UTC")


def test_regular_hours_follow_the_clock_through_the_year():
    window = reading.WINDOWS["RTH 15:15"]
    for day in ("2024-01-10", "2024-07-10"):
        times = np.array(
            [
                ns(f"{day}T{hour}", "America/Chicago")
                for hour in ("08:29:59", "08:30:00", "15:14:59", "15:15:00")
            ]
        )
        assert reading.in_window(times, window).tolist() == [False, True, True, False]
    assert reading.in_window(
        np.array([ns("2024-01-10T23:00:00", "America/Chicago")]), ("17:00", "08:30")
    ).tolist() == [True]


def test_trades_out_of_order_are_sorted_and_said():
    times = np.array(
        [ns(f"2024-07-10T{hour}:00:00", "America/Chicago") for hour in ("18", "10", "11")]
    )
    trades = reading.by_date(np.array([3, 1, 2], np.int32), np.ones(3, np.int32), times, 0.25)
    assert trades.labels == ("2024-07-10", "2024-07-11")
    assert trades.price.tolist() == [1, 2, 3] and "1 trades are earlier" in trades.notes[0]


def test_sessions_of_a_column_keep_the_order_in_which_they_first_come():
    trades = reading.group(
        np.arange(5, dtype=np.int32),
        np.ones(5, np.int32),
        np.array(["b", "b", "a", "b", "a"]),
        0.25,
    )
    assert (
        trades.labels == ("b", "a")
        and trades.price.tolist() == [0, 1, 3, 2, 4]
        and trades.starts.tolist() == [0, 3, 5]
    )
    assert "sorted by session" in trades.notes[0]


def test_an_unknown_zone_or_time_of_day_is_refused():
    with pytest.raises(TradesError, match="time zone"):
        reading.zone_of("Chicago/Nowhere")
    with pytest.raises(TradesError, match="HH:MM"):
        reading.in_window(np.zeros(1, np.int64), ("25:00", "26:00"))
