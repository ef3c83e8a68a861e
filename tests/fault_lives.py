"""A life of a supervisor seen from outside: started, struck by its fault at some moment, and waited for within a limit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import psutil
from fault_check import snapshot
from fault_kinds import (
    CUTS,
    DISK,
    GATE,
    KILLED,
    SPOILED,
    Case,
    Life,
    copied,
    digest,
    life_of,
    spoil,
)
from fault_stand_in import count_oom_kill

from helpers.ground.child import process_of

LIFE_S = 60.0


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    try:
        return [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


class Lived:
    """A life that goes on, seen from outside."""

    def __init__(self, case: Case, fault: str, boot: str, rng: random.Random):
        self.case = case
        self.rng = rng
        self.life = Life(len(case.lives), fault, boot)
        case.lives.append(self.life)
        self.began = time.monotonic()
        self.status = -1
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            path = case.control / f"life-{self.life.number}.txt"
            said = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            for stream in (1, 2):
                os.dup2(said, stream)
            life_of(case, self.life)

    def going(self) -> bool:
        if self.status < 0:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else -1
        if self.case.batch is None:
            out = self.case.out or self.case.work / "out"
            self.case.batch = next((path.parent for path in out.glob("*/plan.yaml")), None)
        return self.status < 0

    def wait(self, limit_s: float = LIFE_S) -> None:
        while self.going() and time.monotonic() - self.began < limit_s:
            time.sleep(0.005)
        if self.going():
            self.life.overran = True
            send(descendants(self.pid), signal.SIGKILL)
            while self.going():
                time.sleep(0.01)
        self.life.seconds = time.monotonic() - self.began

    def moment(self, scale_s: float = 0.12) -> bool:
        """Wait until some of its runs have begun, and a little more; False where it ended before."""
        count = self.rng.randrange(1, 4)
        while self.going() and time.monotonic() - self.began < LIFE_S:
            begins = [event for event in self.case.log() if event["what"] == "begin"]
            if sum(event["life"] == self.life.number for event in begins) >= count:
                time.sleep(self.rng.uniform(0, scale_s))
                return self.going() and self.case.batch is not None
            time.sleep(0.005)
        return False

    def end(self) -> None:
        self.wait()
        told = self.case.control / f"life-{self.life.number}.json"
        if told.exists():
            self.life.result = json.loads(told.read_text())
        self.life.snapshot = snapshot(self.case.batch)


def strike(lived: Lived, rng: random.Random, boot: str) -> str:
    """Do to a life what its fault says, wait for its end, and return the boot of the next."""
    case = lived.case
    life = lived.life
    fault = lived.life.fault
    if fault == "power cut at a write":
        while lived.going() and process_of(lived.pid).state != "T":
            if time.monotonic() - lived.began > LIFE_S:
                break
            time.sleep(0.002)
        life.struck = lived.going()
    elif fault in GATE or fault in ("clock jump", "supervisor SIGKILLed at a write", ""):
        lived.wait()
        life.struck = os.WIFSIGNALED(lived.status) or fault == "clock jump"
        if fault in GATE:
            life.struck = (case.control / f"struck-{life.number}").exists()
    else:
        life.struck = lived.moment(0.12)
    if not life.struck:
        lived.end()
        return boot
    if fault in CUTS:
        pids: list[int] = []
        while pids != (pids := descendants(lived.pid)):
            send(pids, signal.SIGSTOP)
        if fault != "another boot_id" and case.batch:
            copied(case, rng)
        send(pids, signal.SIGKILL)
        boot = f"{boot}+"
    elif fault in KILLED and fault != "supervisor SIGKILLed at a write":
        if fault.startswith("host OOM"):
            os.kill(
                lived.pid, signal.SIGSTOP
            )  # the kernel counts and kills in one: nothing starts between
            count_oom_kill(case.control)
        os.kill(lived.pid, signal.SIGKILL)
    elif fault.startswith("SIG"):
        os.kill(lived.pid, signal.Signals[fault.split()[0]])
        if "twice" in fault:
            time.sleep(rng.uniform(0, 0.1))
            send([lived.pid] * lived.going(), signal.SIGINT)
    elif fault == "supervisor frozen":
        os.kill(lived.pid, signal.SIGSTOP)
        time.sleep(rng.uniform(0.5, 1.5))
        os.kill(lived.pid, signal.SIGCONT)
    elif fault == "two supervisors at once":
        second(case, boot, "is running this batch", fault)
    elif fault in DISK:
        disk(lived, rng)
    lived.end()
    if fault in SPOILED and case.batch:
        name = rng.choice(sorted(path.parent.name for path in case.batch.glob("*/run.json")))
        case.spoiled[name], life.said = spoil(fault, case.batch / name / "run.json", rng), name
    if fault == "plan changed between" and case.batch:
        plan = case.work / "plan.yaml"
        until_nobody_works_in(case.batch)
        text = plan.read_text()
        before = digest(case.batch)
        plan.write_text(text.replace("jobs: ", "jobs: 1"))
        second(case, boot, "was begun with another plan", fault)
        plan.write_text(text)
        if digest(case.batch) != before:
            case.refusals.append("a refused plan wrote into the batch: see plan changed between")
    return boot


def until_nobody_works_in(batch: Path, limit_s: float = LIFE_S) -> None:
    """What a killed life leaves ends by itself, and may write until then; on a busy box that takes as long as it takes."""
    here = str(batch)
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(
        here in " ".join([one.info["cwd"] or "", *(one.info["cmdline"] or ())])
        for one in psutil.process_iter(["cwd", "cmdline"])
        if one.pid != os.getpid()
    ):
        time.sleep(0.1)


def second(case: Case, boot: str, words: str, fault: str) -> None:
    """Another supervisor for the same batch: it must be refused in these words."""
    lived = Lived(case, f"second: {fault}", boot, random.Random(0))
    lived.wait()
    case.lives.remove(lived.life)
    lived.life.number += 1000
    told = case.control / f"life-{lived.life.number}.json"
    (case.control / f"life-{lived.life.number - 1000}.json").rename(told)
    said = json.loads(told.read_text())
    if words not in said.get("refused", ""):
        case.refusals.append(f"not refused: {fault}: {str(said)[:200]}")


def disk(lived: Lived, rng: random.Random) -> None:
    """Take the disk away for a while, or until the life ends."""
    case = lived.case
    until_end = rng.random() < 0.3
    span_s = rng.uniform(0.05, 0.6)
    assert case.batch
    folders = [case.batch, *(path for path in case.batch.iterdir() if path.is_dir())]
    filler = case.batch.parent / "filler"
    if lived.life.fault == "read-only outputs":
        for folder in folders:
            folder.chmod(0o555)
    elif case.mounted:
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError:
                pass  # full
    else:
        (case.control / "full").touch()
    if until_end:
        lived.wait()
    else:
        time.sleep(span_s)
    for folder in folders:
        folder.chmod(0o755)
    filler.unlink(missing_ok=True)
    (case.control / "full").unlink(missing_ok=True)
