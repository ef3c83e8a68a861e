"""A batch that was cut off goes on where it stopped: each run in a true state, none repeated that must not be, nothing lost."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import run_stand_in
from examples import examples
from fault_stand_in import executed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_stand_in import NOTEBOOKS, StandIn, begun, change, go, plan, state, states

from helpers.batch import journal as module
from helpers.batch import kernel_process as kernel
from helpers.batch import one_run, record, watched
from helpers.batch.journal import Journal
from helpers.batch.plan import PlanError, load_plan
from helpers.batch.record import move, node, read_batch, read_run
from helpers.batch.reserve import RELEASED
from helpers.batch.stop import Stop

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_interrupted_batch_goes_on_where_it_stopped(tmp_path):
    path = plan(tmp_path)
    stop = Stop()

    def interrupt(folder, run):
        stop.signal = "SIGINT"
        return move(run, "failed", cause="interrupted by SIGINT", stopped_by="interrupt")

    result = go(path, StandIn(n001=interrupt), stop=stop)
    assert states(result) == ["answered", "failed", "skipped", "skipped"]
    assert result.exit_code == 130 and result.runs[2].cause == "interrupted (SIGINT)"
    again = StandIn()
    resumed = go(path, again, resume=result.folder)
    assert states(resumed) == ["answered"] * 4 and again.ran == ["001", "002", "003"]
    assert [run.attempt for run in resumed.runs] == [1, 2, 1, 1] and resumed.exit_code == 0
    assert resumed.runs == read_batch(result.folder).runs
    assert [run.strikes for run in resumed.runs] == [0] * 4


def test_a_run_whose_batch_ended_is_tried_once_more_and_what_it_left_is_kept(tmp_path):
    path, batch, run_id = begun(tmp_path)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert again.ran == ["001", "002", "003"] and states(result) == ["answered"] * 4
    assert (result.runs[1].attempt, result.runs[1].strikes) == (2, 1)
    assert (batch / run_id / "earlier/1/figure.png").read_text() == "attempt 1"
    assert (batch / run_id / "figure.png").read_text() == "attempt 2"
    earlier = read_run(batch / run_id / "earlier/1/run.json")
    assert (earlier.state, earlier.strikes) == ("died", 1)
    assert earlier.cause == "its batch ended while it ran"
    assert "earlier" not in " ".join(record.files_below(batch / run_id))


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_whose_notebook_was_saved_whole_before_its_record_is_answered(tmp_path, whole):
    path, batch, run_id = begun(tmp_path)
    notebook = executed("measured")
    notebook["cells"][0]["metadata"]["papermill"]["status"] = "completed" if whole else "running"
    (batch / run_id / "notebook.ipynb").write_text(json.dumps(notebook))
    again = StandIn()
    run = go(path, again, resume=batch).runs[1]
    assert again.ran == ["001", "002", "003"][whole:] and run.state == "answered"
    assert (run.attempt, run.strikes) == ((1, 0) if whole else (2, 1))
    assert not whole or (run.verdict.summary == "measured" and "saved whole" in run.notes[0])


@pytest.mark.parametrize("whole", [True, False])
def test_a_notebook_that_was_saved_whole_before_a_reboot_is_an_answer(tmp_path, whole):
    path, batch, run_id = begun(tmp_path)
    change(batch, run_id, boot_id="another")
    notebook = executed("measured")
    notebook["cells"][0]["metadata"]["papermill"]["status"] = "completed" if whole else "running"
    (batch / run_id / "notebook.ipynb").write_text(json.dumps(notebook))
    again = StandIn()
    run = go(path, again, resume=batch).runs[1]
    assert again.ran == ["002", "003"] and run.state == ("answered" if whole else "rebooted")
    assert run.strikes == (not whole) and ("saved whole" in str(run.notes)) is whole


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_whose_runner_was_killed_behind_its_whole_notebook_is_answered(tmp_path, whole):
    planned = run_stand_in.planned(tmp_path)
    folder = tmp_path / planned.run_id
    notebook = executed("measured")
    notebook["cells"][0]["metadata"]["papermill"]["status"] = "completed" if whole else "running"
    (folder / "notebook.ipynb").write_text(json.dumps(notebook))
    killed = subprocess.Popen(["sleep", "60"])
    killed.kill()
    killed.wait()
    seen = SimpleNamespace(
        job={"mark": "none"}, record=None, process=killed, verdict=("", "", ""), began=0.0
    )
    started = move(planned, "started", pid=killed.pid)
    record.write_run(folder, started)
    run = one_run._completed(folder, started, seen)
    assert run.state == ("answered" if whole else "died") and run.strikes == (not whole)
    assert (run.verdict is not None) and (run.signal == "") is whole


def test_a_run_whose_batch_ended_twice_is_not_tried_a_third_time(tmp_path):
    path, batch, run_id = begun(tmp_path)
    change(batch, run_id, strikes=1, attempt=2)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert again.ran == ["002", "003"]
    assert (result.runs[1].state, result.runs[1].strikes) == ("died", 2)
    assert go(path, again, resume=batch).runs == result.runs


def test_a_run_under_which_the_oom_killer_came_is_not_repeated(tmp_path, monkeypatch):
    path, batch, _ = begun(tmp_path)
    monkeypatch.setattr(kernel, "oom_kills", lambda: 7)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert "001" not in again.ran and "OOM kills counted since its start: 2" in result.runs[1].cause


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"boot_id": "another"}, "rebooted"),
        ({"boot_id": "another", "node": "another"}, "node_lost"),
    ],
)
def test_a_run_that_rebooted_its_box_is_found_out_and_never_repeated_by_itself(
    tmp_path, changes, expected
):
    path, batch, run_id = begun(tmp_path)
    change(batch, run_id, **changes)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert (result.runs[1].state, result.runs[1].strikes, result.exit_code) == (expected, 1, 1)
    noted = " ".join(result.runs[1].notes)
    assert ("The kernel's last words before it" in noted) == (expected == "rebooted")
    assert go(path, again, resume=batch).runs == result.runs and again.ran == ["002", "003"]
    repeated = go(path, again, resume=batch, again=[run_id]).runs[1]
    assert (repeated.state, repeated.attempt, repeated.strikes) == ("answered", 2, 1)
    assert again.ran[-1] == "001"
    assert read_run(batch / run_id / "earlier/1/run.json").state == expected


@pytest.mark.parametrize("name", ["failed", "died", "timed_out", "stuck", "node_lost", "rebooted"])
def test_a_run_that_ended_badly_by_itself_is_never_repeated_by_itself(tmp_path, name):
    path = plan(tmp_path)
    again = StandIn()
    result = go(path, StandIn(n002=state(name)))
    assert go(path, again, resume=result.folder).runs == result.runs and again.ran == []
    assert result.runs[2].strikes == (name != "failed")


def test_a_second_process_is_refused_in_one_line_that_names_the_first(tmp_path):
    path, batch, _ = begun(tmp_path)
    held = Journal.reopen(batch, load_plan(path))
    who = f"process {os.getpid()} on {node()}"
    with pytest.raises(PlanError, match=f"{who} is running this batch") as refused:
        Journal.reopen(batch, load_plan(path))
    assert "\n" not in str(refused.value)
    held.close()
    Journal.reopen(batch, load_plan(path)).close()


def test_a_changed_plan_is_refused(tmp_path):
    path, batch, _ = begun(tmp_path)
    before = read_batch(batch).runs
    path.write_text(path.read_text().replace("repeats: 4", "repeats: 5"))
    with pytest.raises(PlanError, match="was begun with another plan") as refused:
        go(path, resume=batch)
    assert "\n" not in str(refused.value) and read_batch(batch).runs == before


def test_what_cannot_be_resumed_is_refused(tmp_path, monkeypatch):
    path, batch, _ = begun(tmp_path)

    def read_only(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for folder, more, why in (
        (tmp_path, [], "holds no record of a run"),
        (tmp_path / "no", [], "cannot be resumed: No such file"),
        (batch, ["009-x"], "009-x: no run of"),
    ):
        with pytest.raises(PlanError, match=why):
            go(path, resume=folder, again=more)
    monkeypatch.setattr(module.os, "open", read_only)
    with pytest.raises(PlanError, match="Read-only file system"):
        go(path, resume=batch)


def cut(text):
    return text[:80]


def emptied(text):
    return ""


def newer(text):
    return text.replace('"schema_version": 2', '"schema_version": 3')


def misspelt(text):
    return text.replace('"state"', '"stat"')


def of_another(text):
    return text.replace('"run_id": "001-', '"run_id": "002-')


@pytest.mark.parametrize("spoil", [cut, emptied, newer, misspelt, of_another])
def test_a_record_that_cannot_be_read_is_left_alone_and_its_run_not_started(tmp_path, spoil):
    path, batch, run_id = begun(tmp_path)
    spoiled = spoil((batch / run_id / "run.json").read_text())
    (batch / run_id / "run.json").write_text(spoiled)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert again.ran == ["002", "003"]
    assert states(result) == ["answered", "skipped", "answered", "answered"]
    cause = result.runs[1].cause
    assert run_id in cause and "not started again" in cause and result.exit_code == 1
    assert (batch / run_id / "run.json").read_text() == spoiled
    with pytest.raises(PlanError, match="expected a record; move its folder away and resume"):
        go(path, again, resume=batch, again=[run_id])


def test_what_still_works_for_a_run_whose_record_cannot_be_read_is_ended(tmp_path):
    path, batch, run_id = begun(tmp_path)
    (batch / run_id / "run.json").write_bytes(b"")
    says = "print(flush=True); input()"  # its command line can be read once it has said something
    words = [sys.executable, "-c", says, "--one", str((batch / run_id).resolve())]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as working:
        assert working.stdout.readline()
        go(path, resume=batch)
        assert working.wait(60) == -signal.SIGKILL


def test_another_box_than_that_of_the_batch_is_refused_and_nothing_written(tmp_path):
    path = plan(tmp_path, "- {notebook: takes_parameters.ipynb, danger: looks}")
    result = go(path, box="cpu-only")
    before = sorted(result.folder.rglob("*"))
    with pytest.raises(PlanError, match="seen the box 'cuda-healthy'; expected 'cpu-only'"):
        go(path, box="cuda-healthy", resume=result.folder)
    assert sorted(result.folder.rglob("*")) == before


def test_what_killed_writers_left_is_cleaned_and_a_folder_that_is_gone_is_made_again(tmp_path):
    path, batch, run_id = begun(tmp_path)
    (batch / run_id / ".run.json.77.tmp").write_text("{")
    shutil.rmtree(batch / read_batch(batch).runs[3].run_id)
    assert states(go(path, resume=batch)) == ["answered"] * 4
    assert list(batch.rglob(".*.tmp")) == []


def test_a_runner_that_outlived_its_batch_is_ended_before_its_run_is_judged(tmp_path, monkeypatch):
    path, batch, run_id = begun(tmp_path)
    monkeypatch.setattr(module, "LAST_RUNNER_S", 0.2)
    words = [sys.executable, "-c", "import time; time.sleep(60)", str((batch / run_id).resolve())]
    with subprocess.Popen(words) as working:
        change(batch, run_id, pid=working.pid)
        assert states(go(path, resume=batch)) == ["answered"] * 4
        assert working.wait(60) == -signal.SIGKILL


def test_a_process_that_works_in_the_folder_this_is_a_copy_of_is_let_alone(tmp_path):
    path, batch, run_id = begun(tmp_path)
    words = [sys.executable, "-c", "input()", str((batch / run_id).resolve())]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as working:
        change(batch, run_id, pid=working.pid)
        copy = shutil.copytree(batch, tmp_path / "copy" / batch.name)
        assert states(go(path, resume=copy)) == ["answered"] * 4
        assert working.poll() is None


ENDS = st.lists(st.sampled_from(["answered", "failed", "died"]), min_size=6, max_size=6)
SIX = "- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 6}"


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cut=st.integers(0, 5), rebooted=st.booleans(), ends=ENDS)
def test_after_a_power_cut_nothing_is_lost_and_nothing_repeated_that_must_not_be(
    tmp_path_factory, cut, rebooted, ends
):
    folder = tmp_path_factory.mktemp("cut")
    path = plan(folder, SIX)

    def end(here, run):
        number = int(run.run_id[:3])
        if number == cut:  # the disk as it was at this moment
            shutil.copytree(here.parent, folder / "copy" / here.parent.name)
        return move(run, ends[number])

    whole = go(path, StandIn(each=end))
    copy = folder / "copy" / whole.folder.name
    again = StandIn()
    boot = {"boot_id": "before"} if rebooted else {}
    change(copy, whole.runs[cut].run_id, pid=2**22 + 1, **boot)
    result = go(path, again, resume=copy)
    assert result.runs[:cut] == whole.runs[:cut]
    assert again.ran == [f"{number:03d}" for number in range(cut + rebooted, 6)]
    assert result.runs[cut].state == ("rebooted" if rebooted else "answered")
    assert result.runs[cut].strikes == 1
    assert all(run.state == "answered" for run in result.runs[cut + 1 :])


# What the disk refuses


class FullDisk:
    """Refuses records in these states, as many times as asked."""

    def __init__(self, monkeypatch, *refused, times=10**9):
        self.refused = refused
        self.times = times
        self.write = record.write_run
        for place in (module, run_stand_in):
            monkeypatch.setattr(place, "write_run", self)

    def __call__(self, folder, run):
        if run.state in self.refused and self.times:
            self.times -= 1
            raise FULL
        self.write(folder, run)


class Careful(StandIn):
    """As run_one: what does not fit on the disk is in the hands of whoever asked for the run."""

    def __call__(self, folder, run, job, **options):
        try:
            return super().__call__(folder, run, job, **options)
        except OSError as error:
            if not (folder / "figure.png").exists():
                return one_run.not_started(run, error)
            return move(move(run, "started"), "answered")


def test_a_record_that_does_not_fit_is_held_written_when_there_is_room_and_said(
    tmp_path, monkeypatch
):
    disk = FullDisk(monkeypatch, "answered", times=3)
    result = go(plan(tmp_path), Careful())
    assert states(result) == ["answered"] * 4 and result.unrecorded == () and disk.times == 0
    assert read_batch(result.folder).runs == result.runs
    FullDisk(monkeypatch, "answered")
    result = go(plan(tmp_path), Careful())
    assert len(result.unrecorded) == 4 and result.exit_code == 1
    assert result.unrecorded[0].endswith("not recorded: No space left on device")
    assert {run.state for run in read_batch(result.folder).runs} == {"started"}


def test_a_run_whose_start_cannot_be_recorded_is_not_started_and_comes_when_there_is_room(
    tmp_path, monkeypatch
):
    FullDisk(monkeypatch, "started", times=2)
    path = plan(tmp_path)
    result = go(path, Careful())
    assert states(result) == ["skipped", "answered", "answered", "answered"]
    assert RELEASED in str(result.runs[0].notes), "it was tried again when the reserve was released"
    assert result.runs[0].cause == "its start cannot be recorded: No space left on device"
    assert not (result.folder / result.runs[0].run_id / "figure.png").exists()
    assert states(go(path, resume=result.folder)) == ["answered"] * 4


@pytest.fixture
def first(tmp_path):
    """The first run of a batch, its folder, and its job with a notebook."""
    journal = Journal.begin(tmp_path, load_plan(plan(tmp_path)))
    run = journal.runs[0]
    folder = journal.folder / journal.runs[0].run_id
    source = str(NOTEBOOKS / "needs_no_verdict.ipynb")
    mark = one_run.mark_of(folder, 1)
    job = {"source": source, "parameters": {}, "cell_s": 60, "run_s": 60, "mark": mark}
    yield run, folder, job
    journal.close()


def test_run_one_starts_nothing_that_it_cannot_record(first, monkeypatch):
    run, folder, job = first

    def refuse(*args):
        raise FULL

    monkeypatch.setattr(one_run, "write_run", refuse)
    ended = one_run.run_one(folder, run, job)
    assert (ended.state, ended.stopped_by, ended.started_at) == ("skipped", "disk", "")
    assert read_run(folder / "run.json") == run


def put_in_place_of_the_runner(monkeypatch, code):
    """A process that runs ``code`` where run_one starts the runner."""
    argv = [sys.executable, "-c", f"import os, signal; {code}"]
    start = subprocess.Popen
    pieces = {"PIPE": subprocess.PIPE, "TimeoutExpired": subprocess.TimeoutExpired}
    pieces["Popen"] = lambda words, **options: start(argv, **options)
    monkeypatch.setattr(one_run, "subprocess", SimpleNamespace(**pieces))


def test_a_runner_that_sigkill_does_not_end_is_stuck_and_not_waited_for(first, monkeypatch):
    run, folder, job = first
    monkeypatch.setattr(watched, "SILENT_S", 0.3)
    monkeypatch.setattr(watched, "KILL_S", 0.2)
    put_in_place_of_the_runner(monkeypatch, "os.kill(os.getpid(), signal.SIGSTOP)")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    ended = one_run.run_one(folder, run, job)
    os.kill(ended.pid, signal.SIGKILL)
    silent = "its runner fell silent: no word for 0.3 s"
    assert (ended.state, ended.strikes) == ("stuck", 1)
    assert ended.cause == f"{silent}; SIGKILL does not end its runner"
    assert read_run(folder / "run.json") == ended
