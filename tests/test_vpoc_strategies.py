"""Every strategy gives the same bits, DuckDB's included, and takes the memory that the model says."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpoc_trades import (
    VOLUMES,
    parquet_of,
    ragged,
    session_of,
    slow_profiles,
    with_volumes,
)

from helpers.ground.units import MIB
from helpers.vpoc import kernels
from helpers.vpoc.counting import STRATEGIES, chunked, profiles, run
from helpers.vpoc.files import profiles_of, write
from helpers.vpoc.layout import survey
from helpers.vpoc.measure import measure
from helpers.vpoc.planner import predicted_bytes, shape_of
from helpers.vpoc.reading import read_trades
from helpers.vpoc.store import open_store, write_store
from helpers.vpoc.trades import TradesError, from_sessions, generated

SOME = ragged(12, 3000, 5)
NUMPY = [name for name, way in STRATEGIES.items() if not way.torch]
TORCH = [name for name, way in STRATEGIES.items() if way.torch]


def one_session(price, volume, tick=0.25):
    """Whole numbers of ticks and of contracts, int32 where they are lists."""
    return from_sessions([tuple(np.asarray(one, np.int32) for one in (price, volume))], tick)


@st.composite
def some_trades(draw):
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.sampled_from([1, 5, 900, 1500]))
    most = draw(st.sampled_from([3, 10**6, 2**31 - 1]))
    price = [rng.integers(-width, width, n).astype(np.int32) for n in lengths]
    volume = [rng.integers(1, most, n).astype(np.int32) for n in lengths]
    return from_sessions(list(zip(price, volume, strict=True)), 0.25)


@settings(max_examples=40)
@given(some_trades(), st.integers(1, 5), st.integers(1, 50))
def test_the_fused_and_the_chunked_way_equal_the_slow_twin(trades, workers, chunk):
    layout = survey(trades)
    want = slow_profiles(trades, layout)
    assert np.array_equal(profiles(trades, layout, workers), want)
    counts = chunked(trades, layout, chunk)
    assert counts.dtype == layout.counts
    assert np.array_equal(counts, want)


def test_one_long_session_is_shared_by_the_threads_and_a_wide_one_needs_no_private_rows():
    price = np.random.default_rng(0).integers(0, 5000, 70_001)
    wide = one_session(price, np.ones(70_001))
    assert survey(wide).bins > kernels.FAST_WIDTH
    for workers in (1, 2, 3, 7):
        assert np.array_equal(profiles(wide, workers=workers), slow_profiles(wide, survey(wide)))


def test_sums_beyond_a_type_are_promoted_and_said():
    trades = one_session([0, 0, 0], [2**30] * 3)
    layout = survey(trades)
    assert layout.counts == "int64" and "int32 does not count exactly" in layout.notes[0]
    assert all(run(name, trades, layout)[0, 0] == 3 * 2**30 for name in NUMPY)


def test_sums_of_int64_volumes_beyond_float64_stay_exact():
    volume = np.array([2**53, 1, 1, 1], np.int64)
    trades = from_sessions([(np.zeros(4, np.int32), volume)], 0.25)
    assert [run(name, trades, survey(trades))[0, 0] for name in NUMPY] == [2**53 + 3] * len(NUMPY)


def test_trades_that_are_not_those_of_the_layout_are_refused():
    sessions = [session_of(SOME, s) for s in range(SOME.sessions)]
    moved = from_sessions([(price + 7, volume) for price, volume in sessions], 0.25)
    with pytest.raises(TradesError, match="survey the same trades"):
        profiles(moved, survey(SOME))
    with pytest.raises(TradesError, match="bins"):
        survey(SOME, 3)


def test_no_trades_and_one_trade_have_profiles():
    assert profiles(from_sessions([], 0.25)).shape == (0, 1)
    none, nine, four = (np.array(one, np.int32) for one in ([], [9], [4]))
    assert profiles(from_sessions([(none, none), (nine, four)], 1)).tolist() == [[0], [4]]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {kind: write_store(folder / kind, with_volumes(SOME, kind), 256) for kind in VOLUMES}


@pytest.mark.parametrize("kind", VOLUMES)
def test_a_store_opens_as_it_was_written(stores, kind):
    store = open_store(stores[kind].folder)
    assert np.array_equal(store.trades.price, SOME.price)
    want = profiles(stores[kind].trades, stores[kind].layout)
    assert np.array_equal(profiles(store.trades, store.layout), want)


def test_duckdb_counts_the_same_over_parquet(tmp_path):
    import duckdb

    path = parquet_of(SOME, tmp_path / "trades.parquet", points=True)
    written, _ = write(profiles_of(read_trades(path, 0.25)), tmp_path / "out")
    asked = (
        f"SELECT session, price, sum(volume)::BIGINT AS v FROM '{path}' GROUP BY ALL ORDER BY ALL"
    )
    counted = duckdb.sql(asked).fetchall()
    ours = duckdb.sql(f"SELECT session, price, volume::BIGINT FROM '{written}' ORDER BY ALL")
    assert counted == ours.fetchall()


def here(name, store, **more):
    """What a strategy of torch answers, carried out in this process; the answers of a child are held below."""
    torch_profiles = pytest.importorskip("helpers.vpoc.under_torch.volume_profiles")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counts")
        spec = {"strategy": name, "folder": str(store.folder), "device": "cpu", "out": str(out)}
        spec |= {"chunk_trades": 1700, "repeats": 1, "limit_bytes": None, "sessions": None}
        (answer,) = torch_profiles.work({**spec, **more})
        if answer["status"] == "not_available":
            pytest.skip(answer["why"])
        assert answer["status"] == "ok", answer["why"]
        return np.fromfile(out, store.layout.counts).reshape(-1, store.layout.bins)


@pytest.mark.parametrize("kind", VOLUMES)
@pytest.mark.parametrize("name", TORCH)
def test_torch_gives_the_same_bits(stores, kind, name):
    counts = here(name, stores[kind], sessions=2 if name == "one_hot" else None)
    want = profiles(stores[kind].trades, stores[kind].layout)
    assert len(counts) and np.array_equal(counts, want[: len(counts)])


def test_a_child_under_torch_gives_them_too(stores):
    got = measure("preallocated", stores["int32"], chunk_trades=1700, counts=True)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    assert np.array_equal(got.counts, profiles(stores["int32"].trades, stores["int32"].layout))


def test_a_gpu_that_is_not_there_is_said(stores):
    got = measure("preallocated", stores["int32"], device="cuda")
    assert got.status in ("ok", "not_available") and (got.status == "ok" or got.why)


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        ("fused", 1),
        ("preallocated", 300_000),
    ],
)
def test_the_memory_model_is_exact_to_a_mebibyte(tmp_path, name, chunk):
    store = write_store(tmp_path / "s", generated(1014, 500), 1000)
    got = measure(name, store, chunk_trades=chunk)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    model = predicted_bytes(name, shape_of(store.trades, store.layout), chunk)
    assert abs(got.peak_bytes - model) <= MIB


def test_every_strategy_has_a_model_and_no_other_name_is_one():
    shape = shape_of(SOME, survey(SOME))
    assert min(predicted_bytes(name, shape, 1000) for name in STRATEGIES) > 0
    with pytest.raises(TradesError, match="expected one of"):
        measure("nothing", None)
    with pytest.raises(TradesError, match="needs torch"):
        run("flat", SOME, survey(SOME))
