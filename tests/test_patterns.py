"""Patterns: the same everywhere, possible, with the counts they declare, and what growing batches are for."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.allocator.driver import Card
from helpers.allocator.oracle_lines import from_oracle, op_lines, program_lines
from helpers.allocator.oracle_results import lines
from helpers.allocator.patterns import PATTERNS, generate
from helpers.allocator.replay import replay
from helpers.allocator.trace import Op, StartSegment, Trace, possible

COLUMNS = ("op", "id", "size", "stream", "pool", "frame")
NAMES = sorted(PATTERNS)
# Small enough to be generated fifty times, with everything in it that the whole one has.
SMALL = {
    "volume_profiles": {"sessions": 60, "chunk_sessions": 25},
    "growing_batches": {"batches": 3, "layers": 2},
    "tuning_trials": {"trials": 12},
}


def same(one, other):
    columns = all(np.array_equal(getattr(one, c), getattr(other, c)) for c in COLUMNS)
    return columns and one.frames == other.frames


def requests(trace):
    """(round, name, bytes) of everything that was asked for, in order."""
    found = []
    for frame, size in zip(trace.frame.tolist(), trace.size.tolist(), strict=True):
        if frame >= 0:
            place, _, name = trace.frames[frame][0].rpartition(" ")
            found.append((int(place.partition(":")[2]), name, size))
    return found


def rounds(trace, what):
    """The rounds in which something was asked for, each once."""
    return list(dict.fromkeys(at for at, name, _ in requests(trace) if name == what))


def sizes_of(trace, what):
    """The requests of one name in bytes, in order."""
    return [size for _, name, size in requests(trace) if name == what]


def live_at_end(trace):
    freed = set(trace.id[trace.op == Op.FREE].tolist())
    return [i for i in range(trace.ids) if i not in freed]


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**40))
@settings(max_examples=15)
def test_every_seed_gives_a_possible_trace_twice_the_same(name, seed):
    trace = generate(name, seed, **SMALL[name])
    assert same(trace, generate(name, seed, **SMALL[name]))
    assert possible(trace) is trace
    allocs = trace.op == Op.ALLOC
    assert (trace.size[allocs] > 0).all()
    # Each id is made once and in order, and freed at most once, later and on its own stream.
    assert trace.id[allocs].tolist() == list(range(trace.ids))
    made = {int(i): at for at, i in zip(np.flatnonzero(allocs), trace.id[allocs], strict=True)}
    frees = np.flatnonzero(trace.op == Op.FREE)
    assert max(Counter(trace.id[frees].tolist()).values()) == 1
    for at in frees:
        assert made[int(trace.id[at])] < at
        assert trace.stream[made[int(trace.id[at])]] == trace.stream[at]
    assert (trace.frame[allocs] >= 0).all() and trace.frame.max() == len(trace.frames) - 1


@pytest.mark.parametrize("name", NAMES)
def test_different_seeds_give_different_traces(name):
    sizes = {generate(name, seed, **SMALL[name]).size.tobytes() for seed in range(5)}
    assert len(sizes) == 5


def test_a_trace_is_the_same_on_every_machine_and_python():
    # Made once; a change of these is a change of the patterns, whose figures in the docstrings are then measured again.
    sums = {
        name: (len(trace), int(trace.size.sum()) % 1_000_003)
        for name in NAMES
        for trace in [generate(name, 7)]
    }
    assert sums == {
        "growing_batches": (17768, 154177),
        "tuning_trials": (37071, 125025),
        "volume_profiles": (6506, 36488),
    }


def test_volume_profiles_take_1014_sessions_in_chunks_of_50_and_join_them_at_the_end():
    trace = generate("volume_profiles")
    names = [name for _, name, _ in requests(trace)]
    counts = Counter(names)
    assert counts["session_profile"] == 1014
    assert counts["chunk_profile"] == counts["price"] == 21
    assert names[-2:] == ["all_profiles", "all_pocs"] and len(live_at_end(trace)) == 2
    assert sizes_of(trace, "all_profiles") == [1014 * 1000 * 4]


def test_tuning_has_268_trials_of_differing_models_whose_best_and_leaks_outlive_them():
    trace = generate("tuning_trials")
    assert rounds(trace, "weight") == list(range(268))
    assert len(set(sizes_of(trace, "weight"))) == 9
    names = [name for _, name, _ in requests(trace)]
    assert {names[i] for i in live_at_end(trace)} == {"best_state", "leaked_activation"}
    assert 40 < int((trace.op == Op.EMPTY_CACHE).sum()) < 100


def died_in(trace, conf, card_bytes=20 << 30, **options):
    """The batch of the first failed request, its bytes and those allocated then; None where all pass."""
    outcome = replay(trace, conf, Card(card_bytes), timeline=True, engine="plain", **options)
    if outcome.first_oom is None:
        return None
    at = outcome.first_oom
    place = trace.frames[trace.frame[at]][0].partition(" ")[0]
    return int(place.partition(":")[2]), int(trace.size[at]), int(outcome.column("allocated")[at])


@pytest.mark.parametrize(("seed", "torch"), [(0, "2.6.0"), (11, "2.14.1")])
def test_growing_batches_die_of_fragmentation_near_batch_42_on_20_gib(seed, torch):
    batch, request, allocated = died_in(generate("growing_batches", seed), "", torch=torch)
    assert 35 <= batch <= 50
    assert request + allocated < 16 << 30


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128"])
def test_growing_batches_pass_where_freed_memory_can_be_used_again(conf):
    assert died_in(generate("growing_batches"), conf) is None


def test_growing_batches_grow_and_keep_one_output_each():
    trace = generate("growing_batches")
    assert rounds(trace, "kept_output") == list(range(52))
    kept = sizes_of(trace, "kept_output")
    assert kept[-1] > 1.8 * kept[0]
    # Well below the card, at every moment: what it dies of there is not a lack of bytes.
    at_most = np.cumsum(np.where(trace.op == Op.ALLOC, trace.size, 0) - freed_sizes(trace)).max()
    assert at_most < 19 << 30


def freed_sizes(trace):
    sizes = trace.size[trace.op == Op.ALLOC]
    return np.where(trace.op == Op.FREE, sizes[np.maximum(trace.id, 0)], 0)


def test_parameters_are_in_the_programs_terms():
    trace = generate("tuning_trials", trials=5, leak_share=0.0)
    assert rounds(trace, "weight") == [0, 1, 2, 3, 4] and trace.header["parameters"]["steps"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_operations_as_lines_say_the_same_as_the_trace(name):
    trace = generate(name, 2, **SMALL[name])
    again = from_oracle(json.dumps(op) for op in program_lines(trace))
    frees = trace.op == Op.FREE
    assert all(np.array_equal(getattr(again, c), getattr(trace, c)) for c in ("op", "id", "size"))
    assert np.array_equal(again.stream[~frees], trace.stream[~frees])


def test_operations_of_every_kind_become_the_oracles_lines():
    rows = [
        ((Op.ALLOC, 0, 512, 0x1000), {"op": "alloc", "id": 0, "size": 512, "stream": 1}),
        ((Op.RECORD_STREAM, 0, 0, 0x2000), {"op": "record_stream", "id": 0, "stream": 2}),
        ((Op.FREE_REQUESTED, 0, 0, 0), {"op": "free", "id": 0}),
        ((Op.FREE_COMPLETED, 0, 0, 0), None),
        ((Op.SET_FRACTION, -1, 0, 0), {"op": "set_fraction", "fraction": 0.5}),
        ((Op.SET_CONF, -1, 1, 0), {"op": "set_conf", "conf": "max_split_size_mb:32"}),
        ((Op.EVENTS_HOLD, -1, 1, 0), {"op": "events_hold", "on": True}),
        ((Op.FOREIGN, -1, 4096, 0), {"op": "foreign", "bytes": 4096}),
        ((Op.FAIL_NEXT, -1, 2, 0), {"op": "fail_next", "n": 2}),
        ((Op.SYNCHRONIZE, -1, 0, 0), {"op": "synchronize"}),
    ]
    columns = zip(*(row for row, _ in rows), strict=True)
    op, ids, sizes, streams = (np.array(column, np.int64) for column in columns)
    pool = np.zeros(len(rows), np.int32)
    values = (0.5, "max_split_size_mb:32")
    trace = Trace(op.astype(np.int8), ids, sizes, streams, pool, values=values)
    assert list(program_lines(trace)) == [line for _, line in rows if line]


def test_a_result_line_says_how_many_calls_were_to_fail_beside_its_counts():
    given = [{"op": "fail_next", "n": 2}, {"op": "alloc", "id": 0, "size": 512}]
    trace = from_oracle(map(json.dumps, given))
    assert list(op_lines(trace)) == given
    first, *_ = lines(op_lines(trace), replay(trace, "", Card(1 << 30), timeline=True))
    assert first["count"] == 2 and len(first["n"]) == 4
    assert list(op_lines(from_oracle([json.dumps(first)]))) == given[:1]


def test_a_trace_that_begins_in_the_middle_cannot_be_run():
    start = (StartSegment(0, 2 << 20, 0, True, 0, False, ()),)
    none = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="begins with 1 segments in use"):
        list(program_lines(Trace(none, none, none, none, none, start=start)))
