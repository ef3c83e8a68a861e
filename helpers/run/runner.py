"""The process of one run: executes its notebook, reads the answer out of it and completes run.json.

Told what to do by a line of JSON on its standard input; says on its standard output, each second, which cell is running. It
ends when the batch that started it ends, and takes the kernel with it; then the record stays as it is, ``started``.
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

from . import kernel
from .notebook import (
    VerdictError,
    cell_counts,
    needs_verdict,
    open_notebook,
    reached_end,
    save_figures,
    verdict_of,
    without,
)
from .record import files_below, move, now, read_run, write_run
from .shapes import Run

NOTEBOOK = "notebook.ipynb"
LAST_WORDS = 2000
BEAT_S = 1.0
_telling = threading.Lock()


def main(argv: list[str]) -> int:
    """``--one FOLDER``: run the planned run in FOLDER, as told on standard input."""
    if len(argv) != 2 or argv[0] != "--one":
        print(
            "seen other arguments; expected --one FOLDER, and the job on standard input",
            file=sys.stderr,
        )
        return 2
    job = json.loads(sys.stdin.read())
    kernel.die_with_parent(signal.SIGTERM, job["parent"])
    kernel.adopt_orphans()
    os.set_blocking(1, False)
    threading.Thread(target=_beat, daemon=True).start()
    folder = Path(argv[1])
    run = one(folder, job)
    until = time.monotonic() + (run.stopped_by == "interrupt" and run.signal == "SIGTERM")
    while os.getppid() == job["parent"] and time.monotonic() < until:
        time.sleep(
            0.02
        )  # the batch's thread that started us has ended; the batch itself may take a moment longer
    if os.getppid() == job["parent"]:
        try:
            write_run(folder, run)
        except OSError:
            os.set_blocking(1, True)
            _tell(
                run.model_dump_json()
            )  # whoever started us keeps it, and writes it when there is room
    return 0


def one(folder: Path, job: dict[str, Any]) -> Run:
    """Execute the notebook of a started run and return its record with what it said, or with what stopped it."""
    began = time.monotonic()
    changes: dict[str, Any] = {}
    state, cause = "answered", ""
    try:
        with without("pyarrow"):  # papermill imports it for HDFS alone: 0.1 s
            from .client import RunFault
            from .engine import execute

        try:
            _, left_behind = execute(
                Path(job["source"]),
                folder / NOTEBOOK,
                job["parameters"],
                cell_s=job["cell_s"],
                run_s=job["run_s"],
                mark=job["mark"],
                adopted=True,
                on_cell=_say,
            )
        except RunFault as fault:
            state, cause = "failed" if fault.state == "interrupted" else fault.state, fault.cause
            changes.update(
                signal=fault.signal,
                failing_cell=fault.cell,
                last_words=fault.last_words[-LAST_WORDS:],
                stopped_by="interrupt" if fault.state == "interrupted" else "",
            )
            left_behind = fault.left_behind
        changes["left_behind"] = list(left_behind)
    except Exception as error:  # noqa: BLE001  whatever breaks here is this run's record, not the batch's end
        traceback.print_exc()
        state, cause = (
            "failed",
            f"its runner broke: {type(error).__name__}: {error}".splitlines()[0],
        )
    answer, why_not = read_back(folder)
    changes.update(answer)
    if state == "answered" and why_not:
        state, cause = "failed", why_not
    return move(
        read_run(folder / "run.json"),
        state,
        cause=cause,
        ended_at=now(),
        files=files_below(folder),
        seconds=round(time.monotonic() - began, 2),
        **changes,
    )


def read_back(folder: Path) -> tuple[dict[str, Any], str]:
    """What an executed notebook holds, also one that stopped half way, and why that is no answer."""
    if not (folder / NOTEBOOK).exists():
        return {}, "no notebook was written"
    nb = open_notebook(folder / NOTEBOOK)
    found: dict[str, Any] = {"cells": cell_counts(nb)}
    try:
        found["figures"] = save_figures(nb, folder)
        found["verdict"] = verdict_of(nb)
    except VerdictError as error:
        return found, str(error)
    except OSError as error:
        return found, f"its figures cannot be written: {error.strerror}"
    if found["verdict"] is None and needs_verdict(nb):
        return found, "ended without a verdict"
    return found, "" if reached_end(nb) else "ended before its last cell"


_where = [0, 0]


def _say(cell: int, cells: int) -> None:
    _where[:] = cell + 1, cells
    _tell(json.dumps(_where))


def _beat() -> None:
    """A word each second, also while a cell runs: a runner that says none has been stopped or hangs itself."""
    while True:
        _tell(json.dumps(_where))
        time.sleep(BEAT_S)


def _tell(line: str) -> None:
    with _telling, suppress(OSError):  # nobody listens, or its pipe is full
        text = line.encode() + b"\n"
        while (
            text
        ):  # by os.write: a thread that ends within print would take the stream's lock with it
            text = text[os.write(1, text) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
