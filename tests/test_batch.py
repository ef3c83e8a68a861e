"""A batch goes through every run of its plan whatever they do, and its records alone tell what happened."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers.run import batch, one, record
from helpers.run.batch import Quiet, run_plan
from helpers.run.carrier import Local
from helpers.run.one import Stop, run_one
from helpers.run.plan import PlanError
from helpers.run.progress import Live, Plain, for_terminal
from helpers.run.record import (
    IllegalMove,
    move,
    read_batch,
    read_run,
    status_json,
    status_text,
    write_run,
)
from helpers.run.shapes import STATES, Run

NOTEBOOKS = Path(__file__).parent / "notebooks"
ROOT = Path(__file__).resolve().parents[1]

PLAN = """
name: morning
limits: {cell_s: 30, run_s: 60}
runs:
  - {notebook: answers_with_a_figure.ipynb}
  - {notebook: takes_parameters.ipynb, box: cpu-only, repeats: 2, parameters: {steps: 7, out: "{batch}/mine"}}
  - {notebook: takes_parameters.ipynb}
  - {notebook: needs_no_verdict.ipynb}
  - {notebook: ends_without_a_verdict.ipynb}
  - {notebook: emits_an_invalid_verdict.ipynb}
  - {notebook: writes_to_fd_2_and_aborts.ipynb}
  - {notebook: leaves_a_child_without_environment.ipynb}
  - {notebook: kills_its_runner.ipynb}
  - {notebook: calls_sys_exit_with_0.ipynb}
"""


def write_plan(folder, text):
    for path in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(path, folder)
    (folder / "plan.yaml").write_text(text)
    return folder / "plan.yaml"


class Heard(Quiet):
    """Keeps what it was told."""

    def __init__(self):
        self.ticks, self.states = [], []

    def tick(self, number, cell, cells, seconds):
        self.ticks.append((number, cell, cells))

    def run_ended(self, number, run):
        self.states.append(run.state)


@pytest.fixture(scope="module")
def morning(tmp_path_factory):
    """One batch with a run of every kind."""
    folder = tmp_path_factory.mktemp("plan")
    captured, heard = [], Heard()

    def capture(path):
        captured.append(path)
        path.mkdir()
        return path

    result = run_plan(write_plan(folder, PLAN), folder / "outputs", capture=capture, progress=heard)
    return result, captured, heard


def named(morning, name):
    return next(run for run in morning[0].runs if run.notebook == f"{name}.ipynb")


@pytest.mark.parametrize(
    ("name", "state", "cause"),
    [
        ("answers_with_a_figure", "answered", ""),
        ("takes_parameters", "answered", ""),
        ("needs_no_verdict", "answered", ""),
        ("ends_without_a_verdict", "failed", "ended without a verdict"),
        ("emits_an_invalid_verdict", "failed", "not a verdict: confidence: "),
        (
            "writes_to_fd_2_and_aborts",
            "died",
            "the kernel was killed by SIGABRT; see its last words; in cell 2",
        ),
        ("leaves_a_child_without_environment", "answered", ""),
        ("kills_its_runner", "died", "its runner was killed by SIGKILL"),
        ("calls_sys_exit_with_0", "failed", "SystemExit: 0"),
    ],
)
def test_every_run_has_a_record_of_what_it_was(morning, name, state, cause):
    run = named(morning, name)
    assert run.state == state
    assert run.cause.startswith(cause) if cause else run.cause == ""
    assert read_run(morning[0].folder / run.run_id / "run.json") == run


def test_a_batch_with_a_run_that_did_not_answer_says_so_by_its_exit_code(morning):
    assert morning[0].exit_code == 1 and morning[0].interrupted == ""
    assert morning[2].states == [run.state for run in morning[0].runs]


def test_a_record_tells_where_when_and_from_which_plan(morning):
    result = morning[0]
    for run in result.runs:
        assert (
            run.boot_id == record.boot_id()
            and run.pid
            and run.started_at <= run.ended_at
            and run.seconds > 0
        )
        assert run.batch_id == result.folder.name and len(run.plan_sha256) == 64
    assert (result.folder / "plan.yaml").read_text() == PLAN


def test_figures_come_out_of_the_notebook_with_their_words(morning):
    run = named(morning, "answers_with_a_figure")
    assert [(f.path, f.alt) for f in run.figures] == [
        ("figures/01.png", "One dot"),
        ("figures/02.png", "The dot again"),
    ]
    for figure in run.figures:
        assert (morning[0].folder / run.run_id / figure.path).read_bytes().startswith(b"\x89PNG")
    assert run.files == ["figures/01.png", "figures/02.png", "notebook.ipynb"]
    assert run.cells == {"completed": 4}


def test_a_verdict_is_read_back_and_the_same_run_gives_the_same_one(morning):
    first, second = (run for run in morning[0].runs if run.box == "cpu-only")
    assert first.verdict is not None and first.verdict.cause == "cannot-tell"
    assert (
        first.run_id != second.run_id
        and first.run_id.rpartition("-")[2] == second.run_id.rpartition("-")[2]
    )
    assert (first.verdict, first.parameters, first.figures) == (
        second.verdict,
        second.parameters,
        second.figures,
    )


def test_box_batch_and_out_reach_the_notebooks_that_take_them(morning):
    result, captured, _ = morning
    assert captured == [result.folder / "box"]
    recorded, _, live = (run for run in result.runs if run.notebook == "takes_parameters.ipynb")
    printed = _printed(result.folder / recorded.run_id)
    assert "box='cpu-only' steps=7 rate=0.5" in printed
    assert f"batch='{result.folder}' out='{result.folder}/mine'" in printed
    assert recorded.parameters == {"steps": 7, "out": "{batch}/mine"}
    assert live.box == "live" and live.parameters == {}
    assert f"box='{result.folder}/box'" in _printed(result.folder / live.run_id)
    assert f"out='{result.folder / live.run_id}'" in _printed(result.folder / live.run_id)
    assert named(morning, "needs_no_verdict").box == ""


def _printed(folder):
    nb = nbformat.read(folder / "notebook.ipynb", as_version=4)
    return "".join(
        output.text
        for cell in nb.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )


def test_the_failing_cell_counts_in_the_source_notebook_and_last_words_are_kept(morning):
    run = named(morning, "writes_to_fd_2_and_aborts")
    assert (run.failing_cell, run.signal, run.last_words) == (
        2,
        "SIGABRT",
        "GPU node 1: page not present",
    )
    assert run.cells == {"completed": 2, "failed": 1, "pending": 1}
    assert "kernel.stderr" in run.files and "stacks/kernel.txt" in run.files


def test_a_child_that_shed_its_session_and_environment_is_ended_and_named(morning):
    run = named(morning, "leaves_a_child_without_environment")
    child = int(_printed(morning[0].folder / run.run_id))
    assert run.left_behind == [f"sleep ({child})"]
    assert not psutil.pid_exists(child)


def test_a_notebook_whose_runner_was_killed_is_whole_and_its_kernel_gone(morning):
    run = named(morning, "kills_its_runner")
    folder = morning[0].folder / run.run_id
    nb = nbformat.read(folder / "notebook.ipynb", as_version=4)
    assert [c.metadata.papermill.status for c in nb.cells] == [
        "completed",
        "completed",
        "running",
        "pending",
    ]
    assert run.cells == {"completed": 2, "running": 1, "pending": 1} and run.files == [
        "notebook.ipynb"
    ]
    assert _working_in(folder) == []


def _working_in(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cwd():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_progress_names_every_run_and_its_cells(morning):
    ticks = morning[2].ticks
    assert {number for number, _, _ in ticks} == set(range(11))
    assert any(cell == 3 and cells == 4 for _, cell, cells in ticks)


def test_status_is_told_by_the_records_alone(morning):
    view = read_batch(morning[0].folder)
    assert view.runs == morning[0].runs and view.unreadable == ()
    assert view.counts == {"answered": 6, "failed": 3, "died": 2}
    text = status_text(view)
    assert "6 answered, 3 failed, 2 died" in text.splitlines()[0]
    assert len(text.splitlines()) == 12 and "cannot-tell (weak)" in text
    data = json.loads(json.dumps(status_json(view)))
    assert [run["state"] for run in data["runs"]] == [run.state for run in view.runs]


# Reading and moving records


def planned(folder, number=0, **fields):
    run = Run(run_id=f"{number:03d}-x", batch_id="b", box="", notebook="x.ipynb", **fields)
    (folder / run.run_id).mkdir(parents=True)
    write_run(folder / run.run_id, run)
    return run


def test_a_torn_or_newer_record_is_named_and_the_others_are_read(tmp_path):
    for number in range(6):
        planned(tmp_path, number)
    text = (tmp_path / "000-x" / "run.json").read_text()
    (tmp_path / "001-x" / "run.json").write_text(text[:40])
    (tmp_path / "002-x" / "run.json").write_text(
        text.replace('"schema_version": 2', '"schema_version": 9')
    )
    (tmp_path / "003-x" / "run.json").write_text('{"run_id": "003-x", "ended": true}')
    (tmp_path / "004-x" / "run.json").write_bytes(b"\xff\x00")
    (tmp_path / "005-x" / "run.json").write_text(
        '{"run_id": "old", "batch_id": "b", "box": "", "notebook": "x"}'
    )
    view = read_batch(tmp_path)
    assert [run.run_id for run in view.runs] == ["000-x", "old"]
    assert len(view.unreadable) == 4
    assert [
        number for number, line in enumerate(view.unreadable, 1) if f"{number:03d}-x" not in line
    ] == []
    assert "schema_version 9: this workbook reads 2" in view.unreadable[1]
    assert all("\n" not in line for line in view.unreadable)
    assert "not readable" in status_text(view)


@pytest.mark.parametrize("state", STATES)
def test_a_run_moves_from_planned_only_to_started_or_skipped_and_never_out_of_an_end(state):
    run = Run(run_id="r", batch_id="b", box="", notebook="x")
    if state in ("started", "skipped"):
        assert move(run, state).state == state
    else:
        with pytest.raises(IllegalMove):
            move(run, state)
    if state not in ("planned", "started"):
        ended = run.model_copy(update={"state": state})
        for other in STATES:
            with pytest.raises(IllegalMove):
                move(ended, other)


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
    run = Run(
        run_id="r", batch_id="b", box="", notebook="x", state="started", boot_id=record.boot_id()
    )
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "/b/r"], stdin=subprocess.PIPE
    ) as process:
        assert record.gone(run.model_copy(update={"pid": process.pid})) == ""
    assert (
        record.gone(run.model_copy(update={"pid": process.pid}))
        == "started, and its process is gone"
    )
    assert (
        record.gone(run.model_copy(update={"pid": os.getpid()}))
        == "started, and its process is gone"
    )
    assert record.gone(run.model_copy(update={"boot_id": "other"})) == "started under another boot"
    assert record.gone(run.model_copy(update={"boot_id": "other", "node": "elsewhere"})) == ""


# Limits, interrupts and what cannot be written


def test_the_limit_of_the_plan_cuts_the_run_that_goes_on_and_skips_the_rest(tmp_path):
    path = write_plan(
        tmp_path,
        "name: p\nlimits: {total_s: 3}\nruns:\n- {notebook: counts_slowly.ipynb, repeats: 2}\n",
    )
    result = run_plan(path, tmp_path / "outputs")
    assert [run.state for run in result.runs] == ["timed_out", "skipped"]
    assert result.runs[0].cause.startswith("the run passed its limit of 3 s")
    assert result.runs[1].cause == "the plan's limit of 3 s was reached"
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("constant", "cause"),
    [
        ("GRACE_S", "its runner did not stop 2 s after the limit of 3 s"),
        ("SILENT_S", "its runner fell silent: no word for 2 s"),
    ],
)
def test_a_runner_that_is_stopped_is_ended_from_outside_after_a_look_at_what_it_does(
    tmp_path, monkeypatch, constant, cause
):
    monkeypatch.setattr(one, constant, 2.0)
    path = write_plan(
        tmp_path, "name: p\nlimits: {run_s: 3}\nruns:\n- {notebook: stops_its_runner.ipynb}\n"
    )
    result = run_plan(path, tmp_path / "outputs")
    run = result.runs[0]
    assert (run.state, run.cause, run.strikes) == ("timed_out", cause, 1)
    assert _working_in(tmp_path) == []
    threads = (result.folder / run.run_id / "stacks/threads.txt").read_text()
    assert (
        "state T" in threads and f"pid {run.pid} " in threads and "stacks/threads.txt" in run.files
    )
    assert "stacks/kernel.txt" in run.files


@contextmanager
def files_of_at_most(size):
    """As on a full disk: the kernel refuses to write beyond this size (setrlimit(2), RLIMIT_FSIZE)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_notebook_that_does_not_fit_on_the_disk_fails_and_keeps_what_was_saved(tmp_path):
    path = write_plan(tmp_path, "name: p\nruns:\n- {notebook: prints_20_mb.ipynb}\n")
    with files_of_at_most(500_000):
        run = run_plan(path, tmp_path / "outputs").runs[0]
    assert (run.state, run.cause) == ("failed", "the notebook cannot be saved: File too large")
    nb = nbformat.read(
        tmp_path / "outputs" / run.batch_id / run.run_id / "notebook.ipynb", as_version=4
    )
    assert nb.cells[0].metadata.papermill.status == "completed"


BATCH = """
import sys
from pathlib import Path
from helpers.run.batch import run_plan
sys.exit(run_plan(Path(sys.argv[1]), Path(sys.argv[2])).exit_code)
"""


@pytest.fixture
def going_on(tmp_path):
    """A batch in a process of its own, in the middle of its second run of three."""
    path = write_plan(
        tmp_path,
        "name: p\nruns:\n- {notebook: needs_no_verdict.ipynb}\n- {notebook: counts_slowly.ipynb}\n"
        "- {notebook: needs_no_verdict.ipynb}\n",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", BATCH, str(path), str(tmp_path / "outputs")], cwd=ROOT
    )
    for _ in range(600):
        saved = list((tmp_path / "outputs").glob("*/001-*/notebook.ipynb"))
        if saved and '"running"' in saved[0].read_text():
            break
        assert process.poll() is None
        time.sleep(0.1)
    yield process, saved[0]
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_batch_keeps_what_it_has_and_skips_the_rest(going_on, number):
    process, saved = going_on
    process.send_signal(number)
    assert process.wait(60) == 130
    runs = read_batch(saved.parents[1]).runs
    assert [run.state for run in runs] == ["answered", "failed", "skipped"]
    assert (
        runs[1].cause.startswith(f"interrupted by {number.name}")
        if number == signal.SIGINT
        else runs[1].signal
    )
    assert runs[2].cause == f"interrupted ({number.name})"


def test_a_killed_batch_leaves_started_a_whole_notebook_and_no_process(going_on):
    process, saved = going_on
    process.kill()
    process.wait()
    for _ in range(100):
        if record.gone(read_run(saved.parent / "run.json")):
            break
        time.sleep(0.1)
    assert _working_in(saved.parent) == []
    nbformat.validate(nbformat.read(saved, as_version=4))
    view = read_batch(saved.parents[1])
    assert [run.state for run in view.runs] == ["answered", "started", "planned"]
    assert "started, and its process is gone" in status_text(view)


def test_a_killed_batch_is_resumed(going_on):
    process, saved = going_on
    process.kill()
    process.wait()
    before, stop = read_batch(saved.parents[1]).runs, Stop()

    def answers(folder, run, job, **options):
        return move(move(run, "started", pid=os.getpid()), "answered")

    result = run_plan(
        saved.parents[3] / "plan.yaml",
        saved.parents[2],
        resume=saved.parents[1],
        stop=stop,
        carrier=Local(1, stop, answers),
    )
    assert [run.state for run in result.runs] == ["answered"] * 3 and result.runs[0] == before[0]
    assert (result.runs[1].attempt, result.runs[1].strikes) == (2, 1) and _working_in(
        saved.parent
    ) == []
    earlier = read_run(saved.parent / "earlier/1/run.json")
    assert (earlier.state, earlier.cause) == (
        "died",
        "its batch ended while it ran",
    ) and earlier.cells
    nbformat.validate(nbformat.read(saved.parent / "earlier/1/notebook.ipynb", as_version=4))


def test_a_box_that_cannot_be_captured_costs_only_the_runs_that_want_it(tmp_path):
    def capture(path):
        raise ValueError("sysfs is on fire\nand more")

    path = write_plan(
        tmp_path,
        "name: p\nruns:\n- {notebook: takes_parameters.ipynb}\n- {notebook: needs_no_verdict.ipynb}\n",
    )
    result = run_plan(path, tmp_path / "outputs", capture=capture)
    assert [run.state for run in result.runs] == ["skipped", "answered"]
    assert result.runs[0].cause == "this box could not be captured: ValueError: sysfs is on fire"


def test_a_second_interrupt_is_heard_while_the_box_is_captured(tmp_path):
    def capture(path):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal comes first")

    path = write_plan(tmp_path, "name: p\nruns:\n- {notebook: takes_parameters.ipynb}\n")
    result = run_plan(path, tmp_path / "outputs", capture=capture)
    assert [run.cause for run in result.runs] == ["interrupted (SIGINT)"]
    assert result.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_live_run_without_a_way_to_capture_is_refused_before_anything_is_written(tmp_path):
    path = write_plan(tmp_path, "name: p\nruns:\n- {notebook: takes_parameters.ipynb}\n")
    with pytest.raises(PlanError, match="'live'"):
        run_plan(path, tmp_path / "outputs")
    assert not (tmp_path / "outputs").exists()


def test_results_never_go_into_a_folder_that_exists(tmp_path):
    path = write_plan(
        tmp_path,
        "name: p\nlimits: {total_s: 0.000001}\nruns:\n- {notebook: needs_no_verdict.ipynb}\n",
    )
    results = [run_plan(path, tmp_path / "outputs") for _ in range(3)]
    assert len({result.folder for result in results}) == 3
    assert {run.state for result in results for run in result.runs} == {"skipped"}


def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    path = write_plan(tmp_path, "name: p\nruns:\n- {notebook: needs_no_verdict.ipynb}\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="cannot be written: Not a directory"):
        run_plan(path, tmp_path / "file")


def test_a_runner_that_cannot_start_is_a_failed_run(tmp_path, monkeypatch):
    run = planned(tmp_path)
    monkeypatch.setattr(one.sys, "executable", str(tmp_path / "no-python"))
    ended = run_one(tmp_path / run.run_id, run, {"mark": "m", "run_s": 1}, stop=Stop())
    assert (ended.state, ended.cause) == (
        "failed",
        "its runner cannot start: No such file or directory",
    )


# Progress


class Lines:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return False


@pytest.mark.parametrize("kind", [Plain, Live])
def test_progress_says_which_run_and_how_it_ended(kind):
    stream, run = Lines(), Run(run_id="r", batch_id="b", box="cpu-only", notebook="x.ipynb")
    told = kind(stream)
    told.started(Path("/out/b"), [run, run])
    told.run_started(0, run)
    for seconds in (0.2, 2.1, 3.9, 4.1, 4.2):
        told.tick(0, 2, 5, seconds)
    told.run_ended(
        0,
        run.model_copy(
            update={"state": "died", "cause": "killed by SIGKILL; cause unknown", "seconds": 4.2}
        ),
    )
    told.run_ended(1, run.model_copy(update={"state": "skipped", "cause": "interrupted (SIGINT)"}))
    told.ended(batch.BatchResult(Path("/out/b"), ()))
    assert "2 runs into /out/b" in stream.text
    assert (
        "run 1 of 2: x.ipynb on cpu-only: died; killed by SIGKILL; cause unknown (4.2 s)"
        in stream.text
    )
    assert "run 2 of 2: x.ipynb on cpu-only: skipped; interrupted (SIGINT)" in stream.text
    if kind is Plain:
        assert stream.text.count("cell 2 of 5") == 2


def test_lines_where_there_is_no_terminal_and_a_closed_stream_is_no_matter():
    assert isinstance(for_terminal(Lines()), Plain)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        Plain(closed).started(Path("/out"), [])
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)
