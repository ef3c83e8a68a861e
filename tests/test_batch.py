"""A batch goes through every run of its plan whatever they do, and its records alone tell what happened."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from run_stand_in import ROOT, StandIn, begun, change, go, plan, planned, state, states

from helpers.batch import record, runner
from helpers.batch.batch import Quiet, run_plan
from helpers.batch.gate import Trouble
from helpers.batch.plan import PlanError, load_plan
from helpers.batch.record import (
    IllegalMove,
    move,
    node,
    read_batch,
    read_run,
    status_json,
    status_text,
    write_run,
)
from helpers.batch.runner import Local, Stop, Watched, run_one
from helpers.batch.shapes import STATES, Run
from helpers.ground.shapes import NextStep, Verdict

LIVE = "- {notebook: takes_parameters.ipynb, danger: looks}"


def capture(path):
    path.mkdir()
    return path


def test_box_batch_and_out_reach_the_notebooks_that_take_them(tmp_path):
    rows = f"""- {{notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, parameters: {{steps: 7, out: "{{batch}}/mine"}}}}
{LIVE}
- {{notebook: needs_no_verdict.ipynb, danger: looks, limits: {{cell_s: 7, run_s: 9}}}}"""
    standin = StandIn()
    result = go(plan(tmp_path, rows), standin, capture=capture)
    batch = result.folder
    (recorded, live, bare) = result.runs
    given = [standin.jobs[number]["parameters"] for number in ("000", "001", "002")]
    mine = {"steps": 7, "out": f"{batch}/mine"}
    assert given[0] == {"box": "cpu-only", "batch": str(batch), **mine}
    out = str(batch / live.run_id)
    assert given[1] == {"box": str(batch / "box"), "batch": str(batch), "out": out}
    assert given[2] == {} and [run.box for run in result.runs] == ["cpu-only", "live", ""]
    assert recorded.parameters == {"steps": 7, "out": "{batch}/mine"} and live.parameters == {}
    job = standin.jobs["002"]
    assert (job["cell_s"], job["run_s"]) == (7, 9) and Path(job["source"]).name == bare.notebook
    assert (batch / "plan.yaml").read_text() == (tmp_path / "plan.yaml").read_text()
    assert batch.name.endswith("Z-night")  # of two boxes
    for run in result.runs:
        assert run.batch_id == batch.name and len(run.plan_sha256) == 64
        assert read_run(batch / run.run_id / "run.json") == run


def test_a_batch_about_one_recorded_box_is_named_after_it_and_keeps_a_plan_that_names_it(tmp_path):
    rows = f"{LIVE[:-1]}, box: live}}\n{LIVE[:-1]}, grid: {{box: [live]}}}}"
    result = go(plan(tmp_path, rows), StandIn(), box="rx7900xt-container")
    kept = result.folder / "plan.yaml"
    assert result.folder.name.endswith("Z-night-rx7900-xt-container")
    assert {run.box for run in result.runs} == {
        "rx7900xt-container"
    } and "live" not in kept.read_text()
    kept = kept.rename(tmp_path / "kept.yaml")  # beside its notebooks
    assert [step.box for step in load_plan(kept).steps] == ["rx7900xt-container"] * 2


@pytest.mark.parametrize(("end", "code"), [("answered", 0), ("failed", 1), ("died", 1)])
def test_a_batch_says_by_its_exit_code_whether_every_run_answered(tmp_path, end, code):
    result = go(plan(tmp_path), StandIn(n001=state(end)))
    assert result.exit_code == code and result.interrupted == ""
    assert states(result) == ["answered", end, "answered", "answered"]


def test_progress_is_told_of_every_run_by_one_thread_alone(tmp_path):
    class Heard(Quiet):
        def __init__(self):
            self.threads = set()
            self.ended_as = []
            self.ticks = []

        def tick(self, number, cell, cells, seconds):
            self.threads.add(threading.get_ident())
            self.ticks.append((number, cell, cells))

        def run_started(self, number, run):
            self.threads.add(threading.get_ident())

        def run_ended(self, number, run):
            self.ended_as.append((number, run.state))

    heard = Heard()
    go(plan(tmp_path, head="jobs: 2"), StandIn(each=brief), slots=2, progress=heard)
    assert heard.threads == {threading.get_ident()}
    assert sorted(heard.ended_as) == [(number, "answered") for number in range(4)]
    assert {(number, 1, 2) for number in range(4)} <= set(heard.ticks)


# Reading and moving records


def test_a_torn_or_newer_record_is_named_and_the_others_are_read(tmp_path):
    for number in range(6):
        planned(tmp_path, number)
    text = (tmp_path / "000-x" / "run.json").read_text()
    spoiled = {
        1: text[:40].encode(),
        2: text.replace('"schema_version": 2', '"schema_version": 9').encode(),
        3: b'{"run_id": "003-x", "ended": true}',
        4: b"\xff\x00",
    }
    for number, content in spoiled.items():
        (tmp_path / f"{number:03d}-x" / "run.json").write_bytes(content)
    old = {"run_id": "old", "batch_id": "b", "box": "", "notebook": "x"}
    (tmp_path / "005-x" / "run.json").write_text(json.dumps(old))
    view = read_batch(tmp_path)
    assert [run.run_id for run in view.runs] == ["000-x", "old"]
    for number, line in zip(spoiled, view.unreadable, strict=True):
        assert f"{number:03d}-x" in line and "\n" not in line
    assert "schema_version 9: this workbook reads 2" in view.unreadable[1]
    assert "not readable" in status_text(view)


@pytest.mark.parametrize("to", STATES)
def test_a_run_moves_from_planned_only_to_started_or_skipped_and_never_out_of_an_end(to):
    run = Run(run_id="r", batch_id="b", box="", notebook="x")
    legal = {"planned": {"started", "skipped"}}
    legal["started"] = {*STATES} - {"planned", "started", "skipped"}
    for before in STATES:
        at = run.model_copy(update={"state": before})
        if to in legal.get(before, ()):
            assert move(at, to).state == to
        else:
            with pytest.raises(IllegalMove):
                move(at, to)


def test_a_record_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    run = planned(tmp_path)
    before = (tmp_path / "000-x" / "run.json").read_text()

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_run(tmp_path / "000-x", move(run, "started"))
    assert (tmp_path / "000-x" / "run.json").read_text() == before
    assert os.listdir(tmp_path / "000-x") == ["run.json"]


def test_a_started_record_whose_process_or_boot_is_gone_says_so():
    own = {"state": "started", "boot_id": record.boot_id()}
    run = Run(run_id="r", batch_id="b", box="", notebook="x", **own)
    code = [sys.executable, "-c", "print(flush=True); input()", "/b/r"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(code, **pipes) as process:
        process.stdout.readline()  # the kernel shows no command line of who is still being started
        assert record.gone(run.model_copy(update={"pid": process.pid})) == ""
    why = "started, and its process is gone"
    elsewhere = {"boot_id": "other", "node": "elsewhere"}
    for changes, said in (
        ({"pid": process.pid}, why),
        ({"pid": os.getpid()}, why),
        ({"boot_id": "other"}, "started under another boot"),
        (elsewhere, ""),
    ):
        assert record.gone(run.model_copy(update=changes)) == said


def test_status_is_read_from_the_records_alone(tmp_path):
    path, batch, run_id = begun(tmp_path)
    runs = go(path, StandIn(n002=state("died", cause="SIGSEGV")), resume=batch).runs
    change(batch, runs[0].run_id, node="elsewhere")
    view = read_batch(batch)
    text = status_text(view)
    data = json.loads(json.dumps(status_json(view)))
    assert text.splitlines()[0] == f"{batch.name}: 3 answered, 1 died"
    assert "on elsewhere" in text and "attempt 2; 1 strike" in text and "SIGSEGV; 1 strike" in text
    rows = [(run["state"], run["attempt"], run["strikes"]) for run in data["runs"]]
    assert rows[:3] == [("answered", 1, 0), ("answered", 2, 1), ("died", 1, 1)]
    assert data["left_s"] == 0 and data["counts"] == {"answered": 3, "died": 1}
    assert [row["gone"] for row in data["runs"]] == [False] * 4
    left = runs[0].model_copy(update={"state": "planned", "estimate_s": 90.0})
    unknown = left.model_copy(update={"estimate_s": None})
    since = {"state": "started", "started_at": "2020-01-01T00:00:00Z"}
    for some, seconds in (
        ([left, left], 180),
        ([unknown, runs[3]], runs[3].seconds),
        ([unknown, left], None),
        ([left.model_copy(update=since)], 0),
    ):
        assert record.time_left_s(some) == seconds
    twice = left.model_copy(update={"strikes": 2})
    text = status_text(record.BatchView(batch, (twice,), ()))
    assert "about 2 min left" in text and "2 strikes" in text


def test_nothing_of_a_record_moves_the_terminal_that_shows_its_state(tmp_path):
    about = {"state": "died", "cause": "ended\x1b[2J\nby\u202eX", "box": "a\x07b"}
    run = Run(run_id="r", batch_id="b", notebook="x", **about)
    text = status_text(record.BatchView(tmp_path, (run,), ("r2: \x00",)))
    assert not set(text) & set("\x1b\x07\x00\u202e") and len(text.splitlines()) == 3
    assert "ended\\x1b[2J" in text and "a\\x07b" in text


# Limits, interrupts and what cannot be written


def test_the_limit_of_the_plan_skips_the_rest_and_cuts_the_limit_of_a_run(tmp_path):
    standin = StandIn(n001=lambda folder, run: time.sleep(0.3))
    result = go(plan(tmp_path, head="limits: {total_s: 0.25}"), standin)
    assert states(result) == ["answered", "answered", "skipped", "skipped"]
    assert result.runs[2].cause == "the plan's limit of 0.25 s was reached"
    assert standin.jobs["001"]["run_s"] < 0.25 and result.runs[2].stopped_by == "limit"


STOPS = "print('[1, 2]', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
BABBLES = "[(print('[1, 2]', flush=True), time.sleep(0.05)) for _ in range(999)]"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (BABBLES, "its runner did not stop 0.2 s after the limit of 0.2 s"),
        (STOPS, "its runner fell silent: no word for 1 s"),
    ],
)
def test_a_runner_that_does_not_end_is_ended_after_a_look_at_what_it_does(
    tmp_path, monkeypatch, code, cause
):
    monkeypatch.setattr(runner, "GRACE_S", 0.2)
    monkeypatch.setattr(runner, "SILENT_S", 1.0)
    argv = [sys.executable, "-c", f"import os, signal, time; {code}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen(argv, **pipes)
    job = {"mark": "m", "run_s": 0.2 if code == BABBLES else 60}
    watched = Watched(process, tmp_path, job, Stop(), time.monotonic())
    ticks = []
    watched.wait(lambda *where: ticks.append(where[:2]))
    assert watched.verdict == ("timed_out", cause, "") and (1, 2) in ticks
    assert process.wait(5) == -signal.SIGKILL
    assert f"pid {process.pid} " in (tmp_path / "stacks/threads.txt").read_text()
    watched.close()


def test_a_runner_that_was_killed_while_its_supervisor_was_held_up_was_killed_and_not_late(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(runner, "GRACE_S", 0.1)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job = {"mark": "m", "run_s": 0.1}
    watched = Watched(process, tmp_path, job, Stop(), time.monotonic())

    def held_up(*where):
        process.kill()
        time.sleep(0.5)

    watched.wait(held_up)
    assert watched.verdict == ("", "", "") and process.returncode == -signal.SIGKILL
    assert not (tmp_path / "stacks").exists()
    watched.close()


def test_a_record_that_its_runner_could_not_write_is_heard_of(tmp_path):
    run = move(planned(tmp_path), "started", pid=1)
    words = move(run, "answered", seconds=3).model_dump_json()
    argv = [sys.executable, "-c", f"print('[3, 4]'); print({words!r})"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watched = Watched(process, tmp_path, {"mark": "m", "run_s": 60}, Stop(), time.monotonic())
    watched.wait(None)
    assert watched.record is not None and watched.record.state == "answered"
    assert (watched.cell, watched.cells, watched.verdict) == (3, 4, ("", "", ""))
    watched.close()


def test_a_runner_that_cannot_start_is_a_failed_run(tmp_path, monkeypatch):
    run = planned(tmp_path)
    monkeypatch.setattr(runner.sys, "executable", str(tmp_path / "no-python"))
    ended = run_one(tmp_path / run.run_id, run, {"mark": "m", "run_s": 1}, stop=Stop())
    why = "its runner cannot start: No such file or directory"
    assert (ended.state, ended.cause) == ("failed", why)
    assert read_run(tmp_path / run.run_id / "run.json") == ended


def test_a_carrier_that_breaks_costs_its_run_alone(tmp_path):
    def breaks(folder, run):
        raise ValueError("no such thing")

    result = go(plan(tmp_path), StandIn(n001=breaks))
    assert states(result) == ["answered", "failed", "answered", "answered"]
    assert result.runs[1].cause == "its supervisor broke: ValueError: no such thing"


def test_a_box_that_cannot_be_captured_costs_only_the_runs_that_want_it(tmp_path):
    def burns(path):
        raise ValueError("sysfs is on fire\nand more")

    rows = LIVE + "\n- {notebook: needs_no_verdict.ipynb, danger: looks}"
    result = go(plan(tmp_path, rows), capture=burns)
    assert states(result) == ["skipped", "answered"]
    assert result.runs[0].cause == "this box could not be captured: ValueError: sysfs is on fire"


def test_a_signal_is_heard_while_the_box_is_captured(tmp_path):
    def interrupted(path):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    result = go(plan(tmp_path, LIVE), capture=interrupted)
    assert [run.cause for run in result.runs] == ["interrupted (SIGINT)"]
    assert result.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_cannot_begin_is_refused_in_one_line_before_anything_is_written(tmp_path):
    with pytest.raises(PlanError, match="'live'"):
        go(plan(tmp_path, LIVE))
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "outputs").write_text("")
    with pytest.raises(PlanError, match="cannot be written: Not a directory"):
        go(plan(tmp_path))


def test_results_never_go_into_a_folder_that_exists(tmp_path):
    path = plan(tmp_path, head="limits: {total_s: 0.000001}")
    results = [go(path) for _ in range(3)]
    assert len({result.folder for result in results}) == 3
    assert {run.state for result in results for run in result.runs} == {"skipped"}


HUNG_UP = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from run_stand_in import StandIn, go
def hang_up(folder, run):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.5)
result = go(Path({path!r}), StandIn(n001=hang_up))
print("the end")
sys.exit(result.exit_code)
"""


def test_a_batch_whose_terminal_goes_away_goes_on_and_says_so_in_its_own_file(tmp_path):
    code = HUNG_UP.format(tests=str(Path(__file__).parent), path=str(plan(tmp_path)))
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (batch,) = (tmp_path / "outputs").iterdir()
    assert [run.state for run in read_batch(batch).runs] == ["answered"] * 4
    log = (batch / "batch.log").read_text()
    assert "run 4 of 4: needs_no_verdict.ipynb" in log and "the end" in log
    assert "the end" not in done.stdout


# The order of runs, and the box between them


MIXED = """- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 6}
- {notebook: needs_no_verdict.ipynb, danger: loads, repeats: 2}
- {notebook: needs_no_verdict.ipynb, danger: provokes}"""


def brief(folder, run):
    time.sleep(0.05)


def test_looks_go_on_side_by_side_and_what_loads_or_provokes_alone(tmp_path):
    standin = StandIn(each=brief)
    result = go(plan(tmp_path, MIXED, "jobs: 3"), standin, slots=8)
    assert states(result) == ["answered"] * 9 and standin.most == 3
    assert standin.beside <= {f"00{number}" for number in range(6)}
    assert standin.ran[6:] == ["006", "007", "008"]
    alone = StandIn(each=brief)
    go(plan(tmp_path, MIXED), alone, slots=8)
    assert alone.most == 1


def test_a_carrier_with_a_box_for_each_slot_runs_anything_side_by_side(tmp_path):
    standin = StandIn(each=brief)
    stop = Stop()
    carrier = Local(4, stop, standin)
    carrier.one_box = False
    run_plan(plan(tmp_path, MIXED), tmp_path / "outputs", carrier=carrier, stop=stop)
    assert standin.most == 4 and {"006", "007"} & standin.beside


def test_a_run_that_reads_the_batch_waits_for_all_before_it(tmp_path):
    row = "- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, "
    parts = ("repeats: 3}", 'parameters: {batch: "{batch}"}}', "repeats: 2}")
    standin = StandIn(each=brief)
    go(plan(tmp_path, "\n".join(row + part for part in parts), "jobs: 4"), standin, slots=4)
    assert set(standin.ran[:3]) == {"000", "001", "002"}
    assert standin.ran[3] == "003" and standin.most == 3


class Gate:
    """Finds what it is told to after each look; a look is a number."""

    def __init__(self, *found):
        self.found = list(found)
        self.looks = 0

    def measure(self, gpus=(), root="", *, folder=".", since=None):
        self.looks += 1
        return self.looks

    def settle(self, before, gates, measure=None, sleep=time.sleep):
        assert before == 1 and measure() > 1
        return self.found.pop(0) if self.found else ()


GPU = "- {notebook: needs_no_verdict.ipynb, danger: loads"
GPUS = f"""{GPU}, gpu: "0000:03:00.0", repeats: 2}}
{GPU}, gpu: "0000:04:00.0"}}
{GPU}}}
- {{notebook: needs_no_verdict.ipynb, danger: looks}}"""
WRITTEN = "order: as written"


def test_a_gpu_that_is_not_clean_after_a_run_gets_no_more_runs_and_others_do(tmp_path):
    dirty = (Trouble("gpu 0000:03:00.0", "12 GiB held by nobody, expected 0", passes=False),)
    path = plan(tmp_path, GPUS, WRITTEN)
    result = go(path, gate=Gate((), dirty, dirty, dirty, dirty))
    assert states(result) == ["answered", "skipped", "answered", "skipped", "answered"]
    first = result.runs[0]
    assert first.gate == "gpu 0000:03:00.0: 12 GiB held by nobody, expected 0"
    assert first.quarantined == "gpu 0000:03:00.0 (for good)" and result.runs[2].gate == ""
    assert {run.stopped_by for run in result.runs if run.state == "skipped"} == {"quarantine"}
    assert "12 GiB held by nobody" in result.runs[1].cause
    assert states(go(path, resume=result.folder)) == states(result)  # of the same boot
    change(result.folder, first.run_id, boot_id="before")
    assert states(go(path, resume=result.folder)) == ["answered"] * 5


def test_what_a_clean_look_finds_gone_is_opened_again(tmp_path):
    hot = (Trouble("gpu 0000:03:00.0", "95 degrees, expected below 90"),)
    result = go(plan(tmp_path, GPUS, WRITTEN), gate=Gate((), hot, hot, (), ()))
    assert states(result) == ["answered", "skipped", "answered", "answered", "answered"]
    assert result.runs[0].quarantined == "gpu 0000:03:00.0"


def test_a_look_that_breaks_costs_no_run_and_the_records_say_that_it_was_blind(tmp_path):
    class Broken(Gate):
        def measure(self, gpus=(), root="", *, folder=".", since=None):
            raise ValueError("no such sensor\nat all")

    result = go(plan(tmp_path), gate=Broken())
    assert states(result) == ["answered"] * 4
    gates = {run.gate for run in read_batch(result.folder).runs}
    assert gates == {"not looked at: ValueError: no such sensor"}


def test_a_wait_for_a_clean_box_ends_with_the_batch(tmp_path):
    class Slow(Gate):
        def settle(self, before, gates, measure=None, sleep=time.sleep):
            if self.looks > 1:
                stop.signal = "SIGTERM"
                sleep(600)
            return super().settle(before, gates, measure)

    stop = Stop()
    result = go(plan(tmp_path), stop=stop, gate=Slow())
    assert states(result) == ["answered", "skipped", "skipped", "skipped"]
    assert result.interrupted == "SIGTERM" and result.exit_code == 130


def test_a_process_that_nothing_ends_closes_its_gpu_also_when_the_batch_is_resumed(tmp_path):
    path = plan(tmp_path, GPUS, WRITTEN)
    result = go(path, StandIn(n000=state("stuck", cause="SIGKILL does not end python (7)")))
    expected = ["stuck", "skipped", "answered", "skipped", "answered"]
    assert states(result) == expected
    assert "SIGKILL does not end python (7)" in result.runs[1].cause
    # As the journal leaves it after a killed supervisor.
    change(result.folder, result.runs[0].run_id, quarantined="")
    again = StandIn()
    resumed = go(path, again, resume=result.folder)
    assert again.ran == [] and states(resumed) == expected
    assert resumed.runs[0].quarantined == "gpu 0000:03:00.0 (for good)"


@pytest.mark.parametrize(
    ("rules", "words", "ran"),
    [
        ("after_failures: 2", "stop rule after_failures: 2 runs did not answer", 2),
        ("after_failures: 3", "", 4),
        ("node_strikes: 1", f"stop rule node_strikes: 1 on {node()}", 2),
        ("on_states: [died]", "stop rule on_states: 001-", 2),
        ("on_states: [stuck]", "", 4),
    ],
)
def test_stop_rules_skip_the_rest_also_when_the_batch_is_resumed(tmp_path, rules, words, ran):
    path = plan(tmp_path, head=f"stop: {{{rules}}}")
    standin = StandIn(n000=state("failed"), n001=state("died"))
    result = go(path, standin)
    assert len(standin.ran) == ran
    assert all(run.cause.startswith(words) for run in result.runs[ran:])
    again = StandIn()
    assert go(path, again, resume=result.folder).runs == result.runs and again.ran == []


@pytest.mark.parametrize(
    ("wanted", "confidences", "ran"),
    [
        ("likely", ("weak", "likely"), 2),
        ("likely", ("confirmed",), 1),
        ("weak", ("weak",), 1),
        ("confirmed", ("weak", "likely", "likely", "likely"), 4),
    ],
)
def test_an_escalation_ends_well_at_the_first_answer_that_is_sure_enough(
    tmp_path, wanted, confidences, ran
):
    path = plan(tmp_path, head=f"order: as written\nstop: {{on_confidence: {wanted}}}")
    answers = {
        f"n{at:03}": state("answered", verdict=Verdict("other", sure, next_step=NextStep(what="x")))
        for at, sure in enumerate(confidences)
    }
    standin = StandIn(**answers)
    result = go(path, standin)
    assert len(standin.ran) == ran and result.exit_code == 0
    assert all("on_confidence" in run.cause for run in result.runs[ran:])
    again = StandIn()
    assert go(path, again, resume=result.folder).exit_code == 0 and again.ran == []


def test_a_stop_listens_only_while_it_is_asked_to():
    stop = Stop()
    with stop.listening():
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert (stop.signal, stop.times, stop.hung_up) == ("SIGTERM", 2, True)
        stop.raises = True
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("it raises")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
