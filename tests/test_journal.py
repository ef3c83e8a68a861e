"""A batch that was cut off goes on where it stopped: each run in a true state, none repeated that must not be, nothing lost."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.run import journal as module
from helpers.run import one, record
from helpers.run.batch import Quiet, run_plan
from helpers.run.carrier import Local
from helpers.run.journal import Journal
from helpers.run.one import Stop
from helpers.run.plan import PlanError, load_plan
from helpers.run.quarantine import Trouble
from helpers.run.record import boot_id, move, node, read_batch, read_run, write_run

NOTEBOOK = Path(__file__).parent / "notebooks" / "needs_no_verdict.ipynb"
ROOT = Path(__file__).resolve().parents[1]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class StandIn:
    """A run that takes no time: it starts, does what is asked of this number, and answers."""

    def __init__(self, **doing):
        self.doing, self.ran, self.most, self.going = doing, [], 0, 0
        self.beside, self.lock = set(), threading.Lock()

    def __call__(self, folder, run, job, *, stop=None, tick=None):
        number = run.run_id.split("-")[0]
        with self.lock:
            self.ran.append(number)
            self.going += 1
            self.most = max(self.most, self.going)
            self.beside |= {number} if self.going > 1 else set()
        run = move(
            run, "started", pid=os.getpid(), boot_id=boot_id(), node=node(), started_at=record.now()
        )
        write_run(folder, run)
        (folder / "figure.png").write_text(f"attempt {run.attempt}")
        act = self.doing.get(f"n{number}") or self.doing.get("each")
        run = (act(folder, run) if act else None) or move(run, "answered", seconds=0.01)
        write_run(folder, run)
        with self.lock:
            self.going -= 1
        return run


def state(name, **changes):
    return lambda folder, run: move(run, name, **changes)


def plan(folder, rows="- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 4}", head=""):
    shutil.copy(NOTEBOOK, folder)
    (folder / "plan.yaml").write_text(f"name: night\n{head}\nruns:\n{rows}\n")
    return folder / "plan.yaml"


def go(path, run_one=None, slots=1, stop=None, **options):
    stop = stop or Stop()
    return run_plan(
        path,
        path.parent / "outputs",
        carrier=Local(slots, stop, run_one or StandIn()),
        stop=stop,
        **options,
    )


def states(result):
    return [run.state for run in result.runs]


def begun(folder, **head):
    """A batch as it lies there after its supervisor was killed in the middle of its second run of four."""
    path = plan(folder, **head)
    journal = Journal.begin(folder / "outputs", load_plan(path))
    first, second = journal.runs[:2]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for run, end in ((first, "answered"), (second, "")):
        run = move(run, "started", pid=dead.pid, boot_id=boot_id(), node=node(), ooms_before=5)
        (journal.folder / run.run_id / "figure.png").write_text("attempt 1")
        journal.put(move(run, end) if end else run)
    journal.close()
    return path, journal.folder, second.run_id


def change(batch, run_id, **changes):
    path = batch / run_id
    write_run(path, read_run(path / "run.json").model_copy(update=changes))


def test_an_interrupted_batch_goes_on_where_it_stopped(tmp_path):
    path, stop = plan(tmp_path), Stop()

    def interrupt(folder, run):
        stop.signal = "SIGINT"
        return move(run, "failed", cause="interrupted by SIGINT", stopped_by="interrupt")

    result = go(path, StandIn(n001=interrupt), stop=stop)
    assert (
        states(result) == ["answered", "failed", "skipped", "skipped"] and result.exit_code == 130
    )
    again = StandIn()
    resumed = go(path, again, resume=result.folder)
    assert (
        states(resumed) == ["answered"] * 4
        and again.ran == ["001", "002", "003"]
        and resumed.exit_code == 0
    )
    assert [run.attempt for run in resumed.runs] == [1, 2, 1, 1]
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
    assert (earlier.state, earlier.cause, earlier.strikes) == (
        "died",
        "its batch ended while it ran",
        1,
    )
    assert "earlier" not in " ".join(record.files_below(batch / run_id))


def test_a_run_whose_batch_ended_twice_is_not_tried_a_third_time(tmp_path):
    path, batch, run_id = begun(tmp_path)
    change(batch, run_id, strikes=1, attempt=2)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert again.ran == ["002", "003"] and (result.runs[1].state, result.runs[1].strikes) == (
        "died",
        2,
    )
    assert go(path, again, resume=batch).runs == result.runs


def test_a_run_under_which_the_oom_killer_came_is_not_repeated(tmp_path, monkeypatch):
    path, batch, _ = begun(tmp_path)
    monkeypatch.setattr(module.kernel, "oom_kills", lambda: 7)
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
    assert go(path, again, resume=batch).runs == result.runs and again.ran == ["002", "003"]
    by_hand = go(path, again, resume=batch, again=[run_id])
    repeated = by_hand.runs[1]
    assert again.ran[-1] == "001" and (repeated.state, repeated.attempt, repeated.strikes) == (
        "answered",
        2,
        1,
    )
    assert read_run(batch / run_id / "earlier/1/run.json").state == expected


def test_a_run_that_is_asked_for_by_an_unknown_name_is_refused(tmp_path):
    path, batch, _ = begun(tmp_path)
    with pytest.raises(PlanError, match="009-x: no run of"):
        go(path, resume=batch, again=["009-x"])


@pytest.mark.parametrize("name", ["failed", "died", "timed_out", "stuck", "node_lost", "rebooted"])
def test_a_run_that_ended_badly_by_itself_is_never_repeated_by_itself(tmp_path, name):
    path, again = plan(tmp_path), StandIn()
    result = go(path, StandIn(n002=state(name)))
    assert go(path, again, resume=result.folder).runs == result.runs and again.ran == []
    assert result.runs[2].strikes == (name != "failed")


def test_a_second_process_is_refused_in_one_line_that_names_the_first(tmp_path):
    path, batch, _ = begun(tmp_path)
    held = Journal.reopen(batch, load_plan(path))
    with pytest.raises(
        PlanError, match=f"process {os.getpid()} on {node()} carries this batch out"
    ) as refused:
        Journal.reopen(batch, load_plan(path))
    assert "\n" not in str(refused.value)
    held.close()
    Journal.reopen(batch, load_plan(path)).close()


def test_a_changed_plan_is_refused_with_what_differs(tmp_path):
    path, batch, _ = begun(tmp_path)
    before = read_batch(batch).runs
    path.write_text(
        path.read_text().replace("repeats: 4", "repeats: 5")
        + "".join(f"# {n}\n" for n in range(40))
    )
    with pytest.raises(PlanError) as refused:
        go(path, resume=batch)
    text = str(refused.value)
    assert (
        "-- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 4}" in text
        and "repeats: 5}" in text
    )
    assert len(text.splitlines()) == 22 and text.endswith("more lines")
    assert read_batch(batch).runs == before


def test_a_folder_that_is_no_batch_is_refused(tmp_path):
    path = plan(tmp_path)
    for folder, why in (
        (tmp_path, "holds no record of a run"),
        (tmp_path / "no", "cannot be resumed: No such file"),
    ):
        with pytest.raises(PlanError, match=why):
            go(path, resume=folder)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:80],
        lambda text: "",
        lambda text: text.replace('"schema_version": 2', '"schema_version": 3'),
        lambda text: text.replace('"state"', '"stat"'),
        lambda text: text.replace('"run_id": "001-', '"run_id": "002-'),
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone_and_its_run_not_started(tmp_path, spoil):
    path, batch, run_id = begun(tmp_path)
    spoiled = spoil((batch / run_id / "run.json").read_text())
    (batch / run_id / "run.json").write_text(spoiled)
    again = StandIn()
    result = go(path, again, resume=batch)
    assert again.ran == ["002", "003"] and states(result) == [
        "answered",
        "skipped",
        "answered",
        "answered",
    ]
    assert len(result.unreadable) == 1 and run_id in result.unreadable[0] and result.exit_code == 1
    assert (batch / run_id / "run.json").read_text() == spoiled


def test_another_box_than_that_of_the_batch_is_refused_and_nothing_written(tmp_path):
    path = plan(tmp_path, "- {notebook: takes_parameters.ipynb, danger: looks}")
    shutil.copy(NOTEBOOK.with_name("takes_parameters.ipynb"), tmp_path)
    result = go(path, box="cpu-only")
    before = sorted(result.folder.rglob("*"))
    with pytest.raises(PlanError, match="seen the box 'cuda-healthy'; expected 'cpu-only'"):
        go(path, box="cuda-healthy", resume=result.folder)
    assert sorted(result.folder.rglob("*")) == before


def test_records_of_the_first_version_are_lifted_and_their_batch_goes_on(tmp_path):
    path, batch, _ = begun(tmp_path)
    runs = read_batch(batch).runs
    old = {
        "schema_version": 1,
        "run_id": runs[2].run_id,
        "batch_id": batch.name,
        "box": "",
        "notebook": "x.ipynb",
        "state": "skipped",
        "cause": "interrupted (SIGTERM)",
    }
    (batch / runs[2].run_id / "run.json").write_text(str(old).replace("'", '"'))
    assert read_run(batch / runs[2].run_id / "run.json").stopped_by == "interrupt"
    again = StandIn()
    assert states(go(path, again, resume=batch)) == ["answered"] * 4 and "002" in again.ran


def test_what_killed_writers_left_is_cleaned_and_a_folder_that_is_gone_is_made_again(tmp_path):
    path, batch, run_id = begun(tmp_path)
    (batch / run_id / ".run.json.77.tmp").write_text("{")
    shutil.rmtree(batch / read_batch(batch).runs[3].run_id)
    assert states(go(path, resume=batch)) == ["answered"] * 4
    assert list(batch.rglob(".*.tmp")) == []


def test_a_runner_that_outlived_its_batch_is_ended_before_its_run_is_judged(tmp_path, monkeypatch):
    path, batch, run_id = begun(tmp_path)
    monkeypatch.setattr(module, "LAST_RUNNER_S", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", str((batch / run_id).resolve())]
    ) as runner:
        change(batch, run_id, pid=runner.pid)
        assert states(go(path, resume=batch)) == ["answered"] * 4
        assert runner.wait(5) == -signal.SIGKILL


def test_a_process_that_works_in_the_folder_this_is_a_copy_of_is_let_alone(tmp_path):
    path, batch, run_id = begun(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", "input()", str((batch / run_id).resolve())], stdin=subprocess.PIPE
    ) as runner:
        change(batch, run_id, pid=runner.pid)
        shutil.copytree(batch, tmp_path / "copy" / batch.name)
        assert states(go(path, resume=tmp_path / "copy" / batch.name)) == ["answered"] * 4
        assert runner.poll() is None


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cut=st.integers(0, 5),
    rebooted=st.booleans(),
    ends=st.lists(st.sampled_from(["answered", "failed", "died"]), min_size=6, max_size=6),
)
def test_after_a_power_cut_nothing_is_lost_and_nothing_repeated_that_must_not_be(
    tmp_path_factory, cut, rebooted, ends
):
    folder = tmp_path_factory.mktemp("cut")
    path = plan(folder, "- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 6}")

    def end(here, run):
        number = int(run.run_id[:3])
        if number == cut:  # the disk as it was at this moment
            shutil.copytree(here.parent, folder / "copy" / here.parent.name)
        return move(run, ends[number])

    whole = go(path, StandIn(each=end))
    copy, again = folder / "copy" / whole.folder.name, StandIn()
    cut_id = whole.runs[cut].run_id
    change(copy, cut_id, pid=2**22 + 1, **({"boot_id": "before"} if rebooted else {}))
    result = go(path, again, resume=copy)
    assert result.runs[:cut] == whole.runs[:cut]
    assert again.ran == [f"{number:03d}" for number in range(cut + rebooted, 6)]
    assert (
        result.runs[cut].state == ("rebooted" if rebooted else "answered")
        and result.runs[cut].strikes == 1
    )
    assert all(run.state == "answered" for run in result.runs[cut + 1 :])


# What the disk refuses


class FullDisk:
    """Refuses records in these states, as many times as asked."""

    def __init__(self, monkeypatch, *refused, times=10**9):
        self.refused, self.times, self.write = refused, times, record.write_run
        for place in (module, sys.modules[__name__]):
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
                return one.not_started(run, error)
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
    assert len(result.unrecorded) == 4 and result.unrecorded[0].endswith(
        "not recorded: No space left on device"
    )
    assert result.exit_code == 1 and {run.state for run in read_batch(result.folder).runs} == {
        "started"
    }


def test_a_run_whose_start_cannot_be_recorded_is_not_started_and_comes_when_there_is_room(
    tmp_path, monkeypatch
):
    FullDisk(monkeypatch, "started", times=1)
    path = plan(tmp_path)
    result = go(path, Careful())
    assert states(result) == ["skipped", "answered", "answered", "answered"]
    assert result.runs[0].cause == "its start cannot be recorded: No space left on device"
    assert not (result.folder / result.runs[0].run_id / "figure.png").exists()
    assert states(go(path, resume=result.folder)) == ["answered"] * 4


def test_run_one_starts_nothing_that_it_cannot_record(tmp_path, monkeypatch):
    journal = Journal.begin(tmp_path, load_plan(plan(tmp_path)))
    run, folder = journal.runs[0], journal.folder / journal.runs[0].run_id

    def refuse(*args):
        raise FULL

    monkeypatch.setattr(one, "write_run", refuse)
    ended = one.run_one(folder, run, {"mark": "m", "run_s": 5})
    assert (ended.state, ended.stopped_by, ended.started_at) == ("skipped", "disk", "")
    assert read_run(folder / "run.json") == run


def test_a_runner_that_sigkill_does_not_end_is_stuck_and_not_waited_for(tmp_path, monkeypatch):
    journal = Journal.begin(tmp_path, load_plan(plan(tmp_path)))
    folder = journal.folder / journal.runs[0].run_id
    monkeypatch.setattr(one, "SILENT_S", 1.5)
    monkeypatch.setattr(one, "KILL_S", 0.2)
    monkeypatch.setattr(one.subprocess.Popen, "kill", lambda process: None)
    job = {
        "source": str(NOTEBOOK.with_name("stops_its_runner.ipynb")),
        "parameters": {},
        "cell_s": 60,
        "run_s": 60,
        "mark": one.mark_of(folder, 1),
    }
    ended = one.run_one(folder, journal.runs[0], job)
    os.kill(ended.pid, signal.SIGKILL)
    assert (ended.state, ended.strikes) == ("stuck", 1)
    assert (
        ended.cause == "its runner fell silent: no word for 1.5 s; SIGKILL does not end its runner"
    )
    assert read_run(folder / "run.json") == ended


def test_a_record_that_its_runner_could_not_write_is_heard_of(tmp_path, monkeypatch):
    run = move(Journal.begin(tmp_path, load_plan(plan(tmp_path))).runs[0], "started", pid=1)
    said = move(run, "answered", seconds=3).model_dump_json()
    process = subprocess.Popen(
        [sys.executable, "-c", f"print('[3, 4]'); print({said!r})"], stdout=subprocess.PIPE
    )
    heard = one.queue.SimpleQueue()
    threading.Thread(target=one._listen, args=(process.stdout, heard)).start()
    watched = one._Watched(
        process, heard, tmp_path, {"mark": "m", "run_s": 60}, Stop(), time.monotonic()
    )
    watched.wait(None)
    assert (
        watched.record is not None
        and watched.record.state == "answered"
        and (watched.cell, watched.cells) == (3, 4)
    )
    assert watched.said == ("", "", "")


def test_a_place_that_cannot_be_written_is_refused_when_a_batch_is_resumed(tmp_path, monkeypatch):
    path, batch, _ = begun(tmp_path)

    def refuse(*args, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.raises(PlanError, match="Read-only file system"):
        go(path, resume=batch)


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
    assert standin.beside <= {"000", "001", "002", "003", "004", "005"} and standin.ran[6:] == [
        "006",
        "007",
        "008",
    ]
    alone = StandIn(each=brief)
    go(plan(tmp_path, MIXED), alone, slots=8)
    assert alone.most == 1


def test_a_carrier_with_a_box_for_each_slot_runs_anything_side_by_side(tmp_path):
    standin, stop = StandIn(each=brief), Stop()
    carrier = Local(4, stop, standin)
    carrier.one_box = False
    run_plan(plan(tmp_path, MIXED), tmp_path / "outputs", carrier=carrier, stop=stop)
    assert standin.most == 4 and {"006", "007"} & standin.beside


def test_a_run_that_reads_the_batch_waits_for_all_before_it(tmp_path):
    rows = """- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, repeats: 3}
- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, parameters: {batch: "{batch}"}}
- {notebook: takes_parameters.ipynb, danger: looks, box: cpu-only, repeats: 2}"""
    path, standin = plan(tmp_path, rows, "jobs: 4"), StandIn(each=brief)
    shutil.copy(NOTEBOOK.with_name("takes_parameters.ipynb"), tmp_path)
    go(path, standin, slots=4)
    assert (
        set(standin.ran[:3]) == {"000", "001", "002"}
        and standin.ran[3] == "003"
        and standin.most == 3
    )


class Gate:
    """Finds what it is told to after each look; a look is a number."""

    def __init__(self, *found):
        self.found, self.looks = list(found), 0

    def measure(self, gpus=(), root="", *, folder=".", since=None):
        self.looks += 1
        return self.looks

    def settle(self, before, gates, measure=None, sleep=time.sleep):
        assert before == 1 and measure() > 1
        return self.found.pop(0) if self.found else ()


GPUS = """- {notebook: needs_no_verdict.ipynb, danger: loads, gpu: "0000:03:00.0", repeats: 2}
- {notebook: needs_no_verdict.ipynb, danger: loads, gpu: "0000:04:00.0"}
- {notebook: needs_no_verdict.ipynb, danger: loads}
- {notebook: needs_no_verdict.ipynb, danger: looks}"""


def test_a_gpu_that_is_not_clean_after_a_run_gets_no_more_runs_and_others_do(tmp_path):
    dirty = (Trouble("gpu 0000:03:00.0", "12 GiB held by nobody, expected 0", passes=False),)
    path = plan(tmp_path, GPUS, "order: as written")
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
    result = go(plan(tmp_path, GPUS, "order: as written"), gate=Gate((), hot, hot, (), ()))
    assert states(result) == ["answered", "skipped", "answered", "answered", "answered"]
    assert result.runs[0].quarantined == "gpu 0000:03:00.0"


def test_a_look_that_breaks_costs_no_run_and_the_records_say_that_it_was_blind(tmp_path):
    class Broken(Gate):
        def measure(self, gpus=(), root="", *, folder=".", since=None):
            raise ValueError("no such sensor\nat all")

    result = go(plan(tmp_path), gate=Broken())
    assert states(result) == ["answered"] * 4
    assert {run.gate for run in read_batch(result.folder).runs} == {
        "not looked at: ValueError: no such sensor"
    }


def test_a_wait_for_a_clean_box_ends_with_the_batch(tmp_path):
    class Slow(Gate):
        def settle(self, before, gates, measure=None, sleep=time.sleep):
            if self.looks > 1:
                stop.signal = "SIGTERM"
                sleep(600)
            return super().settle(before, gates, measure)

    stop = Stop()
    result = go(plan(tmp_path), stop=stop, gate=Slow())
    assert (
        states(result) == ["answered", "skipped", "skipped", "skipped"]
        and result.interrupted == "SIGTERM"
    )


def test_a_process_that_nothing_ends_closes_its_gpu_and_is_not_waited_for(tmp_path):
    path = plan(tmp_path, GPUS, "order: as written")
    result = go(path, StandIn(n000=state("stuck", cause="SIGKILL does not end python (7)")))
    assert states(result) == ["stuck", "skipped", "answered", "skipped", "answered"]
    assert "SIGKILL does not end python (7)" in result.runs[1].cause


@pytest.mark.parametrize(
    ("rules", "words", "ran"),
    [
        ("after_failures: 2", "stop rule after_failures: 2 runs did not answer", 2),
        ("node_strikes: 1", f"stop rule node_strikes: 1 on {node()}", 2),
        ("on_states: [died]", "stop rule on_states: 001-", 2),
        ("on_states: [stuck]", "", 6),
    ],
)
def test_stop_rules_skip_the_rest_also_when_the_batch_is_resumed(tmp_path, rules, words, ran):
    path = plan(
        tmp_path,
        "- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 6}",
        f"stop: {{{rules}}}",
    )
    standin = StandIn(n000=state("failed"), n001=state("died"))
    result = go(path, standin)
    assert len(standin.ran) == ran
    assert all(run.cause.startswith(words) for run in result.runs[ran:])
    again = StandIn()
    assert go(path, again, resume=result.folder).runs == result.runs and again.ran == []


def test_a_wall_clock_that_moved_is_noted_and_seconds_are_not_its(tmp_path, monkeypatch):
    journal = Journal.begin(tmp_path, load_plan(plan(tmp_path)))
    walls = iter([1000.0, 5000.0])
    monkeypatch.setattr(
        one,
        "time",
        SimpleNamespace(time=lambda: next(walls), monotonic=time.monotonic, sleep=time.sleep),
    )
    run = journal.runs[0]
    ended = one.run_one(
        journal.folder / run.run_id,
        run,
        {
            "source": str(NOTEBOOK),
            "parameters": {},
            "cell_s": 60,
            "run_s": 60,
            "mark": one.mark_of(journal.folder, 1),
        },
    )
    assert (
        ended.state == "answered"
        and ended.seconds < 60
        and "the wall clock moved by +" in ended.notes[0]
    )
    assert read_run(journal.folder / run.run_id / "run.json") == ended


HUNG_UP = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_journal import StandIn, go
def hang_up(folder, run):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.5)
result = go(Path({path!r}), StandIn(n001=hang_up))
print("the end")
sys.exit(result.exit_code)
"""


def test_a_batch_whose_terminal_goes_away_goes_on_and_says_so_in_its_own_file(tmp_path):
    path = plan(tmp_path)
    code = textwrap.dedent(HUNG_UP).format(tests=str(Path(__file__).parent), path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (batch,) = (tmp_path / "outputs").iterdir()
    assert [run.state for run in read_batch(batch).runs] == ["answered"] * 4
    log = (batch / "batch.log").read_text()
    assert (
        "run 4 of 4: needs_no_verdict.ipynb" in log
        and "the end" in log
        and "the end" not in done.stdout
    )


def test_status_says_attempts_strikes_nodes_and_the_time_that_is_left(tmp_path):
    path, batch, run_id = begun(tmp_path)
    runs = go(path, StandIn(n002=state("died", cause="SIGSEGV")), resume=batch).runs
    change(batch, runs[0].run_id, node="elsewhere")
    view = read_batch(batch)
    text, data = record.status_text(view), record.status_json(view)
    assert "on elsewhere" in text and "attempt 2; 1 strike" in text and "SIGSEGV; 1 strike" in text
    assert [(run["attempt"], run["strikes"]) for run in data["runs"]] == [
        (1, 0),
        (2, 1),
        (1, 1),
        (1, 0),
    ]
    assert data["left_s"] == 0 and "left" not in text.splitlines()[0]
    left = [runs[0].model_copy(update={"state": "planned", "estimate_s": 90.0}), runs[3]]
    assert record.time_left_s([*left, left[0]]) == 180
    assert record.time_left_s([left[0].model_copy(update={"estimate_s": None}), *left]) is None
    going = left[0].model_copy(update={"state": "started", "started_at": "2020-01-01T00:00:00Z"})
    assert record.time_left_s([going]) == 0
    assert "about 2 min left" in record.status_text(record.BatchView(batch, (left[0],), ()))


def test_progress_is_told_by_one_thread_alone(tmp_path):
    class Heard(Quiet):
        threads = set()

        def tick(self, number, cell, cells, seconds):
            self.threads.add(threading.get_ident())

        run_started = run_ended = lambda self, number, run: Heard.threads.add(threading.get_ident())

    go(plan(tmp_path, head="jobs: 2"), StandIn(each=brief), slots=2, progress=Heard())
    assert Heard.threads == {threading.get_ident()}
