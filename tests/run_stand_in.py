"""A batch without a kernel: runs that take no time, a plan and its batch on the disk, for all tests of helpers.batch."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from helpers.batch import record
from helpers.batch.carrier import Local
from helpers.batch.journal import Journal
from helpers.batch.plan import load_plan
from helpers.batch.record import boot_id, move, node, read_run, write_run
from helpers.batch.shapes import Run
from helpers.batch.stop import Stop
from helpers.batch.supervisor import run_plan

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = Path(__file__).parent / "notebooks"
FOUR = "- {notebook: needs_no_verdict.ipynb, danger: looks, repeats: 4}"


class StandIn:
    """A run that takes no time: it starts, does what is asked of this number, and answers."""

    def __init__(self, **doing):
        self.doing = doing
        self.ran = []
        self.most = 0
        self.going = 0
        self.jobs = {}
        self.beside = set()
        self.lock = threading.Lock()

    def __call__(self, folder, run, job, *, stop=None, tick=None):
        number = run.run_id.split("-")[0]
        with self.lock:
            self.ran.append(number)
            self.jobs[number] = job
            self.going += 1
            self.most = max(self.most, self.going)
            self.beside |= {number} if self.going > 1 else set()
        about = {"boot_id": boot_id(), "node": node(), "started_at": record.now()}
        run = move(run, "started", pid=os.getpid(), **about)
        write_run(folder, run)
        (folder / "figure.png").write_text(f"attempt {run.attempt}")
        act = self.doing.get(f"n{number}") or self.doing.get("each")
        if tick:
            tick(1, 2, 0.1)
        run = (act(folder, run) if act else None) or move(run, "answered", seconds=0.01)
        write_run(folder, run)
        with self.lock:
            self.going -= 1
        return run


def state(name, **changes):
    """What a StandIn is given: the run ends in this state."""
    return lambda folder, run: move(run, name, **changes)


def plan(folder, rows=FOUR, head=""):
    """A plan in a folder, beside the notebooks of the tests that its rows name."""
    for path in NOTEBOOKS.glob("*.ipynb"):
        if path.name in rows:
            shutil.copy(path, folder)
    (folder / "plan.yaml").write_text(f"name: night\n{head}\nruns:\n{rows}\n")
    return folder / "plan.yaml"


def go(path, run_one=None, slots=1, stop=None, **options):
    """The result of a plan's batch, or of a resumed one, its runs carried out by a stand-in."""
    stop = stop or Stop()
    carrier = Local(slots, stop, run_one or StandIn())
    return run_plan(path, path.parent / "outputs", carrier=carrier, stop=stop, **options)


def states(result):
    return [run.state for run in result.runs]


def begun(folder):
    """A batch as it lies there after its supervisor was killed in the middle of its second run of four."""
    path = plan(folder)
    journal = Journal.begin(folder / "outputs", load_plan(path))
    first, second = journal.runs[:2]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for run, end in ((first, "answered"), (second, "")):
        run = move(run, "started", pid=dead.pid, boot_id=boot_id(), node=node(), ooms_before=5)
        (journal.folder / run.run_id / "figure.png").write_text("attempt 1")
        journal.put(move(run, end) if end else run)
    journal.close()
    return path, journal.folder, second.run_id


def change(batch, run_id, **changes):
    """Rewrite fields of a record on the disk."""
    path = batch / run_id
    write_run(path, read_run(path / "run.json").model_copy(update=changes))


def planned(folder, number=0, **fields):
    """A planned run with its record in a folder."""
    run = Run(run_id=f"{number:03d}-x", batch_id="b", box="", notebook="x.ipynb", **fields)
    (folder / run.run_id).mkdir(parents=True)
    write_run(folder / run.run_id, run)
    return run
