"""What takes the place of a notebook's run on a Dask cluster, and such a cluster on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers.batch.record import files_below, move, now, write_run

ROOT = Path(__file__).resolve().parents[1]


def stand_in(folder, run, job, *, stop, tick=None):
    """Do what the run's parameter ``do`` says, and write a line into ``log`` when it starts."""
    parameters = job["parameters"]
    with open(parameters["log"], "a") as log:
        print(run.run_id, os.getpid(), file=log)
    run = move(run, "started", pid=os.getpid(), started_at=now(), node=os.uname().nodename)
    write_run(folder, run)
    (folder / "said.json").write_text(json.dumps(parameters))
    began = time.monotonic()
    while time.monotonic() - began < parameters.get("seconds", 0.1) and not stop.signal:
        time.sleep(0.05)
    if parameters.get("do") in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), signal.Signals[parameters["do"]])
    if stop.signal:
        with open(parameters["log"], "a") as log:
            print("stopped", run.run_id, file=log)
        cause = f"interrupted by {stop.signal}"
        run = move(run, "failed", ended_at=now(), cause=cause, stopped_by="interrupt")
    else:
        run = move(run, "answered", files=files_below(folder), ended_at=now())
    write_run(folder, run)
    return run


class LoopbackCluster:
    """Dask's own scheduler and workers, each a process on 127.0.0.1; all are ended at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        file = folder / "scheduler.json"
        self._start("scheduler", "scheduler", "--port", "0", "--scheduler-file", file)
        soon(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def worker(self, name, *options, memory_limit="0", checkout=ROOT):
        place = ("--local-directory", self.folder / name, "--no-nanny", "--nthreads", "1")
        limit = ("--memory-limit", memory_limit)
        words = ("worker", self.address, "--name", name, *place, *limit, *options)
        self._start(name, *words, checkout=checkout)

    def end(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def _start(self, name, part, *arguments, checkout=ROOT):
        argv = [sys.executable, "-m", "dask", part, "--host", "127.0.0.1", "--no-dashboard"]
        env = {**os.environ, "PYTHONPATH": f"{checkout}:{ROOT / 'tests'}"}
        env["CASEBOOK_OUTPUTS"] = str(self.folder / "outputs")
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [*argv, *map(str, arguments)],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def soon(holds, limit_s=120):
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + limit_s
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.1)
