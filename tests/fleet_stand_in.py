"""What takes the place of a notebook's run in the fleet's tests, and the processes of a fleet on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from helpers.batch.record import files_below, move, now, write_run

ROOT = Path(__file__).resolve().parents[1]


def stand_in(folder, run, job, *, stop, tick):
    """Does what the run's parameter ``do`` says, and writes a line into ``log`` each time that it is started."""
    given = job["parameters"]
    with open(given["log"], "a") as log:
        print(run.run_id, os.getpid(), file=log)
    run = move(run, "started", pid=os.getpid(), started_at=now())
    write_run(folder, run)
    (folder / "said.json").write_text(json.dumps(given))
    began = time.monotonic()
    while time.monotonic() - began < given.get("seconds", 0.1) and not stop.signal:
        tick(1, 2, time.monotonic() - began)
        time.sleep(0.05)
    if given.get("do") in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), signal.Signals[given["do"]])
    if given.get("do") == "big":
        (folder / "sub").mkdir()
        (folder / "sub" / "small.bin").write_bytes(b"s" * 1000)
        (folder / "big.bin").write_bytes(b"b" * 300_000)
    if stop.signal:
        about = {"cause": f"interrupted by {stop.signal}", "stopped_by": "interrupt"}
        run = move(run, "failed", ended_at=now(), **about)
        with open(given["log"], "a") as log:
            print("stopped", run.run_id, file=log)
    else:
        run = move(run, "answered", files=files_below(folder), ended_at=now())
    write_run(folder, run)
    return run


class Loopback:
    """A scheduler and its workers, each a process of its own on 127.0.0.1; all are ended at the end, frozen ones too.

    ``stock``: started by distributed's own commands, as somebody may who does not read env/FLEET.md.
    """

    def __init__(self, folder, stock=False, keys=None, **environ):
        self.folder = folder
        self.stock = stock
        self.processes = {}
        self.wires = []
        self.environ = environ
        self.keys = ("--keys", keys) if keys else ()
        where = folder / "where.json"
        self._start("scheduler", "--port", "0", "--scheduler-file", where)
        soon(lambda: where.exists() and where.read_text().endswith("}"))
        self.address = json.loads(where.read_text())["address"]

    def worker(self, name, *options, address=""):
        place = ("--local-directory" if self.stock else "--scratch", self.folder / name)
        to = () if self.stock else ("--scheduler",)
        self._start(name, *to, address or self.address, "--name", name, *place, *options)

    def wire(self):
        """The scheduler's address by a wire that can be cut."""
        self.wires.append(Wire(self.address))
        return self.wires[-1]

    def send(self, name, number):
        self.processes[name].send_signal(number)

    def end(self):
        for wire in self.wires:
            wire.close()
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()

    def _start(self, name, *arguments):
        part = "scheduler" if name == "scheduler" else "worker"
        argv = [sys.executable, "-m", "helpers", "fleet", part, *map(str, self.keys)]
        if self.stock:
            argv = [sys.executable, "-m", f"distributed.cli.dask_{part}", "--no-dashboard"]
            argv += ["--host", "127.0.0.1", *(() if part == "scheduler" else ("--no-nanny",))]
        env = {**os.environ, **self.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        env["CASEBOOK_OUTPUTS"] = str(self.folder / "outputs")
        with open(self.folder / f"{name}.log", "wb") as log:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            argv += map(str, arguments)
            self.processes[name] = subprocess.Popen(argv, cwd=self.folder, env=env, **pipes)


class Wire:
    """Carries bytes between a worker and the scheduler until ``cut``; from then on nothing arrives and nothing is closed."""

    def __init__(self, address):
        host, port = address.rpartition("/")[2].split(":")
        self.far = (host, int(port))
        self.whole = True
        self.ends = []
        self.door = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self.whole = False

    def close(self):
        for end in [self.door, *self.ends]:
            end.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.door.accept()
            except OSError:
                return
            far = socket.create_connection(self.far)
            self.ends += [near, far]
            for here, there in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here, there):
        try:
            while content := here.recv(65536):
                if not self.whole:
                    return
                there.sendall(content)
        except OSError:
            return


def soon(what, limit_s=180):
    """Wait until something holds."""
    until = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.1)
    return found
