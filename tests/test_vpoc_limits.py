"""Chunks that fit, and real refusals: under a hard limit the plain forms fail in the allocator's words and the streams pass."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.ground.units import GIB, MIB
from helpers.vpoc import planner, study
from helpers.vpoc.counting import STRATEGIES
from helpers.vpoc.free import Free, free_here
from helpers.vpoc.measure import measure
from helpers.vpoc.planner import NoRoomError, ProfileShape, plan, predicted_bytes, shape_of
from helpers.vpoc.store import write_store
from helpers.vpoc.trades import generated

VOLUMES = st.sampled_from(["int32", "int64", "float64"])
TRADES, SESSIONS, BINS = (st.integers(1, most) for most in (10**9, 2000, 5000))
SHAPES = st.builds(ProfileShape, TRADES, SESSIONS, BINS, VOLUMES, VOLUMES)


FREE = st.builds(
    Free, st.integers(0, 64 * GIB), st.just("a test"), st.integers(0, 256 * MIB), st.booleans()
)


@settings(max_examples=300)
@given(SHAPES, st.sampled_from(sorted(STRATEGIES)), FREE)
def test_a_plan_never_takes_more_than_its_share_of_what_is_free(shape, strategy, free):
    try:
        chosen = plan(strategy, shape, free)
    except NoRoomError as error:
        assert "count fewer sessions" in str(error)
        return
    rounding = planner.GPU_ROUNDING_BYTES if free.gpu else 0
    most = planner.SHARE * free.bytes
    assert predicted_bytes(strategy, shape, chosen.chunk_trades) + rounding <= most
    assert 1 <= chosen.chunk_trades <= shape.trades
    assert chosen.chunks == math.ceil(shape.trades / chosen.chunk_trades)
    if chosen.bound == "memory" and chosen.chunk_trades < shape.trades:
        more = predicted_bytes(strategy, shape, chosen.chunk_trades + 1) + rounding
        assert more > most - 1


@settings(max_examples=100)
@given(SHAPES, st.integers(0, 4 * GIB))
def test_more_memory_never_makes_a_chunk_smaller(shape, free):
    assume(predicted_bytes("preallocated", shape, 1) <= planner.SHARE * free)
    small, large = (
        plan("preallocated", shape, Free(size, "a test", 32 * MIB)) for size in (free, 2 * free)
    )
    assert small.chunk_trades <= large.chunk_trades


def test_the_chunk_is_counted_in_trades_and_bound_by_the_cache():
    shape = ProfileShape(20_000_000, 1014, 1000)
    chosen = plan("preallocated", shape, Free(16 * GIB, "a test", 32 * MIB))
    assert chosen.bound == "cache" and 1_000_000 < chosen.chunk_trades < 2_000_000
    assert "trades at a time" in chosen.says
    card = plan("preallocated", shape, Free(16 * GIB, "a card", gpu=True))
    assert "more would be no quicker on a GPU (computed)" in card.says and "cache" not in card.says
    assert plan("preallocated", shape, Free(16 * MIB, "a test", 32 * MIB)).bound == "memory"
    assert plan("fused", shape, Free(GIB, "a test")).chunks == 1


@pytest.mark.parametrize(
    ("most", "used", "free_bytes"), [("max", 1000, 4 * GIB), (GIB, GIB // 2, GIB // 2)]
)
def test_free_memory_is_the_least_of_ram_and_control_groups(tmp_path, most, used, free_bytes):
    for path, text in {
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": most,
        "sys/fs/cgroup/memory.current": used,
        "sys/devices/system/cpu/cpu0/cache/index3/size": "32768K",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    free = free_here(tmp_path)
    assert (free.bytes, free.cache_bytes) == (free_bytes, 32 * MIB)
    assert free_here().bytes > 0


@pytest.mark.parametrize(
    "room_mib",
    [24, pytest.param(80, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", ["preallocated", "chunked"])
def test_a_planned_chunk_passes_under_the_hard_limit_it_was_planned_for(tmp_path, name, room_mib):
    store = write_store(tmp_path / "s", generated(64, 20_000), 1000)
    room = room_mib * MIB
    shape = shape_of(store.trades, store.layout)
    beside_inputs = room - round(shape.trades * shape.bytes_a_trade / planner.SHARE)
    chosen = plan(name, shape, Free(beside_inputs, "a test"))
    got = measure(name, store, chunk_trades=chosen.chunk_trades, limit_bytes=room, counts=True)
    if got.status == "not_available":
        pytest.skip(got.why)
    assert got.status == "ok", got.why
    assert got.counts.sum(dtype=np.int64) == store.layout.totals.sum()


@pytest.mark.parametrize(
    "name",
    ["flat", *(pytest.param(name, marks=pytest.mark.slow) for name in ("one_hot", "list_cat"))],
)
def test_what_takes_all_is_refused_in_the_allocators_words_and_the_fused_pass_fits(tmp_path, name):
    trades = generated(64, 20_000)
    store = write_store(tmp_path / "s", trades, 1000)
    limit = len(trades) * 8 + 5 * MIB  # the inputs and a little
    refused = measure(name, store, chunk_trades=len(trades), limit_bytes=limit)
    if refused.status == "not_available":
        pytest.skip(refused.why)
    assert refused.status == "out_of_memory"
    assert "DefaultCPUAllocator" in refused.why
    passed = measure("fused", store, limit_bytes=limit, counts=True)
    assert passed.status == "ok", passed.why
    assert passed.counts.sum(dtype=np.int64) == store.layout.totals.sum()


def test_inputs_that_do_not_fit_are_refused_too(tmp_path):
    store = write_store(tmp_path / "s", generated(64, 20_000), 1000)
    refused = measure("fused", store, limit_bytes=4 * MIB)
    assert refused.status == "out_of_memory"
    assert "Unable to allocate" in refused.why


def test_what_a_library_writes_among_the_answers_is_no_answer(tmp_path, monkeypatch):
    chatter = """print('{ chatty'); print('[1]'); print('{"status": "warming up"')"""
    (tmp_path / "sitecustomize.py").write_text(chatter)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    measured = measure("chunked", write_store(tmp_path / "s", generated(4, 1000)))
    assert measured.status == "ok", measured.why


@pytest.mark.slow
def test_the_strategy_table_has_every_row_and_all_count_the_same(tmp_path):
    store = write_store(tmp_path / "s", generated(40, 20_000), 1000)
    rows = study.strategies(store, 1e-3, chunk_trades=200_000, repeats=1)
    assert [row.strategy for row in rows] == list(STRATEGIES)
    assert [row.strategy for row in rows if row.status == "ok" and not row.equal] == []


def test_curve_and_limits_have_a_row_for_each_size_and_way(tmp_path):
    store = write_store(tmp_path / "s", generated(4, 1000), 1000)
    curve = study.chunk_curve(store, [10_000, 100_000], ("chunked",), repeats=1)
    assert [row.chunk_trades for row in curve] == [10_000, 100_000]
    assert {row.status for row in curve} == {"ok"}
    (limited,) = study.refusals(store, ("fused",), 16)
    assert (limited.limit_mib, limited.status) == (16, "ok")
