"""Chunks that fit, and real refusals: under a hard limit the plain forms fail in the allocator's words and the streams pass."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.ground.units import GIB, MIB
from helpers.vpoc import planner, study
from helpers.vpoc import reading as sample
from helpers.vpoc import view as vpoc
from helpers.vpoc.histogram import STRATEGIES
from helpers.vpoc.planner import (
    Free,
    NoRoomError,
    Shape,
    free_here,
    plan,
    predicted_bytes,
    shape_of,
)
from helpers.vpoc.study import measure
from helpers.vpoc.trades import open_store, write_store

VOLUMES = st.sampled_from(["int32", "int64", "float64"])
TRADES, SESSIONS, LONGEST, BINS = (st.integers(1, most) for most in (10**9, 2000, 10**6, 5000))
SHAPES = st.builds(Shape, TRADES, SESSIONS, LONGEST, BINS, VOLUMES, VOLUMES)


FREE = st.builds(
    Free, st.integers(0, 64 * GIB), st.just("a test"), st.integers(0, 256 * MIB), st.booleans()
)


@settings(max_examples=300)
@given(SHAPES, st.sampled_from(sorted(STRATEGIES)), FREE, st.booleans())
def test_a_plan_never_takes_more_than_its_share_of_what_is_free(shape, strategy, free, resident):
    try:
        chosen = plan(strategy, shape, free, resident)
    except NoRoomError as error:
        assert "stream" in str(error)
        return
    inputs = 0 if resident else shape.trades * shape.bytes_a_trade
    taken = predicted_bytes(strategy, shape, chosen.chunk_trades) + inputs
    assert taken <= planner.SHARE * free.bytes
    assert 1 <= chosen.chunk_trades <= shape.trades
    assert chosen.chunks == math.ceil(shape.trades / chosen.chunk_trades)
    if chosen.bound == "memory" and chosen.chunk_trades < shape.trades:
        more = predicted_bytes(strategy, shape, chosen.chunk_trades + 1) + inputs
        assert more + 80 * MIB * free.gpu > planner.SHARE * free.bytes - 1


@settings(max_examples=100)
@given(SHAPES, st.integers(0, 4 * GIB))
def test_more_memory_never_makes_a_chunk_smaller(shape, free):
    assume(predicted_bytes("preallocated", shape, 1) <= planner.SHARE * free)
    small, large = (
        plan("preallocated", shape, Free(size, "a test", 32 * MIB)) for size in (free, 2 * free)
    )
    assert small.chunk_trades <= large.chunk_trades


def test_the_chunk_is_counted_in_trades_and_bound_by_the_cache():
    shape = Shape(20_000_000, 1014, 160_000, 1000)
    chosen = plan("preallocated", shape, Free(16 * GIB, "a test", 32 * MIB))
    assert chosen.bound == "cache" and 1_000_000 < chosen.chunk_trades < 2_000_000
    assert "trades at a time" in chosen.says
    card = plan("preallocated", shape, Free(16 * GIB, "a card", gpu=True))
    assert "keeps a GPU busy (computed)" in card.says and "cache" not in card.says
    assert plan("preallocated", shape, Free(16 * MIB, "a test", 32 * MIB)).bound == "memory"
    assert plan("fused", shape, Free(GIB, "a test")).chunks == 1


@pytest.mark.parametrize(
    ("most", "used", "free_bytes", "says"),
    [
        ("max", 1000, 4 * GIB, "available RAM"),
        (GIB, GIB // 2, GIB // 2, "the memory control group's rest"),
    ],
)
def test_free_memory_is_the_least_of_ram_and_control_groups(tmp_path, most, used, free_bytes, says):
    for path, text in {
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": most,
        "sys/fs/cgroup/memory.current": used,
        "sys/devices/system/cpu/cpu0/cache/index3/size": "32768K",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    found = free_here(tmp_path)
    assert (found.bytes, found.says, found.cache_bytes) == (free_bytes, says, 32 * MIB)
    assert free_here().bytes > 0


@pytest.mark.parametrize(
    "room_mib",
    [24, pytest.param(80, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", ["preallocated", "chunks_bincount"])
def test_a_planned_chunk_passes_under_the_hard_limit_it_was_planned_for(tmp_path, name, room_mib):
    store = write_store(tmp_path / "s", [sample.generated(64, 20_000)], 1000)
    room = room_mib * MIB
    chosen = plan(name, shape_of(store.trades, store.layout), Free(room, "a test"), False)
    got = measure(name, store, chunk_trades=chosen.chunk_trades, limit_bytes=room, counts=True)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    assert got.counts.sum(dtype=np.int64) == store.layout.totals.sum()


def sparse_store(folder, sessions=254, trades=200_000):
    """A store whose files are holes but for three sessions: as large as any to those who read it, and nothing on the disk."""
    store = write_store(folder, [sample.generated(3, trades, 7)], 1000)
    place = [0, 100, sessions - 1]
    about = json.loads((folder / "layout.json").read_text())
    for name in ("price", "volume"):
        column = np.array(getattr(store.trades, name))
        with (folder / f"{name}.bin").open("wb") as file:
            for at, part in zip(place, np.split(column, 3), strict=True):
                file.seek(at * trades * 4)
                part.tofile(file)
            file.truncate(sessions * trades * 4)
    rows = {"lows": np.zeros(sessions, np.int32), "widths": np.ones(sessions, np.int32)}
    totals = np.zeros(sessions, np.int64)
    for name, values in {**rows, "totals": totals}.items():
        values[place] = getattr(store.layout, name)
    for name, values in {**rows, "starts": np.arange(sessions + 1) * trades}.items():
        values.tofile(folder / f"{name}.bin")
    about |= {"labels": list(map(str, range(sessions))), "totals": totals.tolist()}
    (folder / "layout.json").write_text(json.dumps(about))
    return open_store(folder)


def test_a_stream_passes_at_64_mebibytes_on_files_of_400_megabytes(tmp_path):
    store = sparse_store(tmp_path / "s")
    sizes = [(store.folder / f"{part}.bin").stat().st_size for part in ("price", "volume")]
    assert sum(sizes) > 4e8
    got = measure("stream_read", store, limit_bytes=64 * MIB, counts=True)
    assert got.status == "ok", got.why
    assert np.array_equal(got.counts.sum(1), store.layout.totals)
    assert got.peak_bytes <= 20 * MIB
    few = write_store(tmp_path / "few", [sample.generated(40, 20_000)], 1000)
    assert measure("stream_read", few, limit_bytes=8 * MIB).status == "ok"  # no thread begins late


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flat_bincount", "Unable to allocate 194. MiB"),
        pytest.param("one_hot", "DefaultCPUAllocator", marks=pytest.mark.slow),
        pytest.param("list_cat", "DefaultCPUAllocator", marks=pytest.mark.slow),
    ],
)
def test_what_takes_all_is_refused_in_the_allocators_words(tmp_path, name, says):
    got = measure(name, sparse_store(tmp_path / "s"), limit_bytes=64 * MIB)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "out_of_memory" and says in got.why


def test_what_a_library_writes_among_the_answers_is_no_answer(tmp_path, monkeypatch):
    chatter = """print('{ chatty'); print('[1]'); print('{"status": "warming up"')"""
    (tmp_path / "sitecustomize.py").write_text(chatter)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    got = measure("flat_bincount", write_store(tmp_path / "s", [sample.generated(4, 1000)]))
    assert got.status == "ok", got.why


@pytest.mark.slow
def test_list_and_cat_holds_more_than_it_uses_and_the_control_does_not(tmp_path):
    store = write_store(tmp_path / "s", [sample.generated(1014, 20_000)], 1000)
    kept, control, buffers = study.fragmentation(store, 5)
    if not kept["processes"]:
        pytest.skip(kept["why"])
    assert buffers["median_bytes"] < buffers["live_bytes"] + MIB
    assert control["median_bytes"] < 2 * control["live_bytes"]
    assert kept["median_bytes"] > 2 * control["median_bytes"]


@pytest.mark.slow
def test_the_strategy_table_and_the_limits_matrix_have_every_row(tmp_path):
    store = write_store(tmp_path / "s", [sample.generated(40, 20_000)], 1000)
    rows = study.strategies(store, chunk_trades=200_000, repeats=1)
    assert [row["strategy"] for row in rows] == list(study.ALL)
    assert all(row["equal"] for row in rows if row["status"] == "ok")
    matrix = study.refusals(store, ("flat_bincount", "stream_read"), (8, 64))
    assert [row["status"] for row in matrix] == ["out_of_memory", "ok", "ok", "ok"]


def test_curve_limits_and_heap_have_a_row_for_each_size_limit_and_form(tmp_path, monkeypatch):
    store = write_store(tmp_path / "s", [sample.generated(4, 1000)], 1000)
    curve = study.chunk_curve(store, [10_000, 100_000], ("chunks_bincount",), repeats=1)
    assert [row["chunk_trades"] for row in curve] == [10_000, 100_000]
    assert all(row["status"] == "ok" and row["seconds"] > 0 for row in curve)
    limits = study.refusals(store, ("session_bincount",), (8, 64))
    assert [(row["limit_mib"], row["status"]) for row in limits] == [(8, "ok"), (64, "ok")]
    kept = {"": 16, "65536": 1}
    monkeypatch.setattr(
        study,
        "measure",
        lambda name, store, env, **how: study.Measured(
            name, "ok", peak_bytes=kept[env.get("MALLOC_MMAP_THRESHOLD_", "")] * MIB
        ),
    )
    heaps = study.fragmentation(store, 3)
    assert [row["median_bytes"] // MIB for row in heaps] == [16, 1, 16]
    assert [row["processes"] for row in heaps] == [3, 3, 3]
    assert all(row[0] in str(vpoc.heap_table(heaps)) for row in study.HEAPS)
