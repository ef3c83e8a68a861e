"""One run in a process of its own: started, listened to, stopped within limits, and its record
completed.

The process is spawned, never forked, and never waited for without a limit: whatever a notebook,
its kernel or its runner does, its record says so. The second half of this file is that process,
the runner: ``main`` gets its job as a line of JSON on standard input, and says on standard
output, each second, which cell is running. It ends when the batch that started it ends, and
takes the kernel with it; then the record stays as it is, ``started``.
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
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from helpers.ground.child import carrying, process_of, stacks_of

from . import kernel, notebook
from .record import (
    RecordUnreadable,
    boot_id,
    files_below,
    in_words,
    move,
    node,
    now,
    read_run,
    write_run,
)
from .shapes import Run

GRACE_S = 90.0  # for what a runner does outside its notebook: imports, a kernel's start (60 s at most) and its end
SILENT_S = 30.0  # a runner says a word each second
STOP_S = 15.0
KILL_S = 5.0
TICK_S = 0.2
BEAT_S = 1.0
JUMP_S = 5.0
LOG = "runner.log"
NOTEBOOK = "notebook.ipynb"
LAST_WORDS = 2000

Tick = Callable[[int, int, float], None]
"""Told a few times a second where a run is: (cell, cells, seconds), 0 of 0 cells while its
kernel starts.
"""
Job = dict[str, Any]
"""What a runner gets: source, parameters, cell_s, run_s, mark."""


class Stop:
    """Holds the first of SIGINT and SIGTERM that asked the batch to stop, and whether SIGHUP came.

    In the main thread only.

    With ``raises`` a signal also ends what the main thread does just now, by KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.signal = ""
        self.times = 0
        self.hung_up = self.raises = False

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._hear)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
            return
        self.signal = self.signal or signal.Signals(number).name
        self.times += 1
        if self.raises:
            raise KeyboardInterrupt


def mark_of(folder: Path, attempt: int) -> str:
    """The mark that the processes of a run carry in their environment: the same for whoever
    looks for them later.
    """
    return hashlib.sha256(f"{folder.resolve()} {attempt}".encode()).hexdigest()[:32]


def run_one(
    folder: Path, run: Run, job: Job, *, stop: Stop | None = None, tick: Tick | None = None
) -> Run:
    """Run one planned run in a process of its own and return its record, whatever happens to
    that process.

    Call it from a thread that lives as long as the run: the runner ends with the thread that
    started it. A run whose start cannot be recorded is not started; what else cannot be
    recorded is in what this returns.
    """
    began = time.monotonic()
    wall = time.time()
    about = {"boot_id": boot_id(), "node": node(), "started_at": now()}
    run = run.model_copy(update={**about, "ooms_before": kernel.oom_kills()})
    try:
        log = open(folder / LOG, "wb")
    except OSError as error:
        return not_started(run, error)
    argv = [sys.executable, "-m", "helpers.batch.runner", "--one", str(folder.resolve())]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    pipes.update(cwd=kernel.CHECKOUT, env=kernel.environment(), start_new_session=True)
    with log:
        try:
            process = subprocess.Popen(argv, **pipes)
        except OSError as error:
            why = f"its runner cannot start: {error.strerror}"
            return kept(folder, move(move(run, "started"), "failed", cause=why, ended_at=now()))
    watched = Watched(process, folder, job, stop or Stop(), began)
    started = move(run, "started", pid=process.pid)
    try:
        write_run(folder, started)
    except OSError as error:
        process.kill()
        process.wait()
        watched.close()
        return not_started(run, error)
    watched.give(job)
    watched.wait(tick)
    run = _completed(folder, started, watched)
    if run.stopped_by == "interrupt" and not watched.stop.signal:
        run = run.model_copy(update={"stopped_by": ""})  # it was no user who interrupted it
    jump = (time.time() - wall) - (time.monotonic() - began)
    if abs(jump) > JUMP_S:
        why = "(set anew, or the machine slept); seconds are those of the monotonic clock"
        note = f"the wall clock moved by {jump:+.0f} s while it ran {why}"
        run = run.model_copy(update={"notes": [*run.notes, note]})
    with suppress(OSError):
        if run.state == "answered" or not (folder / LOG).stat().st_size:
            (folder / LOG).unlink()
    with suppress(RecordUnreadable):
        if run == read_run(folder / "run.json"):
            return run
    return kept(folder, run)


def _completed(folder: Path, run: Run, watched: Watched) -> Run:
    """The record of a run whose runner has ended or was ended: its own, else what can be seen
    from here.
    """
    ended, there = kernel.sweep(watched.job["mark"])
    kernel.clear_sockets(watched.job["mark"])
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state != "started":
        return run
    if watched.record is not None:
        return watched.record  # it did not fit on the disk
    process = watched.process
    (state, cause, name) = watched.verdict
    words = kernel.last_words(folder / LOG)
    if there or process.poll() is None:
        deaf = ", ".join(there) or "its runner"
        state = "stuck"
        cause = f"{cause or 'its runner ended'}; SIGKILL does not end {deaf}"
    elif not state:
        code = process.returncode
        ooms = kernel.oom_kills()
        how, name = kernel.how_it_ended(code, run.ooms_before, ooms, words)
        state = "died"
        cause = f"its runner {'was ' if name else ''}{how}"
    changes: dict[str, Any] = {"signal": name, "left_behind": ended, **salvaged(folder)[0]}
    changes.update(last_words=words[-LAST_WORDS:], ended_at=now())
    changes["stopped_by"] = "interrupt" if state == "failed" else ""
    changes["seconds"] = round(time.monotonic() - watched.began, 2)
    return move(run, state, cause=cause, **changes)


def not_started(run: Run, error: OSError) -> Run:
    """A planned run whose start cannot be recorded: skipped, and to be tried when the batch is
    resumed.
    """
    why = f"its start cannot be recorded: {error.strerror}"
    return move(run, "skipped", stopped_by="disk", started_at="", cause=why)


def salvaged(folder: Path) -> tuple[dict[str, Any], str]:
    """What lies in the folder of a run that did not write its record, as fields of it, and why
    that is no answer.
    """
    with suppress(notebook.NotebookError, OSError):
        answer, why_not = read_back(folder)
        return {**answer, "files": files_below(folder)}, why_not
    return {}, "no notebook that can be read"


def kept(folder: Path, run: Run) -> Run:
    """Write a record; where the disk refuses it, whoever asked for the run holds the only one."""
    with suppress(OSError):
        write_run(folder, run)
    return run


class Watched:
    """A runner from its job to its end.

    ``verdict``: (state, cause, signal) where it had to be stopped from here.

    ``record`` is what it says that it could not write; ``cell`` of ``cells`` is where it stands.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, job: Job, stop: Stop, began: float
    ):
        self.process = process
        self.folder = folder
        self.job = job
        self.stop = stop
        self.began = began
        self.limit_s = job["run_s"]
        self.verdict = ("", "", "")
        self.cell = self.cells = 0
        self.record: Run | None = None
        self.at_end = False
        self.words: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, job: Job) -> None:
        """Hand the runner its job."""
        assert self.process.stdin
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps({**job, "parent": os.getpid()}).encode())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def wait(self, tick: Tick | None) -> None:
        """Until it has ended, or will not end: within its limit, its grace, and the silence
        that it may keep.
        """
        stopping = 0.0
        last_word = time.monotonic()
        last_look = time.monotonic()
        while self.process.poll() is None:
            word = self._hear()
            here = time.monotonic()
            if word or here - last_look > JUMP_S:
                last_word = here  # after a jump: we were stopped ourselves, and its words are still to be heard
            last_look = here
            if tick:
                tick(self.cell, self.cells, here - self.began)
            if self.stop.signal and not stopping:
                name = self.stop.signal
                self.verdict = ("failed", f"interrupted by {name}", name)
                stopping = here + STOP_S
                self.process.send_signal(signal.SIGINT)
            elif not stopping and (why := self._late(here, last_word)):
                self.verdict = ("timed_out", why, "")
                stopping = here
            if stopping and (here >= stopping or self.stop.times > 1):
                self._kill()
                break
        while self._hear(wait_s=1.0):
            continue

    def _late(self, here: float, last_word: float) -> str:
        if here > self.began + self.limit_s + GRACE_S:
            return f"its runner did not stop {GRACE_S:g} s after the limit of {self.limit_s:.3g} s"
        silent = here - last_word > SILENT_S
        return f"its runner fell silent: no word for {SILENT_S:g} s" if silent else ""

    def _kill(self) -> None:
        if self.verdict[0] == "timed_out":
            if self.process.poll() is not None:  # it ended while we were stopped ourselves
                self.verdict = ("", "", "")
                return
            write_evidence(self.folder, self.process.pid, self.job["mark"])
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)

    def _hear(self, wait_s: float = 0.0) -> bool:
        """Take one word of the runner: where it stands, or a record that it could not write."""
        wait_s = wait_s or TICK_S
        if self.at_end:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
            return False
        try:
            word = self.words.get(timeout=wait_s)
        except queue.Empty:
            return False
        self.at_end = not word
        with suppress(ValueError, TypeError):
            if word.startswith(b"{"):
                self.record = Run.model_validate_json(word)
            else:
                self.cell, self.cells = json.loads(word)
        return bool(word)

    def _listen(self) -> None:
        assert self.process.stdout
        with self.process.stdout as pipe:
            for line in pipe:
                self.words.put(line)
        self.words.put(b"")  # its end: nobody need wait for the next look


def write_evidence(folder: Path, pid: int, mark: str) -> None:
    """Before a run is killed: what each thread of it does, to ``stacks/``.

    The kernel is asked for its Python stacks too.
    """
    pids = [pid, *carrying(f"{kernel.MARK}={mark}")]
    for each in pids[1:]:
        kernel.ask_for_stacks(each)
    sessions: dict[int, list[int]] = {}
    for each in pids:
        sessions.setdefault(process_of(each).session, []).append(each)
    stacks = [stacks_of(session, own) for session, own in sessions.items() if session]
    with suppress(OSError):
        (folder / "stacks").mkdir(exist_ok=True)
        (folder / "stacks" / "threads.txt").write_text("\n".join(stacks) + "\n")


class Local:
    """Carries out the runs of a batch on this box, up to ``slots`` at once, and is the base of
    what does so elsewhere.

    ``run_one`` may be another function with the signature of the one here, as a stand-in. With
    ``one_box`` all runs share a machine, and what loads or provokes runs alone there.
    """

    one_box = True

    def __init__(
        self, slots: int = 1, stop: Stop | None = None, run_one: Callable[..., Run] = run_one
    ):
        self._slots = slots
        self.stop = stop or Stop()
        self.run_one = run_one

    @property
    def slots(self) -> int:
        return self._slots

    def check(self, checked: Any) -> None:
        """Raise PlanError for a CheckedPlan that cannot be carried out here, before its first run."""

    def submit(self, folder: Path, run: Run, job: Job, tick: Tick) -> Future[Run]:
        """Carry out a planned run in its folder.

        The future holds its record, whatever became of it.

        In a thread of its own: a runner ends with the thread that started it (prctl(2)).
        """
        future: Future[Run] = Future()
        arguments = (future, folder.resolve(), run, job, tick)
        threading.Thread(target=self._fulfil, args=arguments, daemon=True).start()
        return future

    def carry(self, folder: Path, run: Run, job: Job, tick: Tick) -> Run:
        """Carry out one run, from its own thread."""
        return self.run_one(folder, run, job, stop=self.stop, tick=tick)

    def close(self) -> None:
        """Let go of what was opened."""

    def _fulfil(self, future: Future[Run], folder: Path, run: Run, job: Job, tick: Tick) -> None:
        try:
            future.set_result(self.carry(folder, run, job, tick))
        except BaseException as error:  # noqa: BLE001  a fault of ours is this run's record, not the end of the batch
            started = run if run.state == "started" else move(run, "started")
            why = f"its supervisor broke: {in_words(error)}"
            future.set_result(move(started, "failed", cause=why))


# The runner itself.

_where = [0, 0]
_speaking = threading.Lock()


def main(argv: list[str]) -> int:
    """``--one FOLDER``: run the started run in FOLDER, with the job on standard input."""
    if len(argv) != 2 or argv[0] != "--one":
        expected = "expected --one FOLDER, and the job on standard input"
        print(f"seen other arguments; {expected}", file=sys.stderr)
        return 2
    job = json.loads(sys.stdin.read())
    kernel.die_with_parent(signal.SIGTERM, job["parent"])
    kernel.adopt_orphans()
    os.set_blocking(1, False)
    threading.Thread(target=_beat, daemon=True).start()
    folder = Path(argv[1])
    run = one(folder, job)
    # The batch's thread that started us may have ended; the batch itself may take a moment longer.
    until = time.monotonic() + (run.stopped_by == "interrupt" and run.signal == "SIGTERM")
    while os.getppid() == job["parent"] and time.monotonic() < until:
        time.sleep(0.02)
    if os.getppid() == job["parent"]:
        try:
            write_run(folder, run)
        except OSError:
            os.set_blocking(1, True)
            _say(run.model_dump_json())  # who started us keeps it, and writes it when there is room
    return 0


def one(folder: Path, job: Job) -> Run:
    """Execute the notebook of a started run and return its record with its answer, or with what
    stopped it.
    """
    began = time.monotonic()
    changes: dict[str, Any] = {}
    state = "answered"
    cause = ""
    try:
        with notebook.without("pyarrow"):  # papermill imports it for HDFS alone: 0.1 s
            from .engine import execute

        options = {name: job[name] for name in ("cell_s", "run_s", "mark")}
        what = (Path(job["source"]), folder / NOTEBOOK, job["parameters"])
        done = execute(*what, adopted=True, on_cell=_say_cell, **options)
        changes["left_behind"] = list(done.left_behind)
        if fault := done.fault:
            interrupted = fault.state == "interrupted"
            state = "failed" if interrupted else fault.state
            cause = fault.cause
            changes.update(signal=fault.signal, failing_cell=fault.cell)
            changes["last_words"] = fault.last_words[-LAST_WORDS:]
            changes["stopped_by"] = "interrupt" if interrupted else ""
    except Exception as error:  # noqa: BLE001  whatever breaks here is this run's record, not the batch's end
        traceback.print_exc()
        state = "failed"
        cause = f"its runner broke: {in_words(error)}"
    answer, why_not = read_back(folder)
    if state == "answered" and why_not:
        state = "failed"
        cause = why_not
    changes.update(answer, files=files_below(folder), seconds=round(time.monotonic() - began, 2))
    run = read_run(folder / "run.json")
    return move(run, state, cause=cause, ended_at=now(), **changes)


def read_back(folder: Path) -> tuple[dict[str, Any], str]:
    """What an executed notebook holds, also one that stopped half way, and why that is no answer.

    Raises NotebookError.
    """
    if not (folder / NOTEBOOK).exists():
        return {}, "no notebook was written"
    nb = notebook.open_notebook(folder / NOTEBOOK)
    answer: dict[str, Any] = {"cells": notebook.cell_counts(nb)}
    try:
        answer["figures"] = notebook.save_figures(nb, folder)
        answer["verdict"] = notebook.verdict_of(nb)
    except notebook.VerdictError as error:
        return answer, str(error)
    except OSError as error:
        return answer, f"its figures cannot be written: {error.strerror}"
    if answer["verdict"] is None and notebook.needs_verdict(nb):
        own = 'one that answers by its end has casebook: {"verdict": false} in its metadata'
        return answer, f"ended without a verdict; {own}"
    whole = answer["cells"].keys() <= {"completed"}
    return answer, "" if whole else "ended before its last cell"


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
