"""The faults of the campaign, and one life of a supervisor under them: a fork that carries a batch out and tells its result."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STAND_IN = Path(__file__).with_name("fault_stand_in.py")
FAST = {
    "GRACE_S": 0.3,
    "SILENT_S": 1.0,
    "STOP_S": 1.0,
    "KILL_S": 0.3,
    "JUMP_S": 0.4,
    "TICK_S": 0.05,
}
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1
CAPABILITIES_3 = 0x20080522

IN_RUN = {  # kind: the states that such a run may end in
    "kernel SIGKILL": {"died"},
    "kernel SEGV": {"died"},
    "abort with last words": {"died"},
    "hang in Python": {"timed_out"},
    "hang in C": {"timed_out"},
    "deaf to SIGINT": {"timed_out"},
    "children left behind": {"answered", "died"},
    "fake D state of the runner": {"stuck"},
    "fake D state of a child": {"stuck"},
    "host OOM": {"died"},
    "host OOM takes the runner": {"died"},
    "runner killed": {"died"},
    "runner killed between the end and its record": {"answered"},  # its notebook was saved whole
    "runner ends without a record": {"died"},
    "runner frozen": {"timed_out"},
    "runner babbles": {"answered"},
    "runner beats for ever": {"timed_out"},
}
KILLS = ("supervisor SIGKILLed", "supervisor SIGKILLed at a write", "host OOM takes the supervisor")
CUTS = ("power cut", "power cut at a write", "another boot_id")
SPOILED = ("record torn", "record of zero bytes", "record is garbage", "record of a newer schema")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGINT twice")
DISK = ("disk full", "read-only outputs")
GATE = ("gate finds what passes", "gate finds what stays", "gate breaks")
OTHERS = (*("supervisor frozen", "two supervisors at once", "clock jump", "plan changed between"),)
OUTSIDE = (*KILLS, *CUTS, *SPOILED, *SIGNALS, *DISK, *GATE, *OTHERS)
# The life ends by SIGKILL, and the box is the same afterwards.
KILLED = (*KILLS, *SPOILED, "plan changed between")


@dataclass
class Life:
    """One life of a supervisor: what was done to it, and what it told at its end."""

    number: int
    fault: str
    boot: str
    struck: bool = False
    result: dict[str, Any] | None = None
    seconds: float = 0.0
    overran: bool = False
    snapshot: dict[str, Any] = field(default_factory=dict)
    said: str = ""


@dataclass
class Case:
    """A batch under faults: where it lies, what is true about it, and its lives so far."""

    work: Path
    seed: int
    jobs: int
    faults: dict[str, str] = field(default_factory=dict)  # by run_id
    spoiled: dict[str, bytes] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    batch: Path | None = None
    out: Path | None = None
    mounted: bool = False
    powerless: bool = False
    refusals: list[str] = field(default_factory=list)

    @property
    def control(self) -> Path:
        return self.work / "control"

    def log(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.control / "log").read_text().splitlines()]
        except FileNotFoundError:
            return []


class Look:
    """Stands for a look at the box that finds what the fault says, from some look on, and tells
    the log so.
    """

    def __init__(self, case: Case, life: Life, rng: random.Random):
        self.case = case
        self.life = life
        self.looks = 0
        self.at = rng.randrange(1, 4)

    def __call__(
        self, gpus: Any = (), root: str = "", *, folder: Any = ".", since: Any = None
    ) -> Any:
        from helpers.batch.look_shapes import BoxState, Trouble

        self.looks += 1
        fault = self.life.fault
        if fault == "gate breaks" and self.looks >= self.at:
            self._struck()
            raise RuntimeError("no such sensor\nat all")
        stays = fault == "gate finds what stays"
        last = self.at + 1 if stays else self.at + 3
        if fault not in GATE or not self.at < self.looks <= last:
            self._tell("clean")
            return BoxState(self.life.boot)
        self._struck()
        self._tell("shut" if stays else "dirty")
        trouble = Trouble("box", "12 GiB held by nobody, expected 0", passes=not stays)
        return BoxState(self.life.boot, errors=(trouble,))

    def _struck(self) -> None:
        (self.case.control / f"struck-{self.life.number}").touch()

    def _tell(self, what: str) -> None:
        from fault_stand_in import tell

        tell(self.case.control, what=what, life=self.life.number, run="", attempt=0)


def life_of(case: Case, life: Life) -> None:
    """What the fork does; never returns. Its result goes to CONTROL/life-N.json."""
    code = 70
    try:
        os.environ["FAULT_LIFE"] = str(life.number)
        if case.powerless:
            _give_up_override()
        rng = random.Random(f"{case.seed} {life.number}")
        told: dict[str, Any] = {}
        from helpers.batch.carrier import Local
        from helpers.batch.plan import PlanError
        from helpers.batch.progress import Plain
        from helpers.batch.record import read_batch
        from helpers.batch.stop import Stop
        from helpers.batch.supervisor import run_plan

        _patch(case, life, rng)
        stop = Stop()
        carrier: Any = Local(case.jobs, stop)
        measure: Any = Look(case, life, rng)
        try:
            out = case.out or case.work / "out"
            options = {"measure": measure, "carrier": carrier}
            options.update(stop=stop, resume=case.batch, progress=Plain(sys.stderr))
            result = run_plan(case.work / "plan.yaml", out, **options)
            code = result.exit_code
            told = {"code": code, "interrupted": result.interrupted}
            unreadable = read_batch(result.folder).unreadable
            told.update(unrecorded=result.unrecorded, unreadable=unreadable)
            told["runs"] = [json.loads(run.model_dump_json()) for run in result.runs]
        except PlanError as error:
            code = 2
            told = {"code": 2, "refused": str(error)}
        except BaseException:  # noqa: BLE001  a traceback is what the campaign looks for
            told = {"code": 70, "traceback": traceback.format_exc()}
        aside = case.control / f"life-{life.number}.tmp"
        aside.write_text(json.dumps(told))
        os.replace(aside, case.control / f"life-{life.number}.json")
    finally:
        os._exit(code)


def _patch(case: Case, life: Life, rng: random.Random) -> None:
    """This box, as the fault wants it, and a stand-in for the runner."""
    from helpers.batch import journal, one_run, watched
    from helpers.batch import kernel_process as kernel
    from helpers.ground.child import sweep

    for name, module in list(sys.modules.items()):  # whichever of them asks for the boot
        if name.startswith("helpers.batch.") and hasattr(module, "boot_id"):
            module.boot_id = lambda: life.boot  # type: ignore[attr-defined]
    kernel.oom_kills = lambda root=None: int((case.control / "ooms").read_text())  # type: ignore[assignment]
    for name, seconds in FAST.items():
        setattr(watched, name, seconds)
    journal.LAST_RUNNER_S = 0.5
    journal.KILL_S = 0.3
    sweep.PATIENCE_S = 0.1
    sweep.SWEEP_S = 0.3
    put = [sys.executable, "-S", "-I", str(STAND_IN), str(case.control), str(life.number)]
    pieces: dict[str, Any] = {"PIPE": subprocess.PIPE}
    pieces["Popen"] = lambda words, **more: subprocess.Popen([*put, *words[-2:]], **more)
    one_run.subprocess = SimpleNamespace(**pieces)  # type: ignore[assignment]
    kill = os.kill

    def deaf(pid: int, number: int) -> None:
        if number != signal.SIGKILL or str(pid) not in lines(case.control / "deaf"):
            kill(pid, number)

    os.kill = deaf
    if life.fault == "clock jump":
        began = time.monotonic() + rng.uniform(0, 0.4)
        real = time.time
        by = rng.choice((-86400, -7, 7, 86400))
        time.time = lambda: real() + (by if time.monotonic() > began else 0)
    if life.fault.endswith("at a write"):
        kills = life.fault in KILLS
        count = rng.randrange(1, 110)
        _fail_at(count, signal.SIGKILL if kills else signal.SIGSTOP)
    if life.fault == "disk full" and not case.mounted:
        _refuse_writes(case.control / "full")


def _give_up_override() -> None:
    """Root that may not write where its own permissions forbid it (capabilities(7)); so do its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    data = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0)
    libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
    libc.capget(header, data)
    for at in range(3):
        data[at] &= ~(1 << CAP_DAC_OVERRIDE)
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def _fail_at(count: int, number: int) -> None:
    """At the so many-th boundary of a write (before or after it) this process gets the signal."""
    left = [count]

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            for turn in range(2):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), number)
                    time.sleep(0.05)
                if not turn:
                    result = call(*args, **options)
            return result

        return counted

    for name in ("fsync", "replace", "mkdir", "unlink"):
        setattr(os, name, wrapped(getattr(os, name)))


def _refuse_writes(full: Path) -> None:
    """Where no disk of one's own can be mounted: the sync of a file fails while there is such a file."""
    sync = os.fsync

    def refused(number: int) -> None:
        if full.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    os.fsync = refused


def lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def mount(folder: Path, size: str = "3m") -> bool:
    """A small disk of its own, where that is allowed."""
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if os.geteuid() != 0:
        return False
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def spoil(kind: str, path: Path, rng: random.Random) -> bytes:
    """Spoil one record and return the bytes that it has now."""
    text = path.read_bytes()
    newer = re.sub(rb'"schema_version": \d+', b'"schema_version": 99', text, count=1)
    spoiled = {
        "record torn": text[: rng.randrange(1, max(2, len(text) - 2))],
        "record of zero bytes": b"",
        "record is garbage": rng.randbytes(400),
        "record of a newer schema": newer,
    }
    path.write_bytes(spoiled[kind])
    return spoiled[kind]


def digest(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a tree with its content, but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def copied(case: Case, rng: random.Random) -> None:
    """The disk as a power cut leaves it: what was not synced may be torn. The batch goes on in the copy."""
    assert case.batch
    out = case.work / f"cut-{len(case.lives)}"
    shutil.copytree(case.batch, out / case.batch.name, symlinks=True)
    for path in (out / case.batch.name).rglob("*"):
        unsynced = path.name.endswith(".tmp") or path.name in (".lock", "runner.log")
        if unsynced and path.is_file() and rng.random() < 0.5:
            os.truncate(path, rng.randrange(path.stat().st_size + 1))
    case.out = out
    case.batch = out / case.batch.name
