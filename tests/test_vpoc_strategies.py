"""Every strategy gives the same bits, DuckDB's included, and takes the memory that the model says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpoc_trades import TYPES, as_type, parquet_of, slow_profiles

from helpers.load.vpoc import kernels, sample, study
from helpers.load.vpoc.histogram import profiles
from helpers.load.vpoc.memory import case_arithmetic, predicted_bytes, shape_of
from helpers.load.vpoc.strategies import (
    NUMPY,
    TORCH,
    case_histogram,
    run,
    stream_mapped,
    stream_parquet,
    stream_read,
)
from helpers.load.vpoc.study import ALL, measure
from helpers.load.vpoc.trades import TradesError, from_sessions, open_store, survey, write_store
from helpers.look.reading import MIB

SOME = sample.generated(12, 3000, seed=5, ragged=True)


@st.composite
def some_trades(draw):
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width, most = (
        draw(st.sampled_from([1, 5, 900, 1500])),
        draw(st.sampled_from([3, 10**6, 2**31 - 1])),
    )
    return from_sessions(
        [
            (
                rng.integers(-width, width, n).astype(np.int32),
                rng.integers(1, most, n).astype(np.int32),
            )
            for n in lengths
        ],
        0.25,
    )


@settings(max_examples=40)
@given(some_trades(), st.integers(1, 5), st.integers(1, 50))
def test_all_numpy_strategies_equal_the_slow_twin(trades, workers, chunk):
    layout = survey(trades)
    want = slow_profiles(trades, layout)
    assert np.array_equal(profiles(trades, layout, workers), want)
    for name in NUMPY:
        got = run(name, trades, layout, chunk)
        assert got.dtype == layout.counts and np.array_equal(got, want), name


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("tick", [0.25, 0.00005])
def test_points_count_as_ticks_do(kind, tick):
    trades = as_type(SOME, kind, tick)
    layout = survey(trades)
    want = slow_profiles(SOME, survey(SOME))
    for name in NUMPY:
        assert np.array_equal(run(name, trades, layout, 500), want), name


def test_one_long_session_is_shared_by_the_threads_and_a_wide_one_needs_no_private_rows():
    rng = np.random.default_rng(0)
    wide = from_sessions(
        [(rng.integers(0, 5000, 70_001).astype(np.int32), np.ones(70_001, np.int32))], 0.25
    )
    assert survey(wide).bins > kernels.FAST_WIDTH
    for workers in (1, 2, 3, 7):
        assert np.array_equal(profiles(wide, workers=workers), slow_profiles(wide, survey(wide)))


def test_sums_beyond_a_type_are_promoted_and_said():
    big = np.full(3, 2**30, np.int32)
    trades = from_sessions([(np.zeros(3, np.int32), big)], 0.25)
    layout = survey(trades)
    assert layout.counts == "int64" and "int32 does not count exactly" in layout.notes[0]
    assert all(run(name, trades, layout)[0, 0] == 3 * 2**30 for name in NUMPY)
    exact = as_type(
        from_sessions([(np.zeros(2, np.int32), np.array([2**24, 1], np.int32))], 0.25), "float32"
    )
    assert survey(exact).counts == "float64" and profiles(exact)[0, 0] == 2**24 + 1


def test_sums_of_int64_volumes_beyond_float64_stay_exact():
    volume = np.array([2**53, 1, 1, 1], np.int64)
    trades = from_sessions([(np.zeros(4, np.int32), volume)], 0.25)
    assert [run(name, trades, survey(trades))[0, 0] for name in NUMPY] == [2**53 + 3] * len(NUMPY)


def test_trades_that_are_not_those_of_the_layout_are_refused():
    layout = survey(SOME)
    moved = from_sessions(
        [(SOME.session(s)[0] + 7, SOME.session(s)[1]) for s in range(SOME.sessions)], 0.25
    )
    with pytest.raises(TradesError, match="survey the same trades"):
        profiles(moved, layout)
    with pytest.raises(TradesError, match="bins"):
        survey(SOME, 3)
    with pytest.raises(TradesError, match="no numbers"):
        survey(as_type(from_sessions([(np.array([np.nan]), np.ones(1))], 0.25), "float64"))


def test_no_trades_and_one_trade_have_profiles():
    assert profiles(from_sessions([], 0.25)).shape == (0, 1)
    none, nine, four = np.zeros(0, np.int32), np.array([9], np.int32), np.array([4], np.int32)
    assert profiles(from_sessions([(none, none), (nine, four)], 1)).tolist() == [[0], [4]]


def test_the_cases_histogram_answers_the_left_edge_of_a_bin():
    session = (
        np.repeat(np.array([6522, 6583, 6586, 6600], np.int32), [1, 1, 5, 1]),
        np.ones(8, np.int32),
    )
    trades = from_sessions([session], 0.25)
    answer = case_histogram(trades)[0]
    assert answer != 6586 * 0.25 and abs(answer - 6586 * 0.25) < 0.25


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {kind: write_store(folder / kind, [as_type(SOME, kind)], 256) for kind in TYPES}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("block", [97, 1000, 1 << 16])
def test_streams_equal_what_is_in_memory(stores, kind, block):
    store = stores[kind]
    want = profiles(store.trades, store.layout)
    assert np.array_equal(stream_read(store, block, 3), want)
    assert np.array_equal(stream_mapped(store, 5), want)


@settings(max_examples=30)
@given(some_trades(), st.integers(1, 30), st.integers(1, 4))
def test_streaming_by_any_block_and_thread_count_is_the_same(trades, block, workers):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder, "s"), [trades])
        assert np.array_equal(
            stream_read(store, block, workers), slow_profiles(trades, store.layout)
        )


def test_a_store_written_in_parts_is_the_store_of_the_whole(tmp_path):
    parts = write_store(tmp_path / "parts", [SOME.take(0, 5), SOME.take(5, 12)])
    assert np.array_equal(parts.trades.price, SOME.price) and parts.trades.labels == SOME.labels
    assert np.array_equal(
        profiles(parts.trades, parts.layout), profiles(SOME, survey(SOME, parts.layout.bins))
    )


def test_a_store_cut_short_is_refused_with_its_numbers(tmp_path):
    store = write_store(tmp_path / "s", [SOME])
    with (store.folder / "volume.bin").open("r+b") as file:
        file.truncate(1001)
    with pytest.raises(TradesError, match="1001 bytes, expected"):
        open_store(store.folder)
    with pytest.raises(TradesError, match="cut short after it was opened"):
        stream_read(store)
    with pytest.raises(TradesError, match="no store"):
        open_store(tmp_path)


@pytest.mark.parametrize("kind", TYPES)
def test_duckdb_counts_the_same_over_parquet(tmp_path, kind):
    import duckdb

    path = parquet_of(as_type(SOME, kind), tmp_path / "trades.parquet")
    labels, layout, counts = stream_parquet(path, 0.25, 777)
    assert np.array_equal(counts, profiles(SOME, survey(SOME, layout.bins)))
    tick = "price" if kind == "int32" else "CAST(round(price / 0.25) AS INT)"
    rows = duckdb.sql(
        f"SELECT session, {tick} AS tick, sum(volume) AS v FROM '{path}' GROUP BY ALL"
    ).fetchall()
    assert len(rows) == np.count_nonzero(counts)
    place = {label: s for s, label in enumerate(labels)}
    assert all(counts[place[s], tick - layout.lows[place[s]]] == volume for s, tick, volume in rows)


FAST = (("int32", "preallocated"), ("float32", "list_cat"), ("float64", "one_hot"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[] if (kind, name) in FAST else pytest.mark.slow)
        for kind in TYPES
        for name in TORCH
    ],
)
def test_torch_gives_the_same_bits(stores, kind, name):
    store = stores[kind]
    want = profiles(store.trades, store.layout)
    got = measure(
        name, store, chunk_trades=1700, counts=True, sessions=2 if name == "one_hot" else None
    )
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    assert np.array_equal(got.counts, want[: len(got.counts)])


def test_a_gpu_that_is_not_there_is_said(stores):
    got = measure("preallocated", stores["int32"], device="cuda")
    assert got.status in ("ok", "not_available") and (got.status == "ok" or got.why)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        ("fused", 1),
        ("preallocated", 300_000),
        pytest.param("arena", 300_000, marks=pytest.mark.slow),
        pytest.param("fused_one_thread", 1, marks=pytest.mark.slow),
    ],
)
def test_the_memory_model_is_exact_to_a_mebibyte(tmp_path, name, chunk):
    store = write_store(tmp_path / "s", [sample.generated(1014, 500)], 1000)
    got = measure(name, store, chunk_trades=chunk)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    assert (
        abs(got.peak_bytes - predicted_bytes(name, shape_of(store.trades, store.layout), chunk))
        <= MIB
    )


def test_every_strategy_but_parquet_has_a_model():
    shape = shape_of(SOME, survey(SOME))
    assert all(predicted_bytes(name, shape, 1000) > 0 for name in ALL if name != "stream_parquet")
    with pytest.raises(ValueError, match="no model"):
        predicted_bytes("nothing", shape)
    with pytest.raises(ValueError, match="expected one of"):
        measure("nothing", None)


def test_contention_has_a_row_for_each_order_and_strategy():
    rows = study.contention(SOME, ("fused",), repeats=1)
    assert len(rows) == 3 and all(row["seconds"] > 0 for row in rows)


def test_each_order_has_the_same_volume_in_each_session():
    totals = [survey(trades).totals.tolist() for _, trades in study.orders(SOME)]
    assert totals[0] == totals[1] == totals[2]
    assert [survey(trades).widths.max() for _, trades in study.orders(SOME)][2] == 1


def test_the_cases_numbers_come_to_other_ones():
    assert [round(row["value"], 2) for row in case_arithmetic()] == [4.06, 0.04, 4.93, 16.79, 22.39]
