"""The plan of trials: what fits, in which order, and what becomes of trials that go wrong."""

import pytest
from trial_records import record

from helpers.settings.presets import NONE
from helpers.trials.fixplan import Arm, BudgetError, Pair, Ran, plan, run, within
from helpers.trials.record import RecordNotKept, TrialError, TrialRefused
from helpers.trials.targets import Target
from helpers.trials.workload import workload

BASE = Arm("base", workload("churn"), seconds=4)
OTHER = Arm("other base", workload("churn"), seconds=4)


def pair(name, seconds=4.0, tells=1.0, control=BASE):
    return Pair(name, control, Arm(name, workload("churn", prime=8), NONE, seconds), tells)


@pytest.fixture
def ran(tmp_path):
    """Runs a plan of one pair, "a" beside "base", by a function of (arm, repeat, seed) that gives what differs or raises."""

    def made(differs, repeats=3, **more):
        def one(wanted, preset, *, seed, repeat, **given):
            arm = "a" if wanted.parameters else "base"
            return record(arm, repeat, **(differs(arm, repeat, seed) or {}))

        made = plan([pair("a")], repeats=repeats, budget_s=999, seed=9)
        return run(made, python="python", out=tmp_path, one=one, **more)

    return made


def test_cheap_and_telling_remedies_come_first_and_what_does_not_fit_is_named():
    wanted = [pair("dear", 100), pair("cheap", 2), pair("telling", 6, tells=4)]
    made = plan(wanted, repeats=5, budget_s=70, seed=1)
    assert [one.name for one in made.pairs] == ["telling", "cheap"]
    assert made.seconds == 5 * (4 + 2 + 6) <= 70  # the control is made once for both
    assert "500 s more, and 10 s of 70 are left" in made.left_out["dear"]


@pytest.mark.parametrize(
    ("repeats", "says"),
    [
        (5, "time budget 20 s: the cheapest of 1 remedies takes 40 s at 5 repeats"),
        (2, "2 repeats; expected 3 or more"),
    ],
)
def test_a_budget_in_which_nothing_fits_is_refused_with_what_is_needed(repeats, says):
    with pytest.raises(BudgetError, match=says):
        plan([pair("one")], repeats=repeats, budget_s=20)


def test_the_arms_of_a_control_are_interleaved_and_every_second_round_runs_backwards():
    made = plan([pair("a"), pair("b")], repeats=6, budget_s=1000, seed=3)
    names = [one.arm.name for one in made.trials]
    rounds = [names[at : at + 3] for at in range(0, 18, 3)]
    assert all(sorted(one) == ["a", "b", "base"] for one in rounds)
    assert [rounds[at] for at in (1, 3, 5)] == [rounds[at][::-1] for at in (0, 2, 4)]
    assert [one.repeat for one in made.trials] == [at // 3 for at in range(18)]


def test_a_seed_gives_the_same_order_and_another_seed_another():
    def order(seed):
        made = plan([pair(name) for name in "abc"], repeats=8, budget_s=9999, seed=seed)
        return [one.arm.name for one in made.trials]

    assert order(1) == order(1) != order(2)


def test_both_arms_of_a_repeat_have_one_seed(ran):
    seeds = {}
    found = ran(lambda arm, repeat, seed: seeds.setdefault(repeat, set()).add(seed), repeats=4)
    assert len(found.records) == 8 and seeds == {at: {9000 + at} for at in range(4)}


def test_trials_that_were_measured_before_are_said_with_their_date(ran):
    old = "2024-02-03T04:05:06+00:00"
    new = "2099-01-01T00:00:00+00:00"
    found = ran(lambda arm, repeat, seed: {"started_at": old if repeat else new})
    kept = "4 of 6 trials are kept from 2024-02-03; another --out measures them again"
    assert found.remarks == (kept,)


def test_a_refused_arm_leaves_the_plan_and_the_others_go_on(ran):
    def refused(arm, repeat, seed):
        if arm == "a":
            raise TrialRefused("no GPU here")

    found = ran(refused)
    assert found.refused == {"a": "no GPU here"} and len(found.records) == 3
    assert {name for name, _ in found.records} == {"base"}


def test_a_record_that_cannot_be_written_is_kept_and_named(ran):
    def fails(arm, repeat, seed):
        if repeat == 1:
            raise RecordNotKept("out: No space left on device", record(arm, repeat))
        if (arm, repeat) == ("base", 2):
            raise TrialError("x.json: torn")

    found = ran(fails)
    assert len(found.records) == 5 and "base, repeat 2: x.json: torn" in found.troubles
    assert sum("No space left" in line for line in found.troubles) == 2


@pytest.mark.parametrize(
    "ending",
    [{"outcome": "stuck", "message": "it waits in the kernel"}, {"clean": "processes 7 live on"}],
)
def test_a_trial_that_is_stuck_or_leaves_the_box_unclean_ends_the_plan_and_sets_the_gpu_aside(
    ran, ending
):
    gpu = Target("0000:03:00.0", device="cuda:0")
    found = ran(lambda arm, repeat, seed: ending if repeat == 1 else {}, target=gpu)
    assert len(found.records) == 3
    assert "nothing more is tried on GPU 0000:03:00.0, which is set aside" in found.troubles[0]


def test_time_that_the_estimates_left_over_goes_to_what_was_left_out_beside_a_control_of_its_own():
    wanted = [pair("cheap", 2, tells=4), pair("dear", 20), pair("later", 11, control=OTHER)]
    clock = iter([0.0, 20.0, 60.0])
    runs = []

    def made(some):
        runs.append([one.name for one in some.pairs])
        names = [(one.arm.name, one.repeat) for one in some.trials]
        return Ran({name: record(*name) for name in names}, {}, ())

    told, ran = within(wanted, repeats=5, budget_s=100, seed=1, run=made, clock=lambda: next(clock))
    assert runs == [["cheap"], ["later"]]  # 20 s of its 30 were needed: 75 fit what is left
    assert [one.name for one in told.pairs] == ["cheap", "later"]
    assert list(told.left_out) == ["dear"] and len(ran.records) == 4 * 5 == len(told.trials)


def test_after_a_trial_that_went_wrong_nothing_more_is_planned():
    wanted = [pair("cheap", 2), pair("later", 100, control=OTHER)]
    bad = Ran({}, {"cheap": "refused"}, ())
    given = {"repeats": 5, "budget_s": 100, "seed": 1, "clock": lambda: 0.0}
    told, ran = within(wanted, run=lambda some: bad, **given)
    assert list(told.left_out) == ["later"] and not ran.records
