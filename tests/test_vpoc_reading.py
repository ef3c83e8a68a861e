"""Files as users have them: columns guessed, zones asked for, every bad row counted, nothing silently dropped."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from vpoc_trades import CHICAGO, lines, minutes, parquet_of

from helpers.vpoc import sessions
from helpers.vpoc.files import profiles_of, write
from helpers.vpoc.reading import read_instruments, read_trades
from helpers.vpoc.trades import Trades, TradesError, generated


def noted(trades, words):
    return any(words in note for note in trades.notes)


@pytest.mark.parametrize(
    "header",
    [
        "DateTime,Price,Volume",
        "ts_event,last_price,last_size",
        "timestamp,px,qty",
        "Date Time,Last,Qty",
    ],
)
def test_a_plain_csv_is_read_by_its_guessed_columns(tmp_path, header):
    trades = read_trades(lines(tmp_path / "t.csv", minutes(), header), zone=CHICAGO)
    assert trades.labels == ("2024-07-10",) and trades.tick == 0.25
    assert trades.price.tolist() == list(range(20_000, 20_020))
    assert trades.volume.tolist() == list(range(1, 21))
    assert noted(trades, "guessed")
    assert noted(trades, f"price is {header.split(',')[1]!r}")


LEFT_OUT = {
    "2024-07-10 12:00:00.0,NaN,1": "price is no number",
    "2024-07-10 12:00:01.0,5000,-3": "volume is negative",
    "2024-07-10 12:00:02.0,5000,0": "volume is zero",
    "2024-07-10 12:00:05.0,5000,": "volume is no number",
    ",5000,2": "time is missing",
}


def test_rows_that_do_not_count_are_counted_by_their_reason(tmp_path):
    trades = read_trades(lines(tmp_path / "t.csv", [*minutes(), *LEFT_OUT]), "ES", zone=CHICAGO)
    assert len(trades) == 20
    for reason in LEFT_OUT.values():
        assert noted(trades, f"1 rows left out: {reason}")


@pytest.mark.parametrize(
    ("rows", "day", "zone"),
    [
        (minutes(zone="+00:00"), "2024-07-10", ""),
        ([f"{1720602000 + i},{5000 + i * 0.25},1" for i in range(20)], "2024-07-10", ""),
        (
            [f"7/10/2024 18:00:{i:02d},{5000 + i * 0.25},1" for i in range(20)],
            "2024-07-11",
            CHICAGO,
        ),
    ],
    ids=["with a zone", "since 1970", "american"],
)
def test_times_are_read_in_the_forms_that_files_have(tmp_path, rows, day, zone):
    assert read_trades(lines(tmp_path / "t.csv", rows), zone=zone).labels == (day,)


def test_the_zone_of_times_without_one_is_asked_for(tmp_path):
    with pytest.raises(TradesError, match="have no zone"):
        read_trades(lines(tmp_path / "t.csv", minutes()))


def test_a_session_column_needs_no_times(tmp_path):
    rows = [f"{'AB'[i // 10]},{5000 + i * 0.25},1" for i in range(20)]
    trades = read_trades(lines(tmp_path / "t.csv", rows, "session,price,volume"))
    assert trades.labels == ("A", "B") and trades.starts.tolist() == [0, 10, 20]


def test_columns_are_taken_by_name(tmp_path):
    path = lines(tmp_path / "t.csv", minutes(), "time,bid,close")
    columns = {"price": "bid", "volume": "close"}
    trades = read_trades(path, zone=CHICAGO, columns=columns)
    assert trades.volume.tolist() == list(range(1, 21))
    with pytest.raises(TradesError, match="no column 'ask'"):
        read_trades(path, zone=CHICAGO, columns={"price": "ask"})


PLACES = {"time": "1", "price": "2", "volume": "3"}


@pytest.mark.parametrize("start", ["", "\n", "\ufeff"])
def test_a_file_without_a_header_keeps_its_first_trade(tmp_path, start):
    path = tmp_path / "t.csv"
    path.write_text(start + "\n".join(minutes()) + "\n")
    trades = read_trades(path, zone=CHICAGO, columns=PLACES)
    assert trades.volume.tolist() == list(range(1, 21)), "twenty trades, the first among them"
    named = {"price": minutes()[0].split(",")[1], "volume": minutes()[0].split(",")[2]}
    for columns in (None, named):
        with pytest.raises(TradesError, match="its first line is a trade, no header"):
            read_trades(path, zone=CHICAGO, columns=columns)
    with pytest.raises(TradesError, match="no column '7'"):
        read_trades(path, zone=CHICAGO, columns={**PLACES, "volume": "7"})


def test_places_name_the_columns_of_a_file_with_a_header_too(tmp_path):
    path = lines(tmp_path / "t.csv", minutes(), "time,bid,close")
    trades = read_trades(path, zone=CHICAGO, columns={"price": "2", "volume": "3"})
    assert trades.volume.tolist() == list(range(1, 21))


SEVERAL = [f"S,{'ZYX'[n % 3]},{100 * (1 + n % 3) + 0.25 * n},{n + 1}" for n in range(30)]


@pytest.mark.parametrize("header", ["session,Symbol,price,volume", "session,ticker,price,volume"])
def test_several_instruments_are_never_one_profile(tmp_path, header):
    path = lines(tmp_path / "t.csv", SEVERAL, header)
    with pytest.raises(TradesError, match="3 instruments .X, Y, Z. make no one profile"):
        read_trades(path)
    each = read_instruments(path)
    assert list(each) == ["X", "Y", "Z"]
    assert sum(len(trades) for trades in each.values()) == 30
    only = read_trades(path, instrument="Y")
    assert only.volume.tolist() == each["Y"].volume.tolist() == list(range(2, 31, 3))
    assert noted(only, "instrument Y")
    with pytest.raises(TradesError, match="no instrument 'W'; it has X, Y, Z"):
        read_trades(path, instrument="W")
    without = lines(tmp_path / "w.csv", minutes())
    with pytest.raises(TradesError, match="no column says the instrument"):
        read_trades(without, zone=CHICAGO, instrument="Y")
    columns = {"symbol": ["A", "B"] * 10, "price": [1.0] * 20, "volume": [1] * 20}
    packed = tmp_path / "t.parquet"
    parquet.write_table(pa.table(columns), packed)
    assert list(read_instruments(packed, 0.25)) == ["A", "B"]


def test_an_instrument_of_few_prices_has_the_tick_of_all(tmp_path):
    path = lines(tmp_path / "t.csv", [*SEVERAL, "S,few,100.25,1"], "session,symbol,price,volume")
    few = read_instruments(path)["few"]
    assert few.tick == 0.25 and len(few) == 1


def test_prices_off_the_grid_and_a_wrong_tick_are_said(tmp_path):
    path = lines(tmp_path / "t.csv", [*minutes(40), "2024-07-10 13:00:00,5000.1,7"])
    off = "1 of 41 prices are off the 0.25 grid (5000.1)"
    assert noted(read_trades(path, 0.25, zone=CHICAGO), off)
    fine = lines(tmp_path / "f.csv", minutes(40))
    assert noted(read_trades(fine, 0.01, zone=CHICAGO), "25 x as many rows")
    with pytest.raises(TradesError):
        read_trades(fine, "nonsense", zone=CHICAGO)


@pytest.mark.parametrize(
    ("volume", "kind", "says"), [(3 * 10**9, np.int64, "int64"), (0.5, np.float64, "fractions")]
)
def test_volumes_beyond_int32_and_with_fractions_are_promoted_and_said(
    tmp_path, volume, kind, says
):
    rows = [f"A,{5000 + i * 0.25},{volume}" for i in range(10)]
    trades = read_trades(lines(tmp_path / "b.csv", rows, "session,price,volume"))
    assert trades.volume.dtype == kind and noted(trades, says)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.csv", "", "Empty CSV"),
        ("head.csv", "session,price,volume\n", "no good row"),
        ("short.csv", "session,price,volume\nA,1\n", "Expected 3 columns, got 2"),
        ("when.csv", "time,price,volume\nyesterday,1,1\n", "expected times such as"),
        ("names.csv", "a,b\n1,2\n", "looks like"),
        ("bad.csv", "session,price,volume\nA,x,1\n", "invalid value .x.: expected a whole"),
        ("few.csv", "session,price,volume\nA,1,1\n", "give the tick"),
        ("x.parquet", "PAR1 and nothing", "whole"),
        ("x.npz", "PK and nothing", "write CSV or Parquet instead"),
        ("none.csv", None, "whole"),
    ],
)
def test_files_that_cannot_be_used_say_why_in_one_line(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TradesError, match=says) as error:
        read_trades(tmp_path / name)
    assert "\n" not in str(error.value)


def in_points(trades, **more):
    return replace(trades, price=trades.price * 0.25, **more)


def test_a_file_cut_short_is_refused(tmp_path):
    path = parquet_of(generated(3, 2000), tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TradesError, match="whole"):
        read_trades(path, 0.25)


def test_parquet_and_csv_of_the_same_trades_are_the_same(tmp_path):
    trades = generated(3, 500)
    path = parquet_of(in_points(trades), tmp_path / "t.parquet")
    pairs = enumerate(zip(trades.price, trades.volume, strict=True))
    rows = [f"{trades.labels[i // 500]},{price * 0.25},{volume}" for i, (price, volume) in pairs]
    text = lines(tmp_path / "t.csv", rows, "session,price,volume")
    for one in (read_trades(path), read_trades(text)):
        assert np.array_equal(one.price, trades.price) and one.labels == trades.labels
        assert np.array_equal(one.volume, trades.volume)


def test_profiles_and_levels_are_written_for_duckdb(tmp_path):
    import duckdb

    path = lines(tmp_path / "t.csv", minutes())
    result = profiles_of(read_trades(path, "ES", zone=CHICAGO))
    profiles_path, levels_path = write(result, tmp_path / "out")
    sums = f"SELECT sum(volume), min(price), count(*) FROM '{profiles_path}'"
    assert duckdb.sql(sums).fetchall() == [(210, 5000.0, 20)]
    rows = duckdb.sql(f"SELECT * FROM '{levels_path}'").fetchall()
    assert len(rows) == 6 and all(row[0] == "2024-07-10" and row[1] == 5004.75 for row in rows)
    with pytest.raises(FileExistsError):
        write(result, tmp_path / "out")


def ns(text, zone=CHICAGO):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 10**9


def row_of_trades(count):
    """Trades in one session, each a tick higher."""
    price = np.arange(count, dtype=np.int32)
    ones = np.ones(count, np.int32)
    return Trades(price, ones, np.array([0, count]), 0.25, ("all",))


def chicago(*walls):
    """These times in Chicago as the reader has them."""
    utc = pa.array([ns(wall) for wall in walls], pa.timestamp("ns", "UTC"))
    return sessions.chicago_ns(utc)


def by_date(*walls):
    """A trade of one tick more at each of these times in Chicago."""
    return sessions.by_date(row_of_trades(len(walls)), chicago(*walls))


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
    assert by_date(wall).labels == (day,)


def test_the_hour_that_a_clock_shows_twice_is_counted():
    wall = pa.array([ns(f"2024-11-03T{hour}:30:00", "UTC") for hour in ("01", "03")])
    notes = []
    utc = sessions.with_zone(wall.cast(pa.timestamp("ns")), CHICAGO, notes)
    assert utc.cast(pa.int64())[0].as_py() == ns("2024-11-03T06:30:00", "UTC")
    assert notes[0].startswith("1 times stand in the hour")


def test_trades_out_of_order_are_sorted_and_said():
    trades = by_date(*(f"2024-07-10T{hour}:00:00" for hour in ("18", "10", "11")))
    assert trades.labels == ("2024-07-10", "2024-07-11")
    assert trades.price.tolist() == [1, 2, 0] and noted(trades, "1 trades are earlier")


def test_sessions_of_a_column_keep_the_order_in_which_they_first_come():
    trades = sessions.group(row_of_trades(5), np.array(list("bbaba")))
    assert trades.labels == ("b", "a")
    assert trades.starts.tolist() == [0, 3, 5]
    assert trades.price.tolist() == [0, 1, 3, 2, 4]
    assert noted(trades, "sorted by session")


def test_an_unknown_zone_is_refused():
    with pytest.raises(TradesError, match="time zone"):
        sessions.with_zone(pa.array([0], pa.timestamp("s")), "Chicago/Nowhere", [])


def test_the_generator_is_seeded_and_prints_at_the_same_price():
    first, again, other = (generated(3, 4000, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.price, again.price)
    assert not np.array_equal(first.price, other.price)
    assert 0.9 < np.mean(np.diff(first.price[:4000]) == 0) < 0.99
