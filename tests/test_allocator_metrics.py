"""Figures of a block table: held to hand-made cases, to the counters of the model, and to the model's own answers."""

import pytest
from allocator_traces import MIB, alloc, free, trace_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.allocator import metrics as m
from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.trace import Op
from helpers.settings.releases import behaviour
from helpers.settings.text import parse

RULES = behaviour("2.14.1")


def run(trace, conf="", capacity=1 << 30, **how):
    return replay(trace, conf, Card(capacity), engine="plain", **how)


def figures(trace, conf=""):
    return m.metrics(run(trace, conf).blocks, parse(conf, RULES))


def state(trace, conf="", capacity=1 << 30, **how):
    blocks = run(trace, conf, capacity, **how).blocks
    return m.State(m.state_of(blocks), parse(conf, RULES), Card(capacity), RULES, **how)


def every_second_freed(first):
    return first + [alloc(i, 16) for i in range(50)] + [free(i) for i in range(1, 50, 2)]


SEPARATE = every_second_freed([])
ONE_SEGMENT = every_second_freed([alloc(99, 800), free(99)])


@pytest.mark.parametrize(
    ("rows", "conf", "inactive_split", "served"),
    [
        (SEPARATE, "", 0, True),  # (a) each in a segment of its own: releasable
        (ONE_SEGMENT, "", 400 * MIB, False),  # (b) holes in one segment: stranded
        # (c) holes in pages: stranded, and inactive_split is blind to it
        (SEPARATE, "expandable_segments:True", 0, False),
    ],
    ids=["separate", "one-segment", "expandable"],
)
def test_the_ratio_is_a_half_whether_the_request_succeeds_or_not(
    rows, conf, inactive_split, served
):
    trace = trace_of(*rows)
    asked = run(trace_of(*rows, alloc(200, 300)), conf)
    found = figures(trace, conf)
    assert found.misleading_ratio == 0.5
    assert run(trace, conf).figure("inactive_split_bytes") == inactive_split
    assert (asked.ooms == 0) is served
    assert (state(trace, conf).largest_request_of_any() >= 300 * MIB) is served
    assert found.reserved_bytes == 800 * MIB
    assert found.allocated_bytes == 400 * MIB
    assert (found.releasable_bytes, found.stranded_bytes) == (
        (400 * MIB, 0) if served else (0, 400 * MIB)
    )


def test_the_ratio_says_why_it_misleads():
    assert "misleads" in m.MISLEADS and m.MISLEADS.count(".") == 1


def test_internal_waste_is_block_sizes_less_requests():
    found = figures(trace_of((Op.ALLOC, 0, 1000), (Op.ALLOC, 1, 19 * MIB + 1)))
    assert found.requested_bytes == 1000 + 19 * MIB + 1
    # 1 MiB is too little to split off.
    assert found.internal_waste_bytes == 24 + (20 * MIB - 19 * MIB - 1)


def test_a_block_that_awaits_its_free_is_active_and_not_stranded():
    found = figures(trace_of(alloc(0, 30), (Op.FREE_REQUESTED, 0)))
    assert found.awaiting_free_bytes == found.active_bytes == 30 * MIB
    assert found.allocated_bytes == found.stranded_bytes == found.releasable_bytes == 0


def test_whole_free_pages_of_an_expandable_segment_are_releasable_and_their_edges_stranded():
    rows = [alloc(0, 10), alloc(1, 60), alloc(2, 10), free(1)]
    found = figures(trace_of(*rows), "expandable_segments:True")
    assert found.reserved_bytes == 80 * MIB
    assert found.releasable_bytes == 40 * MIB
    assert found.stranded_bytes == 20 * MIB
    after = run(trace_of(*rows, (Op.EMPTY_CACHE,)), "expandable_segments:True")
    assert after.figure("reserved_bytes") == 40 * MIB


def test_a_private_pool_gives_nothing_back_and_serves_no_other_request():
    asked = [alloc(0, 30), alloc(1, 40, 0x1000), alloc(2, 50, 0, 1)]
    trace = trace_of(*(row for one in asked for row in (one, free(one[1]))))
    found = figures(trace)
    now = state(trace)
    assert (found.releasable_bytes, found.stranded_bytes) == (70 * MIB, 50 * MIB)
    assert now.largest_request() == now.largest_request(0x1000) == 1024 * MIB - 50 * MIB
    assert now.largest_request_of_any() == 1024 * MIB - 50 * MIB


def test_the_largest_request_may_be_large_where_a_middling_one_fails():
    # 14 MiB are left: 5 MiB would need a segment of 20, 14 MiB one of 14.
    rows = [alloc(0, 1010)]
    assert state(trace_of(*rows)).largest_request_of_any() == 14 * MIB
    assert run(trace_of(*rows, alloc(1, 5))).ooms == 1


def test_the_largest_request_with_a_fraction_and_with_rounding_of_sizes():
    conf = "roundup_power2_divisions:2"
    assert state(trace_of(alloc(0, 100)), conf, fraction=0.5).largest_request() == 384 * MIB


def test_an_empty_card_has_figures_too():
    trace = trace_of(alloc(0, 0))
    found = figures(trace)
    assert found.reserved_bytes == 0 and found.misleading_ratio == 0.0
    assert state(trace).largest_request_of_any() == 1 << 30


CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "per_process_memory_fraction:0.8,garbage_collection_threshold:0.5",
    "large_segment_size_mb:32",
    "expandable_segments:True,max_split_size_mb:32",
    "max_split_size_mb:32,roundup_power2_divisions:2",
)


SIZES = (700, 300_000, MIB, 2 * MIB + 5, 9 * MIB, 21 * MIB, 33 * MIB, 50 * MIB)


@st.composite
def programs(draw):
    """Allocations of all classes on two streams, frees of some of them, some of those pending."""
    rows = []
    live = []
    for ident in range(draw(st.integers(1, 25))):
        size = draw(st.sampled_from(SIZES))
        rows.append((Op.ALLOC, ident, size, draw(st.sampled_from((0, 0, 0x1000)))))
        live.append(ident)
        while live and draw(st.booleans()):
            way = draw(st.sampled_from((Op.FREE, Op.FREE, Op.FREE_REQUESTED)))
            rows.append((way, live.pop(draw(st.integers(0, len(live) - 1)))))
    return rows


@hypothesis_settings(max_examples=30, deadline=None)
@given(programs(), st.sampled_from(CONFS), st.sampled_from((96, 130, 200)))
def test_the_largest_request_is_what_the_model_grants_and_no_larger_one(rows, conf, mib):
    trace = trace_of(*rows)
    outcome = run(trace, conf, mib * MIB)
    found = m.metrics(outcome.blocks, parse(conf, RULES))
    for name in ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes"):
        assert getattr(found, name) == outcome.figure(name), name
    assert found.stranded_bytes >= 0

    def served(size):
        return run(trace_of(*rows, (Op.ALLOC, 1000, size)), conf, mib * MIB).ooms == outcome.ooms

    largest = state(trace, conf, mib * MIB).largest_request()
    assert largest == 0 or served(largest)
    assert not served(largest + 512)
    for size in range(largest + 512, mib * MIB + 1, 7 * MIB):
        assert not served(size)


def test_the_timeline_and_its_samples_end_in_the_same_figures():
    trace = trace_of(*ONE_SEGMENT)
    whole = run(trace, timeline=True)
    samples = m.stranded_over_time(trace, "", Card(1 << 30), samples=8, engine="plain")
    assert samples[-1][0] == len(trace) - 1 and len(samples) == 8
    for at, share in samples:
        assert share.reserved_bytes == whole.column("reserved")[at]
        assert share.active_bytes == whole.column("active")[at]
    assert samples[-1][1].stranded_bytes == 400 * MIB
