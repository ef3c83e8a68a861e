"""A slice of the fault campaign in every run of all tests, and a checker that finds what does not hold."""

import json

import fault_campaign
import pytest
from fault_check import Check
from fault_kinds import IN_RUN, KILLS, OUTSIDE, Case, Life
from fault_stand_in import answer, tell

SLICE = fault_campaign.drawn(20, 4)
NAME = "000-x"


def test_there_are_at_least_twenty_kinds_and_all_come_up():
    drawn = fault_campaign.drawn(8, 40)
    kinds = {kind for _, outside, in_run in drawn for kind in (*outside, *in_run)}
    assert kinds == {*IN_RUN, *OUTSIDE} and len(kinds) >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "outside", "in_run"), SLICE, ids=[str(seed) for seed, _, _ in SLICE]
)
def test_a_batch_under_faults_accounts_for_every_run(seed, outside, in_run):
    told = fault_campaign.batch_of(seed, outside, in_run)
    assert told["violations"] == [] and told["runs"] > 0


@pytest.fixture
def judged(tmp_path):
    """A batch of one run as the checker finds it, with what the log says of it."""

    def judge(state="answered", said=None, begins=1, ends=1, fault="", **changes):
        case = Case(tmp_path, 1, 1, batch=tmp_path / "batch")
        right = answer(NAME, 1)
        case.control.mkdir()
        here = case.batch / NAME
        here.mkdir(parents=True)
        record = {"schema_version": 2, "run_id": NAME, "batch_id": "batch", "box": ""}
        record.update(notebook="x", state=state, cause="", danger="looks", attempt=1)
        record.update({"stopped_by": "", **changes})
        if state == "answered":
            verdict = {"cause": "cannot-tell", "confidence": "weak", "next_step": {"what": "no"}}
            record["verdict"] = {**verdict, "summary": right if said is None else said}
        (here / "run.json").write_text(json.dumps(record))
        (here / "answer.json").write_text(json.dumps(right))
        event = {"life": 0, "run": NAME, "attempt": 1, "state": "started", "own": True}
        for what in ["begin"] * begins + ["end"] * ends:
            tell(case.control, what=what, answer=right, **event)
        case.lives = [Life(0, fault, "boot", struck=bool(fault)), Life(1, "", "boot")]
        return [line.split(":")[0] for line in Check(case).all()]

    return judge


INTERRUPTED = {"state": "failed", "stopped_by": "interrupt", "ends": 0, "fault": KILLS[0]}


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({}, ""),
        ({"said": "00000000"}, "false answered"),
        ({"ends": 0}, "false answered"),
        ({"begins": 2}, "repeated"),
        ({"state": "started", "ends": 0}, "no end of a run"),
        ({"state": "started"}, "measured and lost"),
        ({"state": "died", "ends": 0}, "a false state"),
        ({"state": "skipped"}, "skipped, and it ran"),
        (INTERRUPTED, "an interrupt that nobody sent"),
        ({"state": "died", "begins": 0, "ends": 0}, "a state without a begin"),
        ({"state": "died", "ends": 0, "fault": "another boot_id"}, ""),
    ],
)
def test_the_checker_finds_what_does_not_hold_and_nothing_else(judged, wrong, found):
    lines = judged(**wrong)
    assert found in lines if found else lines == []
