"""Holds the model against the real allocator of the named releases of torch, on fresh traces.

    python -m tests.oracle --release 2.14.1 --release 2.6.0 --count 200 --seed 7
    python -m tests.oracle --build rocm --release 2.6.0 [--source CLONE@v2.6.0] [--headers /opt/rocm/include]

A CUDA build is the wheel as it is; a ROCm build is compiled here. Ends 1 where any event differs, 2 where a release could not be run.
What was compared and differs nowhere gets a row in ``proved`` of helpers/settings/torch.json, which is what replays and
what-ifs say of themselves.
"""

from __future__ import annotations

import argparse
import atexit
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.oracle import build, compare, golden, jobs, programs, rocm, run, speed

SHOWN = 5  # differing jobs that are told in full


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    torch: str
    jobs: int
    events: int
    differing: int
    refused: int


def check(
    oracle: run.Oracle, made: list[tuple[jobs.Job, list[dict]]], folder: Path, engine: str
) -> Line:
    """Runs both and compares; prints the first differences."""
    events = differing = refused = 0
    for (job, ops), path in zip(made, oracle.results(made, folder), strict=True):
        real = compare.read(path)
        refused += "config_error" in real[-1]
        events += len([row for row in real if "op" in row])
        ours = compare.model(job, ops, oracle.torch, engine, oracle.build)
        if told := compare.first_difference(real, ours):
            differing += 1
            if differing <= SHOWN:
                print(f"torch {oracle.name} {job['name']} {job['conf']!r}: {told}", flush=True)
    return Line(oracle.name, len(made), events, differing, refused)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.oracle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    once = {"action": "store_true"}
    which = "a CUDA wheel or a ROCm build; without it and without a release, one of each"
    add("--build", choices=("cuda", "rocm"), help=which)
    release = f"2.14.1 without it, of ROCm {rocm.DEFAULT}; may be given again"
    add("--release", "--torch", dest="torch", action="append", metavar="VERSION", help=release)
    add("--source", default="", help="torch's source for ROCm: a folder, an archive, CLONE@TAG")
    add("--headers", default="", help="HIP's headers, such as /opt/rocm/include")
    add("--count", type=int, default=72, help="jobs of each of the two generators")
    add("--seed", type=int, default=7)
    engines = ("auto", "plain", "compiled")
    add("--engine", choices=engines, default="auto", help="machine code or plain Python")
    add("--python", default=sys.executable, help="the Python that installs and imports torch")
    add("--folder", type=Path, help="where to install and work, instead of a temporary folder")
    add("--keep", help="leave the folder, the wheel included", **once)
    add("--golden", help="write tests/golden anew; compares nothing", **once)
    figure = "events a second of the real allocator, as JSON; compares nothing"
    add("--speed", help=figure, **once)
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="oracle-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not given.keep and not given.folder:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # also when it is interrupted
    lines = []
    missing = False
    both = not (given.torch or given.speed)
    kinds = [given.build] if given.build else ["cuda", "rocm"] if both else ["cuda"]
    usual = {"cuda": "2.14.1", "rocm": rocm.DEFAULT}
    asked = [(kind, torch) for kind in kinds for torch in given.torch or [usual[kind]]]
    for kind, torch in asked:
        try:
            where = torch, folder.resolve(), given.python
            if kind == "cuda":
                oracle = run.prepare(*where)
            else:
                oracle = rocm.prepare(*where, given.source, given.headers)
            if given.golden:
                golden.write(oracle, folder / f"golden-{oracle.name}")
            elif given.speed:
                print(speed.line(oracle), flush=True)
            else:
                made = [*jobs.fresh(given.count, given.seed)]
                made += programs.fresh(given.count, given.seed, torch)
                lines.append(check(oracle, made, folder / f"work-{oracle.name}", given.engine))
        except build.NotRun as error:
            missing = True
            print(f"torch {torch} ({kind}) not run because {error}", flush=True)
        finally:
            if not given.keep:
                for name in (f"torch-{torch}", f"rocm-{torch}"):
                    shutil.rmtree(folder / name, ignore_errors=True)
    if lines:
        print(f"{'torch':<16}{'jobs':>6}{'events':>10}{'differing':>11}{'refused':>9}")
    for line in lines:
        print(
            f"{line.torch:<16}{line.jobs:>6}{line.events:>10,}{line.differing:>11}{line.refused:>9}"
        )
    return 1 if any(line.differing for line in lines) else 2 if missing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; nothing is left of what was not finished", file=sys.stderr)
        sys.exit(130)
