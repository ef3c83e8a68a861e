"""Each way in which a notebook can end, injected for real: what the notebook, the fault and the run's record say afterwards.

The one file of tests about runs that starts real kernels; the others have a stand-in (run_stand_in.py).
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import nbformat
import psutil
import pytest
from data_rows import read_rows
from nbformat.v4 import new_code_cell, new_notebook, new_output
from run_stand_in import NOTEBOOKS, ROOT, go, plan

from helpers.batch import kernel_process as kernel
from helpers.batch import notebook_kernel as engine
from helpers.batch import record
from helpers.batch.execute import execute
from helpers.batch.execution import Execution
from helpers.batch.record import read_batch, read_run
from helpers.batch.runner import read_back
from helpers.batch.status import status_text
from helpers.batch.supervisor import run_plan
from helpers.ground.child import process_of

C = "completed"
F = "failed"
P = "pending"
FAULTS = {row["notebook"]: row for row in read_rows("notebook ends")}
GOOD = ["prints_20_mb", "answers_with_a_figure"]


def executed_as(source, out, **limits):
    """A notebook executed here and saved as ``out``: its execution, with what came of it."""
    execution = Execution(out, uuid.uuid4().hex, **limits)
    execute(source, execution, {})
    return execution


def working_in(folder):
    """The processes whose folder is this one or below it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cwd():
                found.append(process)
        except psutil.Error:
            continue
    return found


def printed(nb):
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def statuses(nb):
    cells = [cell for cell in nb.cells if "papermill" in cell.metadata]
    return [cell.metadata.papermill.status for cell in cells if cell.cell_type == "code"]


class Ran:
    """A notebook that was executed here: its fault or None, what was saved, and where."""

    def __init__(self, name, folder, cell_s):
        self.folder = folder
        (folder / "helpers").mkdir(parents=True)
        (folder / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
        source = NOTEBOOKS / f"{name}.ipynb"
        done = executed_as(source, folder / "notebook.ipynb", cell_s=cell_s)
        self.fault = done.fault
        self.left_behind = done.left_behind
        self.nb = nbformat.read(folder / "notebook.ipynb", as_version=4)

    @property
    def cells(self):
        tag = "papermill-error-cell-tag"
        return [cell for cell in self.nb.cells if tag not in cell.metadata.get("tags", [])]

    def errors(self):
        outputs = [output for cell in self.cells for output in cell.get("outputs", [])]
        return [output for output in outputs if output.output_type == "error"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every notebook of the table, executed two at a time."""
    base = tmp_path_factory.mktemp("ran")
    limits = {**{name: float(row["cell_s"]) for name, row in FAULTS.items()}}
    limits.update(dict.fromkeys(GOOD, 60))
    with ThreadPoolExecutor(2) as pool:
        going = {name: pool.submit(Ran, name, base / name, s) for name, s in limits.items()}
        return {name: one.result() for name, one in going.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_recorded_as_what_it_was(ran, name):
    row = FAULTS[name]
    one = ran[name]
    assert (one.fault.state, one.fault.signal, one.fault.cell) == (row["state"], row["signal"], 2)
    assert one.fault.cause.startswith(row["cause"])
    assert [cell.metadata.papermill.status for cell in one.cells] == [C, C, F, P]
    assert one.nb.metadata.papermill.exception is True


@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"calls_sys_exit_with_0"}))
def test_a_fault_shows_in_the_notebook_itself(ran, name):
    one = ran[name]
    assert "An Exception was encountered" in one.nb.cells[0].source
    failing = next(cell for cell in one.cells if cell.metadata.papermill.status == F)
    assert "error" in [output.output_type for output in failing.outputs]
    assert "after" not in printed(one.nb)
    nbformat.validate(one.nb)


@pytest.mark.parametrize("name", [*FAULTS, *GOOD])
def test_no_process_of_a_run_lives_on(ran, name):
    assert working_in(ran[name].folder) == []


@pytest.mark.parametrize("name", ["leaves_a_child", "leaves_a_child_in_its_own_session"])
def test_a_child_of_a_lost_kernel_is_ended_and_named(ran, name):
    child = int(printed(ran[name].nb).split()[1])
    assert ran[name].left_behind == (f"sleep ({child})",)


def test_last_words_on_fd_2_are_kept_though_pytest_runs_this(ran):
    assert "PYTEST_CURRENT_TEST" in os.environ
    one = ran["writes_to_fd_2_and_aborts"]
    words = "GPU node 1: page not present"
    assert (one.folder / "kernel.stderr").read_text() == words + "\n"
    assert one.fault.last_words == words and words in one.errors()[0].traceback


@pytest.mark.parametrize("name", ["segfaults", "stays_in_one_c_call"])
def test_the_stacks_of_a_fault_or_hang_name_the_line_of_the_cell(ran, name):
    assert "Current thread" in (ran[name].folder / "stacks" / "kernel.txt").read_text()
    stood = ran[name].errors()[0].traceback[-1]
    assert "ipykernel" in stood and "line 1 in <module>" in stood


def test_a_notebook_without_a_fault_imports_the_checkout_and_leaves_no_empty_stacks(ran):
    one = ran["answers_with_a_figure"]
    assert one.fault is None and not (one.folder / "stacks").exists()
    assert printed(one.nb).strip() == str(ROOT / "helpers" / "__init__.py")


def test_endless_printing_is_cut_in_the_middle_and_its_end_kept(ran):
    one = ran["prints_20_mb"]
    assert one.fault is None and statuses(one.nb) == [C, C, C, C]
    assert (one.folder / "notebook.ipynb").stat().st_size < 3 << 20
    text = one.cells[2].outputs
    assert text[0].text.startswith("0000000") and "characters left out" in text[-1].text
    assert text[-1].text.endswith("the end\n")


def test_a_run_passes_its_own_limit_whatever_its_cells_may(tmp_path):
    fault = executed_as(
        NOTEBOOKS / "counts_slowly.ipynb", tmp_path / "n.ipynb", cell_s=60, run_s=8
    ).fault
    assert fault.state == "timed_out"
    assert fault.cause == "the run passed its limit of 8 s in cell 1 (import time)"
    assert json.loads((tmp_path / "n.ipynb").read_text())["nbformat"] == 4


def test_a_kernel_that_cannot_start_is_a_death_at_the_first_cell(tmp_path, monkeypatch):
    argv = [sys.executable, "-c", "import no_such_module", "{connection_file}"]
    monkeypatch.setattr(kernel, "ARGV", argv)
    fault = executed_as(NOTEBOOKS / "needs_no_verdict.ipynb", tmp_path / "n.ipynb").fault
    why = "the kernel ended by itself with exit status 1; before cell 0"
    assert fault.state == "died" and fault.cause.startswith(why)
    assert "No module named 'no_such_module'" in fault.last_words
    assert statuses(nbformat.read(tmp_path / "n.ipynb", as_version=4)) == [F, P]


def test_a_kernel_that_cannot_be_waited_for_is_not_waited_for_without_end(tmp_path, monkeypatch):
    """As for a process that waits inside a driver: it never reads as ended, and no signal ends it."""

    async def never(*args, **kwargs):
        return None

    for name in ("poll", "kill", "terminate", "send_signal"):
        monkeypatch.setattr(engine.LocalProvisioner, name, never)
    monkeypatch.setattr(engine, "STOP_S", 0.2)
    sweep = kernel.sweep

    def deaf(mark, adopted):
        return sweep(mark, adopted)[1], ["python (4711)"]

    monkeypatch.setattr(kernel, "sweep", deaf)
    fault = executed_as(NOTEBOOKS / "loops_for_ever.ipynb", tmp_path / "n.ipynb", cell_s=1).fault
    late = "passed the limit of 1 s of cell 2 (while True:)"
    assert fault.state == "stuck"
    assert fault.cause == f"{late}; SIGKILL does not end python (4711)"


STOPPED = """
import sys
from pathlib import Path
from helpers.batch.execution import Execution
from helpers.batch.execute import execute
says = lambda i, n: print(i, flush=True)
execution = Execution(Path(sys.argv[2]) / "n.ipynb", "mark-of-test-" + sys.argv[2], cell_s=60, on_cell=says)
execute(Path(sys.argv[1]), execution, {})
fault = execution.fault
print(fault.state, fault.signal, fault.cell, fault.cause, sep="|")
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [("loops_for_ever", signal.SIGINT), ("ignores_sigint_and_sigterm", signal.SIGTERM)],
)
def test_an_interrupt_to_us_stops_the_cell_and_says_so(tmp_path, name, number):
    argv = [sys.executable, "-c", STOPPED, str(NOTEBOOKS / f"{name}.ipynb"), str(tmp_path)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    while process.stdout.readline().strip() != "2":
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out.startswith(f"interrupted|{number.name}|2|interrupted by {number.name}")
    assert statuses(nbformat.read(tmp_path / "n.ipynb", as_version=4)) == [C, C, F, P]


def test_no_other_kernel_startup_file_or_startup_variable_gets_in(tmp_path, monkeypatch):
    home = tmp_path / "home"
    spec = {"argv": ["/bin/false"], "display_name": "x", "language": "python"}
    for name, text in (
        (".local/share/jupyter/kernels/python3/kernel.json", json.dumps(spec)),
        (".ipython/profile_default/startup/0.py", "raise SystemExit('startup ran')\n"),
        ("start.py", "print('start.py ran')\n"),
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONSTARTUP", str(home / "start.py"))
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("JUPYTER_PATH", str(home / ".local/share/jupyter"))
    done = executed_as(NOTEBOOKS / "needs_no_verdict.ipynb", tmp_path / "n.ipynb")
    nb = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert done.left_behind == () and printed(nb) == "before\nafter\n"


def test_a_notebook_is_replaced_and_never_written_over_in_place(tmp_path):
    out = tmp_path / "notebook.ipynb"
    other = tmp_path / "other-name.ipynb"
    out.write_text("before")
    other.hardlink_to(out)
    executed_as(NOTEBOOKS / "answers_with_a_figure.ipynb", out, cell_s=30)
    assert other.read_text() == "before"
    saved = nbformat.read(out, as_version=4)
    assert saved.metadata.papermill.output_path == str(out)


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
    with files_of_at_most(500_000):
        fault = executed_as(NOTEBOOKS / "prints_20_mb.ipynb", tmp_path / "n.ipynb").fault
    why = "the notebook cannot be saved: File too large"
    assert (fault.state, fault.cause) == ("failed", why)
    saved = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert saved.cells[0].metadata.papermill.status == C


def test_a_long_folder_for_temporary_files_still_gives_short_sockets(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(kernel.tempfile, "tempdir", str(long))
    folder = kernel.short_folder("0123456789abcdef")
    assert len(os.fsencode(folder / "k-ipc-5")) < 107
    kernel.sweep("0123456789abcdef")
    assert not folder.exists()


NO_COUNTER = "killed by SIGKILL; cause unknown; no OOM counter can be read here"


@pytest.mark.parametrize(
    ("returncode", "before", "now", "words", "said"),
    [
        (-9, 0, 1, "", "killed by SIGKILL; the cgroup counted 1 OOM kill"),
        (-9, 3, 5, "", "killed by SIGKILL; the cgroup counted 2 OOM kills"),
        (-9, 3, 3, "", "killed by SIGKILL; cause unknown"),
        (-9, 3, 3, "words", "killed by SIGKILL; cause unknown"),
        (-9, None, None, "", NO_COUNTER),
        (-9, 3, None, "", NO_COUNTER),
        (-11, 0, 0, "", "killed by SIGSEGV; cause unknown; it left no last words"),
        (-6, None, None, "words", "killed by SIGABRT; see its last words"),
        (-6, 0, 1, "words", "killed by SIGABRT; the cgroup counted 1 OOM kill"),
        (1, 0, 1, "", "ended by itself with exit status 1"),
    ],
)
def test_a_death_is_explained_only_by_what_proves_it(returncode, before, now, words, said):
    assert kernel.how_it_ended(returncode, before, now, words)[0] == said


V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "expected"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\noom 1\noom_kill 1\n", 1),
        ("0::/host/path\n", "sys/fs/cgroup/memory.events", "oom_kill 7\n", 7),
        ("4:memory:/x\n0::/\n", f"{V1}/x/memory.oom_control", "under_oom 0\noom_kill 2\n", 2),
        ("4:cpu,memory:/x\n", f"{V1}/memory.oom_control", "oom_kill 0\n", 0),
        ("0::/\n", "sys/fs/cgroup/memory.events", "nonsense", None),
        ("0::/\n", "elsewhere", "oom_kill 1\n", None),
        ("", "elsewhere", "", None),
    ],
)
def test_oom_kills_are_read_in_every_layout_of_cgroups(tmp_path, cgroup, file, text, expected):
    assert kernel.oom_kills(tmp_path) is None  # unknown, not zero
    for name, content in (("proc/self/cgroup", cgroup), (file, text)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert kernel.oom_kills(tmp_path) == expected


# A run: the notebook in a process of its own, and its record


def executed(folder, *cells, **metadata):
    nb = new_notebook(cells=list(cells), metadata=metadata)
    nbformat.write(nb, folder / "notebook.ipynb")


def test_a_fault_names_the_cell_of_the_source_where_parameters_were_put_in_before_it(tmp_path):
    size = new_code_cell("size = 1", metadata={"tags": ["parameters"]})
    executed(tmp_path, size, new_code_cell("size - 1"), new_code_cell("1 / (size - 2)"))
    source = (tmp_path / "notebook.ipynb").rename(tmp_path / "source.ipynb")
    execution = Execution(tmp_path / "notebook.ipynb", uuid.uuid4().hex, cell_s=60)
    execute(source, execution, {"size": 2})
    assert execution.fault.state == "failed" and execution.fault.cell == 2


def ended(status, *data):
    outputs = [new_output("display_data", data=one) for one in data]
    return new_code_cell("x", outputs=outputs, metadata={"papermill": {"status": status}})


def test_a_kernel_that_the_oom_killer_chose_and_that_still_ends_at_its_limit_was_killed(
    tmp_path, monkeypatch
):
    kills = iter([3])
    monkeypatch.setattr(engine.kernel_process, "oom_kills", lambda: next(kills, 4))
    text = "import os, threading, time\nthreading.Timer(1.6, os.kill, (os.getpid(), 9)).start()"
    executed(tmp_path, new_code_cell(text + "\ntime.sleep(60)"))
    (tmp_path / "notebook.ipynb").rename(tmp_path / "source.ipynb")
    done = executed_as(tmp_path / "source.ipynb", tmp_path / "notebook.ipynb", cell_s=1.0)
    killed = "the kernel was killed by SIGKILL; the cgroup counted 1 OOM kill; in cell 0"
    assert (done.fault.state, done.fault.signal) == ("died", "SIGKILL")
    assert done.fault.cause.startswith(killed)


STEP = {"cause": "cannot-tell", "confidence": "weak", "next_step": {"what": "nothing"}}
NO_VERDICT = {"casebook": {"verdict": False}}


@pytest.mark.parametrize(
    ("status", "emitted", "metadata", "why"),
    [
        (C, [STEP], {}, ""),
        (
            C,
            [],
            {},
            'ended without a verdict; one that answers by its end has casebook: {"verdict": false} in its metadata',
        ),
        (C, [], NO_VERDICT, ""),
        ("running", [], NO_VERDICT, "ended before its last cell"),
        (P, [STEP], {}, "ended before its last cell"),
        (C, [STEP, {**STEP, "confidence": "sure"}], {}, "not a verdict: confidence: seen 'sure'"),
    ],
)
def test_what_an_executed_notebook_holds_is_an_answer_or_says_why_not(
    tmp_path, status, emitted, metadata, why
):
    mime = "application/vnd.casebook.verdict+json"
    executed(tmp_path, ended(status, *({mime: one} for one in emitted)), **metadata)
    answer, why_not = read_back(tmp_path)
    assert why_not.startswith(why) if why else why_not == ""
    assert answer["cells"] == {status: 1}


def test_a_run_that_wrote_no_notebook_has_no_answer(tmp_path):
    assert read_back(tmp_path) == ({}, "no notebook was written")


NAMES = (
    *("writes_to_fd_2_and_aborts", "leaves_a_child_without_environment"),
    "kills_its_runner",
)


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """The folder of a batch with a run for each of NAMES, and the runs by their notebooks."""
    rows = "\n".join(f"- {{notebook: {name}.ipynb, danger: looks}}" for name in NAMES)
    folder = tmp_path_factory.mktemp("plan")
    result = run_plan(plan(folder, rows, "jobs: 2"), folder / "outputs")
    return result.folder, {run.notebook.removesuffix(".ipynb"): run for run in result.runs}


def test_a_record_says_how_where_when_and_from_which_plan_a_run_ended(batch):
    folder, runs = batch
    aborted, leaves, killed = (runs[name] for name in NAMES)
    for run in runs.values():
        assert run.boot_id == record.boot_id() and run.pid and run.seconds > 0
        assert run.started_at <= run.ended_at and read_run(folder / run.run_id / "run.json") == run
    assert [run.state for run in runs.values()] == ["died", "answered", "died"]
    assert leaves.cause == ""
    words = "the kernel was killed by SIGABRT; see its last words; in cell 2"
    assert aborted.cause.startswith(words) and aborted.failing_cell == 2
    assert (aborted.signal, aborted.last_words) == ("SIGABRT", "GPU node 1: page not present")
    assert aborted.cells == {C: 2, F: 1, P: 1}
    assert {"kernel.stderr", "stacks/kernel.txt"} <= set(aborted.files)
    assert killed.cause.startswith("its runner was killed by SIGKILL") and killed.strikes == 1


def test_a_child_that_shed_its_session_and_environment_is_ended_and_named(batch):
    folder = batch[0]
    run = batch[1]["leaves_a_child_without_environment"]
    nb = nbformat.read(folder / run.run_id / "notebook.ipynb", as_version=4)
    child = int(printed(nb))
    assert run.left_behind == [f"sleep ({child})"] and not process_of(child).running


def test_a_notebook_whose_runner_was_killed_is_whole_and_its_kernel_gone(batch):
    folder = batch[0]
    run = batch[1]["kills_its_runner"]
    nb = nbformat.read(folder / run.run_id / "notebook.ipynb", as_version=4)
    assert statuses(nb) == [C, C, "running", P] and run.files == ["notebook.ipynb"]
    assert run.cells == {C: 2, "running": 1, P: 1} and working_in(folder) == []


BATCH = """
import sys
from pathlib import Path
from helpers.batch.supervisor import run_plan
sys.exit(run_plan(Path(sys.argv[1]), Path(sys.argv[2])).exit_code)
"""


@pytest.fixture
def going_on(tmp_path):
    """A batch in a process of its own, in the middle of its first run of two."""
    rows = "- {notebook: counts_slowly.ipynb}\n- {notebook: needs_no_verdict.ipynb}"
    argv = [sys.executable, "-c", BATCH, str(plan(tmp_path, rows)), str(tmp_path / "outputs")]
    process = subprocess.Popen(argv, cwd=ROOT)
    saved = []
    while not (saved and '"running"' in saved[0].read_text()):
        saved = list((tmp_path / "outputs").glob("*/000-*/notebook.ipynb"))
        assert process.poll() is None
        time.sleep(0.1)
    yield process, saved[0]
    process.kill()
    process.wait()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_batch_keeps_what_it_has_and_skips_the_rest(going_on, name):
    process, saved = going_on
    process.send_signal(signal.Signals[name])
    assert process.wait(60) == 130
    runs = read_batch(saved.parents[1]).runs
    assert [run.state for run in runs] == ["failed", "skipped"]
    assert runs[0].cause.startswith(f"interrupted by {name}") and runs[0].stopped_by == "interrupt"
    assert runs[1].cause == f"interrupted ({name})" and runs[0].cells


def test_a_killed_batch_leaves_no_process_and_a_whole_notebook_and_is_resumed(going_on):
    process, saved = going_on
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while not record.gone(read_run(saved.parent / "run.json")) and time.monotonic() < until:
        time.sleep(0.1)
    assert working_in(saved.parent) == []
    nbformat.validate(nbformat.read(saved, as_version=4))
    view = read_batch(saved.parents[1])
    assert [run.state for run in view.runs] == ["started", "planned"]
    assert "started, and its process is gone" in status_text(view)
    result = go(saved.parents[3] / "plan.yaml", resume=saved.parents[1])
    assert [run.state for run in result.runs] == ["answered"] * 2
    assert (result.runs[0].attempt, result.runs[0].strikes) == (2, 1)
    earlier = read_run(saved.parent / "earlier/1/run.json")
    assert (earlier.state, earlier.cause) == ("died", "its batch ended while it ran")
    assert earlier.cells and (saved.parent / "earlier/1/notebook.ipynb").exists()
