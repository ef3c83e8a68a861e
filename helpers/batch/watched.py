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
from typing import Any, TypedDict

from helpers.ground.child import carrying, stacks_of
from helpers.ground.workbook_process import MARK

from .shapes import Run
from .stop import Stop

GRACE_S = 90.0  # for what a runner does outside its notebook: imports, a kernel's start (60 s at most) and its end
SILENT_S = 30.0  # a runner says a word each second
STOP_S = 15.0
KILL_S = 5.0
TICK_S = 0.2
JUMP_S = 5.0

Tick = Callable[[int, int, float], None]
"""Told a few times a second where a run is: (cell, cells, seconds), 0 of 0 cells while its
kernel starts.
"""


class Job(TypedDict):
    """What a runner gets: the notebook's path and parameters, its limits in seconds, the mark of
    its processes, and the folder of the attempt that it goes on from, or empty.
    """

    source: str
    parameters: dict[str, Any]
    cell_s: float
    run_s: float
    mark: str
    earlier: str


class Watched:
    """A runner from its job to its end.

    ``verdict``: (state, cause, signal) where it had to be stopped from here.

    ``record`` is what it says that it could not write; ``cell`` of ``cells`` is where it stands.
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
        self.words: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def give_job(self) -> None:
        """Hand the runner its job."""
        assert self.process.stdin
        with suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps({**self.job, "parent": os.getpid()}).encode())

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
            now_s = time.monotonic()
            if word or now_s - last_look > JUMP_S:
                last_word = now_s  # after a jump: we were stopped ourselves, and its words are still to be heard
            last_look = now_s
            if tick:
                tick(self.cell, self.cells, now_s - self.began)
            why = self._over_its_limit(now_s, last_word)
            if self.stop.signal and not stopping:
                name = self.stop.signal
                self.verdict = ("failed", f"interrupted by {name}", name)
                stopping = now_s + STOP_S
                self.process.send_signal(signal.SIGINT)
            elif why and not stopping:
                self.verdict = ("timed_out", why, "")
                stopping = now_s
            if stopping and (now_s >= stopping or self.stop.times > 1):
                self._kill()
                break
        while self._hear(wait_s=1.0):
            continue

    def _over_its_limit(self, now_s: float, last_word: float) -> str:
        if now_s > self.began + self.limit_s + GRACE_S:
            return f"its runner did not stop {GRACE_S:g} s after the limit of {self.limit_s:.3g} s"
        if now_s - last_word > SILENT_S:
            return f"its runner fell silent: no word for {SILENT_S:g} s"
        return ""

    def _kill(self) -> None:
        if self.verdict[0] == "timed_out":
            if (
                self.process.poll() is not None
            ):  # it ended while we were stopped ourselves
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
    """Before a run is killed: what each thread of it does, to ``stacks/``."""
    pids = [pid, *carrying(f"{MARK}={mark}")]
    stacks = [stacks_of(process, [process]) for process in pids]
    with suppress(OSError):
        (folder / "stacks").mkdir(exist_ok=True)
        (folder / "stacks" / "threads.txt").write_text("\n".join(stacks) + "\n")
