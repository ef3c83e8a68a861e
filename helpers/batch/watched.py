"""Watches the process of a runner: gives it its job, reads its reports, and stops it at its limits.

No wait here is without a limit, whatever a notebook, its kernel or its runner does.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from helpers.ground.child import carrying
from helpers.ground.workbook_process import MARK

from . import kernel_process
from .shapes import Run
from .stop import Stop

GRACE_S = 90.0
"""Time that a runner has beyond the limit of its notebook: for imports, for the start of its kernel
(60 s at most) and for its end.
"""
SILENT_S = 30.0
"""A runner reports each second; without a report for this time it is hung."""
STOP_S = 15.0
"""Time for an interrupted runner to stop its kernel (3 s) and to save the notebook."""
KILL_S = 5.0
"""A process that SIGKILL has not ended after this time waits in the system and stays."""
TICK_S = 0.2
JUMP_S = 5.0
"""If two looks, which are TICK_S apart, are more than this apart, this process was suspended."""
LAST_REPORTS_S = 1.0
"""The last reports of a runner that has ended arrive within this time."""

Tick = Callable[[int, int, float], None]
"""Called every TICK_S with (the cell that a run is in, the number of cells, seconds since its
start); both are 0 while its kernel starts.
"""


class Job(TypedDict):
    """What a runner gets: the notebook's path and parameters, the limits of a cell and of the run
    in seconds, and the mark of its processes (``one_run.mark_of``).

    ``earlier`` is the folder of an earlier attempt that it continues, or empty.
    """

    source: str
    parameters: dict[str, object]
    cell_s: float
    run_s: float
    mark: str
    earlier: str


class Watched:
    """A runner from its job to its end.

    ``began`` is when the run began, on the monotonic clock. If it had to be stopped from here,
    ``verdict`` is (state, cause, name of the signal to the batch), else three empty texts.
    ``record`` is one that the runner could not write to the disk. It is in ``cell`` of ``cells``.
    ``reports`` has the lines that it wrote to stdout and are not read yet, and b"" after the last;
    ``at_end``: that was read.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        folder: Path,
        job: Job,
        stop: Stop,
        began: float,
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
        self.reports: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def give_job(self) -> None:
        """Hand the runner its job."""
        assert self.process.stdin
        text = json.dumps({**self.job, "parent": os.getpid()})
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(text.encode())

    def close(self) -> None:
        """Close the stdin of a runner that gets no job."""
        assert self.process.stdin
        self.process.stdin.close()

    def wait(self, tick: Tick | None) -> None:
        """Wait until the runner has ended; kill it if it passes its limit or stops reporting, or,
        after a while, if the batch is stopped. At a second signal to the batch it is killed at
        once.
        """
        kill_at: float | None = None
        last_report = time.monotonic()
        last_look = time.monotonic()
        while self.process.poll() is None:
            has_reported = self._hear(TICK_S)
            now_s = time.monotonic()
            was_suspended = now_s - last_look > JUMP_S
            # After a suspension the reports of that time are not read yet.
            if has_reported or was_suspended:
                last_report = now_s
            last_look = now_s
            if tick:
                tick(self.cell, self.cells, now_s - self.began)
            if kill_at is None:
                kill_at = self._time_to_kill(now_s, last_report)
            is_asked_twice = self.stop.times > 1
            if kill_at is not None and (now_s >= kill_at or is_asked_twice):
                self._kill()
                break
        while self._hear(LAST_REPORTS_S):
            continue

    def _time_to_kill(self, now_s: float, last_report: float) -> float | None:
        """When the runner must be killed, on the monotonic clock; None if it may go on.

        Sets the verdict. If the batch is interrupted, interrupts the runner, which gets STOP_S to
        end.
        """
        if self.stop.signal:
            name = self.stop.signal
            self.verdict = ("failed", f"interrupted by {name}", name)
            self.process.send_signal(signal.SIGINT)
            return now_s + STOP_S
        why = self._over_its_limit(now_s, last_report)
        if why:
            self.verdict = ("timed_out", why, "")
            return now_s
        return None

    def _over_its_limit(self, now_s: float, last_report: float) -> str:
        """Which limit the runner has passed, in words; empty if none."""
        if now_s > self.began + self.limit_s + GRACE_S:
            return f"its runner did not stop {GRACE_S:g} s after the limit of {self.limit_s:.3g} s"
        if now_s - last_report > SILENT_S:
            return f"its runner fell silent: no word for {SILENT_S:g} s"
        return ""

    def _kill(self) -> None:
        """Kill the runner; if it passed a limit, write first where its processes stand."""
        if self.verdict[0] == "timed_out":
            # It ended by itself while this process was suspended.
            if self.process.poll() is not None:
                self.verdict = ("", "", "")
                return
            processes = [self.process.pid, *carrying(f"{MARK}={self.job['mark']}")]
            kernel_process.write_threads(self.folder, processes)
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)

    def _hear(self, wait_s: float) -> bool:
        """Read one report of the runner, if it comes within ``wait_s``; returns whether one came.

        A report is [cell, cells], or the record if the runner could not write it to the disk.
        """
        if self.at_end:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
            return False
        try:
            report = self.reports.get(timeout=wait_s)
        except queue.Empty:
            return False
        self.at_end = not report  # b"" comes after the last
        with suppress(ValueError, TypeError):
            if report.startswith(b"{"):
                self.record = Run.model_validate_json(report)
            else:
                self.cell, self.cells = json.loads(report)
        return bool(report)

    def _listen(self) -> None:
        """Put each line that the runner writes to stdout into ``reports``, and b"" at the end."""
        assert self.process.stdout
        with self.process.stdout as pipe:
            for line in pipe:
                self.reports.put(line)
        self.reports.put(b"")
