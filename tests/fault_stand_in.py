"""What takes the place of a run's process in the fault campaign: a runner with a kernel of 50 ms, told by its own faults.

    python -S -I fault_stand_in.py CONTROL LIFE --one FOLDER

It keeps the contract of helpers.batch.runner and imports nothing of the workbook. What truly began and truly ended stands in
CONTROL/log: a line of JSON each, appended and synced, outside of the batch.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

KERNEL_S = 0.05
HANG_S = 0.3
BEAT_S = 0.1
PR_SET_PDEATHSIG = 1
BLAMED = ("died", "timed_out")
VERDICT = {"cause": "cannot-tell", "confidence": "weak", "next_step": {"what": "nothing"}}


def tell(control: Path, **said: Any) -> None:
    """Append a line to the log of the truth, and sync it."""
    log = os.open(control / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(log, json.dumps({"t": time.monotonic(), "pid": os.getpid(), **said}).encode() + b"\n")
    os.fsync(log)
    os.close(log)


def answer(run_id: str, attempt: int) -> str:
    """The right answer of a run: another one for each attempt."""
    return f"{zlib.crc32(f'{run_id} {attempt}'.encode()):08x}"


def save(path: Path, content: Any) -> None:
    """Whole or not at all, and synced. Raises OSError."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def count_oom_kill(control: Path) -> None:
    """One more OOM kill; whoever reads the number meanwhile sees the old one or the new one."""
    save(control / "ooms", int((control / "ooms").read_text()) + 1)


def executed(summary: str) -> dict[str, Any]:
    """A notebook of one cell that came to its end with that verdict."""
    mime = "application/vnd.casebook.verdict+json"
    status = {"papermill": {"status": "completed"}}
    shown = {"output_type": "display_data", "metadata": {}}
    shown["data"] = {mime: {**VERDICT, "summary": summary}}
    cell = {"cell_type": "code", "id": "a", "metadata": status, "source": "x", "execution_count": 1}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    return {**whole, "cells": [{**cell, "outputs": [shown]}]}


class StandIn:
    """One run: its record, its job, and what is to go wrong with it."""

    def __init__(self, control: Path, life: int, folder: Path):
        self.control = control
        self.life = life
        self.folder = folder
        self.job = json.loads(sys.stdin.read())
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != self.job["parent"]:
            os._exit(1)
        os.set_blocking(1, False)
        self.record = json.loads((folder / "run.json").read_text())
        self.name = self.record["run_id"]
        self.attempt = self.record["attempt"]
        faults = json.loads((control / "faults.json").read_text()) if self.attempt == 1 else {}
        self.fault = faults.get(self.name, "")
        self.said: dict[str, Any] = {"life": life, "run": self.name, "attempt": self.attempt}
        self.stopped = ""
        self.children: list[int] = []

    def run(self) -> None:
        """From the first line of the log to the record."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        own = self.record["pid"] == os.getpid()
        tell(self.control, what="begin", state=self.record["state"], own=own, **self.said)
        self.kernel = os.fork()
        if self.kernel == 0:
            self._as_kernel()
        self._own_fault()
        status, late = self._wait()
        for child in self.children if int(self.name[:3]) % 2 else ():  # else the supervisor has to
            os.kill(child, signal.SIGKILL)
        killed = self.fault == "runner killed between the end and its record"
        if killed or (self.children and not int(self.name[:3]) % 2):
            os.kill(os.getpid(), signal.SIGKILL)
        # The word of the parent's end may come before its end.
        until = time.monotonic() + (self.stopped == "SIGTERM")
        while os.getppid() == self.job["parent"] and time.monotonic() < until:
            time.sleep(0.005)
        if os.getppid() != self.job["parent"]:
            time.sleep(0.2 * (int(self.name[:3]) % 2))  # as one that still saves its notebook
            return
        self._write(status, late)

    def _stop(self, number: int, frame: Any) -> None:
        self.stopped = self.stopped or signal.Signals(number).name
        os.kill(self.kernel, signal.SIGINT)

    def _own_fault(self) -> None:
        time.sleep(KERNEL_S / 3)
        if self.fault == "children left behind":
            self.children = [self._child(True), self._child(False)]
        if self.fault == "runner babbles":
            for word in (b"\xff\x00{}[\n" * 300, b"[1, 2", b'{"run_id": 7}\n', b"null\n" * 50):
                os.write(1, word)
        if self.fault in ("runner killed", "host OOM takes the runner"):
            self._oom(self.fault != "runner killed")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "fake D state of the runner":
            self._deaf(os.getpid())
        if self.fault in ("runner frozen", "fake D state of the runner"):
            os.kill(self.kernel, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault == "runner ends without a record":
            os.kill(self.kernel, signal.SIGKILL)
            os._exit(0)
        if self.fault == "fake D state of a child":
            self._deaf(self._child(True))
            os.kill(self.kernel, signal.SIGKILL)
            os._exit(1)

    def _wait(self) -> tuple[int, bool]:
        """(exit status of the kernel, whether it passed its limit)."""
        began = beat = time.monotonic()
        late = False
        killed = 0.0
        while True:
            pid, status = os.waitpid(self.kernel, os.WNOHANG)
            here = time.monotonic()
            if pid and self.fault != "runner beats for ever":
                return status, late
            if pid:
                self.kernel = self._child(True)
            hangs = self.fault in ("hang in Python", "hang in C", "deaf to SIGINT")
            if (hangs and here > began + HANG_S or self.stopped) and not killed:
                late = not self.stopped
                killed = here + 0.2
                os.kill(self.kernel, signal.SIGINT)
            elif killed and here > killed:
                os.kill(self.kernel, signal.SIGKILL)
            if here > beat + BEAT_S:
                beat = here
                try:
                    os.write(1, b"[1, 2]\n")
                except OSError:
                    pass  # nobody listens any more
            time.sleep(0.005)

    def _write(self, status: int, late: bool) -> None:
        record = json.loads((self.folder / "run.json").read_text())
        record["ended_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record["seconds"] = KERNEL_S
        if self.stopped:
            why = f"interrupted by {self.stopped}"
            record.update(state="failed", cause=why, stopped_by="interrupt")
        elif late:
            record.update(state="timed_out", cause="passed the limit")
        elif os.WIFSIGNALED(status):
            record["last_words"] = (self.folder / "runner.log").read_text(errors="replace")
            record["signal"] = signal.Signals(os.WTERMSIG(status)).name
            record.update(state="died", cause="the kernel was killed")
        elif status:
            record.update(state="failed", cause="OSError: its answer cannot be saved")
        else:
            summary = json.loads((self.folder / "answer.json").read_text())
            record["verdict"] = {**VERDICT, "summary": summary}
            record.update(state="answered", cells={"completed": 1}, files=["answer.json"])
        record["strikes"] += record["state"] in BLAMED
        try:
            save(self.folder / "run.json", record)
        except OSError:
            os.set_blocking(1, True)
            os.write(1, json.dumps(record).encode() + b"\n")
        else:
            tell(self.control, what="recorded", state=record["state"], **self.said)

    def _as_kernel(self) -> None:
        """50 ms of work; never returns."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            tell(self.control, what="kernel", **self.said)
            time.sleep(KERNEL_S / 2)
            self._kernel_fault()
            time.sleep(KERNEL_S / 2)
            save(self.folder / "answer.json", answer(self.name, self.attempt))
            tell(self.control, what="end", answer=answer(self.name, self.attempt), **self.said)
            save(self.folder / "notebook.ipynb", executed(answer(self.name, self.attempt)))
            code = 0
        except (OSError, KeyboardInterrupt):
            code = 1
        finally:
            os._exit(code)

    def _kernel_fault(self) -> None:
        signals = {
            "kernel SIGKILL": signal.SIGKILL,
            "kernel SEGV": signal.SIGSEGV,
            "host OOM": signal.SIGKILL,
            "abort with last words": signal.SIGABRT,
        }
        if self.fault == "abort with last words":
            os.write(2, b"GPU node 1: page not present\n")
        if self.fault in signals:
            self._oom(self.fault == "host OOM")
            os.kill(os.getpid(), signals[self.fault])
        if self.fault == "deaf to SIGINT":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.fault == "hang in C":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        while self.fault in ("hang in Python", "hang in C", "deaf to SIGINT"):
            time.sleep(0.01)

    def _oom(self, killed: bool) -> None:
        if killed:
            count_oom_kill(self.control)

    def _deaf(self, pid: int) -> None:
        with open(self.control / "deaf", "a") as deaf:
            print(pid, file=deaf)

    def _child(self, session: bool) -> int:
        env = {**os.environ, "CASEBOOK_RUN": self.job["mark"]}
        null = subprocess.DEVNULL
        options: dict[str, Any] = {"stdin": null, "stdout": null, "env": env}
        child = subprocess.Popen(["sleep", "600"], start_new_session=session, **options)
        tell(self.control, what="child", child=child.pid, **self.said)
        return child.pid


if __name__ == "__main__":
    StandIn(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4])).run()
