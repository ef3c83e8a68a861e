"""Is every run accounted for, whatever happens to it, to its supervisor, to the disk and to the machine? Faults by the hundred.

    python tests/fault_campaign.py [--faults 300] [--seed N] [--one SEED] [--keep FOLDER]

The loop, journal and supervisor as they are, over a stand-in of 50 ms for the runner and its kernel (fault_stand_in.py); several
faults in each batch, drawn by the seed, each batch resumed until it ends. Real kernels under each kind of end are those of
test_engine.py. After each batch fault_check.py judges it by what the stand-ins themselves logged outside of it.
--one runs the batch of one seed again, and --keep leaves its folder there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fault_check import Check, bare, summary  # noqa: E402
from fault_kinds import DISK, GATE, IN_RUN, OUTSIDE, Case, lines, mount  # noqa: E402
from fault_lives import Lived, send, strike  # noqa: E402

NOTEBOOK = ROOT / "tests" / "notebooks" / "needs_no_verdict.ipynb"
PLAN = """name: faults
jobs: {jobs}
limits: {{cell_s: 2, run_s: 2, total_s: 60}}
gates: {{settle_s: 0, disk_free_bytes: 0}}
runs:
- {{notebook: needs_no_verdict.ipynb, danger: looks, repeats: 4}}
- {{notebook: needs_no_verdict.ipynb, danger: loads}}
- {{notebook: needs_no_verdict.ipynb, danger: provokes}}
"""


def prepare(
    work: Path, seed: int, outside: list[str], in_run: list[str], rng: random.Random
) -> Case:
    """An empty place for a batch with these faults."""
    case = Case(work, seed, rng.choice((1, 2)))
    case.control.mkdir(parents=True)
    shutil.copy(NOTEBOOK, work)
    (work / "plan.yaml").write_text(PLAN.format(jobs=case.jobs))
    (case.control / "ooms").write_text("5")
    from helpers.batch.plan import load_plan

    names = [step.run_id for step in load_plan(work / "plan.yaml").steps]
    case.faults = dict(zip(rng.sample(names, len(in_run)), in_run, strict=True))
    (case.control / "faults.json").write_text(json.dumps(case.faults))
    if "disk full" in outside:
        case.out = work / "disk"
        case.mounted = mount(work / "disk")
    case.powerless = "read-only outputs" in outside and os.geteuid() == 0
    return case


def batch_of(seed: int, outside: list[str], in_run: list[str], keep: str = "") -> dict[str, Any]:
    """One batch under these faults until it ends: what struck, and what does not hold."""
    began = time.monotonic()
    rng = random.Random(seed)
    work = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="faults-"))
    work.mkdir(exist_ok=True)
    work.chmod(0o755)
    case = prepare(work, seed, outside, in_run, rng)
    boot = "boot"
    try:
        for fault in sorted(outside, key=lambda one: (one not in DISK, one in GATE)):
            lived = Lived(case, fault, boot, rng)
            boot = strike(lived, rng, boot)
        for _ in range(2):  # to the end, and once more: then nothing is left to do
            Lived(case, "", boot, rng).end()
        found = Check(case).all() if case.batch else ["no batch was begun"]
        events = [event for event in case.log() if event["what"] == "begin"]
        begun = {event["run"] for event in events if event["attempt"] == 1}
        last, idle = case.lives[-2:]
        pairs = [(record, idle.snapshot.get(key, record)) for key, record in last.snapshot.items()]
        pairs = [pair for pair in pairs if {record["state"] for record in pair} != {"skipped"}]
        if any(bare(one) != bare(two) for one, two in pairs):
            found.append("it does not come to rest: resumed once more, records changed")
        struck = [life.fault for life in case.lives if life.fault and life.struck]
        struck += [kind for name, kind in case.faults.items() if name in begun]
        return summary(case, found, began, outside, in_run=in_run, struck=struck)
    finally:
        send([int(pid) for pid in lines(case.control / "deaf")], signal.SIGKILL)
        if case.mounted:
            subprocess.run(["umount", "-l", str(work / "disk")], check=False)
        if not keep:
            shutil.rmtree(work, ignore_errors=True)


def drawn(seed: int, batches: int) -> list[tuple[int, list[str], list[str]]]:
    """For each batch its seed and faults: every kind comes up about as often as any other."""
    rng = random.Random(seed)
    bags: dict[str, list[str]] = {"in": [], "out": []}

    def draw(bag: str, kinds: tuple[str, ...]) -> str:
        if not bags[bag]:
            bags[bag] = rng.sample(kinds, len(kinds))
        return bags[bag].pop()

    made = []
    for number in range(batches):
        outside, in_run = (
            [draw("out", OUTSIDE) for _ in range(2)],
            [draw("in", tuple(IN_RUN)) for _ in range(2)],
        )
        made.append((seed * 100_000 + number, outside, in_run))
    return made


def campaign(faults: int, seed: int, workers: int = 2) -> list[dict[str, Any]]:
    """Batches until so many faults have struck, and every kind of them at least once."""
    done: list[dict[str, Any]] = []
    batches = iter(drawn(seed, 10 * faults))
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        going = {pool.submit(batch_of, *next(batches)) for _ in range(workers)}
        while going:
            ended = next(as_completed(going))
            going.remove(ended)
            done.append(one := ended.result())
            said = f"--one {one['seed']}: {', '.join(one['struck'])}; {one['seconds']:.1f} s"
            print("\n    ".join([said, *one["violations"]]), file=sys.stderr, flush=True)
            struck = Counter(kind for one in done for kind in one["struck"])
            missed = struck.total() >= faults / 2 and len(struck) < len(OUTSIDE) + len(IN_RUN)
            if struck.total() < faults or (missed and len(done) < faults):
                going.add(pool.submit(batch_of, *next(batches)))
    return done


def table(done: list[dict[str, Any]]) -> str:
    """Each kind, how often it struck, and in how many of its batches something did not hold."""
    struck = Counter(kind for one in done for kind in one["struck"])
    bad = Counter(kind for one in done for kind in set(one["struck"]) if one["violations"])
    kinds = [kind for kind in (*IN_RUN, *OUTSIDE) if struck[kind]]
    rows = [f"{kind:<45}{struck[kind]:>6}{bad[kind]:>12}" for kind in kinds]
    return "\n".join(
        [
            f"{'fault':<45}{'times':>6}{'violations':>12}",
            *rows,
            f"{'all':<45}{struck.total():>6}{sum(len(one['violations']) for one in done):>12}",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """0: everything held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=8)
    one = "the batch of this seed alone, as a violation names it"
    keep = "with --one: its folder"
    parser.add_argument("--one", type=int, metavar="SEED", help=one)
    parser.add_argument("--keep", default="", metavar="FOLDER", help=keep)
    given = parser.parse_args(argv)
    began = time.monotonic()
    import helpers.batch.supervisor  # noqa: F401  before the forks

    if given.one is not None:
        faults = drawn(given.one // 100_000, 10_000)[given.one % 100_000]
        done = [batch_of(*faults, keep=given.keep)]
    else:
        done = campaign(given.faults, given.seed)
    wrong = [one for one in done if one["violations"]]
    print(table(done))
    runs, lives = (sum(one[what] for one in done) for what in ("runs", "lives"))
    longest = f"the longest {max(one['longest_s'] for one in done):.1f} s"
    took = f"{time.monotonic() - began:.0f} s"
    print(f"{len(done)} batches, {runs} runs, {lives} lives of a supervisor, {longest}; {took}")
    for one in wrong:
        print(f"--one {one['seed']}: {', '.join(one['struck'])}")
        print("".join(f"    {line}\n" for line in one["violations"]), end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
