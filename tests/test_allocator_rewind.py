"""Rewinding: the state at the start of a recording, the requests in it, and what is refused as impossible."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_allocator import MIB, Toy, layout_of

from helpers.allocator.blocks import round_size
from helpers.allocator.rewind import rewind
from helpers.allocator.snapshot import load, parse
from helpers.allocator.trace import Op, TraceError

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = sorted((ROOT / ".." / "shared" / "samples" / "snapshots").glob("*.pickle"))
PYTHON = [{"name": "step", "filename": "/x/train.py", "line": 5}]
EMPTY = [{"name": "empty_cache", "filename": "/x/memory.py", "line": 218}, *PYTHON]


def trace_of(toy, events=None):
    return rewind(parse(toy.snapshot(events)))


def ops(trace):
    return [Op(op).name for op in trace.op]


def at_the_end(trace):
    """{address of a live block: (requested, state)} and {range: size} after the trace, from its start and its events alone."""
    live = {
        segment.address + block.offset: [block.requested, block.state, block.id]
        for segment in trace.start
        for block in segment.blocks
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
    return (
        {
            segment.address + block.offset: (block.requested, block.state)
            for segment in snapshot.segments
            for block in segment.blocks
            if block.state != "I"
        },
        {segment.address: segment.size for segment in snapshot.segments},
    )


SIZES = st.one_of(st.integers(1, MIB), st.integers(MIB, 9 * MIB), st.integers(10 * MIB, 50 * MIB))
STEP = st.tuples(
    st.sampled_from(["alloc", "alloc", "free", "pend", "complete", "empty"]),
    SIZES,
    st.integers(0, 1000),
)
STEPS = st.lists(STEP, max_size=60)


def drive(toy, steps):
    live, pending = [], []
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


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_whole_recording_starts_from_nothing_and_ends_in_the_final_state(steps):
    toy = Toy()
    drive(toy, steps)
    trace = trace_of(toy)
    assert trace.start == ()
    assert at_the_end(trace) == final(parse(toy.snapshot()))
    assert trace.header["final_reserved_bytes"] == sum(final(parse(toy.snapshot()))[1].values())


@settings(max_examples=80, deadline=None)
@given(STEPS, STEPS)
def test_a_recording_begun_late_finds_its_start(before, after):
    toy = Toy()
    live, pending = drive(toy, before)
    start, toy.events = toy.layout(), []
    drive(toy, after)
    trace = trace_of(toy)
    if not any("may have kept" in note for note in trace.notes):
        assert layout_of(trace.start) == start
    assert [
        (place, sum(block[1] for block in blocks)) for place, blocks in layout_of(trace.start)
    ] == [(place, sum(block[1] for block in blocks)) for place, blocks in start]
    assert at_the_end(trace) == final(parse(toy.snapshot()))
    ids = [block.id for segment in trace.start for block in segment.blocks if block.id >= 0]
    assert ids == list(range(len(live) + len(pending)))


@settings(max_examples=40, deadline=None)
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
    now, later = toy.alloc(1000), toy.alloc(2000)
    toy.free(now)
    toy.free(later, complete=False)
    toy.alloc(3 * MIB)
    toy.complete(later)
    trace = trace_of(toy)
    assert ops(trace) == ["ALLOC", "ALLOC", "FREE", "FREE_REQUESTED", "ALLOC", "FREE_COMPLETED"]
    assert trace.id.tolist() == [0, 1, 0, 1, 2, 1]
    assert trace.time_ns[0] == 1_000_001_000


def test_a_block_that_still_waits_at_the_end_stays_requested():
    toy = Toy()
    toy.free(toy.alloc(1000), complete=False)
    assert ops(trace_of(toy)) == ["ALLOC", "FREE_REQUESTED"]


def test_driver_calls_belong_to_the_request_they_were_made_for():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB, PYTHON))
    toy.empty_cache(EMPTY)
    toy.alloc(1000, PYTHON)
    trace = trace_of(toy)
    assert ops(trace) == ["ALLOC", "FREE", "EMPTY_CACHE", "ALLOC"]
    assert [(call.event, call.action, call.size) for call in trace.driver] == [
        (0, "malloc", 30 * MIB),
        (2, "free", 30 * MIB),
        (3, "malloc", 2 * MIB),
    ]


def test_segments_given_back_by_a_refused_allocation_are_its_own():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB, PYTHON))
    toy.empty_cache(PYTHON)
    toy.alloc(40 * MIB, PYTHON)
    trace = trace_of(toy)
    assert ops(trace) == ["ALLOC", "FREE", "ALLOC"]
    assert [(call.event, call.action) for call in trace.driver] == [
        (0, "malloc"),
        (2, "free"),
        (2, "malloc"),
    ]
    assert trace.header["vram"] == 68 * MIB
    assert any("inferred" in note for note in trace.notes)


def test_frees_completed_for_a_release_come_after_the_allocation_that_needed_it():
    toy = Toy()
    waits = toy.alloc(30 * MIB, PYTHON)
    toy.free(waits, complete=False)
    toy.alloc(1000, PYTHON)
    toy.complete(waits)
    toy.empty_cache(PYTHON)
    toy.alloc(40 * MIB, PYTHON)
    assert ops(trace_of(toy)) == ["ALLOC", "FREE_REQUESTED", "ALLOC", "ALLOC", "FREE_COMPLETED"]


def test_without_stacks_a_release_before_a_new_segment_is_taken_for_empty_cache_and_said():
    toy = Toy()
    toy.free(toy.alloc(30 * MIB))
    toy.empty_cache()
    toy.alloc(40 * MIB)
    trace = trace_of(toy)
    assert ops(trace) == ["ALLOC", "FREE", "EMPTY_CACHE", "ALLOC"]
    assert any("it is a guess" in note for note in trace.notes)


def test_an_out_of_memory_is_an_allocation_that_is_never_freed_and_tells_the_capacity():
    toy = Toy()
    toy.alloc(30 * MIB)
    toy.say("oom", 6 * MIB, 50 * MIB)
    toy.alloc(1000)
    trace = trace_of(toy)
    assert ops(trace) == ["ALLOC", "ALLOC", "ALLOC"]
    assert (trace.size[1], trace.address[1], trace.id[1]) == (50 * MIB, -1, 1)
    assert [(call.event, call.action) for call in trace.driver] == [
        (0, "malloc"),
        (1, "oom"),
        (2, "malloc"),
    ]
    assert trace.header["vram"] == 36 * MIB


def test_an_out_of_memory_with_room_is_said_to_be_a_limit():
    toy = Toy()
    toy.alloc(30 * MIB)
    toy.say("oom", 9000 * MIB, 50 * MIB)
    assert any("memory fraction" in note for note in trace_of(toy).notes)


def expandable(mapped, live=()):
    """One mapped range of the large pool from 0x7f..., with the live blocks [(offset, size), ...] in it."""
    base, blocks, at = 0x7F0000000000, [], 0
    for offset, size in [*live, (mapped, 0)]:
        if offset > at:
            blocks.append(
                {
                    "address": base + at,
                    "size": offset - at,
                    "requested_size": 0,
                    "state": "inactive",
                }
            )
        if size:
            blocks.append(
                {
                    "address": base + offset,
                    "size": size,
                    "requested_size": size,
                    "state": "active_allocated",
                }
            )
        at = offset + size
    return (
        [
            {
                "device": 0,
                "address": base,
                "total_size": mapped,
                "stream": 0,
                "segment_type": "large",
                "is_expandable": True,
                "blocks": blocks,
            }
        ]
        if mapped
        else []
    )


def event(action, offset, size):
    return {"action": action, "addr": 0x7F0000000000 + offset, "size": size, "stream": 0}


def test_mapped_ranges_grow_shrink_and_join():
    events = [
        event("free_requested", 0, 30 * MIB),
        event("free_completed", 0, 30 * MIB),
        event("segment_unmap", 0, 20 * MIB),
        event("segment_map", 60 * MIB, 20 * MIB),
        event("alloc", 50 * MIB, 25 * MIB),
    ]
    after = expandable(80 * MIB, [(50 * MIB, 25 * MIB)])[0]
    after["address"] += 20 * MIB
    after["total_size"] -= 20 * MIB
    after["blocks"][0] = {
        "address": after["address"],
        "size": 30 * MIB,
        "requested_size": 0,
        "state": "inactive",
    }
    trace = rewind(parse({"segments": [after], "device_traces": [events]}))
    assert ops(trace) == ["FREE", "EMPTY_CACHE", "ALLOC"]
    assert [(call.event, call.action) for call in trace.driver] == [(1, "unmap"), (2, "map")]
    (segment,) = trace.start
    assert (segment.address, segment.size, segment.expandable, segment.small) == (
        0x7F0000000000,
        60 * MIB,
        True,
        False,
    )
    assert [(block.offset, block.size, block.state) for block in segment.blocks] == [
        (0, 30 * MIB, "A"),
        (30 * MIB, 30 * MIB, "I"),
    ]


def test_a_rest_that_was_not_split_off_belongs_to_the_block():
    toy = Toy()
    kept = toy.alloc(25 * MIB)  # a segment of 26 MiB, all of it
    start, toy.events = toy.layout(), []
    toy.free(kept)
    assert layout_of(trace_of(toy).start) == start
    assert start[0][1][0][1] == 26 * MIB


def test_a_later_neighbour_tells_where_a_block_ended():
    toy = Toy()
    hole, after = toy.alloc(3 * MIB + 700_000), toy.alloc(2 * MIB)
    toy.free(hole)
    kept = toy.alloc(3 * MIB)  # keeps 700 kB of the hole
    start, toy.events = toy.layout(), []
    toy.free(after)
    toy.alloc(6 * MIB)
    toy.free(kept)
    assert layout_of(trace_of(toy).start) == start


def test_one_size_nobody_can_know_is_said():
    toy = Toy()
    hole, after = toy.alloc(3 * MIB + 700_000), toy.alloc(2 * MIB)
    toy.free(hole)
    kept = toy.alloc(3 * MIB)
    toy.free(after)
    toy.events = []
    toy.free(kept)
    assert any("1 blocks live at the start may have kept" in note for note in trace_of(toy).notes)


@pytest.mark.parametrize(
    "size, divisions, block",
    [
        (1, 0, 512),
        (512, 0, 512),
        (513, 0, 1024),
        (5 * MIB + 1, 0, 5 * MIB + 512),
        (9 * MIB, 4, 10 * MIB),
        (8 * MIB, 4, 8 * MIB),
        (700, 4, 1024),
        (1000 * 1000, 4, MIB),
        (2000, 4, 2048),
    ],
)
def test_requests_are_rounded_as_the_source_rounds(size, divisions, block):
    assert round_size(size, (divisions,) * 16) == block


@pytest.mark.parametrize("mib", [20, 32, 44])
def test_a_range_of_whole_large_pages_is_the_large_pools_however_large_they_are_set(mib):
    content = {
        "segments": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:True,large_segment_size_mb:{mib}"
        },
        "device_traces": [
            [{"action": "segment_unmap", "addr": 1 << 45, "size": mib * MIB, "stream": 0}]
        ],
    }
    assert [segment.small for segment in rewind(parse(content)).start] == [False]


def test_a_range_that_is_no_whole_number_of_large_pages_is_the_small_pools():
    content = {
        "segments": [],
        "device_traces": [
            [{"action": "segment_unmap", "addr": 1 << 45, "size": 22 * MIB, "stream": 0}]
        ],
    }
    assert [segment.small for segment in rewind(parse(content)).start] == [True]


def tampered(change):
    toy = Toy()
    first, second = toy.alloc(5000), toy.alloc(6000)
    toy.free(first)
    toy.alloc(4000)
    toy.free(second)
    content = toy.snapshot()
    change(content["device_traces"][0], content)
    return content


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda e, c: e.insert(0, {**e[3], "addr": 0x99}), "event 0 (free_requested at 0x99"),
        (
            lambda e, c: e.insert(3, dict(e[1])),
            "event 3 (alloc of 5,000 bytes at 0x7f0000000000) is at an address where "
            "the block of event 1 still lives",
        ),
        (
            lambda e, c: e.insert(5, dict(e[3])),
            "event 5 (free_requested of 5,000 bytes at 0x7f0000000000) frees what event 4",
        ),
        (
            lambda e, c: e.pop(3),
            "event 3 (free_completed of 5,000 bytes at 0x7f0000000000) completes a free that nobody requested",
        ),
        (lambda e, c: e.__delitem__(slice(6, 8)), "neither freed"),
        (
            lambda e, c: e.append({**e[2], "addr": 0x7F0000000200}),
            "event 8 (alloc at 0x7f0000000200",
        ),
        (
            lambda e, c: e.append({**e[0], "action": "segment_free"}),
            "event 8 (segment_free at 0x7f0000000000",
        ),
        (lambda e, c: e.append(dict(e[0])), "event 8 (segment_alloc at 0x7f0000000000"),
        (
            lambda e, c: c["device_traces"].__setitem__(0, [e[0], e[3], e[4], e[3], e[4]]),
            "allocs were skipped",
        ),
        (
            lambda e, c: c["device_traces"].__setitem__(0, [e[0], e[1], dict(e[1])]),
            "frees were skipped",
        ),
    ],
)
def test_events_that_cannot_have_happened_are_named(change, says):
    rewind(parse(tampered(lambda e, c: None)))
    with pytest.raises(TraceError) as error:
        rewind(parse(tampered(change)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind, note",
    [
        ("free_completed", "no free_completed is recorded"),
        ("free_requested", "no free_requested is recorded"),
    ],
)
def test_one_half_of_the_frees_may_be_missing(kind, note):
    toy = Toy()
    first = toy.alloc(5000)
    toy.alloc(6000)
    toy.free(first)
    trace = trace_of(toy, [entry for entry in toy.events if entry["action"] != kind])
    assert ops(trace) == ["ALLOC", "ALLOC", "FREE"]
    assert any(note in line for line in trace.notes)


def test_without_segment_events_what_is_there_at_the_end_was_there_and_that_is_said():
    toy = Toy()
    toy.free(toy.alloc(5000))
    trace = trace_of(
        toy, [entry for entry in toy.events if not entry["action"].startswith("segment")]
    )
    assert [block.state for block in trace.start[0].blocks] == ["I"]
    assert any("no segment event is recorded" in note for note in trace.notes)


def test_blocks_from_before_in_segments_that_are_not_shown_are_refused():
    toy = Toy()
    kept = toy.alloc(30 * MIB)
    toy.events = []
    toy.free(kept)
    toy.empty_cache()
    with pytest.raises(
        TraceError, match="1 blocks that were live when the recording began lie in segments"
    ):
        trace_of(toy, toy.events[:2])


@pytest.mark.skipif(not SAMPLES, reason="the shared snapshots are not beside this checkout")
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_real_recordings_close(path):
    """From the rewound start every event leads to the final state: live blocks, requested bytes, segments."""
    snapshot = load(path)
    trace = rewind(snapshot)
    assert at_the_end(trace) == final(snapshot)
    assert trace.header["final_reserved_bytes"] == sum(
        segment.size for segment in snapshot.segments
    )
    for segment in trace.start:
        assert sum(block.size for block in segment.blocks) == segment.size
        states = "".join(block.state for block in segment.blocks)
        assert "II" not in states
        assert segment.small or all(
            block.size > MIB for block in segment.blocks if block.state == "I"
        )
