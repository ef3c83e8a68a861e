"""A batch: every run of a plan, one after the other, each in a process of its own, each with its record.

Processes are spawned, never forked, and never waited for without a limit: whatever a notebook, its kernel or its runner
(helpers.run.runner) does, its record says so and the next run starts.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from helpers import __version__

from . import kernel
from .notebook import NotebookError
from .plan import CheckedPlan, PlanError, Step, load_plan
from .record import RecordUnreadable, boot_id, files_below, move, now, read_run, write_atomic, write_run
from .runner import LAST_WORDS, read_back
from .shapes import Run

GRACE_S = 90.0  # for what a runner does outside its notebook: imports, a kernel's start (60 s at most) and its end
STOP_S, KILL_S, TICK_S = 15.0, 5.0, 0.2
LOG = "runner.log"


class Progress(Protocol):
    """Who is told how a batch goes on. All calls come from the thread that runs the batch."""

    def started(self, folder: Path, runs: Sequence[Run]) -> None: ...

    def run_started(self, number: int, run: Run) -> None: ...

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        """A few times a second while a run goes on; ``cell`` of ``cells`` is running, 0 of 0 while its kernel starts."""

    def run_ended(self, number: int, run: Run) -> None: ...

    def ended(self, result: BatchResult) -> None: ...


class Quiet:
    """Tells nobody."""

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        pass

    def run_started(self, number: int, run: Run) -> None:
        pass

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        pass

    def run_ended(self, number: int, run: Run) -> None:
        pass

    def ended(self, result: BatchResult) -> None:
        pass


@dataclass(frozen=True)
class BatchResult:
    """Every run of a batch in order. ``interrupted`` is the signal that stopped it, or empty."""

    folder: Path
    runs: tuple[Run, ...]
    interrupted: str = ""

    @property
    def exit_code(self) -> int:
        """0: every run answered; 1: some did not; 130: interrupted."""
        return 130 if self.interrupted else 0 if all(run.state == "answered" for run in self.runs) else 1


class Stop:
    """Holds the first of SIGINT, SIGTERM and SIGHUP that asked the batch to stop. In the main thread only."""

    def __init__(self) -> None:
        self.signal = ""
        self.times = 0
        self.raises = False

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._heard)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, frame: Any) -> None:
        self.signal = self.signal or signal.Signals(number).name
        self.times += 1
        if self.raises:
            raise KeyboardInterrupt


def run_plan(path: Path, out_root: Path, *, box: str = "", capture: Callable[[Path], Path] | None = None,
             progress: Progress | None = None) -> BatchResult:
    """Run a plan into a new folder below ``out_root``. Raises PlanError before anything ran; afterwards records say it all.

    ``box`` takes the place of ``live``. ``capture`` writes an evidence bundle of this box to the path it is given and returns
    where it lies; it is called once, before the first run, where a run needs it.
    """
    checked = load_plan(path, box)
    if capture is None and any(map(_wants_live, checked.steps)):
        raise PlanError(f"{path}: a run wants the box 'live' and nothing captures it here; give a recorded box")
    progress = progress or Quiet()
    folder = _new_folder(out_root, checked)
    runs = [Run(run_id=step.run_id, batch_id=folder.name, box=step.box_name, notebook=step.notebook, preset=step.preset,
                parameters=step.parameters, plan_sha256=checked.sha256, tool_version=__version__) for step in checked.steps]
    try:
        write_atomic(folder / "plan.yaml", checked.text)
        for run in runs:
            (folder / run.run_id).mkdir()
            write_run(folder / run.run_id, run)
    except OSError as error:
        raise PlanError(f"{folder}: cannot be written: {error.strerror}; expected room for the batch; free some") from error
    began = time.monotonic()
    with Stop().listening() as stop:
        progress.started(folder, runs)
        try:
            live, no_live = _capture(checked.steps, folder, capture, stop)
            for number, (step, run) in enumerate(zip(checked.steps, runs, strict=True)):
                left_s = checked.total_s - (time.monotonic() - began)
                why = f"interrupted ({stop.signal})" if stop.signal else \
                    f"the plan's limit of {checked.total_s:g} s was reached" if left_s <= 0 else \
                    no_live if _wants_live(step) else ""
                if why:
                    runs[number] = _record(folder, move(run, "skipped", cause=why))
                else:
                    progress.run_started(number, run)
                    runs[number] = run_one(folder / run.run_id, run, _job(step, folder, live, left_s), stop=stop,
                                           tick=partial(progress.tick, number))
                progress.run_ended(number, runs[number])
        finally:
            result = BatchResult(folder, tuple(runs), stop.signal)
            progress.ended(result)
    return result


def run_one(folder: Path, run: Run, job: dict[str, Any], *, stop: Stop | None = None,
            tick: Callable[[int, int, float], None] | None = None) -> Run:
    """Run one planned run in a process of its own and return its record, whatever happens to that process.

    Call it from a thread that lives as long as the run: the runner ends with the thread that started it.
    """
    began, ooms = time.monotonic(), kernel.oom_kills()
    stop = stop or Stop()
    try:
        with open(folder / LOG, "wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "helpers.run.runner", "--one", str(folder.resolve())],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=kernel.CHECKOUT,
                                       env=kernel.environment(), start_new_session=True)
    except OSError as error:
        run = move(run, "started", boot_id=boot_id(), started_at=now())
        return _record(folder.parent, move(run, "failed", cause=f"its runner cannot start: {error.strerror}", ended_at=now()))
    run = _record(folder.parent, move(run, "started", pid=process.pid, boot_id=boot_id(), started_at=now()))
    assert process.stdin and process.stdout
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps({**job, "parent": os.getpid()}).encode())
    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(process.stdout, heard), daemon=True).start()
    state, cause, name = _watch(process, heard, began, job["run_s"] + GRACE_S, stop, tick)
    ended, there = kernel.sweep(job["mark"])
    kernel.clear_sockets(job["mark"])
    with suppress(RecordUnreadable):
        run = read_run(folder / "run.json")
    if run.state == "started":
        words = kernel.last_words(folder / LOG)
        if there or process.returncode is None:
            state, cause = "stuck", f"{cause or 'its runner ended'}; SIGKILL does not end {', '.join(there) or 'its runner'}"
        elif not state:
            how, name = kernel.how_it_ended(process.returncode, ooms, kernel.oom_kills(), words)
            state, cause = "died", f"its runner {'was ' if name else ''}{how}"
        found: dict[str, Any] = {}
        with suppress(NotebookError, OSError):
            found = {**read_back(folder)[0], "files": files_below(folder)}
        run = _record(folder.parent, move(run, state, cause=cause, signal=name, ended_at=now(), left_behind=ended, **found,
                                          seconds=round(time.monotonic() - began, 2), last_words=words[-LAST_WORDS:]))
    with suppress(OSError):
        if run.state == "answered" or not (folder / LOG).stat().st_size:
            (folder / LOG).unlink()
    return run


def _watch(process: subprocess.Popen[bytes], heard: queue.SimpleQueue[bytes], began: float, limit_s: float, stop: Stop,
           tick: Callable[[int, int, float], None] | None) -> tuple[str, str, str]:
    """Wait for the runner within limits; returns (state, cause, signal) where it had to be stopped from here."""
    said, stopping, cell, cells = ("", "", ""), 0.0, 0, 0
    deadline = began + limit_s
    while process.poll() is None:
        with suppress(queue.Empty, ValueError, TypeError):
            cell, cells = json.loads(heard.get(timeout=TICK_S))
        if tick:
            tick(cell, cells, time.monotonic() - began)
        if stop.signal and not stopping:
            said = ("failed", f"interrupted by {stop.signal}", stop.signal)
            stopping = time.monotonic() + STOP_S
            process.send_signal(signal.SIGINT)
        elif not stopping and time.monotonic() > deadline:
            said = ("timed_out", f"its runner did not stop {GRACE_S:g} s after the limit of {limit_s - GRACE_S:.3g} s", "")
            stopping = time.monotonic()
        if stopping and (time.monotonic() > stopping or stop.times > 1):
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)
            break
    return said


def _listen(pipe: Any, heard: queue.SimpleQueue[bytes]) -> None:
    with pipe:
        for line in pipe:
            heard.put(line)


def _job(step: Step, folder: Path, live: str, left_s: float) -> dict[str, Any]:
    """What the runner is told: the notebook and every parameter in full. ``{batch}`` in a text means the batch's folder."""
    here = folder / step.run_id
    offered = {"box": live if step.box == "live" else step.box, "batch": str(folder), "out": str(here), "preset": step.preset}
    own = {name: _filled(value, str(folder)) for name, value in step.parameters.items()}
    given = {name: value for name, value in offered.items() if name in step.takes and value}
    return {"source": str(step.source), "parameters": {**given, **own}, "cell_s": step.cell_s,
            "run_s": min(step.run_s, left_s), "mark": uuid.uuid4().hex}


def _filled(value: Any, batch: str) -> Any:
    if isinstance(value, list):
        return [_filled(one, batch) for one in value]
    return value.replace("{batch}", batch) if isinstance(value, str) else value


def _wants_live(step: Step) -> bool:
    return step.box == "live" and "box" in step.takes


def _capture(steps: Sequence[Step], folder: Path, capture: Callable[[Path], Path] | None, stop: Stop) -> tuple[str, str]:
    """(path of this box's bundle, why there is none)."""
    if capture is None or stop.signal or not any(map(_wants_live, steps)):
        return "", ""
    stop.raises = True
    try:
        return str(Path(capture(folder / "box")).resolve()), ""
    except KeyboardInterrupt:
        return "", "interrupted"
    except Exception as error:  # noqa: BLE001  a box that cannot be captured must not cost the runs on recorded ones
        return "", f"this box could not be captured: {type(error).__name__}: {error}".splitlines()[0]
    finally:
        stop.raises = False


def _new_folder(out_root: Path, checked: CheckedPlan) -> Path:
    stem = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{checked.plan.name}"
    for number in range(1, 100):
        folder = out_root.resolve() / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise PlanError(f"{out_root}: cannot be written: {error.strerror}; expected a folder for results; give another") \
                from error
    raise PlanError(f"{out_root / stem}: 99 batches of this second exist; wait a second")


def _record(batch: Path, run: Run) -> Run:
    """Keep a record; where the disk refuses it, the batch goes on and its result says so."""
    try:
        write_run(batch / run.run_id, run)
        return run
    except OSError as error:
        return run.model_copy(update={"cause": f"{run.cause}; " * bool(run.cause) + f"not recorded: {error.strerror}"})

