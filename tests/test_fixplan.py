"""The plan of trials: what fits, in which order, and what becomes of trials that go wrong."""

from dataclasses import replace

import pytest
from trial_records import record

from helpers.settings.presets import NONE, Preset
from helpers.trials import fixplan
from helpers.trials import trial as trials_of_a_box
from helpers.trials.fixplan import Arm, BudgetError, Pair, plan, run
from helpers.trials.record import TrialError, TrialLimits, TrialRefused
from helpers.trials.targets import Target
from helpers.trials.trial import PreparedTrial
from helpers.trials.workload import workload

BASE = Arm("base", workload("churn"), seconds=4)


def pair(name, seconds=4.0):
    return Pair(name, BASE, Arm(name, workload("churn", prime=8), NONE, seconds))


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Runs a plan of one pair, "a" beside "base", by a function of (arm, repeat, seed) that gives what differs or raises."""

    def made(differs, repeats=3, **more):
        def stand_in(prepared, out):
            arm = "a" if prepared.workload.parameters else "base"
            repeat = prepared.repeat
            return record(arm, repeat, **(differs(arm, repeat, prepared.seed) or {}))

        monkeypatch.setattr(fixplan, "trial", stand_in)
        made = plan([pair("a")], repeats=repeats, budget_s=999, seed=9)
        return run(made, python="python", out=tmp_path, **more)

    return made


def test_cheap_remedies_come_first_and_what_does_not_fit_is_named():
    wanted = [pair("dear", 100), pair("cheap", 2), pair("usual", 6)]
    made = plan(wanted, repeats=5, budget_s=70, seed=1)
    assert [one.name for one in made.pairs] == ["cheap", "usual"]
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
            return {"not_kept": "out: No space left on device"}
        if (arm, repeat) == ("base", 2):
            raise TrialError("out: no folder")
        return {}

    found = ran(fails)
    assert len(found.records) == 5 and "base, repeat 2: out: no folder" in found.troubles
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


def test_a_finished_trial_is_taken_for_the_planned_one_only_where_all_that_it_was_given_is_the_same(
    tmp_path, monkeypatch
):
    versions = {"python": "9.1.0+cpu", "other": "9.2.0+cpu"}
    for name, version in versions.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "version.py").write_text(f"__version__ = '{version}'\n")
    installed = {"python": "python"}
    monkeypatch.setattr(
        trials_of_a_box,
        "torch_files",
        lambda python: (str(tmp_path / installed[python] / "__init__.py"), "cp311"),
    )
    same = {"python": "python", "seed": 4, "limits": TrialLimits()}

    def given_to(wanted, preset, **given):
        return PreparedTrial(wanted, preset, **given).digest()

    churn = workload("churn")
    first = given_to(churn, NONE, **same)
    assert given_to(churn, NONE, **same) == first
    conf = Preset("conf", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"}, {})
    card = Target(pci="0000:05:00.0", device="cuda")
    others = [
        given_to(workload("churn", prime=8), NONE, **same),
        given_to(churn, conf, **same),
        given_to(churn, NONE, **same, target=card),
        given_to(churn, NONE, **same, target=replace(card, pci="0000:06:00.0")),
        given_to(churn, NONE, **same, repeat=1),
        given_to(churn, NONE, **{**same, "seed": 5}),
        given_to(churn, NONE, **{**same, "limits": TrialLimits(seconds=7)}),
    ]
    installed["python"] = "other"
    others.append(given_to(churn, NONE, **same))
    installed["python"] = "python"
    (tmp_path / "program.py").write_text("print()")
    monkeypatch.setattr(trials_of_a_box, "PROGRAMS", tmp_path)
    others.append(given_to(churn, NONE, **same))
    assert len({first, *others}) == 1 + len(others)
