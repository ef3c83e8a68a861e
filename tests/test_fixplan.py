"""The plan of trials: what fits, in which order, and what becomes of trials that go wrong."""

import pytest

from helpers.load.fixplan import Arm, Pair, PlanError, Ran, plan, run, within
from helpers.load.targets import Target
from helpers.load.trial import RecordNotKept, TrialError, TrialRecord, TrialRefused
from helpers.load.workloads import workload
from helpers.settings.presets import NONE

BASE = Arm("base", workload("churn"), seconds=4)


def pair(name, seconds=4.0, tells=1.0, control=BASE):
    return Pair(name, control, Arm(name, workload("churn", prime=8), NONE, seconds), tells)


def record(arm, repeat, **more):
    return TrialRecord(
        **{
            "workload": arm,
            "preset": "none",
            "build": "cpu",
            "outcome": "ok",
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "driver_used_bytes": None,
            "rss_anon_bytes": 1,
            "seconds": 1.0,
            "steps": 1,
            "key": f"{arm}-{repeat}",
            "seed": 0,
            "repeat": repeat,
            **more,
        }
    )


def test_cheap_and_telling_remedies_come_first_and_what_does_not_fit_is_named():
    made = plan(
        [pair("dear", 100), pair("cheap", 2), pair("telling", 6, tells=4)],
        repeats=5,
        budget_s=70,
        seed=1,
    )
    assert [one.name for one in made.pairs] == ["telling", "cheap"]
    assert made.seconds == 5 * (4 + 2 + 6) <= 70  # the control is made once for both
    assert "500 s more, and 10 s of 70 are left" in made.left_out["dear"]


def test_a_budget_in_which_nothing_fits_is_refused_with_what_is_needed():
    with pytest.raises(
        PlanError, match="time budget 20 s: the cheapest of 1 remedies takes 40 s at 5 repeats"
    ):
        plan([pair("one")], repeats=5, budget_s=20)
    with pytest.raises(PlanError, match="2 repeats; expected 3 or more"):
        plan([pair("one")], repeats=2, budget_s=1000)


def test_the_arms_of_a_control_are_interleaved_and_every_second_round_runs_backwards():
    made = plan([pair("a"), pair("b")], repeats=6, budget_s=1000, seed=3)
    names = [one.arm.name for one in made.trials]
    rounds = [names[at : at + 3] for at in range(0, 18, 3)]
    assert all(sorted(one) == ["a", "b", "base"] for one in rounds)
    assert [rounds[at] for at in (1, 3, 5)] == [rounds[at][::-1] for at in (0, 2, 4)]
    assert [one.repeat for one in made.trials] == [at // 3 for at in range(18)]


def test_a_seed_gives_the_same_order_and_another_seed_another():
    orders = [
        [
            one.arm.name
            for one in plan(
                [pair("a"), pair("b"), pair("c")], repeats=8, budget_s=9999, seed=seed
            ).trials
        ]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_both_arms_of_a_repeat_have_one_seed(tmp_path):
    seeds = {}

    def one(wanted, preset, *, seed, repeat, **more):
        seeds.setdefault(repeat, set()).add(seed)
        return record(wanted.words, repeat)

    ran = run(
        plan([pair("a")], repeats=4, budget_s=999, seed=9), python="python", out=tmp_path, one=one
    )
    assert (
        len(ran.records) == 8
        and all(len(found) == 1 for found in seeds.values())
        and len(seeds) == 4
    )


def test_trials_that_were_measured_before_are_said_with_their_date(tmp_path):
    def one(wanted, preset, *, repeat, **more):
        at = "2024-02-03T04:05:06+00:00" if repeat else "2099-01-01T00:00:00+00:00"
        return record(wanted.words, repeat, started_at=at)

    ran = run(plan([pair("a")], repeats=3, budget_s=999), python="python", out=tmp_path, one=one)
    assert ran.remarks == (
        "4 of 6 trials are kept from 2024-02-03; another --out measures them again",
    )


def test_a_refused_arm_leaves_the_plan_and_the_others_go_on(tmp_path):
    def one(wanted, preset, *, repeat, **more):
        if wanted.parameters.get("prime"):
            raise TrialRefused("no GPU here")
        return record(wanted.words, repeat)

    ran = run(plan([pair("a")], repeats=3, budget_s=999), python="python", out=tmp_path, one=one)
    assert (
        ran.refused == {"a": "no GPU here"}
        and {name for name, _ in ran.records} == {"base"}
        and len(ran.records) == 3
    )


def test_a_record_that_cannot_be_written_is_kept_and_named(tmp_path):
    def one(wanted, preset, *, repeat, **more):
        if repeat == 1:
            raise RecordNotKept(
                "out: No space left on device; make room", record(wanted.words, repeat)
            )
        if repeat == 2 and not wanted.parameters:
            raise TrialError("x.json: torn")
        return record(wanted.words, repeat)

    ran = run(plan([pair("a")], repeats=3, budget_s=999), python="python", out=tmp_path, one=one)
    assert len(ran.records) == 5 and sum("No space left" in line for line in ran.troubles) == 2
    assert sum("base, repeat 2: x.json: torn" in line for line in ran.troubles) == 1


@pytest.mark.parametrize(
    "ending",
    [{"outcome": "stuck", "message": "it waits in the kernel"}, {"clean": "processes 7 live on"}],
)
def test_a_trial_that_is_stuck_or_leaves_the_box_unclean_ends_the_plan_and_sets_the_gpu_aside(
    tmp_path, ending
):
    def one(wanted, preset, *, repeat, **more):
        return record(wanted.words, repeat, **(ending if repeat == 1 else {}))

    ran = run(
        plan([pair("a")], repeats=3, budget_s=999),
        python="python",
        out=tmp_path,
        one=one,
        target=Target("0000:03:00.0", device="cuda:0"),
    )
    assert len(ran.records) == 3
    assert "nothing more is tried on GPU 0000:03:00.0, which is set aside" in ran.troubles[0]


def test_time_that_the_estimates_left_over_goes_to_what_was_left_out_beside_a_control_of_its_own():
    other = Arm("other base", workload("churn"), seconds=4)
    wanted = [pair("cheap", 2, tells=4), pair("dear", 20), pair("later", 11, control=other)]
    clock, runs = iter([0.0, 20.0, 60.0]), []

    def made(some):
        runs.append([one.name for one in some.pairs])
        return Ran(
            {(one.arm.name, one.repeat): record(one.arm.name, one.repeat) for one in some.trials},
            {},
            (),
        )

    told, ran = within(wanted, repeats=5, budget_s=100, seed=1, run=made, clock=lambda: next(clock))
    assert runs == [["cheap"], ["later"]]  # 20 s of its 30 were needed: 75 fit what is left
    assert [one.name for one in told.pairs] == ["cheap", "later"] and list(told.left_out) == [
        "dear"
    ]
    assert len(ran.records) == 4 * 5 == len(told.trials)


def test_after_a_trial_that_went_wrong_nothing_more_is_planned():
    other = Arm("other base", workload("churn"), seconds=4)
    told, ran = within(
        [pair("cheap", 2), pair("later", 100, control=other)],
        repeats=5,
        budget_s=100,
        seed=1,
        run=lambda some: Ran({}, {"cheap": "refused"}, ()),
        clock=lambda: 0.0,
    )
    assert list(told.left_out) == ["later"] and not ran.records
