"""A resumed run goes on at the first cell that did not finish, and what finished is read again and not made twice."""

import json
import os
import pickle
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from run_stand_in import NOTEBOOKS, go, plan, planned
from trial_records import record as trial_record

from helpers.batch import journal, kernel_process, resumption
from helpers.batch.journal import Journal
from helpers.batch.one_run import run_one
from helpers.batch.plan import load_plan
from helpers.batch.record import boot_id, read_batch, read_run, write_run
from helpers.batch.resumption import attempt_on_resume, earlier_attempt, earlier_box
from helpers.trials.record import read_trials

CELLS = """\
log: str = ""
tests: str = ""
--
import sys
sys.path.append(tests)
from trials_stand_in import said, tried
said(log, "bound")
--
said(log, "called")
--
log[:0]
--
ran = tried(log)
--
ran.before, len(ran.records)"""


def notebook(resumes=True, cells=CELLS):
    """A notebook that is killed in its fifth cell, in the third trial, where that is the first life of its log."""
    about = {"safety": "looks", "verdict": False, "resumes": resumes}
    made = new_notebook(metadata={"casebook": about})
    made.cells = [new_code_cell(source) for source in cells.split("\n--\n")]
    made.cells[0].metadata["tags"] = ["parameters"]
    return made


def killed_night(folder, **about):
    """A batch of that one notebook, whose kernel was killed: its plan, its folder, its log."""
    nbformat.write(notebook(**about), folder / "killed.ipynb")
    log = folder / "log"
    parameters = json.dumps({"log": str(log), "tests": str(NOTEBOOKS.parent)})
    path = plan(folder, f"- {{notebook: killed.ipynb, parameters: {parameters}}}")
    result = go(path, run_one)
    assert (result.runs[0].state, result.runs[0].signal) == ("died", "SIGKILL")
    return path, result.folder, log


def lines(log):
    return log.read_text().splitlines()


def values(run_folder):
    """What the cells of an executed notebook gave, in order."""
    outputs = [cell.outputs for cell in nbformat.read(run_folder / "notebook.ipynb", 4).cells]
    return [output.data["text/plain"] for cell in outputs for output in cell]


@pytest.fixture
def counted(monkeypatch):
    """A machine whose kernel counts the processes that it ended for want of memory."""
    monkeypatch.setattr(kernel_process, "oom_kills", lambda: 0)


def test_a_kernel_killed_in_the_third_trial_goes_on_with_it_and_makes_no_finished_trial_twice(
    tmp_path, counted
):
    path, batch, log = killed_night(tmp_path)
    first = lines(log)
    assert first[:2] == ["bound", "called"] and len(first) == 5
    run = go(path, run_one, resume=batch).runs[0]
    assert (run.state, run.attempt) == ("answered", 2)
    assert run.notes == ["went on where attempt 1 stopped; outputs of cells kept: 1"]
    again = lines(log)[5:]
    assert again[:2] == ["bound", "called"], "what a call did outside of the notebook is done again"
    trials = [line for line in lines(log) if line.startswith("trial")]
    assert len(trials) == 7 and again[2] == first[4], "it goes on with the trial that was cut off"
    assert len({*trials}) == 6
    assert values(batch / run.run_id) == ["'bound'", "'called'", "''", "(2, 6)"]
    assert go(path, run_one, resume=batch).runs[0] == run


def test_a_notebook_that_does_not_say_so_is_not_repeated_and_by_hand_begins_anew(tmp_path, counted):
    path, batch, log = killed_night(tmp_path, resumes=False)
    assert go(path, run_one, resume=batch).runs[0].state == "died"
    run_id = read_batch(batch).runs[0].run_id
    run = go(path, run_one, resume=batch, again=[run_id]).runs[0]
    assert (run.state, run.notes) == ("answered", [])
    assert lines(log)[5:7] == ["bound", "called"] and len(lines(log)) == 5 + 2 + 6


@pytest.mark.parametrize(
    ("about", "ooms", "attempt"),
    [
        ({}, 3, 2),
        ({"signal": "SIGTERM"}, 3, 2),
        ({}, 4, 0),
        ({}, None, 0),
        ({"ooms_before": None}, 3, 0),
        ({"boot_id": "another"}, 3, 0),
        ({"signal": "SIGSEGV"}, 3, 0),
        ({"signal": ""}, 3, 0),
        ({"strikes": 2}, 3, 0),
        ({"state": "timed_out"}, 3, 0),
    ],
)
def test_only_a_kernel_that_somebody_killed_is_started_again_by_itself_and_once(
    tmp_path, about, ooms, attempt
):
    died = {"state": "died", "signal": "SIGKILL", "strikes": 1, "ooms_before": 3}
    run = planned(tmp_path, boot_id=boot_id()).model_copy(update={**died, **about})
    if "boot_id" not in about:
        run = run.model_copy(update={"boot_id": boot_id()})
    assert attempt_on_resume(run, ooms, resumes=True) == attempt
    assert attempt_on_resume(run, ooms) == 0


def earlier(
    folder, cells=CELLS, statuses="completed completed completed completed failed pending", **about
):
    """A run at its second attempt, with what its first one left."""
    run = planned(folder, attempt=2)
    past = folder / run.run_id / "earlier" / "1"
    past.mkdir(parents=True)
    left = {
        "attempt": 1,
        "state": "died",
        "boot_id": boot_id(),
        "tool_version": resumption.__version__,
    }
    write_run(past, run.model_copy(update={**left, **about}))
    book = notebook(cells=cells)
    for cell, status in zip(book.cells, statuses.split(), strict=True):
        cell.metadata["papermill"] = {"status": status}
        cell.outputs = [nbformat.v4.new_output("stream", text=f"{status} before")]
    nbformat.write(book, past / "notebook.ipynb")
    return run, past


@pytest.mark.parametrize(
    "about", [{"boot_id": "another"}, {"tool_version": "0.0.1"}, {"state": "answered"}]
)
def test_after_a_reboot_an_update_or_an_answer_a_run_begins_anew(tmp_path, about):
    run, past = earlier(tmp_path / "alike")
    assert earlier_attempt(tmp_path / "alike" / run.run_id, run) == past
    run, past = earlier(tmp_path / "other", **about)
    assert earlier_attempt(tmp_path / "other" / run.run_id, run) is None
    (past / "run.json").write_text("{")
    assert earlier_attempt(tmp_path / "other" / run.run_id, run) is None


@pytest.mark.parametrize(
    ("cells", "statuses", "kept"),
    [
        (CELLS, "completed completed completed completed failed pending", {3}),
        (CELLS, "completed completed completed completed completed running", {3}),
        (CELLS, "completed completed completed running pending pending", set()),
        (
            CELLS.replace('"bound"', '"other"'),
            "completed completed completed completed failed pending",
            set(),
        ),
        (CELLS.replace('log: str = ""', 'log: str = "x"'), "completed " * 5 + "failed", set()),
        (CELLS.replace("log[:0]", "%time 1"), "completed " * 5 + "failed", set()),
    ],
)
def test_a_cell_keeps_its_outputs_where_all_before_it_is_the_same_and_finished(
    tmp_path, cells, statuses, kept
):
    _, past = earlier(tmp_path, cells, statuses)
    assert {*resumption.finished_outputs(past, notebook())} == kept
    longer = notebook(cells=f"{CELLS}\n--\nprint('added since')")
    assert {*resumption.finished_outputs(past, longer)} == kept


@pytest.mark.parametrize(
    ("source", "is_kept"),
    [
        ("table", True),
        ("table.rows[0], -table.total", True),
        ("[row.name for row in table.rows if row.total > 3]", True),
        ("items.append(4)", False),
        ("[items.append(row) for row in table.rows]", False),
        ("(total := 5)", False),
        ("await thing", False),
        ("f'{open(1)}'", False),
        ("import os", False),
        ("!rm x", False),
    ],
)
def test_a_cell_is_kept_only_where_its_outputs_are_all_that_it_left(tmp_path, source, is_kept):
    cells = f"first: int = 0\n--\n{source}\n--\nlast"
    _, past = earlier(tmp_path, cells, "completed completed failed")
    book = notebook(cells=cells)
    assert {*resumption.finished_outputs(past, book)} == ({1} if is_kept else set())
    left = nbformat.read(past / "notebook.ipynb", 4)
    left.cells[1].outputs = []
    nbformat.write(left, past / "notebook.ipynb")
    assert not resumption.finished_outputs(past, book), "nothing can be read back"


def test_a_run_that_a_person_wants_again_begins_at_its_start(tmp_path, counted):
    path, batch, log = killed_night(tmp_path)
    run_id = read_batch(batch).runs[0].run_id
    run = go(path, run_one, resume=batch, again=[run_id]).runs[0]
    assert (run.state, run.attempt, run.notes) == ("answered", 2, [])
    assert lines(log)[5:7] == ["bound", "called"] and len(lines(log)) == 5 + 2 + 6


@pytest.mark.parametrize("at", ["earlier", "planned"])
def test_a_run_wanted_again_begins_at_its_start_though_its_batch_is_killed_before_it(
    tmp_path, counted, monkeypatch, at
):
    path, batch, log = killed_night(tmp_path)
    run_id = read_batch(batch).runs[0].run_id

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr(journal, "again" if at == "earlier" else "attempt_on_resume", killed)
        with pytest.raises(KeyboardInterrupt):
            Journal.reopen(batch, load_plan(path), [run_id])
    run = go(path, run_one, resume=batch).runs[0]
    assert (run.state, run.attempt, run.notes) == ("answered", 2, [])
    assert lines(log)[5:7] == ["bound", "called"] and len(lines(log)) == 5 + 2 + 6
    assert go(path, run_one, resume=batch).runs[0] == run


def test_a_run_is_given_the_bundle_of_its_earlier_attempt_and_no_other_path(tmp_path):
    batch = tmp_path.resolve()
    _, past = earlier(batch)
    book = nbformat.read(past / "notebook.ipynb", 4)
    (batch / "box").mkdir()
    for box, given in ((batch / "box", True), (batch / "box-2", False), (Path("/etc"), False)):
        book.metadata["papermill"] = {"parameters": {"box": str(box)}}
        nbformat.write(book, past / "notebook.ipynb")
        assert earlier_box(past, batch) == (str(box) if given else "")
    (past / "notebook.ipynb").write_text("torn")
    assert earlier_box(past, batch) == ""


class Act:
    def __reduce__(self):
        return os._exit, (7,)


def test_what_is_no_record_of_a_trial_is_left_out_and_nothing_in_it_acts(tmp_path):
    whole = trial_record("churn", 0)
    texts = {
        "whole": whole.model_dump_json().encode(),
        "torn": whole.model_dump_json().encode()[:80],
        "more": whole.model_dump_json()[:-1].encode() + b', "extra": 1}',
        "typed": whole.model_dump_json().replace('"steps":4', '"steps":"many"').encode(),
        "pickle": pickle.dumps(Act()),
        "empty": b"",
    }
    for name, content in texts.items():
        (tmp_path / f"{name}.json").write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    assert read_trials(tmp_path) == [whole] and read_trials(tmp_path / "none") == []


@pytest.mark.slow
def test_notebook_05_goes_on_with_the_trial_in_which_its_kernel_was_killed(tmp_path, counted):
    rows = """- notebook: 05_fix_validation.ipynb
  box: live
  parameters: {remedies: [return-memory], repeats: 3, budget_s: 100}"""
    path = plan(tmp_path, rows, "gates: {settle_s: 0}")

    def capture(place):
        from helpers.commands.batch import _capture_into

        return _capture_into(place)

    def killer(folder, run, job, **options):
        import threading

        def kill():
            while len(list(folder.glob("trials/*.json"))) < 2:
                time.sleep(0.05)
            time.sleep(0.5)
            for pid in kernel_process.carrying(f"{kernel_process.MARK}={job['mark']}"):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"kernel_process" in words:
                    os.kill(pid, 9)

        threading.Thread(target=kill, daemon=True).start()
        return run_one(folder, run, job, **options)

    batch = go(path, killer, capture=capture).folder
    run = read_batch(batch).runs[0]
    folder = batch / run.run_id
    before = {path.name: path.read_bytes() for path in folder.glob("trials/*.json")}
    assert (run.state, len(before)) == ("died", 2)
    run = go(path, run_one, capture=capture, resume=batch).runs[0]
    after = {path.name: path.read_bytes() for path in folder.glob("trials/*.json")}
    assert run.state == "answered" and len(after) == 6 and before.items() <= after.items()
    text = (folder / "notebook.ipynb").read_text()
    assert "6 trials made here, 2 of them before this run was interrupted" in text
    assert read_run(folder / "earlier/1/run.json").state == "died"
