"""Rewinding: the state at the start of a recording, the requests in it, and what is refused as impossible."""

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_allocator import MIB, SAMPLES, Toy, layout_of

from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import load, parse
from helpers.allocator.snapshot_trace import placed
from helpers.allocator.trace import Op, TraceError

PYTHON = [{"name": "step", "filename": "/x/train.py", "line": 5}]
EMPTY = [{"name": "empty_cache", "filename": "/x/memory.py", "line": 218}, *PYTHON]


def trace_of(toy, events=None):
    return rewind(parse(toy.snapshot(events)))


def ops(trace):
    return " ".join(Op(op).name for op in trace.op)


def calls(trace):
    return [(call.event, call.action, call.size // MIB) for call in trace.driver]


def at_the_end(trace):
    """{address of a live block: (requested, state)} and {range: size} after the trace, from its start and its events alone."""
    live = {
        place: [block.requested, block.state, block.id]
        for place, block in placed(trace.start)
        if block.state != "I"
    }
    owned = {segment.address: segment.size for segment in trace.start}
    where = {entry[2]: address for address, entry in live.items()}
    calls = {}
    for call in trace.driver:
        calls.setdefault(call.event, []).append(call)
    for index, op in enumerate(trace.op):
        for call in calls.get(index, []):
            if call.action == "malloc":
                assert call.address not in owned
                owned[call.address] = call.size
            elif call.action == "free":
                assert owned.pop(call.address) == call.size
        ident = int(trace.id[index])
        if op == Op.ALLOC and trace.address[index] >= 0:
            address = int(trace.address[index])
            assert address not in live
            live[address], where[ident] = [int(trace.size[index]), "A", ident], address
        elif op == Op.FREE_REQUESTED:
            live[where[ident]][1] = "P"
        elif op in (Op.FREE, Op.FREE_COMPLETED):
            del live[where.pop(ident)]
    return {address: tuple(entry[:2]) for address, entry in live.items()}, owned


def final(snapshot):
    live = {
        place: (block.requested, block.state)
        for place, block in placed(snapshot.segments)
        if block.state != "I"
    }
    return live, {segment.address: segment.size for segment in snapshot.segments}


SIZES = st.one_of(
    *(st.integers(low, high * MIB) for low, high in ((1, 1), (MIB, 9), (10 * MIB, 50)))
)
WHAT = st.sampled_from(["alloc", "alloc", "free", "pend", "complete", "empty"])
STEPS = st.lists(st.tuples(WHAT, SIZES, st.integers(0, 1000)), max_size=60)


def drive(toy, steps):
    live = []
    pending = []
    for what, size, pick in steps:
        if what == "alloc":
            live.append(toy.alloc(size, PYTHON))
        elif what in ("free", "pend") and live:
            address = live.pop(pick % len(live))
            toy.free(address, complete=what == "free")
            if what == "pend":
                pending.append(address)
        elif what == "complete" and pending:
            toy.complete(pending.pop(pick % len(pending)))
        elif what == "empty":
            toy.empty_cache(EMPTY)
    return live, pending


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_a_whole_recording_starts_from_nothing_and_ends_in_the_final_state(steps):
    toy = Toy()
    drive(toy, steps)
    trace = trace_of(toy)
    assert trace.start == ()
    assert at_the_end(trace) == final(parse(toy.snapshot()))
    assert trace.header["final_reserved_bytes"] == sum(final(parse(toy.snapshot()))[1].values())


@settings(max_examples=examples(80), deadline=None)
@given(STEPS, STEPS)
def test_a_recording_begun_late_finds_its_start(before, after):
    toy = Toy()
    live, pending = drive(toy, before)
    start = toy.layout()
    toy.events = []
    drive(toy, after)
    trace = trace_of(toy)
    if not any("may have kept" in note for note in trace.notes):
        assert layout_of(trace.start) == start
    sizes = {place: sum(block[1] for block in blocks) for place, blocks in start}
    assert {segment.address: segment.size for segment in trace.start} == sizes
    assert at_the_end(trace) == final(parse(toy.snapshot()))
    ids = [block.id for _, block in placed(trace.start) if block.id >= 0]
    assert ids == list(range(len(live) + len(pending)))


@settings(max_examples=examples(40), deadline=None)
@given(STEPS, st.integers(0, 200))
def test_a_ring_buffer_that_was_full_is_replayed_from_where_it_was_cut(steps, cut):
    toy = Toy()
    drive(toy, steps)
    events = toy.events[cut:]
    if events and events[0]["action"] == "alloc":
        events = events[1:]
    trace = trace_of(toy, events)
    assert at_the_end(trace) == final(parse(toy.snapshot()))


def test_a_free_is_one_operation_or_two():
    toy = Toy()
    now = toy.alloc(1000)
    later = toy.alloc(2000)
    toy.free(now)
    toy.free(later, complete=False)
    toy.alloc(3 * MIB)
    toy.complete(later)
    trace = trace_of(toy)
    assert ops(trace) == "ALLOC ALLOC FREE FREE_REQUESTED ALLOC FREE_COMPLETED"
    assert trace.id.tolist() == [0, 1, 0, 1, 2, 1]
    assert trace.time_ns[0] == 1_000_001_000


def test_a_block_that_still_waits_at_the_end_stays_requested():
    toy = Toy()
    toy.free(toy.alloc(1000), complete=False)
    assert ops(trace_of(toy)) == "ALLOC FREE_REQUESTED"


def test_driver_calls_belong_to_the_request_they_were_made_for():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB, PYTHON))
    toy.empty_cache(EMPTY)
    toy.alloc(1000, PYTHON)
    trace = trace_of(toy)
    assert ops(trace) == "ALLOC FREE EMPTY_CACHE ALLOC"
    assert calls(trace) == [(0, "malloc", 30), (2, "free", 30), (3, "malloc", 2)]


def test_segments_given_back_by_a_refused_allocation_are_its_own():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB, PYTHON))
    toy.empty_cache(PYTHON)
    toy.alloc(40 * MIB, PYTHON)
    trace = trace_of(toy)
    assert ops(trace) == "ALLOC FREE ALLOC"
    assert calls(trace) == [(0, "malloc", 30), (2, "free", 30), (2, "malloc", 40)]
    assert trace.header["vram"] is None


def test_frees_completed_for_a_release_come_after_the_allocation_that_needed_it():
    toy = Toy()
    waits = toy.alloc(30 * MIB, PYTHON)
    toy.free(waits, complete=False)
    toy.alloc(1000, PYTHON)
    toy.complete(waits)
    toy.empty_cache(PYTHON)
    toy.alloc(40 * MIB, PYTHON)
    assert ops(trace_of(toy)) == "ALLOC FREE_REQUESTED ALLOC ALLOC FREE_COMPLETED"


def test_without_stacks_a_release_before_a_new_segment_is_taken_for_empty_cache_and_said():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB))
    toy.empty_cache()
    toy.alloc(40 * MIB)
    trace = trace_of(toy)
    assert ops(trace) == "ALLOC FREE EMPTY_CACHE ALLOC"
    assert any("it is a guess" in note for note in trace.notes)


def test_an_out_of_memory_is_an_allocation_that_is_never_freed_and_tells_the_capacity():
    toy = Toy()
    toy.alloc(30 * MIB)
    toy.say("oom", 6 * MIB, 50 * MIB)
    toy.alloc(1000)
    trace = trace_of(toy)
    assert ops(trace) == "ALLOC ALLOC ALLOC"
    assert (trace.size[1], trace.address[1], trace.id[1]) == (50 * MIB, -1, 1)
    assert calls(trace) == [(0, "malloc", 30), (1, "oom", 50), (2, "malloc", 2)]
    assert trace.header["vram"] == 36 * MIB
    assert any("inferred" in note for note in trace.notes)


def test_an_out_of_memory_with_room_is_said_to_be_a_limit():
    toy = Toy()
    toy.alloc(30 * MIB)
    toy.say("oom", 9000 * MIB, 50 * MIB)
    assert any("memory fraction" in note for note in trace_of(toy).notes)


BASE = 0x7F0000000000


def event(action, mib, size_mib):
    return {"action": action, "addr": BASE + mib * MIB, "size": size_mib * MIB, "stream": 0}


def block(mib, size_mib, requested_mib=0):
    state = "active_allocated" if requested_mib else "inactive"
    about = {"address": BASE + mib * MIB, "size": size_mib * MIB, "state": state}
    return {**about, "requested_size": requested_mib * MIB}


def test_mapped_ranges_grow_shrink_and_join():
    events = [
        event("free_requested", 0, 30),
        event("free_completed", 0, 30),
        event("segment_unmap", 0, 20),
        event("segment_map", 60, 20),
        event("alloc", 50, 25),
    ]
    blocks = [block(20, 30), block(50, 25, 25), block(75, 5)]
    home = {"address": BASE + 20 * MIB, "total_size": 60 * MIB, "segment_type": "large"}
    after = {**home, "device": 0, "stream": 0, "is_expandable": True, "blocks": blocks}
    trace = rewind(parse({"segments": [after], "device_traces": [events]}))
    assert ops(trace) == "FREE EMPTY_CACHE ALLOC"
    assert calls(trace) == [(1, "unmap", 20), (2, "map", 20)]
    (segment,) = trace.start
    assert (segment.expandable, segment.small) == (True, False)
    start = [(BASE, [(BASE, 30 * MIB, 30 * MIB, "A"), (BASE + 30 * MIB, 30 * MIB, 0, "I")])]
    assert layout_of(trace.start) == start


def test_a_rest_that_was_not_split_off_belongs_to_the_block():
    toy = Toy()
    kept = toy.alloc(25 * MIB)  # a segment of 26 MiB, all of it
    start = toy.layout()
    toy.events = []
    toy.free(kept)
    assert layout_of(trace_of(toy).start) == start
    assert start[0][1][0][1] == 26 * MIB


def test_a_later_neighbour_tells_where_a_block_ended():
    toy = Toy()
    hole = toy.alloc(3 * MIB + 700_000)
    after = toy.alloc(2 * MIB)
    toy.free(hole)
    kept = toy.alloc(3 * MIB)  # keeps 700 kB of the hole
    start = toy.layout()
    toy.events = []
    toy.free(after)
    toy.alloc(6 * MIB)
    toy.free(kept)
    assert layout_of(trace_of(toy).start) == start


def test_one_size_nobody_can_know_is_said():
    toy = Toy()
    hole = toy.alloc(3 * MIB + 700_000)
    after = toy.alloc(2 * MIB)
    toy.free(hole)
    kept = toy.alloc(3 * MIB)
    toy.free(after)
    toy.events = []
    toy.free(kept)
    assert any("1 blocks live at the start may have kept" in note for note in trace_of(toy).notes)


@pytest.mark.parametrize(
    ("mib", "conf", "small"),
    [
        *((mib, f"large_segment_size_mb:{mib}", False) for mib in (20, 32, 44)),
        (22, "", True),
    ],
)
def test_a_range_of_whole_large_pages_is_the_large_pools_however_large_they_are_set(
    mib, conf, small
):
    settings = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:True,{conf}"}
    content = {"segments": [], "device_traces": [[event("segment_unmap", 0, mib)]]}
    trace = rewind(parse({**content, "allocator_settings": settings}))
    assert [segment.small for segment in trace.start] == [small]


def starts(*events):
    """The ranges at the start of a recording that ends with nothing: (MiB from the base, MiB, stream, expandable)."""
    trace = rewind(parse({"segments": [], "device_traces": [list(events)]}))
    return [
        ((one.address - BASE) // MIB, one.size // MIB, one.stream, one.expandable)
        for one in trace.start
    ]


def test_a_range_joins_only_a_mapped_neighbour_of_its_stream():
    one = event("segment_unmap", 0, 20)
    other = event("segment_unmap", 20, 20)
    assert starts(one, other) == starts(other, one) == [(0, 40, 0, True)]
    elsewhere = {**other, "stream": 0x1000}
    segment = {**other, "action": "segment_free"}
    apart = [(0, 20, 0, True), (20, 20, 0x1000, True)]
    assert starts(one, elsewhere) == starts(elsewhere, one) == apart
    plain = [(0, 20, 0, True), (20, 20, 0, False)]
    assert starts(one, segment) == starts(segment, one) == plain


def tampered(change):
    toy = Toy()
    first = toy.alloc(5000)
    second = toy.alloc(6000)
    toy.free(first)
    toy.alloc(4000)
    toy.free(second)
    content = toy.snapshot()
    change(content["device_traces"][0])
    return content


LATER = 0x7F0000000200


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda e: e.insert(0, {**e[3], "addr": 0x99}), "event 0 (free_requested at 0x99"),
        (lambda e: e.insert(3, dict(e[1])), "event 1 (alloc at 0x7f0000000000, 5,000 bytes)"),
        (lambda e: e.insert(5, dict(e[3])), "event 5 (free_requested at 0x7f0000000000"),
        (lambda e: e.pop(3), "a block whose free completes and nobody requested"),
        (lambda e: e.pop(4), "whose free never completes"),
        (lambda e: e.__delitem__(slice(6, 8)), "neither freed"),
        (lambda e: e.append({**e[2], "addr": LATER}), "event 8 (alloc at 0x7f0000000200"),
        (lambda e: e.append({**e[0], "action": "segment_free"}), "event 8 (segment_free at 0x7f0"),
        (lambda e: e.append(dict(e[0])), "event 8 (segment_alloc at 0x7f0000000000"),
        (lambda e: e.__setitem__(slice(None), [*e[3:5], *e[3:5]]), "without an allocation"),
        (lambda e: e.__setitem__(slice(2, None), [dict(e[1])]), "without skip_actions"),
    ],
)
def test_events_that_cannot_have_happened_are_named(change, says):
    rewind(parse(tampered(lambda events: None)))
    with pytest.raises(TraceError) as error:
        rewind(parse(tampered(change)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_blocks_from_before_in_segments_that_are_not_shown_are_refused():
    toy = Toy()
    kept = toy.alloc(30 * MIB)
    toy.events = []
    toy.free(kept)
    toy.empty_cache()
    with pytest.raises(TraceError, match="at an address in no segment"):
        trace_of(toy, toy.events[:2])


@pytest.mark.skipif(not SAMPLES, reason="the shared snapshots are not beside this checkout")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_real_recordings_close(path):
    """From the rewound start every event leads to the final state: live blocks, requested bytes, segments."""
    snapshot = load(path)
    trace = rewind(snapshot)
    assert at_the_end(trace) == final(snapshot)
    assert trace.header["final_reserved_bytes"] == sum(final(snapshot)[1].values())
    for segment in trace.start:
        assert sum(block.size for block in segment.blocks) == segment.size
        states = "".join(block.state for block in segment.blocks)
        assert "II" not in states
        free = [block.size for block in segment.blocks if block.state == "I"]
        assert segment.small or all(size > MIB for size in free)
