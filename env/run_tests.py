"""Runs pytest and nbval over the notebooks in one call, on every core, and ends with what did not run and why.

It is the plugin of that call, too: what its processes did not run is counted here.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CELL_LIMIT_S = 600  # a guard against a hang, also on a machine that has ten other things to do
MOST_PROCESSES = 8
# Told cases take a minute, and two notebooks measure for most of one: tests/test_notebooks.py carries those out on little work.
LONG = ("cases", "04_vpoc_chunking.ipynb", "06_training_paths.ipynb")
REASONS: Counter[str] = Counter()
LEFT_OUT: Counter[str] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A notebook's cell of which no other takes anything may be slow, as a test may be: its tag says so."""
    cell: Any = getattr(item, "cell", None)
    if cell is not None and "slow" in cell.metadata.get("tags", []):
        item.add_marker(pytest.mark.slow)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and not hasattr(report, "wasxfail"):
        REASONS[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_deselected(items: list[pytest.Item]) -> None:
    LEFT_OUT["here"] += len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = LEFT_OUT["here"]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Every process collects the same tests and leaves the same out."""
    LEFT_OUT["here"] = getattr(node, "workeroutput", {}).get("left_out", LEFT_OUT["here"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [f"{count:>4}  {reason}" for reason, count in sorted(REASONS.items())]
    if LEFT_OUT["here"]:
        why = "left out by -m or -k; `make test-all` runs the slow ones"
        lines.append(f"{LEFT_OUT['here']:>4}  {why}")
    if lines:
        terminalreporter.section("not run because")
        terminalreporter.write_line("\n".join(lines))


def main(arguments: list[str]) -> int:
    # What is compiled is kept: else each process compiles the checkout, and rewrites every assertion, again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    every = "--all" in arguments
    given = [word for word in arguments if word != "--all"]
    named = any((ROOT / word.split("::")[0]).exists() for word in given)
    if every:
        os.environ.setdefault("HYPOTHESIS_PROFILE", "all")  # tests/examples.py
    # One more than there are cores, because many tests wait for a child or for a limit of time.
    processes = min(len(os.sched_getaffinity(0)) + 1, MOST_PROCESSES)
    # A file's tests share what they set up, so a file is one process's.
    options = ["-p", "run_tests", "-n", str(processes), "--dist", "loadfile"]
    # -p no:cacheprovider would lose --lf; a checkout that cannot be written only warns.
    options += ["-rfE", "--nbval-lax", f"--nbval-cell-timeout={CELL_LIMIT_S}"]
    options += ["--nbval-current-env"]
    if not every:
        options += ["-m", "not slow", *(f"--ignore=notebooks/{name}" for name in LONG)]
    return int(pytest.main([*options, *given, *([] if named else ["notebooks", "tests"])]))


if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "env")]
    sys.exit(main(sys.argv[1:]))
