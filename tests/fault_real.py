"""Each kind of fault once against real papermill kernels: the second layer of fault_campaign.py.

The notebooks are those of tests/notebooks, each with a cell before that tells the log of the truth that it begins, and one
behind that tells its end and answers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import nbformat
from fault_check import Check, summary
from fault_kinds import FLEET, IN_RUN, OUTSIDE, Case, lines, mount
from fault_lives import Lived, send, strike

NOTEBOOKS = Path(__file__).parent / "notebooks"
PLACES = {  # kind: its notebook
    "kernel SIGKILL": "kills_itself",
    "kernel SEGV": "segfaults",
    "abort with last words": "writes_to_fd_2_and_aborts",
    "hang in Python": "loops_for_ever",
    "hang in C": "stays_in_one_c_call",
    "deaf to SIGINT": "ignores_sigint_and_sigterm",
    "children left behind": "leaves_a_child_without_environment",
    "runner killed": "kills_its_runner",
    "runner frozen": "stops_its_runner",
    "fake D state of a child": "",
    "host OOM": "",
    "no fault": "answers_with_a_figure",
}
NOT_HERE = {kind: "its runner is the stand-in's own" for kind in IN_RUN if kind not in PLACES}
NOT_HERE["host OOM takes the supervisor"] = (
    "the system's own counter moves by a true OOM kill alone; see host OOM"
)
FREEZER = Path("/sys/fs/cgroup/freezer")
MEMORY = Path("/sys/fs/cgroup/memory")
BEGIN = """import json, os, time
record, life = json.load(open("run.json")), int(os.environ.get("FAULT_LIFE", "0"))
def tell(**said):
    log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    said.update(t=time.monotonic(), pid=os.getpid(), life=life, run=record["run_id"], attempt=record["attempt"])
    os.write(log, json.dumps(said).encode() + b"\\n")
    os.fsync(log)
tell(what="begin", state=record["state"], own=True)"""
END = """import zlib
from IPython.display import display
from helpers.ground.shapes import NextStep, Verdict, as_dict
said = f"{zlib.crc32('{run_id} {attempt}'.format(**record).encode()):08x}"
verdict = Verdict(cause="cannot-tell", confidence="weak", next_step=NextStep(what="nothing"), summary=said)
tell(what="end", answer=said)
display({"application/vnd.casebook.verdict+json": as_dict(verdict)}, raw=True)"""
EATS = "eaten = [bytearray(b'x' * (64 << 20)) for _ in range(64)]"
FROZEN = """import subprocess
child = subprocess.Popen(["sleep", "600"])
open({deaf!r}, "a").write(f"{child.pid}\\n")
open({place!r} + "/cgroup.procs", "w").write(str(child.pid))
open({place!r} + "/freezer.state", "w").write("FROZEN")"""
PLAN = """name: real
jobs: {jobs}
limits: {{cell_s: 4, run_s: 30, total_s: 300}}
gates: {{settle_s: 0, disk_free_bytes: 0, memory_back_fraction: 0.5}}
runs:
"""


def _notebook(work: Path, name: str, cells: list[Any]) -> None:
    def code(text: str) -> Any:
        return nbformat.v4.new_code_cell(text)

    begin = BEGIN.replace("{log!r}", repr(str(work / "control" / "log")))
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    made = nbformat.v4.new_notebook(
        cells=[code(begin), *cells, code(END)], metadata={"kernelspec": kernel}
    )
    nbformat.write(made, work / f"{name}.ipynb")


def _case(work: Path, seed: int, names: list[str], jobs: int) -> Case:
    case = Case(work, seed, jobs, real=True)
    case.limits = {"SILENT_S": 4.0, "GRACE_S": 10.0, "JUMP_S": 2.0}
    case.control.mkdir(parents=True)
    (case.control / "ooms").write_text("0")
    for name in set(names):
        cells = []
        if name == "steady":
            cells = [nbformat.v4.new_code_cell("time.sleep(1.2)")]
        elif name == "is_frozen":
            place = str(FREEZER / f"faults-{seed}")
            deaf = str(case.control / "deaf")
            text = FROZEN.replace("{deaf!r}", repr(deaf)).replace("{place!r}", repr(place))
            cells = [nbformat.v4.new_code_cell(text)]
        elif name == "eats_memory":
            # On a busy box its memory fills in more than cell_s: then it would truly be late.
            cells = [nbformat.v4.new_code_cell(EATS, metadata={"timeout": 25})]
        else:
            cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
            for cell in cells:
                cell.metadata.pop("timeout", None)
        _notebook(work, name, cells)
    rows = "".join(f"- {{notebook: {name}.ipynb, danger: looks}}\n" for name in names)
    (work / "plan.yaml").write_text(PLAN.format(jobs=jobs) + rows)
    return case


def _judged(
    case: Case, kinds: list[str], began: float, not_run: dict[str, str] | None = None
) -> dict[str, Any]:
    found = Check(case).all() if case.batch else ["no batch was begun"]
    return summary(case, found, began, kinds, not_run=not_run or {})


def in_runs(seed: int) -> dict[str, Any]:
    """One batch whose runs do everything that a notebook may do; a night that is only looked at."""
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="faults-"))
    places = dict(PLACES)
    not_run = {}
    freezer = FREEZER / f"faults-{seed}"
    memory = MEMORY / f"faults-{seed}"
    for kind, folder, name in (
        ("fake D state of a child", freezer, "is_frozen"),
        ("host OOM", memory, "eats_memory"),
    ):
        try:
            folder.mkdir()
            places[kind] = name
        except OSError as error:
            not_run[kind] = f"{folder.parent}: no cgroup can be made: {error.strerror}"
            del places[kind]
    try:
        kinds = list(places)
        case = _case(work, seed, list(places.values()), 1)
        if "host OOM" in places:
            (memory / "memory.limit_in_bytes").write_text(str(900 << 20))
            case.cgroup = str(memory)
        from helpers.batch.plan import load_plan

        by_notebook = {f"{name}.ipynb": kind for kind, name in places.items() if kind != "no fault"}
        case.faults = {
            step.run_id: by_notebook.get(step.notebook, "")
            for step in load_plan(work / "plan.yaml").steps
        }
        for _ in range(2):
            lived = Lived(case, "", "boot", random.Random(seed))
            lived.wait(300)
            lived.end()
        return _judged(case, [kind for kind in kinds if kind != "no fault"], began, not_run)
    finally:
        if freezer.exists():
            (freezer / "freezer.state").write_text("THAWED")
        send([int(pid) for pid in lines(work / "control" / "deaf")], signal.SIGKILL)
        time.sleep(0.5)
        for folder in (freezer, memory):
            if folder.exists():
                folder.rmdir()
        shutil.rmtree(work, ignore_errors=True)


def outside(seed: int, fault: str) -> dict[str, Any]:
    """Three runs of 1.2 s under one fault from outside, resumed to the end. What did not strike is tried again."""
    for turn in range(6):
        began = time.monotonic()
        rng = random.Random(f"{seed} {turn}")
        work = Path(tempfile.mkdtemp(prefix="faults-"))
        case = _case(work, seed, ["steady"] * 3, rng.choice((1, 2)))
        try:
            if fault == "disk full":
                case.out = work / "disk"
                case.mounted = mount(work / "disk")
            case.powerless = fault == "read-only outputs" and os.geteuid() == 0
            boot = "boot"
            lived = Lived(case, fault, boot, rng)
            boot = strike(lived, rng, boot)
            for _ in range(2):
                Lived(case, "", boot, rng).end()
            if case.lives[0].struck:
                return _judged(case, [fault], began)
        finally:
            if case.mounted:
                subprocess.run(["umount", "-l", str(work / "disk")], check=False)
            shutil.rmtree(work, ignore_errors=True)
    return _judged(case, [], began, {fault: "never struck in six batches"})


def fleet(seed: int, fault: str) -> dict[str, Any]:
    """Four runs on two workers of a loopback fleet; a worker or the scheduler is lost; the rest is run here."""
    began = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="faults-"))
    from fleet_stand_in import Loopback

    from helpers.batch.record import boot_id

    rng = random.Random(seed)
    grid = None
    case = _case(work, seed, ["steady"] * 4, 2)
    try:
        (work / "grid").mkdir()
        grid = Loopback(work / "grid")
        for name in ("w0", "w1"):
            grid.worker(name)
        time.sleep(4)
        case.fleet = grid.address
        lived = Lived(case, fault, boot_id(), rng)
        lived.life.struck = lived.moment(1.0)
        number = signal.SIGSTOP if "frozen" in fault else signal.SIGKILL
        grid.send("scheduler" if "scheduler" in fault else "w0", number)
        lived.end()
        grid.end()
        for _ in range(2):
            Lived(case, "", boot_id(), rng).end()
        told = _judged(case, [fault], began)
        if case.lives[0].struck and "worker" in fault and "node_lost" not in told["states"]:
            told["violations"].append(f"no run was node_lost: {told['states']}")
        return told
    finally:
        if grid:
            grid.end()
        shutil.rmtree(work, ignore_errors=True)


def campaign(seed: int) -> list[dict[str, Any]]:
    """Every kind once."""
    done = []
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        going = [pool.submit(in_runs, seed)]
        here = [fault for fault in OUTSIDE if fault not in NOT_HERE]
        going += [pool.submit(outside, seed + at, fault) for at, fault in enumerate(here, 1)]
        going += [pool.submit(fleet, seed + 100 + at, fault) for at, fault in enumerate(FLEET)]
        for future in going:
            done.append(one := future.result())
            print(json.dumps(one), file=sys.stderr, flush=True)
    done[0]["not_run"].update(NOT_HERE)
    return done
