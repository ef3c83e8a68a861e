"""The runner, which is the process of one run: it executes the notebook and completes the record.

``main`` reads its job as JSON from stdin, and writes each second to stdout which cell is running
(``watched`` reads it). If the batch that started it ends, the runner ends its kernel and itself,
and the record stays ``started``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from . import kernel_process, notebook_file
from .execution import Execution
from .record import files_below, in_words, move, now, read_run, write_run
from .resumption import NOTEBOOK, carry_trials_over
from .shapes import Run
from .watched import Job

BEAT_S = 1.0
"""Seconds between two reports; ``watched.SILENT_S`` is thirty times as long."""
END_OF_BATCH_S = 1.0
"""Time for a process to end after the thread that started this one."""
PARENT_LOOK_S = 0.02
LAST_WORDS = 2000
"""Characters of a kernel's last words that a record keeps: the end of a long traceback."""
LOST = ("died", "rebooted", "node_lost")
"""States of a run whose runner or machine ended before the record was written."""
STDOUT = 1

_where = [0, 0]
"""What is reported: (the cell that is running, counted from 1, and how many there are); 0 of 0
while the kernel starts.
"""
_speaking = threading.Lock()


def main(folder: Path) -> None:
    """Execute the run in ``folder``, whose record says "started" already.

    Unless the batch has ended, writes its record; if the disk refuses it, sends it to the batch,
    which writes it when there is room.
    """
    job = json.loads(sys.stdin.read())
    kernel_process.die_with_parent(signal.SIGTERM, job["parent"])
    kernel_process.adopt_orphans()
    # A suspended batch (Ctrl-Z) does not read; a report that finds the pipe full is dropped.
    os.set_blocking(STDOUT, False)
    threading.Thread(target=_beat, daemon=True).start()
    run = execute_run(folder, job)
    if _is_batch_there(run, job["parent"]):
        try:
            write_run(folder, run)
        except OSError:
            os.set_blocking(STDOUT, True)  # the record must not be dropped
            _say(run.model_dump_json())


def _is_batch_there(run: Run, batch: int) -> bool:
    """Whether ``batch``, the process that started this one, is still its parent.

    SIGTERM may mean that the thread of the batch that started this process has ended
    (``die_with_parent``); the batch itself may take a moment longer to end, and is waited for.
    """
    if run.stopped_by == "interrupt" and run.signal == "SIGTERM":
        deadline = time.monotonic() + END_OF_BATCH_S
        while os.getppid() == batch and time.monotonic() < deadline:
            time.sleep(PARENT_LOOK_S)
    return os.getppid() == batch


def execute_run(folder: Path, job: Job) -> Run:
    """Execute the notebook of a started run and return its record, with its answer or its fault."""
    began = time.monotonic()
    state = "answered"
    cause = ""
    changes: dict[str, object] = {}
    try:
        execution = _executed(folder, job)
        changes.update(left_behind=execution.left_behind, notes=execution.notes)
        fault = execution.fault
        if fault:
            state = fault.state
            cause = fault.cause
            changes.update(signal=fault.signal, failing_cell=fault.cell)
            changes["last_words"] = fault.last_words[-LAST_WORDS:]
    except Exception as error:  # noqa: BLE001  whatever breaks here is this run's record, not the batch's end
        traceback.print_exc()
        state = "failed"
        cause = f"its runner broke: {in_words(error)}"
    if state == "interrupted":  # records have no such state: shapes.State
        state = "failed"
        changes["stopped_by"] = "interrupt"
    answer, why_not = read_back(folder)
    if state == "answered" and why_not:
        state = "failed"
        cause = why_not
    changes.update(answer)
    changes["files"] = files_below(folder)
    changes["seconds"] = round(time.monotonic() - began, 2)
    run = read_run(folder / "run.json")
    return move(run, state, cause=cause, ended_at=now(), **changes)


def _executed(folder: Path, job: Job) -> Execution:
    """Execute the notebook of a job in this folder; the result is in what this returns."""
    # Imported here, so that a package that is missing is the fault of the run, and recorded.
    from .execute import execute

    earlier = None
    if job["earlier"]:
        earlier = Path(job["earlier"])
        carry_trials_over(earlier, folder)
    execution = Execution(
        folder / NOTEBOOK,
        cell_s=job["cell_s"],
        run_s=job["run_s"],
        mark=job["mark"],
        adopted=True,
        earlier=earlier,
        on_cell=_say_cell,
    )
    execute(Path(job["source"]), execution, job["parameters"])
    return execution


def read_back(folder: Path) -> tuple[dict[str, object], str]:
    """Read the executed notebook in a run's folder: (fields of the record, also if the notebook
    stopped half way; why they are no answer, or empty).

    They are no answer if there is no notebook, if it emitted a verdict that is none, or none where
    it must, or if a cell did not complete. Raises NotebookError for a broken notebook.
    """
    if not (folder / NOTEBOOK).exists():
        return {}, "no notebook was written"
    nb = notebook_file.open_notebook(folder / NOTEBOOK)
    cells = notebook_file.cell_counts(nb)
    try:
        verdict = notebook_file.verdict_of(nb)
    except notebook_file.VerdictError as error:
        return {"cells": cells}, str(error)
    answer: dict[str, object] = {"cells": cells, "verdict": verdict}
    if verdict is None and notebook_file.needs_verdict(nb):
        advice = 'one that answers by its end has casebook: {"verdict": false} in its metadata'
        return answer, f"ended without a verdict; {advice}"
    if cells.keys() <= {"completed"}:
        return answer, ""
    return answer, "ended before its last cell"


def closed(
    folder: Path,
    run: Run,
    state: str,
    cause: str,
    *,
    notes: Sequence[str] | None = None,
    **changes: object,
) -> Run:
    """The record of a run whose runner could not write it, with the state and cause seen from
    outside.

    If the notebook was saved whole before the runner was lost, the run has answered nevertheless.
    ``notes`` replace those of the run.
    """
    if notes is None:
        notes = run.notes
    answer: dict[str, object] = {}
    why_not = "no notebook that can be read"
    with suppress(notebook_file.NotebookError, OSError):
        answer, why_not = read_back(folder)
        answer["files"] = files_below(folder)
    if state in LOST and not why_not:
        state = "answered"
        note = f"{cause}, before its record was written; its notebook was saved whole"
        notes = [*notes, note]
        cause = ""
        changes.update(signal="", stopped_by="")
    changes = {"ended_at": now(), **answer, **changes}
    return move(run, state, cause=cause, notes=list(notes), **changes)


def _say_cell(cell: int, cells: int) -> None:
    """Report that the cell with this index begins; there are ``cells`` of them."""
    _where[:] = cell + 1, cells
    _say(json.dumps(_where))


def _beat() -> None:
    """Report each second, also while a cell runs: a runner without reports is hung or suspended."""
    while True:
        _say(json.dumps(_where))
        time.sleep(BEAT_S)


def _say(line: str) -> None:
    """Write a line to stdout with os.write: a daemon thread that ends within print would keep the
    stream locked.
    """
    with _speaking, suppress(OSError):  # the batch is gone, or the pipe is full
        text = line.encode() + b"\n"
        while text:
            written = os.write(STDOUT, text)
            text = text[written:]


if __name__ == "__main__":
    main(Path(sys.argv[2]))  # --one FOLDER: one_run._started_runner
