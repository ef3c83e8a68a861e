"""One run of a batch: its runner is started as a process of its own and watched, and its record is
completed.

The record is on the disk before the runner gets its job, and says afterwards how the run ended,
also if the runner was killed.
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
MARK_LETTERS = 32
"""Of a digest: 128 bits, so that no two runs have the same mark."""


def mark_of(folder: Path, attempt: int) -> str:
    """The mark that identifies the processes of an attempt at the run in ``folder``, by a variable
    of their environment. A resumed batch computes the same mark and finds them.
    """
    digest = hashlib.sha256(f"{folder.resolve()} {attempt}".encode())
    return digest.hexdigest()[:MARK_LETTERS]


def run_one(
    folder: Path,
    run: Run,
    job: Job,
    *,
    stop: Stop | None = None,
    tick: Tick | None = None,
) -> Run:
    """Carry out a planned run in a process of its own and return its record, whatever happens to
    that process.

    Call it from a thread that lives as long as the run: the runner ends with the thread that
    started it. If its start cannot be recorded, the run is not started. The record that is returned
    is true also if the disk has an older one.
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
        started = move(run, "started")  # a planned run cannot fail: record.LEGAL
        return kept(folder, move(started, "failed", cause=why, ended_at=now()))
    if stop is None:
        stop = Stop()
    watched = Watched(process, folder, job, stop, began)
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
        run = _with_true_signal(run, stop.signal)
    log = folder / LOG
    with suppress(OSError):  # the log is kept to explain a run that did not answer
        if run.state == "answered" or not log.stat().st_size:
            log.unlink()
    with suppress(RecordUnreadable):
        if run == read_run(folder / "run.json"):  # the runner has written it
            return run
    return kept(folder, run)


def _with_true_signal(run: Run, signal: str) -> Run:
    """The record of an interrupted run with the ``signal`` that stopped the batch.

    The runner itself sees SIGINT, whatever the batch got. If the batch got no signal, the run was
    not interrupted by the user, and the record does not say so.
    """
    if not signal:
        return run.model_copy(update={"stopped_by": ""})
    if run.signal == signal:
        return run
    return run.model_copy(
        update={"signal": signal, "cause": f"interrupted by {signal}"}
    )


def _started_runner(folder: Path) -> subprocess.Popen[bytes]:
    """Start the runner of a run's folder; its stderr goes to a log there. Raises OSError."""
    module = "helpers.batch.runner"
    # journal._end_processes finds a runner by its last two words.
    words = [sys.executable, "-m", module, "--one", str(folder.resolve())]
    with open(folder / LOG, "ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=kernel_process.CHECKOUT,
            env=kernel_process.environment(),
            start_new_session=True,
        )


def _completed(folder: Path, run: Run, watched: Watched) -> Run:
    """The record of a run whose runner has ended or was killed: the runner's own, from the disk or
    as it was sent here. If there is none, it says how the run ended as seen from here: stuck if
    SIGKILL does not end a process, else by the limit that the runner passed or the signal to the
    batch (``Watched.verdict``), else died.
    """
    ended, deaf = kernel_process.sweep(watched.job["mark"])
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state != "started":
        return run
    if watched.record is not None:
        return watched.record  # the runner could not write it to the disk
    process = watched.process
    state, cause, signal_name = watched.verdict
    words = kernel_process.last_words(folder / LOG)
    # The runner itself has no mark, so that the sweep does not find it.
    if process.poll() is None and not deaf:
        deaf = ["its runner"]
    if deaf:
        state = "stuck"
        if not cause:
            cause = "its runner ended"
        cause += f"; SIGKILL does not end {', '.join(deaf)}"
    elif not state:
        code = process.returncode
        ooms = kernel_process.oom_kills()
        how, signal_name = kernel_process.how_it_ended(
            code, run.ooms_before, ooms, words
        )
        state = "died"
        cause = f"its runner {how}"
        if signal_name:
            cause = f"its runner was {how}"
    stopped_by = ""
    if state == "failed":  # Watched says so only of an interrupted run
        stopped_by = "interrupt"
    return closed(
        folder,
        run,
        state,
        cause,
        signal=signal_name,
        left_behind=ended,
        last_words=words[-LAST_WORDS:],
        stopped_by=stopped_by,
        seconds=round(time.monotonic() - watched.began, 2),
    )


def not_started(run: Run, error: OSError) -> Run:
    """The record of a planned run whose start cannot be recorded: skipped, and tried again when the
    batch is resumed (``stopped_by`` disk).
    """
    why = f"its start cannot be recorded: {error.strerror}"
    return move(run, "skipped", stopped_by="disk", started_at="", cause=why)


def kept(folder: Path, run: Run) -> Run:
    """Write a record to the disk if there is room, and return it: the caller may have the only
    one.
    """
    with suppress(OSError):
        write_run(folder, run)
    return run
