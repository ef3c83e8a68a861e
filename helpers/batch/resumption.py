"""Does a resumed batch repeat a run, and at which cell does it go on?

A notebook that says ``casebook: {"resumes": true}`` goes on at its first cell that did not finish. Of
the finished cells those that only look at names are not executed again: they keep their outputs.
Those that bind a name or call something are executed again: nobody knows what a call left in the
kernel or outside of it. The notebook is given the same box, which is a bundle in the batch's folder,
and the trials that finished, which are records in the run's folder. All of it is JSON that is checked
as it is read; no object of a kernel is stored.
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
FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
"""Signals that somebody else sent to a kernel; others are a fault of its own."""
NOTEBOOK = "notebook.ipynb"
TRIALS = "trials"
ACTS = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
"""What in an expression may leave more than a value."""


def attempt_on_resume(run: Run, ooms: int | None, resumes: bool = False) -> int:
    """The attempt at a run that a resumed batch makes by itself, or 0 where the run stays as it
    is.

    One that never started keeps its number. One that the user interrupted is tried again, and
    so is one whose batch ended while it ran, until that has happened twice; never where
    ``ooms``, the OOM kills by now, rose meanwhile. One that ``resumes`` at its cell is also tried
    again where its kernel was killed from outside and certainly not for want of memory.
    """
    if run.state == "skipped":
        return run.attempt if run.stopped_by in NEVER_RAN else 0
    if run.state == "failed" and run.stopped_by == "interrupt":
        return run.attempt + 1
    if run.state != "died" or run.strikes > 1:
        return 0
    oom_kills = None
    if run.boot_id == boot_id():
        oom_kills = kills_since(run.ooms_before, ooms)
    if oom_kills:
        return 0
    was_killed = resumes and oom_kills == 0 and run.signal in FROM_OUTSIDE
    if was_killed or run.stopped_by == "batch_end":
        return run.attempt + 1
    return 0


def earlier_attempt(folder: Path, run: Run) -> Path | None:
    """The folder of the attempt before this one, if it can be continued: it came to no answer, on
    this boot of this machine, with this version of the workbook.
    """
    past = folder / EARLIER / str(run.attempt - 1)
    with suppress(RecordUnreadable):
        before = read_run(past / "run.json")
        is_alike = before.boot_id == boot_id() and before.tool_version == __version__
        if is_alike and before.state != "answered" and (past / NOTEBOOK).is_file():
            return past
    return None


def earlier_box(past: Path, batch: Path) -> str:
    """The bundle that an earlier attempt was given, where it is one of its batch's folder."""
    with suppress(NotebookError):
        about = open_notebook(past / NOTEBOOK).metadata.get("papermill", {})
        box = Path(str(about.get("parameters", {}).get("box", "")))
        if box.parent == batch.resolve() and box.exists():
            return str(box)
    return ""


def finished_outputs(
    past: Path, notebook: NotebookNode
) -> dict[int, list[NotebookNode]]:
    """The outputs of those cells of a notebook that an earlier attempt finished and that need not
    be executed again, by their place in it.

    They end before the first cell or parameter that differs: later ones were computed from it.
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
    """Whether a cell binds no name and calls nothing, so that its outputs are all that it left."""
    with suppress(SyntaxError):  # a magic
        tree = ast.parse(source)
        acts = any(isinstance(node, ACTS) for node in ast.walk(tree))
        return not acts and all(isinstance(node, ast.Expr) for node in tree.body)
    return False


def carry_trials_over(past: Path, folder: Path) -> None:
    """Lay the records of the trials that an earlier attempt finished beside those to come.

    Raises OSError.
    """
    if (past / TRIALS).is_dir():
        shutil.copytree(past / TRIALS, folder / TRIALS, dirs_exist_ok=True)
