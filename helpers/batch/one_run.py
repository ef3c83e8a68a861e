"""One run of a batch: started in a process of its own, watched, and its record completed.

The process is spawned, never forked. Its record is on the disk before it starts, and says
afterwards what became of it, whatever that was.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from . import kernel_process
from .record import RecordUnreadable, boot_id, move, node, now, read_run, write_run
from .runner import LAST_WORDS, closed
from .shapes import Run
from .stop import Stop
from .watched import Job, Tick, Watched

LOG = "runner.log"


def mark_of(folder: Path, attempt: int) -> str:
    """The mark that the processes of a run carry in their environment: the same for whoever
    looks for them later.
    """
    return hashlib.sha256(f"{folder.resolve()} {attempt}".encode()).hexdigest()[:32]


def run_one(
    folder: Path,
    run: Run,
    job: Job,
    *,
    stop: Stop | None = None,
    tick: Tick | None = None,
) -> Run:
    """Run one planned run in a process of its own and return its record, whatever happens to
    that process.

    Call it from a thread that lives as long as the run: the runner ends with the thread that
    started it. A run whose start cannot be recorded is not started; what else cannot be
    recorded is in what this returns.
    """
    began = time.monotonic()
    start = {
        "boot_id": boot_id(),
        "node": node(),
        "started_at": now(),
        "ooms_before": kernel_process.oom_kills(),
    }
    run = run.model_copy(update=start)
    try:
        (folder / LOG).write_bytes(b"")
    except OSError as error:
        return not_started(run, error)
    try:
        process = _started_runner(folder)
    except OSError as error:
        why = f"its runner cannot start: {error.strerror}"
        return kept(
            folder, move(move(run, "started"), "failed", cause=why, ended_at=now())
        )
    watched = Watched(process, folder, job, stop or Stop(), began)
    started = move(run, "started", pid=process.pid)
    try:
        write_run(folder, started)
    except OSError as error:
        process.kill()
        process.wait()
        watched.close()
        return not_started(run, error)
    watched.give_job()
    watched.wait(tick)
    run = _completed(folder, started, watched)
    if run.stopped_by == "interrupt":
        run = _with_true_signal(run, watched.stop.signal)
    log = folder / LOG
    with suppress(OSError):
        if run.state == "answered" or not log.stat().st_size:
            log.unlink()
    with suppress(RecordUnreadable):
        if run == read_run(folder / "run.json"):
            return run
    return kept(folder, run)


def _with_true_signal(run: Run, signal: str) -> Run:
    """The record of an interrupted run with the signal that the batch was stopped by, or none.

    The runner is sent SIGINT in any case; without a signal to the batch it was not the user who
    interrupted the run.
    """
    if not signal:
        return run.model_copy(update={"stopped_by": ""})
    if run.signal == signal:
        return run
    return run.model_copy(
        update={"signal": signal, "cause": f"interrupted by {signal}"}
    )


def _started_runner(folder: Path) -> subprocess.Popen[bytes]:
    """The runner of a folder, which writes to its log what it prints as an error."""
    with open(folder / LOG, "ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "helpers.batch.runner",
                "--one",
                str(folder.resolve()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=kernel_process.CHECKOUT,
            env=kernel_process.environment(),
            start_new_session=True,
        )


def _completed(folder: Path, run: Run, watched: Watched) -> Run:
    """The record of a run whose runner has ended or was ended: its own, else what is seen from
    outside.
    """
    ended, deaf = kernel_process.sweep(watched.job["mark"])
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state != "started":
        return run
    if watched.record is not None:
        return watched.record  # it did not fit on the disk
    process = watched.process
    state, cause, name = watched.verdict
    words = kernel_process.last_words(folder / LOG)
    if process.poll() is None and not deaf:
        deaf = ["its runner"]
    if deaf:
        state = "stuck"
        cause = cause or "its runner ended"
        cause += f"; SIGKILL does not end {', '.join(deaf)}"
    elif not state:
        code = process.returncode
        ooms = kernel_process.oom_kills()
        how, name = kernel_process.how_it_ended(code, run.ooms_before, ooms, words)
        state = "died"
        cause = f"its runner was {how}" if name else f"its runner {how}"
    return closed(
        folder,
        run,
        state,
        cause,
        signal=name,
        left_behind=ended,
        last_words=words[-LAST_WORDS:],
        stopped_by="interrupt" if state == "failed" else "",
        seconds=round(time.monotonic() - watched.began, 2),
    )


def not_started(run: Run, error: OSError) -> Run:
    """A planned run whose start cannot be recorded: skipped, and to be tried when the batch is
    resumed.
    """
    why = f"its start cannot be recorded: {error.strerror}"
    return move(run, "skipped", stopped_by="disk", started_at="", cause=why)


def kept(folder: Path, run: Run) -> Run:
    """The record, written to the disk if there is room; else the caller has the only one."""
    with suppress(OSError):
        write_run(folder, run)
    return run
