"""One run in a process of its own, watched: started, listened to, stopped within limits, and its record completed.

The process is spawned, never forked, and never waited for without a limit: whatever a notebook, its kernel or its runner
(helpers.run.runner) does, its record says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from . import kernel
from .notebook import NotebookError
from .record import RecordUnreadable, boot_id, files_below, move, node, now, read_run, write_run
from .runner import LAST_WORDS, read_back
from .shapes import Run

GRACE_S = 90.0  # for what a runner does outside its notebook: imports, a kernel's start (60 s at most) and its end
SILENT_S = 30.0  # a runner says a word each second
STOP_S, KILL_S, TICK_S = 15.0, 5.0, 0.2
JUMP_S = 5.0
LOG = "runner.log"


class Stop:
    """Holds the first of SIGINT and SIGTERM that asked the batch to stop, and whether SIGHUP came. In the main thread only."""

    def __init__(self) -> None:
        self.signal = ""
        self.times = 0
        self.hung_up = False
        self.raises = False

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            number: signal.getsignal(number)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._heard)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
            return
        self.signal = self.signal or signal.Signals(number).name
        self.times += 1
        if self.raises:
            raise KeyboardInterrupt


def mark_of(folder: Path, attempt: int) -> str:
    """The mark that the processes of a run carry in their environment: the same for whoever looks for them later."""
    return hashlib.sha256(f"{folder.resolve()} {attempt}".encode()).hexdigest()[:32]


def run_one(
    folder: Path,
    run: Run,
    job: dict[str, Any],
    *,
    stop: Stop | None = None,
    tick: Callable[[int, int, float], None] | None = None,
) -> Run:
    """Run one planned run in a process of its own and return its record, whatever happens to that process.

    Call it from a thread that lives as long as the run: the runner ends with the thread that started it. A run whose start
    cannot be recorded is not started; what else cannot be recorded is in what this returns.
    """
    began, wall = time.monotonic(), time.time()
    stop = stop or Stop()
    run = run.model_copy(
        update={
            "boot_id": boot_id(),
            "node": node(),
            "ooms_before": kernel.oom_kills(),
            "started_at": now(),
        }
    )
    try:
        log = open(folder / LOG, "wb")
    except OSError as error:
        return not_started(run, error)
    with log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "helpers.run.runner", "--one", str(folder.resolve())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=kernel.CHECKOUT,
                env=kernel.environment(),
                start_new_session=True,
            )
        except OSError as error:
            return _kept(
                folder,
                move(
                    move(run, "started"),
                    "failed",
                    cause=f"its runner cannot start: {error.strerror}",
                    ended_at=now(),
                ),
            )
    assert process.stdin and process.stdout
    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(process.stdout, heard), daemon=True).start()
    try:
        planned, run = run, move(run, "started", pid=process.pid)
        write_run(folder, run)
    except OSError as error:
        process.kill()
        process.wait()
        process.stdin.close()
        return not_started(planned, error)
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps({**job, "parent": os.getpid()}).encode())
    watched = _Watched(process, heard, folder, job, stop, began)
    watched.wait(tick)
    ended, there = kernel.sweep(job["mark"])
    kernel.clear_sockets(job["mark"])
    written = run
    with suppress(RecordUnreadable):
        written = run = read_run(folder / "run.json")
    if run.state == "started" and watched.record is not None:
        run = watched.record  # it did not fit on the disk
    if run.state == "started":
        state, cause, name = watched.said
        words = kernel.last_words(folder / LOG)
        if there or process.poll() is None:
            state, cause = (
                "stuck",
                f"{cause or 'its runner ended'}; SIGKILL does not end {', '.join(there) or 'its runner'}",
            )
        elif not state:
            how, name = kernel.how_it_ended(
                process.returncode, run.ooms_before, kernel.oom_kills(), words
            )
            state, cause = "died", f"its runner {'was ' if name else ''}{how}"
        run = move(
            run,
            state,
            cause=cause,
            signal=name,
            ended_at=now(),
            left_behind=ended,
            **salvaged(folder),
            stopped_by="interrupt" if state == "failed" else "",
            last_words=words[-LAST_WORDS:],
            seconds=round(time.monotonic() - began, 2),
        )
    if run.stopped_by == "interrupt" and not stop.signal:
        run = run.model_copy(update={"stopped_by": ""})  # it was no user who interrupted it
    jump = (time.time() - wall) - (time.monotonic() - began)
    if abs(jump) > JUMP_S:
        run = run.model_copy(
            update={
                "notes": [
                    *run.notes,
                    f"the wall clock moved by {jump:+.0f} s while it ran (set anew, or "
                    "the machine slept); seconds are those of the monotonic clock",
                ]
            }
        )
    with suppress(OSError):
        if run.state == "answered" or not (folder / LOG).stat().st_size:
            (folder / LOG).unlink()
    return run if run == written else _kept(folder, run)


def not_started(run: Run, error: OSError) -> Run:
    """A planned run whose start cannot be recorded: skipped, and to be tried when the batch is resumed."""
    return move(
        run,
        "skipped",
        stopped_by="disk",
        started_at="",
        cause=f"its start cannot be recorded: {error.strerror}",
    )


def salvaged(folder: Path) -> dict[str, Any]:
    """What lies in the folder of a run that did not end by itself, as fields of its record."""
    with suppress(NotebookError, OSError):
        return {**read_back(folder)[0], "files": files_below(folder)}
    return {}


def _kept(folder: Path, run: Run) -> Run:
    """Write a record; where the disk refuses it, whoever asked for the run holds the only one."""
    with suppress(OSError):
        write_run(folder, run)
    return run


class _Watched:
    """A runner from its job to its end. ``said``: (state, cause, signal) where it had to be stopped from here."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        heard: queue.SimpleQueue[bytes],
        folder: Path,
        job: dict[str, Any],
        stop: Stop,
        began: float,
    ):
        self.process, self.heard, self.folder, self.stop, self.began = (
            process,
            heard,
            folder,
            stop,
            began,
        )
        self.mark, self.limit_s = job["mark"], job["run_s"]
        self.said = ("", "", "")
        self.cell = self.cells = 0
        self.record: Run | None = None
        self.closed = False

    def wait(self, tick: Callable[[int, int, float], None] | None) -> None:
        """Until it has ended, or will not end: within its limit, its grace, and the silence that it may keep."""
        stopping, last_word, last_look = 0.0, time.monotonic(), time.monotonic()
        while self.process.poll() is None:
            if self._hear():
                last_word = time.monotonic()
            here = time.monotonic()
            if here - last_look > JUMP_S:
                last_word = (
                    here  # we were stopped ourselves: what was said meanwhile is still to be heard
                )
            last_look = here
            if tick:
                tick(self.cell, self.cells, here - self.began)
            if self.stop.signal and not stopping:
                self.said = ("failed", f"interrupted by {self.stop.signal}", self.stop.signal)
                stopping = here + STOP_S
                self.process.send_signal(signal.SIGINT)
            elif not stopping and here > self.began + self.limit_s + GRACE_S:
                self.said = (
                    "timed_out",
                    f"its runner did not stop {GRACE_S:g} s after the limit of {self.limit_s:.3g} s",
                    "",
                )
                stopping = here
            elif not stopping and here - last_word > SILENT_S:
                self.said = ("timed_out", f"its runner fell silent: no word for {SILENT_S:g} s", "")
                stopping = here
            if stopping and (here >= stopping or self.stop.times > 1):
                if self.said[0] == "timed_out":
                    write_evidence(self.folder, self.process.pid, self.mark)
                self.process.kill()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(KILL_S)
                break
        while self._hear(wait_s=1.0):
            continue

    def _hear(self, wait_s: float = TICK_S) -> bool:
        """Take one word of the runner: where it stands, or a record that it could not write."""
        if self.closed:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
            return False
        try:
            said = self.heard.get(timeout=wait_s)
        except queue.Empty:
            return False
        self.closed = not said
        with suppress(ValueError, TypeError):
            if said.startswith(b"{"):
                self.record = Run.model_validate_json(said)
            else:
                self.cell, self.cells = json.loads(said)
        return bool(said)


def write_evidence(folder: Path, pid: int, mark: str) -> None:
    """Before a run is killed: what each thread of it does, to ``stacks/``. The kernel is asked for its Python stacks too."""
    from helpers.child import stacks_of

    pids = [pid, *kernel.marked(mark)]
    for each in pids[1:]:
        kernel.ask_for_stacks(each)
    said = [
        stacks_of(session, [each for each in pids if kernel.session_of(each) == session])
        for session in dict.fromkeys(map(kernel.session_of, pids))
        if session
    ]
    with suppress(OSError):
        (folder / "stacks").mkdir(exist_ok=True)
        (folder / "stacks" / "threads.txt").write_text("\n".join(said) + "\n")


def _listen(pipe: Any, heard: queue.SimpleQueue[bytes]) -> None:
    with pipe:
        for line in pipe:
            heard.put(line)
    heard.put(b"")  # its end: nobody need wait for the next look
