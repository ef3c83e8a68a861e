"""Decides whether a resumed batch repeats a run, and at which cell that goes on.

A notebook whose metadata says ``casebook: {"resumes": true}`` goes on at its first cell that did
not finish. Finished cells that only show names keep their outputs and are not executed again. Those
that bind a name or call something are executed again, because their effects are not known. The
notebook gets the same box, which is a bundle in the batch's folder, and the records of the trials
that finished, from the run's folder. All of this is JSON that is checked as it is read; no object
of a kernel is stored.
"""

from __future__ import annotations

import ast
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import __version__
from helpers.look.files import boot_id

from .kernel_process import kills_since
from .notebook_file import NotebookError, open_notebook
from .record import EARLIER, RecordUnreadable, read_run
from .shapes import Run

if TYPE_CHECKING:
    from nbformat import NotebookNode

NEVER_RAN = ("interrupt", "limit", "quarantine", "disk", "box")
"""What stopped a skipped run that a resumed batch tries; a run by a stop rule, or with an
unreadable record, stays skipped.
"""
FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
"""Signals that another process sends to a kernel; others come from a fault of its own."""
NOTEBOOK = "notebook.ipynb"
"""The executed notebook, in the run's folder."""
TRIALS = "trials"
"""The folder of the records of a run's trials, in the run's folder."""
ACTS = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
"""Expressions that may do more than show a value."""


def attempt_on_resume(run: Run, ooms: int | None, resumes: bool = False) -> int:
    """The number of the attempt at a run that a resumed batch makes by itself; 0 for none.

    A run that never started keeps its number. One that the user interrupted is tried again. One
    that died because its batch ended is tried again once, and so is one that ``resumes`` at its
    cell and whose kernel was killed from outside. A run that may have run out of memory is not:
    ``ooms``, the OOM kills counted by now, must not have risen since it started.
    """
    if run.state == "skipped" and run.stopped_by in NEVER_RAN:
        return run.attempt
    if run.state == "failed" and run.stopped_by == "interrupt":
        return run.attempt + 1
    if run.state != "died" or run.strikes > 1:
        # more than one strike: tried again before
        return 0
    oom_kills = None  # not known: after a reboot the count starts at 0
    if run.boot_id == boot_id():
        oom_kills = kills_since(run.ooms_before, ooms)
    if oom_kills:
        return 0
    # If the count is not known, the kernel may have been killed for its memory.
    was_killed = resumes and oom_kills == 0 and run.signal in FROM_OUTSIDE
    if was_killed or run.stopped_by == "batch_end":
        return run.attempt + 1
    return 0


def earlier_attempt(folder: Path, run: Run) -> Path | None:
    """The folder of the attempt before this one, if it can be continued, else None: it has no
    answer, and ran under this boot of this machine with this version of the project.
    """
    past = folder / EARLIER / str(run.attempt - 1)
    with suppress(RecordUnreadable):
        before = read_run(past / "run.json")
        is_alike = before.boot_id == boot_id() and before.tool_version == __version__
        if is_alike and before.state != "answered" and (past / NOTEBOOK).is_file():
            return past
    return None


def earlier_box(past: Path, batch: Path) -> str:
    """The path of the bundle that an earlier attempt got as its box; empty if that is not in the
    batch's folder any more.
    """
    with suppress(NotebookError):
        of_papermill = open_notebook(past / NOTEBOOK).metadata.get("papermill", {})
        parameters = of_papermill.get("parameters", {})
        box = Path(str(parameters.get("box", "")))
        if box.parent == batch.resolve() and box.exists():
            return str(box)
    return ""


def finished_outputs(
    past: Path, notebook: NotebookNode
) -> dict[int, list[NotebookNode]]:
    """The outputs of cells that an earlier attempt finished and that are not executed again, by the
    cell's index in the notebook.

    They end at the first cell that differs, which may be that of the parameters: later outputs
    depend on it.
    """
    before = open_notebook(past / NOTEBOOK)
    past_cells = [cell for cell in before.cells if cell.cell_type == "code"]
    cells = [
        (at, cell) for at, cell in enumerate(notebook.cells) if cell.cell_type == "code"
    ]
    outputs: dict[int, list[NotebookNode]] = {}
    for (at, cell), past_cell in zip(cells, past_cells, strict=False):
        status = past_cell.metadata.get("papermill", {}).get("status")
        if cell.source != past_cell.source or status != "completed":
            break
        if past_cell.outputs and _only_looks(cell.source):
            outputs[at] = past_cell.outputs
    return outputs


def _only_looks(source: str) -> bool:
    """Whether a cell binds no name and calls nothing, so that its outputs are its only effect."""
    with suppress(SyntaxError):  # an IPython magic, which may do anything
        tree = ast.parse(source)
        acts = any(isinstance(node, ACTS) for node in ast.walk(tree))
        return not acts and all(isinstance(node, ast.Expr) for node in tree.body)
    return False


def carry_trials_over(past: Path, folder: Path) -> None:
    """Copy the records of the trials that an earlier attempt finished into the run's folder, where
    the new attempt looks for them. Raises OSError.
    """
    if (past / TRIALS).is_dir():
        shutil.copytree(past / TRIALS, folder / TRIALS, dirs_exist_ok=True)
