"""Figures of a block table: held to hand-made cases and to the counters of the model."""

import pytest
from allocator_traces import MIB, alloc, free, trace_of
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.allocator import metrics as m
from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.allocator.study import Study
from helpers.allocator.trace import Op
from helpers.settings.in_force import parse
from helpers.settings.releases import behaviour

RULES = behaviour("2.14.1")


def run(trace, conf="", capacity=1 << 30, **how):
    return replay(trace, conf, Card(capacity), engine="plain", **how)


def figures(trace, conf=""):
    return m.metrics(run(trace, conf).blocks, parse(conf, RULES))


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


def test_a_private_pool_gives_nothing_back():
    asked = [alloc(0, 30), alloc(1, 40, 0x1000), alloc(2, 50, 0, 1)]
    found = figures(trace_of(*(row for one in asked for row in (one, free(one[1])))))
    assert (found.releasable_bytes, found.stranded_bytes) == (70 * MIB, 50 * MIB)


def test_an_empty_card_has_figures_too():
    found = figures(trace_of(alloc(0, 0)))
    assert found.reserved_bytes == 0 and found.misleading_ratio == 0.0


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
def test_the_figures_of_a_block_table_are_the_counters_of_the_model(rows, conf, mib):
    outcome = run(trace_of(*rows), conf, mib * MIB)
    found = m.metrics(outcome.blocks, parse(conf, RULES))
    for name in ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes"):
        assert getattr(found, name) == outcome.figure(name), name
    assert found.stranded_bytes >= 0


def test_the_timeline_and_its_samples_end_in_the_same_figures():
    trace = trace_of(*ONE_SEGMENT)
    whole = run(trace, timeline=True)
    samples = m.stranded_over_time(Study(trace, Card(1 << 30)), "", samples=8)
    assert samples[-1][0] == len(trace) - 1 and len(samples) == 8
    for at, share in samples:
        assert share.reserved_bytes == whole.column("reserved")[at]
        assert share.active_bytes == whole.column("active")[at]
    assert samples[-1][1].stranded_bytes == 400 * MIB
