"""Holds the model against the real allocator of the named releases of torch, on fresh traces.

    python -m tests.oracle --torch 2.14.1 --torch 2.6.0 --count 200 --seed 7

Ends 1 where any event differs, 3 where a release could not be run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.oracle import build, compare, golden, jobs, run, speed

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
        if told := compare.first_difference(real, compare.model(job, ops, oracle.torch, engine)):
            differing += 1
            if differing <= SHOWN:
                print(f"torch {oracle.torch} {job['name']} {job['conf']!r}: {told}", flush=True)
    return Line(oracle.torch, len(made), events, differing, refused)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.oracle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, once = parser.add_argument, {"action": "store_true"}
    release = "a release with a CUDA wheel; may be given again"
    add("--torch", action="append", metavar="VERSION", help=release)
    add("--count", type=int, default=72, help="jobs for each torch")
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
    lines, missing = [], False
    for torch in given.torch or ["2.14.1"]:
        try:
            oracle = run.prepare(torch, folder.resolve(), given.python)
            if given.golden:
                golden.write(oracle, folder / f"golden-{torch}")
            elif given.speed:
                print(speed.line(oracle), flush=True)
            else:
                made = jobs.fresh(given.count, given.seed)
                lines.append(check(oracle, made, folder / f"work-{torch}", given.engine))
        except build.NotRun as error:
            missing = True
            print(f"torch {torch} not run because {error}", flush=True)
        finally:
            if not given.keep:
                shutil.rmtree(folder / f"torch-{torch}", ignore_errors=True)
    if not given.keep and not given.folder:
        shutil.rmtree(folder)
    if lines:
        print(f"{'torch':<10}{'jobs':>6}{'events':>10}{'differing':>11}{'refused':>9}")
    for line in lines:
        print(
            f"{line.torch:<10}{line.jobs:>6}{line.events:>10,}{line.differing:>11}{line.refused:>9}"
        )
    return 1 if any(line.differing for line in lines) else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
