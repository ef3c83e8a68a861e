"""The process of one run: it executes the notebook and writes what came of it into the record.

``main`` gets its job as a line of JSON on standard input, and says on standard output, each
second, which cell is running. It ends when the batch that started it ends, and takes the kernel
with it; then the record stays as it is, ``started``.
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
END_OF_BATCH_S = 1.0
LAST_WORDS = 2000
LOST = ("died", "rebooted", "node_lost")
"""How a run ends whose runner or machine was taken away from under it."""

_where = [0, 0]
_speaking = threading.Lock()


def main(folder: Path) -> None:
    """``--one FOLDER``: run the started run in FOLDER, with the job on standard input.

    The words are also those by which its process is recognised (``journal._end_processes``).
    """
    job = json.loads(sys.stdin.read())
    kernel_process.die_with_parent(signal.SIGTERM, job["parent"])
    kernel_process.adopt_orphans()
    # A batch that is stopped does not listen, and must not hold us up.
    os.set_blocking(1, False)
    threading.Thread(target=_beat, daemon=True).start()
    run = execute_run(folder, job)
    if _is_batch_there(run, job["parent"]):
        try:
            write_run(folder, run)
        except OSError:
            # The batch keeps the record, and writes it when there is room.
            os.set_blocking(1, True)
            _say(run.model_dump_json())


def _is_batch_there(run: Run, batch: int) -> bool:
    """Whether the process of the batch that started this one still waits for the record.

    SIGTERM also says that its thread has ended (``die_with_parent``); the process itself may take
    a moment longer to end.
    """
    if run.stopped_by == "interrupt" and run.signal == "SIGTERM":
        deadline = time.monotonic() + END_OF_BATCH_S
        while os.getppid() == batch and time.monotonic() < deadline:
            time.sleep(0.02)
    return os.getppid() == batch


def execute_run(folder: Path, job: Job) -> Run:
    """Execute the notebook of a started run and return its record with its answer, or with what
    stopped it.
    """
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
    if state == "interrupted":
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
    """Execute the notebook of a job in this folder, and say what came of it."""
    from .execute import execute  # here: what it imports may fail, too

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
    """(fields of the record that an executed notebook fills, also one that stopped half way; why
    they are no answer, or nothing).

    Raises NotebookError.
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
    """The record of a run that wrote none itself: what it came to, seen from outside.

    A notebook that was saved whole is an answer, whatever was killed afterwards. ``notes`` take
    the place of those of the run.
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
    _where[:] = cell + 1, cells
    _say(json.dumps(_where))


def _beat() -> None:
    """Say each second where it stands, also while a cell runs: a runner that does not has been
    stopped or hangs itself.
    """
    while True:
        _say(json.dumps(_where))
        time.sleep(BEAT_S)


def _say(line: str) -> None:
    """Write a line to standard output.

    By os.write: a thread that ends within print would take the stream's lock with it.
    """
    with _speaking, suppress(OSError):  # nobody listens, or its pipe is full
        text = line.encode() + b"\n"
        while text:
            text = text[os.write(1, text) :]


if __name__ == "__main__":
    main(Path(sys.argv[2]))
