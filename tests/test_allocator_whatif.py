"""What-if answers and the smallest card: held to replays, to arithmetic and to a search that tries every capacity."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from allocator_traces import MIB, alloc, free, trace_of
from examples import examples
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.allocator.call_sites import requests_of
from helpers.allocator.capacity import (
    NEIGHBOURS,
    Runs,
    least_capacity,
    prepared,
    smallest,
    smallest_of,
)
from helpers.allocator.driver import Card
from helpers.allocator.replay import replay
from helpers.allocator.trace import DriverCall, Op, StartBlock, StartSegment, Trace
from helpers.allocator.views import replays
from helpers.allocator.views.replays import league
from helpers.allocator.whatif import whatif
from helpers.ground.contract import to_json
from helpers.ground.replays import FirstOom, LiveBytes, Replay, WhatIf
from helpers.settings.allocator_text import SettingsError

GRANULE = 2 * MIB
EXPANDABLE = "expandable_segments:True"


def ask(trace, mib, **how):
    return whatif(trace, Card(mib * MIB), **how)


def passes(trace, conf, capacity, **how):
    return replay(trace, conf, Card(capacity), engine="plain", **how).ooms == 0


def row_of(answer, conf=""):
    return next(row for row in answer.rows if row.settings == conf)


# One segment of 800 MiB is chipped by survivors; its free half of 400 MiB cannot be given back, and 500 are asked for.
CHIPPED = trace_of(
    alloc(99, 800),
    free(99),
    *(alloc(i, 40) for i in range(20)),
    *(free(i) for i in range(10)),
    alloc(200, 500),
)
# Holes of 16 MiB between survivors of 16 MiB: no page of 20 is free.
COMB = trace_of(
    alloc(99, 800),
    free(99),
    *(alloc(i, 16) for i in range(50)),
    *(free(i) for i in range(1, 50, 2)),
    alloc(200, 300),
)
# Two segments of 60 MiB, each with a free first half; the lower of the two halves is taken. The second half of the first
# segment goes, and 60 are asked for.
TWO_HALVES = trace_of(
    *(alloc(0, 60), free(0), alloc(1, 30), alloc(2, 30), alloc(3, 60), free(3), alloc(4, 30)),
    *(alloc(5, 30), free(1), free(4), alloc(6, 30), free(2), alloc(7, 60)),
)


def test_a_setting_saves_the_run_where_the_default_dies():
    answer = ask(CHIPPED, 1024)
    assert not passes(CHIPPED, "", 1024 * MIB)
    assert answer.use and answer.needs_bytes == 0 and passes(CHIPPED, answer.use, 1024 * MIB)
    default = row_of(answer)
    assert not default.passes
    assert default.first_oom == FirstOom(len(CHIPPED) - 1, 500 * MIB)
    expandable = row_of(answer, EXPANDABLE)
    assert expandable.passes and expandable.peak_reserved_bytes == 900 * MIB
    assert row_of(answer, "max_split_size_mb:512").passes
    assert "run out of memory" in answer.why and answer.live == []


def test_the_table_is_in_order_and_its_figures_are_those_of_the_replay():
    answer = ask(CHIPPED, 1024)
    good = [row for row in answer.rows if row.passes]
    assert answer.rows[: len(good)] == good
    keys = [
        (row.slow_calls, row.retries, row.peak_reserved_bytes, len(row.settings), row.settings)
        for row in good
    ]
    assert keys == sorted(keys)
    assert answer.use == good[0].settings
    same = ("ooms", "peak_reserved_bytes", "peak_allocated_bytes", "slow_calls")
    for row in answer.rows[::7]:
        outcome = replay(CHIPPED, row.settings, Card(1024 * MIB), engine="plain")
        assert row.retries == outcome.counter("num_alloc_retries")
        assert (row.first_oom and row.first_oom.index) == outcome.first_oom
        for name in same:
            assert getattr(row, name) == getattr(outcome, name), name


@pytest.mark.parametrize(
    ("trace", "torch"),
    [(COMB, "2.14.1"), (COMB, "2.6.0"), (TWO_HALVES, "2.6.0"), (CHIPPED, "2.14.1")],
)
def test_where_nothing_helps_the_missing_bytes_are_exact(trace, torch):
    capacity = least_capacity(trace, Card(1))[0] - 30 * MIB
    confs = ["", EXPANDABLE, "max_split_size_mb:64", "roundup_power2_divisions:4"]
    answer = whatif(trace, Card(capacity), torch=torch, confs=confs)
    assert answer.use == "" and answer.needs_bytes > 0
    runs = Runs(trace, Card(capacity), torch=torch, engine="plain")
    assert runs.passes(answer.needs_settings, capacity + answer.needs_bytes)
    for conf in confs:
        assert not runs.passes(conf, capacity + answer.needs_bytes - GRANULE)
    assert answer.needs_bytes >= 30 * MIB
    assert "other holders alone need" in answer.why and answer.floor_bytes == capacity + 30 * MIB


def test_fragmentation_that_no_setting_cures_is_told_from_lack():
    answer = ask(COMB, 1024, confs=["", EXPANDABLE])
    assert answer.needs_bytes == 76 * MIB and answer.floor_bytes == 800 * MIB
    assert "alone need" not in answer.why
    assert passes(COMB, "", 1100 * MIB)
    assert not passes(COMB, "", 1098 * MIB) and not passes(COMB, EXPANDABLE, 1098 * MIB)


def test_the_allocations_that_hold_the_most_are_named_with_their_stacks():
    frames = (("model.py:3 forward", "train.py:9 step"), ("cache.py:7 grow",))
    rows = [*map(alloc, range(4), (100, 300, 200, 250)), free(0), alloc(4, 900)]
    trace = trace_of(*rows, frame=np.array([0, 1, 1, 0, -1, 0], np.int32), frames=frames)
    answer = ask(trace, 1024)
    assert [(one.id, one.size_bytes, one.index, one.frames) for one in answer.live] == [
        (1, 300 * MIB, 1, frames[1]),
        (3, 250 * MIB, 3, frames[0]),
        (2, 200 * MIB, 2, frames[1]),
    ]
    assert [(group.frames, group.size_bytes, group.count) for group in answer.groups] == [
        (frames[1], 500 * MIB, 2),
        (frames[0], 250 * MIB, 1),
    ]
    assert answer.needs_bytes == (750 + 900 - 1024) * MIB
    assert "cache.py:7 grow" in str(league(answer)) and "no setting helps" in str(league(answer))


def test_the_default_wins_where_a_change_buys_nothing():
    trace = trace_of(alloc(0, 30), alloc(1, 30), free(0), free(1))
    answer = ask(trace, 1024)
    assert answer.use == "" and answer.needs_bytes == 0 and answer.live == []
    assert all(row.passes for row in answer.rows if not row.flags)
    assert "use: the default settings" in str(league(answer))


def test_a_change_is_recommended_over_a_passing_default_that_has_to_retry():
    rows = [row for i in range(6) for row in (alloc(i, 60 + 10 * i), free(i))]
    answer = ask(trace_of(*rows), 150, confs=["", EXPANDABLE])
    default = row_of(answer)
    assert default.passes and default.retries > 0
    assert answer.use == EXPANDABLE and "retries" in answer.why


def test_a_change_is_recommended_where_it_saves_slow_calls_all_along():
    rows = [row for i in range(30) for row in (alloc(i, 66 + 2 * (i % 5)), free(i))]
    few = ask(trace_of(*rows), 1024, confs=["", "roundup_power2_divisions:2"])
    saved = {row.settings: row.slow_calls for row in few.rows}
    # Four calls in the whole run buy nothing.
    assert saved[""] - saved["roundup_power2_divisions:2"] == 4 and few.use == ""
    growing = [row for i in range(30) for row in (alloc(i, 66 + 2 * i), free(i))]
    many = ask(trace_of(*growing), 4096, confs=["", "roundup_power2_divisions:2"])
    assert many.use == "roundup_power2_divisions:2" and "slow calls" in many.why


@pytest.mark.parametrize("build", ["rocm6.4", "rocm7.2"])
def test_expandable_segments_are_never_recommended_on_rocm(build):
    answer = ask(CHIPPED, 1024, confs=["", EXPANDABLE], torch="2.13.0", build=build)
    row = row_of(answer, EXPANDABLE)
    assert row.flags and row.proved == "source"
    assert answer.use == "" and answer.needs_bytes > 0 and answer.needs_settings == ""
    assert "no rocm build of it was compared" in answer.warnings[0]
    assert any(EXPANDABLE in warning for warning in answer.warnings) is (build == "rocm7.2")
    assert "expandable" not in ask(CHIPPED, 1024, torch="2.13.0", build=build).use


def test_a_release_that_was_not_compared_is_labelled():
    known, other = (ask(COMB, 2048, confs=[""], torch=torch) for torch in ("2.14.1", "2.10.0"))
    assert known.proved == known.rows[0].proved == "oracle" and not known.warnings
    assert known.proved_on.startswith(
        "this model was compared with the compiled allocator of torch 2.14.1, cuda build: "
    )
    assert other.proved == other.rows[0].proved == "source" and other.warnings[0] == other.proved_on


def test_a_rocm_wheel_is_known_by_its_version():
    answer = ask(CHIPPED, 1024, confs=[""], torch="2.8.0+rocm6.4")
    assert answer.build == "rocm6.4" and "no rocm build of it was compared" in answer.warnings[0]


def test_expandable_with_max_split_is_flagged_and_never_recommended():
    both = EXPANDABLE + ",max_split_size_mb:64"
    answer = ask(CHIPPED, 1024, confs=["", both])
    row = row_of(answer, both)
    assert row.flags and answer.use != both and answer.needs_settings != both
    assert f"is never recommended: {row.flags[0]}" in str(league(answer))


def test_a_garbage_collection_threshold_is_flagged_only_without_a_fraction():
    conf = "garbage_collection_threshold:0.5"
    asked = {"confs": ["", conf]}
    row, other = (
        row_of(ask(CHIPPED, 1024, fraction=fraction, **asked), conf) for fraction in (None, 0.9)
    )
    assert row.flags and not other.flags


def test_addresses_make_a_band_where_a_release_goes_by_them_and_none_later():
    old, new = (row_of(ask(TWO_HALVES, 1024, torch=torch)) for torch in ("2.6.0", "2.14.1"))
    assert (old.peak_reserved_low_bytes, old.peak_reserved_high_bytes) == (120 * MIB, 180 * MIB)
    assert new.peak_reserved_low_bytes == new.peak_reserved_high_bytes == new.peak_reserved_bytes
    assert old.addresses_agree and old.passes


def test_a_pass_by_luck_of_addresses_is_no_pass():
    answer = ask(TWO_HALVES, 160, torch="2.6.0", confs=["", "max_split_size_mb:512"])
    row = row_of(answer)
    assert not row.addresses_agree and not row.passes
    assert answer.needs_bytes == 20 * MIB
    assert any("addresses" in warning for warning in answer.warnings)
    assert "120.00 MiB" in str(league(answer))


def test_a_recorded_out_of_memory_is_asked_again():
    rows = [alloc(0, 100), alloc(1, 80), alloc(2, 10), free(2), free(0)]
    trace = trace_of(*rows, driver=(DriverCall(1, "oom", 0, 80 * MIB, 0),))
    stream, origin, said = prepared(trace, Card(150 * MIB))
    assert stream.op.tolist() == [0, 0, 1, 0, 1, 1] and origin.tolist() == [0, 1, 1, 2, 3, 4]
    assert "the replay asks again" in said[0]
    answer = ask(trace, 150)
    assert answer.needs_bytes == 30 * MIB
    assert (answer.rows[0].first_oom.index, answer.rows[0].ooms) == (1, 1)
    enough = ask(trace, 190)
    assert enough.use == "" and enough.needs_bytes == 0


def segment(address, mib, *blocks):
    return StartSegment(address << 40, mib * MIB, 0, False, 0, False, blocks)


def start_of(live):
    """60 MiB with a live block, and 50 that are live or cached."""
    other = ("A", 1) if live else ("I", -1)
    return (
        segment(1, 60, StartBlock(0, 60 * MIB, 59 * MIB, "A", 0)),
        segment(2, 50, StartBlock(0, 50 * MIB, 50 * MIB, *other)),
    )


def test_a_start_larger_than_the_card_loses_what_was_cached():
    trace = replace(trace_of(alloc(5, 30), free(0)), start=start_of(live=False))
    for mib, anew, said, lengths in (
        (150, False, "every replay begins with them", (2, 2, 2)),
        (100, False, "without a live block are left out", (1, 2, 2)),
        (100, True, "allocated anew", (0, 3, 3)),
    ):
        stream, origin, sentences = prepared(trace, Card(mib * MIB), anew)
        assert said in sentences[0]
        assert (len(stream.start), len(stream), len(origin)) == lengths
    for mib in (150, 100):
        assert ask(trace, mib).needs_bytes == 0
    empty = replace(trace_of(alloc(5, 30)), start=start_of(live=False)[1:])
    assert len(prepared(empty, Card(100 * MIB), anew=True)[0]) == 1
    failing = ask(trace, 80)
    assert failing.needs_bytes == 10 * MIB and failing.rows[0].first_oom.index == 0
    assert [(one.id, one.index, one.size_bytes) for one in failing.live] == [(0, -1, 59 * MIB)]


def test_a_start_that_a_setting_cannot_have_is_laid_anew_for_that_setting_alone():
    split = (StartBlock(0, 10 * MIB, 10 * MIB, "A", 0), StartBlock(10 * MIB, 50 * MIB, 0, "I", -1))
    trace = trace_of(alloc(5, 45), start=(segment(1, 60, *split),))
    limited = "max_split_size_mb:32"
    answer = ask(trace, 90, confs=["", limited])
    peaks = {row.settings: row.peak_reserved_bytes for row in answer.rows}
    assert peaks == {"": 60 * MIB, limited: 56 * MIB}  # 10 MiB and 46 MiB of its own
    assert any("cannot begin with the recorded segments" in warning for warning in answer.warnings)


def test_bad_input_is_one_line():
    with pytest.raises(ValueError, match="no operation"):
        whatif(Trace(*(np.zeros(0, np.int64) for _ in range(5))), Card(1 << 30))
    with pytest.raises(SettingsError, match="max_split"):
        ask(CHIPPED, 1024, confs=["max_split_size_mb:1"])
    with pytest.raises(ValueError, match="115,343,360 of them live") as error:
        ask(replace(trace_of(alloc(5, 30)), start=start_of(live=True)), 100)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="may be recommended"):
        ask(CHIPPED, 1024, confs=[EXPANDABLE], torch="2.13.0", build="rocm7.2")


def test_progress_counts_the_settings():
    seen = []
    confs = ["", EXPANDABLE]
    ask(TWO_HALVES, 1024, torch="2.6.0", confs=confs, progress=lambda *at: seen.append(at))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("mib", [1024, 700])
def test_the_answer_has_the_fields_of_the_shape_and_goes_into_json(mib):
    shape = json.loads(to_json(ask(CHIPPED, mib)))
    assert {one.name for one in fields(WhatIf)} - {"notes"} <= set(shape), (
        "notes are the trace's, added by the command"
    )
    assert {one.name for one in fields(Replay)} <= set(shape["rows"][0])
    failed = [row for row in shape["rows"] if row["ooms"]]
    assert failed and set(failed[0]["first_oom"]) == {"index", "size_bytes"}


@st.composite
def programs(draw):
    rows = []
    live = []
    for ident in range(draw(st.integers(1, 14))):
        rows.append(alloc(ident, draw(st.sampled_from((0.001, 0.7, 1.5, 9, 12, 21, 25)))))
        live.append(ident)
        while live and draw(st.booleans()):
            rows.append(free(live.pop(draw(st.integers(0, len(live) - 1)))))
    return trace_of(*rows)


CONFS = (
    "",
    EXPANDABLE,
    "max_split_size_mb:21",
    "per_process_memory_fraction:0.9,garbage_collection_threshold:0.5",
)


@hypothesis_settings(max_examples=examples(25), deadline=None)
@given(programs(), st.sampled_from(CONFS), st.sampled_from((0, 3 * MIB)))
def test_the_smallest_card_is_what_trying_every_capacity_finds(trace, conf, held):
    runs = Runs(trace, Card(1, held), engine="plain")
    found = smallest(runs, conf)
    assert runs.passes(conf, found)
    every = [at for at in range(held + GRANULE, found, GRANULE) if runs.passes(conf, at)]
    assert all(at < found - (NEIGHBOURS + 1) * GRANULE for at in every)


@hypothesis_settings(max_examples=examples(20), deadline=None)
@given(programs())
def test_the_best_of_several_settings_is_no_worse_than_any_of_them(trace):
    runs = Runs(trace, Card(1), engine="plain")
    conf, size = smallest_of(runs, CONFS)
    assert size <= min(smallest(runs, one) for one in CONFS) and runs.passes(conf, size)


@hypothesis_settings(max_examples=examples(25), deadline=None)
@given(programs(), st.sampled_from(CONFS))
def test_no_setting_passes_on_less_than_the_arithmetic_allows(trace, conf):
    floor, at = least_capacity(trace, Card(1))
    if floor > GRANULE:
        assert not passes(trace, conf, floor - GRANULE)
    plenty = replay(trace, "", Card(1 << 40), engine="plain", timeline=True)
    live = requests_of(trace).live
    assert (live <= plenty.column("allocated")).all() and live[at] == live.max()


def test_no_capacity_passes_where_a_call_is_made_to_fail():
    trace = trace_of((Op.FAIL_NEXT, -1, 9), alloc(0, 30))
    with pytest.raises(ValueError, match="another reason than capacity"):
        smallest(Runs(trace, Card(1), engine="plain"), "")


def test_no_card_is_smaller_than_what_is_reserved_at_the_start():
    trace = replace(trace_of(free(0)), start=start_of(live=False))
    assert smallest_of(Runs(trace, Card(1), engine="plain"), ["", EXPANDABLE])[1] == 110 * MIB


def test_what_others_hold_counts_against_the_card():
    trace = trace_of(alloc(0, 30), (Op.FOREIGN, -1, 50 * MIB), alloc(1, 30), free(0), free(1))
    assert least_capacity(trace, Card(1 << 30, 4 * MIB)) == (110 * MIB, 2)
    assert smallest(Runs(trace, Card(1, 4 * MIB), engine="plain"), "") == 110 * MIB


def test_settings_that_end_alike_and_places_that_read_alike_take_one_line_each():
    confs = ["", *(f"max_split_size_mb:{mib}" for mib in (48, 64, 96))]
    rows = [replace(ask(CHIPPED, 1024, confs=[""]).rows[0], settings=conf) for conf in confs]
    rows[-1] = replace(rows[-1], retries=2)
    assert [cells[0] for cells in replays._league_cells(rows)] == [
        "default",
        "max_split_size_mb:48, 64",
        "max_split_size_mb:96",
    ]
    stacks = [("pack.py:4 forward", "run.py:7 main"), ("pack.py:4 forward", "run.py:9 main")]
    groups = [LiveBytes(size_bytes=3 << 20, frames=stack, count=2) for stack in stacks]
    assert replays._groups_in_words(groups) == ["  6.00 MiB in 4 allocations: pack.py:4 forward"]
