"""One answer for a recorded program: which facts lead to which cause, and that no door differs."""

import json
import pickle
from dataclasses import replace

import pytest
from command_line import verb
from hypothesis import given
from hypothesis import strategies as st
from toy_allocator import MIB, Toy

from helpers.allocator.program_facts import evidence_from_trace
from helpers.ground.contract import from_json
from helpers.ground.shapes import Verdict
from helpers.judge.program_facts import (
    CardFacts,
    FirstChange,
    GrowerFacts,
    GrowthFacts,
    Holding,
    ProgramFacts,
    Refusal,
    Repeat,
    Replays,
)
from helpers.judge.program_verdict import program_verdict
from helpers.settings.trouble import SettingsTrouble

GIB = 1 << 30
CARD = 8 * GIB
REFUSED = Refusal(GIB, GIB // 2, 5 * GIB, CARD - GIB // 2, "train.py:31 forward")
FAILED = ProgramFacts(
    source="recording of run.pickle",
    exit_code=1,
    ooms=1,
    capacity_bytes=CARD,
    usable_bytes=CARD,
    refusal=REFUSED,
    most_live_before_bytes=5 * GIB,
    holding=(Holding("train.py:31 forward", 3 * GIB),),
)
GREW = GrowthFacts(
    (GrowerFacts("eval.py:7 main", "eval.py:5 main", 50 * MIB, 2 * GIB, "`outputs`"),), 40
)
CREPT = GrowthFacts((GrowerFacts("eval.py:9 main", "eval.py:9 main", 1024, 40 * 1024),), 40)
LARGER_STEP = replace(GREW, rest_so_far_bytes=4 * GIB, usual_rest_bytes=GIB)
STEADY = GrowthFacts((), 40)


def repeat(peak_bytes, fits=True, conf="", stopped="", card=16 * CARD):
    return Repeat(card, conf, fits, stopped, peak_bytes, peak_bytes)


def expandable(fits):
    return repeat(6 * GIB, fits, "expandable_segments:True", card=CARD)


OVER = repeat(13 * GIB)
REPLAYED = replace(REFUSED, fails_in_replay=True)
JOINED = Replays("expandable_segments:True")
UNDER = repeat(6 * GIB)


@pytest.mark.parametrize(
    ("facts", "cause", "confidence"),
    [
        (dict(without_limit=OVER, expandable=expandable(False)), "true-capacity", "confirmed"),
        (dict(without_limit=OVER, growth=GREW), "user-leak", "confirmed"),
        (dict(growth=GREW), "user-leak", "likely"),
        (dict(growth=replace(GREW, may_be_one_step=True)), "cannot-tell", "weak"),
        (dict(growth=LARGER_STEP), "cannot-tell", "weak"),
        (dict(growth=replace(LARGER_STEP, usual_rest_bytes=4 * GIB)), "user-leak", "likely"),
        (
            dict(growth=LARGER_STEP, without_limit=OVER),
            "user-leak",
            "confirmed",
        ),
        (
            dict(growth=GREW, replays=Replays("expandable_segments:True", peak_bytes=CARD - MIB)),
            "user-leak",
            "likely",
        ),
        (
            dict(growth=GREW, replays=Replays("expandable_segments:True", peak_bytes=4 * GIB)),
            "allocator-fragmentation",
            "likely",
        ),
        (
            dict(
                refusal=replace(REFUSED, allocated_bytes=2 * GIB),
                growth=replace(GREW, growers=(replace(GREW.growers[0], kept_bytes=GIB),)),
                replays=Replays("expandable_segments:True", peak_bytes=CARD - MIB),
            ),
            "allocator-fragmentation",
            "likely",
        ),
        (dict(growth=CREPT), "cannot-tell", "weak"),
        (dict(growth=CREPT, without_limit=OVER), "true-capacity", "confirmed"),
        (dict(growth=GREW, without_limit=OVER), "user-leak", "confirmed"),
        (
            dict(without_limit=UNDER, expandable=expandable(False)),
            "allocator-fragmentation",
            "likely",
        ),
        (
            dict(without_limit=repeat(int(0.95 * CARD)), expandable=expandable(False)),
            "true-capacity",
            "likely",
        ),
        (
            dict(growth=replace(GREW, rest_bytes=CARD + 1), without_limit=OVER),
            "true-capacity",
            "confirmed",
        ),
        (
            dict(without_limit=UNDER, expandable=expandable(True)),
            "allocator-fragmentation",
            "confirmed",
        ),
        (
            dict(growth=GREW, without_limit=UNDER, expandable=expandable(True)),
            "allocator-fragmentation",
            "likely",
        ),
        (
            dict(
                growth=replace(GREW, growers=(replace(GREW.growers[0], kept_bytes=5 * GIB),)),
                without_limit=UNDER,
                expandable=replace(expandable(True), peak_allocated_bytes=CARD - 99 * MIB),
            ),
            "user-leak",
            "likely",
        ),
        (dict(replays=Replays("expandable_segments:True")), "cannot-tell", "weak"),
        (
            dict(replays=Replays("expandable_segments:True"), most_live_before_bytes=7 * GIB),
            "allocator-fragmentation",
            "likely",
        ),
        (
            dict(replays=Replays("expandable_segments:True"), growth=STEADY, steps_as_full=3),
            "allocator-fragmentation",
            "likely",
        ),
        (
            dict(replays=Replays("expandable_segments:True"), growth=STEADY, steps_as_full=1),
            "cannot-tell",
            "weak",
        ),
        (
            dict(replays=Replays("expandable_segments:True"), more_to_come_bytes=3 * GIB),
            "true-capacity",
            "likely",
        ),
        (
            dict(replays=Replays("expandable_segments:True"), more_to_come_bytes=GIB),
            "cannot-tell",
            "weak",
        ),
        (
            dict(without_limit=UNDER, expandable=expandable(True), more_to_come_bytes=3 * GIB),
            "allocator-fragmentation",
            "confirmed",
        ),
        (
            dict(cards=(CardFacts(0, 1, 7 * GIB), CardFacts(1, 1, GIB))),
            "multi-gpu-imbalance",
            "likely",
        ),
        (
            dict(refusal=None, exit_code=0, cards=(CardFacts(0, 2, 9 * GIB, 3 * GIB),)),
            "allocator-cache-not-returned",
            "likely",
        ),
        (
            dict(
                refusal=None,
                exit_code=0,
                cards=(CardFacts(0, 2, 9 * GIB), CardFacts(1, 1, 7 * GIB)),
            ),
            "multi-gpu-imbalance",
            "likely",
        ),
        (
            dict(refusal=None, exit_code=0, cards=(CardFacts(0, 2, 9 * GIB), CardFacts(1, 1, GIB))),
            "multi-gpu-imbalance",
            "likely",
        ),
        (dict(replays=Replays(None, MIB)), "true-capacity", "likely"),
        (dict(exit_code=0), "cannot-tell", "weak"),
    ],
)
def test_which_facts_lead_to_which_cause(facts, cause, confidence):
    verdict = program_verdict(replace(FAILED, **facts))
    assert (verdict.cause, verdict.confidence) == (cause, confidence)
    assert verdict.headline and verdict.next_step.what


def test_pieces_that_expandable_segments_do_not_join_come_with_no_setting():
    facts = replace(FAILED, without_limit=UNDER, expandable=expandable(False))
    verdict = program_verdict(facts)
    assert "needs only 6.00 GiB of 8.00 GiB at once" in verdict.headline
    assert "even with expandable segments" in verdict.headline
    assert not verdict.next_step.command


def test_a_program_that_all_but_fills_the_card_without_pieces_is_not_certain_to_lie_in_pieces():
    full = repeat(int(0.98 * CARD), True, "expandable_segments:True", card=CARD)
    verdict = program_verdict(replace(FAILED, expandable=full))
    assert (verdict.cause, verdict.confidence) == ("allocator-fragmentation", "likely")
    assert [row.cause for row in verdict.alternatives] == ["true-capacity"]
    assert "leave only 163.84 MiB of the card" in verdict.summary


def test_a_run_that_its_seconds_ended_is_counted_up_to_the_end_of_the_step_that_had_failed():
    ended = replace(repeat(13 * GIB, stopped="--seconds"), whole_step_bytes=9 * GIB)
    further = replace(ended, peak_allocated_bytes=40 * GIB)
    runs = [program_verdict(replace(FAILED, without_limit=run)) for run in (ended, further)]
    assert {(run.title, run.next_step.what) for run in runs} == {
        (runs[0].title, runs[0].next_step.what)
    }
    assert "needs at least 9.00 GiB at once; it can use 8.00 GiB" in runs[0].title
    short = replace(FAILED, without_limit=replace(ended, whole_step_bytes=0))
    verdict = program_verdict(short)
    assert verdict.title.startswith(
        "The program needs more at once than the 8.00 GiB that it can use"
    )
    assert verdict.confidence == "confirmed" and verdict.next_step.what.startswith(
        "Use less memory"
    )


def test_live_bytes_that_leave_no_room_are_confirmed_by_a_repeat_alone():
    full = replace(REFUSED, allocated_bytes=CARD - GIB)
    over = replace(FAILED, refusal=replace(full, request_bytes=2 * GIB), growth=STEADY)
    assert program_verdict(over).confidence == "likely"
    assert program_verdict(replace(over, without_limit=OVER)).confidence == "confirmed"


def test_a_card_that_is_nearly_all_live_is_too_small_even_where_a_setting_gets_past_the_request():
    last = replace(REFUSED, allocated_bytes=CARD - 9 * MIB, reserved_bytes=CARD - MIB)
    last = replace(last, device_free_bytes=MIB, request_bytes=4 * MIB)
    past = Replays("expandable_segments:True", peak_bytes=CARD)
    verdict = program_verdict(replace(FAILED, refusal=last, replays=past))
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")
    assert "4.00 MiB more did not fit" in verdict.headline


def test_a_repeat_that_a_limit_ended_has_not_passed():
    ended = replace(expandable(True), stopped="--seconds")
    assert program_verdict(replace(FAILED, expandable=ended)).confidence != "confirmed"
    over = replace(FAILED, expandable=ended, without_limit=OVER)
    assert program_verdict(over).cause == "true-capacity"


def test_growth_that_is_less_than_what_is_missing_is_not_why_the_card_is_full():
    small_leak = replace(GREW, growers=(replace(GREW.growers[0], kept_bytes=GIB),))
    short = replace(REFUSED, allocated_bytes=7 * GIB, request_bytes=4 * GIB)
    facts = replace(FAILED, refusal=short, growth=small_leak, without_limit=OVER)
    assert program_verdict(facts).cause == "true-capacity"


def test_a_second_card_that_nobody_uses_changes_nothing():
    idle = (CardFacts(0, 1, 7 * GIB), CardFacts(1, 0, 0))
    leak = replace(FAILED, cards=idle, growth=GREW, without_limit=OVER)
    assert program_verdict(leak).cause == "user-leak"


def test_processes_that_crowd_one_card_beside_an_empty_one_are_spread_unevenly():
    crowded = CardFacts(0, 2, 9 * GIB)
    facts = replace(FAILED, refusal=None, exit_code=0, cards=(crowded, CardFacts(1, 0, 0)))
    verdict = program_verdict(facts)
    assert verdict.cause == "multi-gpu-imbalance"
    assert "1 more is empty" in verdict.headline
    alone = replace(facts, cards=(crowded,))
    assert program_verdict(alone).cause == "true-capacity"


def test_a_program_that_ran_to_its_end_is_healthy_whether_it_caught_an_out_of_memory_or_none():
    caught = program_verdict(replace(FAILED, exit_code=0, ooms=3))
    assert caught.state == "healthy" and "3 times" in caught.headline
    passed = replace(FAILED, exit_code=0, ooms=0, refusal=None)
    assert program_verdict(passed).state == "healthy"
    assert program_verdict(replace(passed, growth=GREW)).state == "healthy"


def test_a_program_that_was_ended_while_it_grew_will_not_fit_and_nothing_more_is_claimed():
    ended = replace(FAILED, exit_code=None, ooms=0, refusal=None, growth=GREW, runs_out_in_step=160)
    verdict = program_verdict(ended)
    assert (verdict.cause, verdict.confidence, verdict.state) == ("user-leak", "weak", "")
    assert verdict.headline.endswith("at this rate it fills the 8.00 GiB in step 160")


def test_a_setting_that_came_too_late_is_the_cause_only_where_it_would_have_helped():
    late = SettingsTrouble(
        kind="late",
        variable="PYTORCH_CUDA_ALLOC_CONF",
        value="expandable_segments:True",
        instead="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        why="comes too late",
    )
    helps = replace(FAILED, settings=late, without_limit=UNDER, expandable=expandable(True))
    assert program_verdict(helps).cause == "config-ineffective"
    no_help = replace(FAILED, settings=late, without_limit=OVER, expandable=expandable(False))
    assert program_verdict(no_help).cause == "true-capacity"


@pytest.mark.parametrize(
    ("passes_with", "cause"),
    [("expandable_segments:True", "config-ineffective"), (None, "user-leak"), ("", "user-leak")],
)
def test_without_a_repeat_a_misspelt_setting_is_likely_where_the_requests_would_have_passed(
    passes_with, cause
):
    misspelt = SettingsTrouble(
        kind="misspelt",
        variable="PYTORCH_CUDA_ALOC_CONF",
        value="expandable_segments:True",
        instead="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        why="has no effect",
    )
    grew = replace(FAILED, settings=misspelt, growth=GREW, replays=Replays(passes_with))
    verdict = program_verdict(grew)
    assert verdict.cause == cause
    if cause == "config-ineffective":
        assert verdict.confidence == "likely"


def test_a_card_that_others_hold_is_not_called_too_small():
    held = replace(FAILED, capacity_bytes=3 * CARD, without_limit=None)
    verdict = program_verdict(held)
    assert verdict.cause == "cannot-tell" and "but not by this program" in verdict.headline


def test_a_made_trace_proves_nothing_about_a_card():
    made = replace(FAILED, is_real=False, without_limit=OVER)
    assert program_verdict(made).confidence == "likely"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FAILED, without_limit=UNDER, expandable=expandable(True)), "finishes with"),
        (replace(FAILED, refusal=REPLAYED, replays=JOINED), "the same program goes on with"),
        (replace(FAILED, without_limit=UNDER, replays=JOINED), "gets past this request"),
    ],
)
def test_a_headline_about_pieces_says_what_was_seen_with_the_setting(facts, words):
    headline = program_verdict(facts).headline
    assert headline.startswith("Fragmentation: no free piece was large enough for 1.00 GiB; ")
    assert words in headline and "expandable_segments:True" in headline


sizes = st.integers(0, 4 * CARD)


@given(
    st.builds(Refusal, st.integers(1, CARD), sizes, sizes, sizes, st.just("train.py:3 f")),
    st.sampled_from([None, STEADY, GREW]),
    st.sampled_from([None, OVER, UNDER, repeat(9 * GIB, False, stopped="--seconds")]),
    st.sampled_from([None, expandable(True), expandable(False)]),
    st.sampled_from([None, Replays(None), Replays(""), Replays("expandable_segments:True")]),
    sizes,
    st.sampled_from([None, 0, 1, 137]),
)
def test_fragmentation_is_confirmed_only_where_another_setting_passes(
    refusal, growth, without_limit, with_expandable, replays, live_before, exit_code
):
    facts = replace(
        FAILED,
        refusal=refusal,
        growth=growth,
        without_limit=without_limit,
        expandable=with_expandable,
        replays=replays,
        most_live_before_bytes=live_before,
        exit_code=exit_code,
    )
    verdict = program_verdict(facts)
    if verdict.cause == "allocator-fragmentation":
        assert exit_code != 0
        by_repeat = with_expandable is not None and with_expandable.fits
        by_replay = replays is not None and replays.passes_with is not None
        assert by_repeat or (with_expandable is None and by_replay)
    if verdict.confidence == "confirmed":
        assert not verdict.alternatives and not verdict.missing


def frames(name, line):
    return [{"name": name, "filename": "/home/someone/train.py", "line": line}]


def full(device_free=MIB):
    toy = Toy()
    for number in range(10):
        toy.alloc(20 * MIB, frames("build", 3 + number))
    toy.say("oom", device_free, 64 * MIB, frames=frames("forward", 99))
    return toy


def leaking():
    toy = Toy()
    for _ in range(40):
        work = toy.alloc(3 * MIB, frames("forward", 3))
        toy.alloc(2 * MIB, frames("collect", 6))
        toy.free(work)
    toy.say("oom", MIB, 3 * MIB, frames=frames("forward", 3))
    return toy


def in_pieces(before=lambda toy: None):
    toy = Toy()
    before(toy)
    blocks = [toy.alloc(10 * MIB - 512 * 2, frames("load", line)) for line in range(16)]
    for number, address in enumerate(blocks):
        if number % 4 in (1, 2):
            toy.free(address)
    toy.say("oom", MIB, 16 * MIB, frames=frames("forward", 9))
    return toy


@pytest.mark.parametrize(
    ("scores_bytes", "cause"),
    [(100 * MIB, "true-capacity"), (20 * MIB, "allocator-fragmentation")],
)
def test_what_came_behind_the_same_request_before_will_come_again(scores_bytes, cause, tmp_path):
    def first_step(toy):
        blocks = [
            toy.alloc(14 * MIB, frames("forward", 9)),
            toy.alloc(scores_bytes, frames("forward", 12)),
        ]
        for address in blocks:
            toy.free(address)

    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(in_pieces(first_step).snapshot(), 4))
    verdict = program_verdict(evidence_from_trace(path).program)
    assert (verdict.cause, verdict.confidence) == (cause, "likely")
    says = "95.99 MiB at once and then 100.00 MiB more, as it did at this place before"
    assert (says in verdict.headline) is (cause == "true-capacity")


@pytest.mark.parametrize(
    ("program", "cause"),
    [(full, "true-capacity"), (leaking, "user-leak"), (in_pieces, "allocator-fragmentation")],
)
def test_every_door_to_a_trace_leads_with_the_same_answer(program, cause, tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(program().snapshot(), 4))
    answers = []
    for door in ("diagnose", "whatif", "leaks"):
        code, out, err = verb(door, path, "--json")
        assert code == 0, err
        told = json.loads(out)
        answers.append(from_json(Verdict, told.get("verdict", told)))
        code, out, err = verb(door, path)
        first_words = " ".join(out.split())
        assert first_words.startswith(answers[-1].headline), door
    assert {answer.cause for answer in answers} == {cause}
    assert len({answer.headline for answer in answers}) == 1


def test_a_record_whose_fields_are_null_is_read_as_one_that_has_none(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(leaking().snapshot(), 4))
    alone = verb("diagnose", path, "--json")
    (tmp_path / "run.record").mkdir()
    nulls = dict.fromkeys(("processes", "command", "counterfactual", "devices", "exit_code"))
    (tmp_path / "run.record/record.json").write_text(json.dumps(nulls))
    assert verb("diagnose", path, "--json") == alone


def test_a_program_that_limits_itself_is_judged_against_its_limit_at_every_door(tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(full(device_free=800 * MIB).snapshot(), 4))
    (tmp_path / "run.record").mkdir()
    device = {"index": 0, "total_bytes": 1000 * MIB, "fraction": 0.25, "stats": {}}
    torch = {"version": "2.9.0+cu128", "cuda": "12.8", "hip": None}
    record = {"processes": [{"torch": torch, "devices": [device]}], "exit_code": 1}
    (tmp_path / "run.record/record.json").write_text(json.dumps(record))
    for door in ("diagnose", "whatif", "leaks"):
        code, out, err = verb(door, path, "--json")
        assert code == 0, err
        told = json.loads(out)
        verdict = from_json(Verdict, told.get("verdict", told))
        assert verdict.cause == "config-ineffective"
        assert "250.00 MiB (set_per_process_memory_fraction 0.25)" in verdict.headline


LIMITED = replace(
    REFUSED,
    allocated_bytes=GIB,
    reserved_bytes=GIB + MIB,
    device_free_bytes=6 * GIB,
    allowed_bytes=2 * GIB,
)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (dict(), "config-ineffective"),
        (dict(without_limit=UNDER), "config-ineffective"),
        (dict(without_limit=OVER), "true-capacity"),
        (dict(growth=GREW, without_limit=OVER), "user-leak"),
        (dict(expandable=expandable(True)), "allocator-fragmentation"),
    ],
)
def test_a_limit_of_the_programs_own_stands_in_for_the_card(facts, cause):
    verdict = program_verdict(replace(FAILED, refusal=LIMITED, fraction=0.25, **facts))
    assert verdict.cause == cause
    assert "2.00 GiB (set_per_process_memory_fraction 0.25)" in verdict.summary


BARELY = replace(
    FAILED,
    refusal=Refusal(16 * MIB, 11 * MIB, CARD - 20 * MIB, CARD - 11 * MIB, "run.py:11 main"),
    command="python run.py",
)


def test_a_program_that_fills_the_card_is_told_what_it_needs_and_how_to_learn_the_rest():
    verdict = program_verdict(replace(BARELY, replays=Replays(None, MIB)))
    assert verdict.headline.startswith(
        "The program needs at least 8188.00 MiB at once; it can use 8192.00 MiB"
    )
    assert "How much it needs in all is not known" in verdict.next_step.what
    ran = program_verdict(replace(BARELY, without_limit=OVER))
    assert "13.00 GiB" in ran.headline and "is not known" not in ran.next_step.what


@pytest.mark.parametrize(("weights_bytes", "is_first"), [(3 * GIB, True), (7 * GIB, False)])
def test_a_smaller_batch_comes_first_only_where_weights_leave_room(weights_bytes, is_first):
    facts = replace(BARELY, replays=Replays(None, MIB), asked_before_forward_bytes=weights_bytes)
    what = program_verdict(facts).next_step.what
    assert ("a smaller batch first" in what) == is_first
    assert ("load the weights in fewer bits" in what) != is_first


def test_no_smaller_batch_comes_first_where_the_optimizer_doubles_what_the_weights_take():
    facts = replace(BARELY, without_limit=OVER, asked_before_forward_bytes=3 * GIB)
    assert "a smaller batch first" in program_verdict(facts).next_step.what
    what = program_verdict(replace(facts, trained_bytes=6 * GIB)).next_step.what
    assert (
        "9.00 GiB is weights, gradients and optimizer states" in what and "batch first" not in what
    )


@pytest.mark.parametrize(
    ("more_bytes", "words"),
    [
        (MIB, "needs at least 8193.00 MiB at once; it can use 8192.00 MiB"),
        (2048, "needs at least 8388610.00 KiB at once; it can use 8388608.00 KiB"),
    ],
)
def test_what_is_needed_and_what_there_is_differ_in_words_where_they_differ(more_bytes, words):
    refusal = replace(BARELY.refusal, request_bytes=20 * MIB + more_bytes)
    verdict = program_verdict(replace(BARELY, refusal=refusal, replays=Replays(None, MIB)))
    assert words in verdict.headline


def test_a_program_that_grows_after_the_failed_request_is_not_confirmed_to_need_too_much():
    later = replace(GREW, growers=(replace(GREW.growers[0], kept_bytes=0),), is_later=True)
    verdict = program_verdict(replace(FAILED, without_limit=OVER, growth=later))
    assert (verdict.cause, verdict.confidence) == ("true-capacity", "likely")
    assert [other.cause for other in verdict.alternatives] == ["user-leak"]


def test_a_list_of_losses_with_their_graphs_is_told_to_keep_no_graph():
    losses = replace(GREW.growers[0], with_graphs=True)
    growth = replace(GREW, growers=(losses,))
    verdict = program_verdict(replace(FAILED, without_limit=OVER, growth=growth))
    step = verdict.next_step
    assert "in `outputs` without their graphs" in step.what and "RAM" not in step.blast_radius
    assert "each entry with the graph of its step" in verdict.evidence[0].says


@pytest.mark.parametrize(("keeper", "cost"), [("`state`", ""), ("", "takes RAM: 50.00 MiB a step")])
def test_a_change_costs_nothing_where_it_cuts_a_graph_and_ram_where_it_moves_tensors(keeper, cost):
    grower = replace(GREW.growers[0], keeper=keeper, through_graph=True)
    facts = replace(FAILED, without_limit=OVER, growth=replace(GREW, growers=(grower,)))
    step = program_verdict(facts).next_step
    assert (".detach().cpu()" in step.what) == bool(cost) and step.blast_radius == cost


def test_the_advice_is_the_change_that_fix_tries_first_with_its_own_cost():
    change = FirstChange("Keep `outputs` on the CPU (train.py:3)", "uses RAM")
    facts = replace(FAILED, without_limit=OVER, growth=GREW)
    step = program_verdict(replace(facts, first_change=change)).next_step
    assert (step.what, step.blast_radius) == (change.title, "uses RAM")
    free = program_verdict(replace(facts, first_change=replace(change, costs=""))).next_step
    assert free.blast_radius == ""
