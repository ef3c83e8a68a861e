"""A slice of the fault campaign in every run of the tests, and a checker that finds what does not hold."""

import json
import shutil
import signal
import subprocess
import sys

import fault_campaign
import pytest
import test_journal as night
from fault_check import Check
from fault_kinds import IN_RUN, KILLS, OUTSIDE, Case, Life
from fault_stand_in import answer, tell

import helpers.run.batch
import helpers.run.progress  # noqa: F401  before the forks

SLICE = fault_campaign.drawn(20, 4)


def test_there_are_at_least_twenty_kinds_and_all_come_up():
    kinds = [
        kind for _, outside, in_run in fault_campaign.drawn(8, 40) for kind in (*outside, *in_run)
    ]
    assert set(kinds) == {*IN_RUN, *OUTSIDE} and len(set(kinds)) >= 20


@pytest.mark.parametrize(
    ("seed", "outside", "in_run"), SLICE, ids=[str(seed) for seed, _, _ in SLICE]
)
def test_a_batch_under_faults_accounts_for_every_run(seed, outside, in_run):
    told = fault_campaign.batch_of(seed, outside, in_run)
    assert told["violations"] == [] and told["runs"] > 0


@pytest.fixture
def judged(tmp_path):
    """A batch of one run as the checker finds it, with what the log says of it."""

    def judge(state="answered", attempt=1, said=None, begins=1, ends=1, fault="", **changes):
        case = Case(tmp_path, 1, 1, batch=tmp_path / "batch")
        case.control.mkdir()
        here = case.batch / "000-x"
        here.mkdir(parents=True)
        summary = answer("000-x", attempt) if said is None else said
        record = {
            "schema_version": 2,
            "run_id": "000-x",
            "batch_id": "batch",
            "box": "",
            "notebook": "x",
            "state": state,
            "cause": "",
            "danger": "looks",
            "attempt": attempt,
            "stopped_by": "",
            **changes,
        }
        if state == "answered":
            verdict = {
                "cause": "cannot-tell",
                "confidence": "weak",
                "next_step": {"what": "nothing"},
                "summary": summary,
            }
            record["verdict"] = verdict
        (here / "run.json").write_text(json.dumps(record))
        (here / "answer.json").write_text(json.dumps(answer("000-x", attempt)))
        for what, times in (("begin", begins), ("end", ends)):
            for _ in range(times):
                tell(
                    case.control,
                    what=what,
                    life=0,
                    run="000-x",
                    attempt=attempt,
                    state="started",
                    own=True,
                    answer=answer("000-x", attempt),
                )
        case.lives = [Life(0, fault, "boot", struck=bool(fault)), Life(1, "", "boot")]
        return [line.split(":")[0] for line in Check(case).all()]

    return judge


def test_a_run_that_ended_with_the_right_answer_is_well(judged):
    assert judged() == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"said": "00000000"}, "false answered"),
        ({"ends": 0}, "false answered"),
        ({"begins": 2}, "repeated"),
        ({"state": "started", "ends": 0}, "no end of a run"),
        ({"state": "started"}, "measured and lost"),
        ({"state": "died", "ends": 0}, "a false state"),
        ({"state": "skipped"}, "skipped, and it ran"),
        (
            {"state": "failed", "stopped_by": "interrupt", "ends": 0, "fault": KILLS[0]},
            "an interrupt that nobody sent",
        ),
        ({"state": "died", "begins": 0, "ends": 0}, "a state without a begin"),
        ({"state": "died", "ends": 0, "fault": "another boot_id"}, ""),
    ],
)
def test_the_checker_finds_what_does_not_hold(judged, wrong, found):
    assert found in judged(**wrong) if found else judged(**wrong) == []


# What the campaign found


def test_what_is_found_stuck_when_a_batch_is_resumed_closes_its_gpu(tmp_path):
    path = night.plan(tmp_path, night.GPUS, "order: as written")
    shutil.copy(night.NOTEBOOK, tmp_path)
    result = night.go(
        path, night.StandIn(n000=night.state("stuck", cause="SIGKILL does not end python (7)"))
    )
    night.change(
        result.folder, result.runs[0].run_id, quarantined=""
    )  # as the journal leaves it after a killed supervisor
    again = night.StandIn()
    resumed = night.go(path, again, resume=result.folder)
    assert again.ran == [] and night.states(resumed) == [
        "stuck",
        "skipped",
        "answered",
        "skipped",
        "answered",
    ]
    assert resumed.runs[0].quarantined == "gpu 0000:03:00.0 (for good)"


def test_what_still_works_for_a_run_whose_record_cannot_be_read_is_ended(tmp_path):
    path, batch, run_id = night.begun(tmp_path)
    (batch / run_id / "run.json").write_bytes(b"")
    words = [sys.executable, "-c", "input()", "--one", str((batch / run_id).resolve())]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as runner:
        night.go(path, resume=batch)
        assert runner.wait(5) == -signal.SIGKILL
