"""Each way in which a notebook can end, injected for real: what the notebook and the fault say afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers.run import client, engine, kernel
from helpers.run.client import RunFault

NOTEBOOKS = Path(__file__).parent / "notebooks"
ROOT = Path(__file__).resolve().parents[1]

# notebook, limit of a cell -> state, signal, how the cause begins, status of each cell of the source notebook
C, F, P = "completed", "failed", "pending"
FAULTS = [
    (
        "kills_itself",
        30,
        "died",
        "SIGKILL",
        "the kernel was killed by SIGKILL; cause unknown",
        [C, C, F, P],
    ),
    ("segfaults", 30, "died", "SIGSEGV", "the kernel was killed by SIGSEGV", [C, C, F, P]),
    (
        "writes_to_fd_2_and_aborts",
        30,
        "died",
        "SIGABRT",
        "the kernel was killed by SIGABRT; see its last words",
        [C, C, F, P],
    ),
    (
        "exits_with_status_3",
        30,
        "died",
        "",
        "the kernel ended by itself with exit status 3",
        [C, C, F, P],
    ),
    ("raises", 30, "failed", "", "ValueError: no such card", [C, C, F, P]),
    ("runs_out_of_memory_in_python", 30, "failed", "", "MemoryError", [C, C, F, P]),
    ("calls_sys_exit_with_3", 30, "failed", "", "SystemExit: 3", [C, C, F, P]),
    ("calls_sys_exit_with_0", 30, "failed", "", "SystemExit: 0", [C, C, F, P]),
    (
        "loops_for_ever",
        1,
        "timed_out",
        "",
        "passed the limit of 1 s of cell 2 (while True:)",
        [C, C, F, P],
    ),
    (
        "stays_in_one_c_call",
        1,
        "timed_out",
        "",
        "passed the limit of 1 s of cell 2 (sum(range(10**13)))",
        [C, C, F, P],
    ),
    (
        "ignores_sigint_and_sigterm",
        1,
        "timed_out",
        "",
        "passed the limit of 1 s of cell 2",
        [C, C, F, P],
    ),
    (
        "has_a_limit_of_its_own",
        30,
        "timed_out",
        "",
        "passed the limit of 1 s of cell 2 (time.sleep(60))",
        [C, C, F, P],
    ),
    ("leaves_a_child", 30, "died", "SIGKILL", "the kernel was killed by SIGKILL", [C, C, F, P]),
    (
        "leaves_a_child_in_its_own_session",
        1,
        "timed_out",
        "",
        "passed the limit of 1 s of cell 2",
        [C, C, F, P],
    ),
]
GOOD = ["prints_20_mb", "answers_with_a_figure"]
BY_NAME = {row[0]: row for row in FAULTS}


class Ran:
    """A notebook that was executed here: its fault or None, what was saved, and where."""

    def __init__(self, name, folder, cell_s):
        self.folder, self.fault, self.left_behind = folder, None, ()
        folder.mkdir()
        (folder / "helpers").mkdir()
        (folder / "helpers" / "__init__.py").write_text("raise SystemExit('the other helpers')\n")
        try:
            _, self.left_behind = engine.execute(
                NOTEBOOKS / f"{name}.ipynb", folder / "notebook.ipynb", cell_s=cell_s
            )
        except RunFault as fault:
            self.fault, self.left_behind = fault, fault.left_behind
        self.nb = nbformat.read(folder / "notebook.ipynb", as_version=4)
        self.stderr = (folder / "kernel.stderr").read_text()

    @property
    def cells(self):
        return [
            cell
            for cell in self.nb.cells
            if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])
        ]

    @property
    def statuses(self):
        return [cell.metadata.papermill.status for cell in self.cells]

    def errors(self):
        return [
            output
            for cell in self.cells
            for output in cell.get("outputs", [])
            if output.output_type == "error"
        ]

    def text(self):
        return "".join(
            output.text
            for cell in self.cells
            for output in cell.get("outputs", [])
            if output.output_type == "stream"
        )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every notebook of the tables, executed two at a time."""
    base = tmp_path_factory.mktemp("ran")
    wanted = [(name, limit) for name, limit, *_ in FAULTS] + [(name, 60) for name in GOOD]
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda one: (one[0], Ran(one[0], base / one[0], one[1])), wanted)
        return dict(made)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_fault_is_recorded_as_what_it_was(ran, name):
    _, _, state, signal_name, cause, statuses = BY_NAME[name]
    one = ran[name]
    assert (one.fault.state, one.fault.signal, one.fault.cell) == (state, signal_name, 2)
    assert one.fault.cause.startswith(cause)
    assert one.statuses == statuses
    assert one.nb.metadata.papermill.exception is True


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "calls_sys_exit_with_0"])
def test_a_fault_shows_in_the_notebook_itself(ran, name):
    one = ran[name]
    assert "An Exception was encountered" in one.nb.cells[0].source
    failing = next(cell for cell in one.cells if cell.metadata.papermill.status == F)
    assert "error" in [output.output_type for output in failing.outputs]
    assert "after" not in one.text()
    nbformat.validate(one.nb)


@pytest.mark.parametrize("name", list(BY_NAME) + GOOD)
def test_no_process_of_a_run_lives_on(ran, name):
    folder = os.fsencode(ran[name].folder)
    assert [p.pid for p in psutil.process_iter() if folder in os.fsencode(_cwd(p))] == []


def _cwd(process):
    try:
        return process.cwd()
    except psutil.Error:
        return ""


@pytest.mark.parametrize("name", ["leaves_a_child", "leaves_a_child_in_its_own_session"])
def test_a_child_of_a_lost_kernel_is_ended_and_named(ran, name):
    child = int(ran[name].text().split()[1])
    assert ran[name].left_behind == (f"sleep ({child})",)


def test_last_words_on_fd_2_are_kept_though_pytest_runs_this(ran):
    assert "PYTEST_CURRENT_TEST" in os.environ
    one = ran["writes_to_fd_2_and_aborts"]
    assert one.stderr == "GPU node 1: page not present\n"
    assert one.fault.last_words == "GPU node 1: page not present"
    assert "GPU node 1: page not present" in one.errors()[0].traceback


@pytest.mark.parametrize("name", ["segfaults", "stays_in_one_c_call"])
def test_the_stacks_of_a_fault_or_hang_name_the_line_of_the_cell(ran, name):
    assert "Current thread" in (ran[name].folder / "stacks" / "kernel.txt").read_text()
    stood = ran[name].errors()[0].traceback[-1]
    assert "ipykernel" in stood and "line 1 in <module>" in stood


def test_a_notebook_without_a_fault_leaves_no_empty_stacks(ran):
    assert ran["answers_with_a_figure"].fault is None
    assert not (ran["answers_with_a_figure"].folder / "stacks").exists()


def test_the_checkouts_helpers_win_over_a_package_beside_the_notebook(ran):
    assert ran["answers_with_a_figure"].text().strip() == str(ROOT / "helpers" / "__init__.py")


def test_endless_printing_is_cut_in_the_middle_and_its_end_kept(ran):
    one = ran["prints_20_mb"]
    assert one.fault is None and one.statuses == [C, C, C, C]
    assert (one.folder / "notebook.ipynb").stat().st_size < 3 << 20
    text = one.cells[2].outputs
    assert text[0].text.startswith("0000000") and "characters left out" in text[-1].text
    assert text[-1].text.endswith("the end\n")


def test_a_run_passes_its_own_limit_whatever_its_cells_may(tmp_path):
    with pytest.raises(RunFault) as caught:
        engine.execute(NOTEBOOKS / "counts_slowly.ipynb", tmp_path / "n.ipynb", cell_s=60, run_s=2)
    assert caught.value.state == "timed_out"
    assert caught.value.cause == "the run passed its limit of 2 s in cell 1 (import time)"
    assert json.loads((tmp_path / "n.ipynb").read_text())["nbformat"] == 4


def test_a_kernel_that_cannot_start_is_a_death_at_the_first_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(
        kernel, "ARGV", [sys.executable, "-c", "import no_such_module", "{connection_file}"]
    )
    with pytest.raises(RunFault) as caught:
        engine.execute(NOTEBOOKS / "needs_no_verdict.ipynb", tmp_path / "n.ipynb")
    assert caught.value.state == "died"
    assert caught.value.cause.startswith(
        "the kernel ended by itself with exit status 1; before cell 0"
    )
    assert "No module named 'no_such_module'" in caught.value.last_words
    nb = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert [c.metadata.papermill.status for c in nb.cells if c.cell_type == "code"] == [F, P]


def test_a_kernel_that_cannot_be_waited_for_is_not_waited_for_without_end(tmp_path, monkeypatch):
    """As for a process that waits inside a driver: it never reads as ended, and no signal ends it."""

    async def never(*args, **kwargs):
        return None

    for name in ("poll", "kill", "terminate", "send_signal"):
        monkeypatch.setattr(client.LocalProvisioner, name, never)
    monkeypatch.setattr(client, "STOP_S", 0.2)
    sweep = kernel.sweep
    monkeypatch.setattr(
        kernel, "sweep", lambda mark, adopted: (sweep(mark, adopted)[1], ["python (4711)"])
    )
    with pytest.raises(RunFault) as caught:
        engine.execute(NOTEBOOKS / "loops_for_ever.ipynb", tmp_path / "n.ipynb", cell_s=1)
    assert caught.value.state == "stuck"
    assert (
        caught.value.cause
        == "passed the limit of 1 s of cell 2 (while True:); SIGKILL does not end python (4711)"
    )


STOPPED = """
import sys
from pathlib import Path
from helpers.run.client import RunFault
from helpers.run.engine import execute
try:
    execute(Path(sys.argv[1]), Path(sys.argv[2]) / "n.ipynb", cell_s=60, on_cell=lambda i, n: print(i, flush=True))
except RunFault as fault:
    print(fault.state, fault.signal, fault.cell, fault.cause, sep="|")
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [("loops_for_ever", signal.SIGINT), ("ignores_sigint_and_sigterm", signal.SIGTERM)],
)
def test_an_interrupt_to_us_stops_the_cell_and_says_so(tmp_path, name, number):
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(NOTEBOOKS / f"{name}.ipynb"), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.stdout.readline().strip() != "2":
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out.startswith(f"interrupted|{number.name}|2|interrupted by {number.name}")
    nb = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert [c.metadata.papermill.status for c in nb.cells if c.cell_type == "code"] == [C, C, F, P]


def test_no_other_kernel_startup_file_or_startup_variable_gets_in(tmp_path, monkeypatch):
    home = tmp_path / "home"
    spec = home / ".local/share/jupyter/kernels/python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"})
    )
    startup = home / ".ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "0.py").write_text("raise SystemExit('startup ran')\n")
    (home / "start.py").write_text("print('start.py ran')\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONSTARTUP", str(home / "start.py"))
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("JUPYTER_PATH", str(home / ".local/share/jupyter"))
    nb, left = engine.execute(NOTEBOOKS / "needs_no_verdict.ipynb", tmp_path / "n.ipynb")
    assert left == ()
    assert [output.text for cell in nb.cells for output in cell.outputs] == ["before\n", "after\n"]


def test_a_long_folder_for_temporary_files_still_gives_short_sockets(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(kernel.tempfile, "tempdir", str(long))
    folder = kernel.short_folder("0123456789abcdef")
    assert len(os.fsencode(folder / "k-ipc-5")) < 107
    kernel.clear_sockets("0123456789abcdef")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("returncode", "before", "now", "words", "said"),
    [
        (-9, 0, 1, "", "killed by SIGKILL; the cgroup counted 1 OOM kill"),
        (-9, 3, 5, "", "killed by SIGKILL; the cgroup counted 2 OOM kills"),
        (-9, 3, 3, "", "killed by SIGKILL; cause unknown"),
        (-9, 3, 3, "words", "killed by SIGKILL; cause unknown"),
        (-9, None, None, "", "killed by SIGKILL; cause unknown; no OOM counter can be read here"),
        (-11, 0, 0, "", "killed by SIGSEGV; cause unknown; it left no last words"),
        (-6, None, None, "words", "killed by SIGABRT; see its last words"),
        (-6, 0, 1, "words", "killed by SIGABRT; the cgroup counted 1 OOM kill"),
        (1, 0, 1, "", "ended by itself with exit status 1"),
    ],
)
def test_a_death_is_explained_only_by_what_proves_it(returncode, before, now, words, said):
    assert kernel.how_it_ended(returncode, before, now, words)[0] == said


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "expected"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "low 0\nmax 4\noom 1\noom_kill 1\n", 1),
        ("0::/host/path\n", "sys/fs/cgroup/memory.events", "oom_kill 7\n", 7),
        (
            "4:memory:/x\n0::/\n",
            "sys/fs/cgroup/memory/x/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            2,
        ),
        ("4:cpu,memory:/x\n", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 0\n", 0),
        ("0::/\n", "sys/fs/cgroup/memory.events", "nonsense", None),
        ("0::/\n", "elsewhere", "oom_kill 1\n", None),
        ("", "elsewhere", "", None),
    ],
)
def test_oom_kills_are_read_in_every_layout_of_cgroups(tmp_path, cgroup, file, text, expected):
    for name, content in (("proc/self/cgroup", cgroup), (file, text)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert kernel.oom_kills(tmp_path) == expected


def test_oom_kills_without_proc_are_unknown_not_zero(tmp_path):
    assert kernel.oom_kills(tmp_path) is None


def test_the_engine_leaves_papermills_own_files_as_they_are():
    code = (
        "from papermill.iorw import papermill_io\n"
        "before = [papermill_io.get_handler(path) for path in ('/tmp/a.ipynb', 'a.ipynb')]\n"
        "import helpers.run.engine\n"
        "assert before == [papermill_io.get_handler(path) for path in ('/tmp/a.ipynb', 'a.ipynb')]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_notebook_is_replaced_and_never_written_over_in_place(tmp_path):
    out, other = tmp_path / "notebook.ipynb", tmp_path / "other-name.ipynb"
    out.write_text("before")
    other.hardlink_to(out)
    nb, _ = engine.execute(NOTEBOOKS / "answers_with_a_figure.ipynb", out, cell_s=30)
    assert other.read_text() == "before"
    saved = nbformat.read(out, as_version=4)
    assert saved.metadata.papermill.output_path == nb.metadata.papermill.output_path == str(out)
