"""One worker process of a tuning study: given trials, it answers each with one line, or dies; it ends with its supervisor."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from helpers.load import child

END_S = 5.0


class Worker:
    """A worker and the trials that it has in hand, by number: one, or with ``threads`` as many at once in the one process.

    ``trials``: answered so far; ``first_left_bytes``: left after its first; ``leaving``: it gets no more, and ends when it has
    none in hand.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None, threads: int = 1):
        # The start program binds its life to this thread's: a supervisor that is killed leaves nothing on the card.
        argv = [*argv, *([str(threads)] if threads > 1 else [])]
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", child.START, str(os.getpid()), *argv], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rest = b""
        self.trials = 0
        self.first_left_bytes: int | None = None
        self.threads = threads
        self.leaving = False
        self.jobs: dict[int, dict[str, Any]] = {}
        self.deadlines: dict[int, float] = {}

    def give(self, job: dict[str, Any], limit_s: float) -> None:
        """Hand it a trial; a worker that is dead already is noticed when its answer is read."""
        self.jobs[job["number"]], self.deadlines[job["number"]] = job, time.monotonic() + limit_s
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"number": job["number"], "params": job["params"]}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.stop(0)

    def read(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Each trial that was answered since, with its answer: ``{"died": how}`` where there will be none."""
        assert self.process.stdout is not None
        found = []
        try:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            data = None
        if data:
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                try:
                    told = json.loads(line)
                except ValueError:
                    continue  # not a line of ours: what a library wrote to the same pipe
                if isinstance(told, dict) and told.get("event") == "result" and told.get("number") in self.jobs:
                    found.append((self.jobs.pop(told["number"]), told))
        late = {number for number in self.jobs if time.monotonic() >= self.deadlines[number]}
        if data == b"" or late:
            self.stop(END_S if data == b"" else 0)
            code = self.process.returncode
            died = "it is stuck in the kernel" if code is None else f"it was ended by {child.signal_name(-code)}" \
                if code < 0 else f"it ended with code {code} and no answer"
            found += [(job, {"died": "timed out" if number in late else died, "innocent": bool(late) and number not in late})
                      for number, job in self.jobs.items()]
            self.jobs.clear()
        return found

    def stop(self, grace_s: float = END_S) -> None:
        """Close its stdin, by which it ends; after ``grace_s`` it is killed, and waited for END_S at most."""
        if self.process.stdin is not None:
            with suppress(OSError):  # it is dead, and what was not flushed has nobody to read it
                self.process.stdin.close()
        for wait_s in (grace_s, END_S):
            try:
                self.process.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                child.signal_group(self.process.pid, signal.SIGKILL)
        if self.process.stdout is not None and self.process.returncode is not None and not self.jobs:
            self.process.stdout.close()


def ready(workers: Sequence[Worker], timeout_s: float) -> None:
    """Wait until one of them may have something to read."""
    if not workers:
        time.sleep(timeout_s)
        return
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            if worker.process.stdout is not None and not worker.process.stdout.closed:
                selector.register(worker.process.stdout, selectors.EVENT_READ)
        selector.select(timeout_s)
