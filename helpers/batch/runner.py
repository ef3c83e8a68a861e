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
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import kernel_process, notebook_file
from .record import files_below, in_words, move, now, read_run, write_run
from .resumption import NOTEBOOK, carry_trials_over
from .shapes import Run
from .watched import Job

BEAT_S = 1.0
LAST_WORDS = 2000
LOST = ("died", "rebooted", "node_lost")
"""How a run ends whose runner or machine was taken away from under it."""

_where = [0, 0]
_speaking = threading.Lock()


def main(argv: list[str]) -> int:
    """``--one FOLDER``: run the started run in FOLDER, with the job on standard input."""
    if len(argv) != 2 or argv[0] != "--one":
        expected = "expected --one FOLDER, and the job on standard input"
        print(f"seen other arguments; {expected}", file=sys.stderr)
        return 2
    job = json.loads(sys.stdin.read())
    kernel_process.die_with_parent(signal.SIGTERM, job["parent"])
    kernel_process.adopt_orphans()
    os.set_blocking(
        1, False
    )  # a batch that is stopped does not listen, and must not hold us up
    threading.Thread(target=_beat, daemon=True).start()
    folder = Path(argv[1])
    run = execute_run(folder, job)
    # The batch's thread that started us may have ended; the batch itself may take a moment longer.
    was_stopped = run.stopped_by == "interrupt" and run.signal == "SIGTERM"
    deadline = time.monotonic() + (1.0 if was_stopped else 0.0)
    while os.getppid() == job["parent"] and time.monotonic() < deadline:
        time.sleep(0.02)
    if os.getppid() == job["parent"]:
        try:
            write_run(folder, run)
        except OSError:
            os.set_blocking(1, True)
            _say(
                run.model_dump_json()
            )  # who started us keeps it, and writes it when there is room
    return 0


def execute_run(folder: Path, job: Job) -> Run:
    """Execute the notebook of a started run and return its record with its answer, or with what
    stopped it.
    """
    began = time.monotonic()
    changes: dict[str, Any] = {}
    earlier = Path(job["earlier"]) if job.get("earlier") else None
    state = "answered"
    cause = ""
    try:
        with notebook_file.without(
            "pyarrow"
        ):  # papermill imports it for HDFS alone: 0.1 s
            from .papermill_engine import execute

        if earlier:
            carry_trials_over(earlier, folder)
        done = execute(
            Path(job["source"]),
            folder / NOTEBOOK,
            job["parameters"],
            cell_s=job["cell_s"],
            run_s=job["run_s"],
            mark=job["mark"],
            adopted=True,
            earlier=earlier,
            on_cell=_say_cell,
        )
        changes["left_behind"] = list(done.left_behind)
        changes["notes"] = done.notes
        fault = done.fault
        if fault:
            state = fault.state
            cause = fault.cause
            if state == "interrupted":
                state = "failed"
                changes["stopped_by"] = "interrupt"
            changes.update(signal=fault.signal, failing_cell=fault.cell)
            changes["last_words"] = fault.last_words[-LAST_WORDS:]
    except Exception as error:  # noqa: BLE001  whatever breaks here is this run's record, not the batch's end
        traceback.print_exc()
        state = "failed"
        cause = f"its runner broke: {in_words(error)}"
    answer, why_not = read_back(folder)
    if state == "answered" and why_not:
        state = "failed"
        cause = why_not
    changes.update(
        answer, files=files_below(folder), seconds=round(time.monotonic() - began, 2)
    )
    run = read_run(folder / "run.json")
    return move(run, state, cause=cause, ended_at=now(), **changes)


def read_back(folder: Path) -> tuple[dict[str, Any], str]:
    """What an executed notebook holds, also one that stopped half way, and why that is no answer.

    Raises NotebookError.
    """
    if not (folder / NOTEBOOK).exists():
        return {}, "no notebook was written"
    nb = notebook_file.open_notebook(folder / NOTEBOOK)
    answer: dict[str, Any] = {"cells": notebook_file.cell_counts(nb)}
    try:
        answer["verdict"] = notebook_file.verdict_of(nb)
    except notebook_file.VerdictError as error:
        return answer, str(error)
    if answer["verdict"] is None and notebook_file.needs_verdict(nb):
        advice = 'one that answers by its end has casebook: {"verdict": false} in its metadata'
        return answer, f"ended without a verdict; {advice}"
    if answer["cells"].keys() <= {"completed"}:
        return answer, ""
    return answer, "ended before its last cell"


def salvaged(folder: Path) -> tuple[dict[str, Any], str]:
    """What lies in the folder of a run that did not write its record, as fields of it, and why
    that is no answer.
    """
    with suppress(notebook_file.NotebookError, OSError):
        answer, why_not = read_back(folder)
        return {**answer, "files": files_below(folder)}, why_not
    return {}, "no notebook that can be read"


def closed(folder: Path, run: Run, state: str, cause: str, **changes: Any) -> Run:
    """The record of a run that wrote none itself: what it came to, seen from outside.

    A notebook that was saved whole is an answer, whoever was killed behind it.
    """
    answer, why_not = salvaged(folder)
    changes = {"ended_at": now(), **answer, **changes}
    if why_not or state not in LOST:
        return move(run, state, cause=cause, **changes)
    note = f"{cause}, before its record was written; its notebook was saved whole"
    notes = [*changes.pop("notes", run.notes), note]
    return move(
        run, "answered", **{**changes, "notes": notes, "signal": "", "stopped_by": ""}
    )


def _say_cell(cell: int, cells: int) -> None:
    _where[:] = cell + 1, cells
    _say(json.dumps(_where))


def _beat() -> None:
    """A word each second, also while a cell runs: a runner that says none has been stopped or
    hangs itself.
    """
    while True:
        _say(json.dumps(_where))
        time.sleep(BEAT_S)


def _say(line: str) -> None:
    """By os.write: a thread that ends within print would take the stream's lock with it."""
    with _speaking, suppress(OSError):  # nobody listens, or its pipe is full
        text = line.encode() + b"\n"
        while text:
            text = text[os.write(1, text) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
