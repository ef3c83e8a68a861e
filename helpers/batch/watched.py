"""A runner's process from its job to its end: listened to, and stopped within limits.

It is never waited for without a limit: whatever a notebook, its kernel or its runner does.
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
"""For what a runner does outside its notebook: imports, a kernel's start (60 s at most) and its
end.
"""
SILENT_S = 30.0  # a runner reports each second
STOP_S = 15.0
KILL_S = 5.0
TICK_S = 0.2
JUMP_S = 5.0

Tick = Callable[[int, int, float], None]
"""Told a few times a second where a run is: (cell, cells, seconds), 0 of 0 cells while its
kernel starts.
"""


class Job(TypedDict):
    """What a runner is given: the notebook's path and parameters, its limits in seconds, and the
    mark of its processes.

    ``earlier`` is the folder of an earlier attempt that is continued, or empty.
    """

    source: str
    parameters: dict[str, object]
    cell_s: float
    run_s: float
    mark: str
    earlier: str


class Watched:
    """A runner from its job to its end.

    ``verdict`` is (state, cause, signal) where it had to be stopped from here, else empty texts.
    ``record`` is one that the runner could not write to the disk; ``cell`` of ``cells`` is where
    it stands.
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
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps({**self.job, "parent": os.getpid()}).encode())

    def close(self) -> None:
        """Let go of a runner that gets no job."""
        assert self.process.stdin
        self.process.stdin.close()

    def wait(self, tick: Tick | None) -> None:
        """Wait until it has ended, and end it where it passes its limit or reports nothing, or
        where the batch is to stop.
        """
        kill_at: float | None = None
        last_report = time.monotonic()
        last_look = time.monotonic()
        while self.process.poll() is None:
            has_reported = self._hear(TICK_S)
            now_s = time.monotonic()
            # After a jump we were stopped ourselves, and its reports are still to be read.
            if has_reported or now_s - last_look > JUMP_S:
                last_report = now_s
            last_look = now_s
            if tick:
                tick(self.cell, self.cells, now_s - self.began)
            if kill_at is None:
                kill_at = self._time_to_kill(now_s, last_report)
            if kill_at is not None and (now_s >= kill_at or self.stop.times > 1):
                self._kill()
                break
        while self._hear(wait_s=1.0):
            continue

    def _time_to_kill(self, now_s: float, last_report: float) -> float | None:
        """When the runner is to be killed, with the verdict about it; None where it may go on.

        A runner that is interrupted with the batch gets time to end by itself.
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
        if now_s > self.began + self.limit_s + GRACE_S:
            return f"its runner did not stop {GRACE_S:g} s after the limit of {self.limit_s:.3g} s"
        if now_s - last_report > SILENT_S:
            return f"its runner fell silent: no word for {SILENT_S:g} s"
        return ""

    def _kill(self) -> None:
        if self.verdict[0] == "timed_out":
            # It ended while we were stopped ourselves.
            if self.process.poll() is not None:
                self.verdict = ("", "", "")
                return
            processes = [self.process.pid, *carrying(f"{MARK}={self.job['mark']}")]
            kernel_process.write_threads(self.folder, processes)
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_S)

    def _hear(self, wait_s: float) -> bool:
        """Take one report of the runner, if it comes within ``wait_s``; whether there was one.

        It says where the runner stands, or is a record that could not be written.
        """
        if self.at_end:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
            return False
        try:
            report = self.reports.get(timeout=wait_s)
        except queue.Empty:
            return False
        self.at_end = not report
        with suppress(ValueError, TypeError):
            if report.startswith(b"{"):
                self.record = Run.model_validate_json(report)
            else:
                self.cell, self.cells = json.loads(report)
        return bool(report)

    def _listen(self) -> None:
        assert self.process.stdout
        with self.process.stdout as pipe:
            for line in pipe:
                self.reports.put(line)
        self.reports.put(b"")  # its end: nobody need wait for the next look
