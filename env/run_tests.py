"""Runs pytest and nbval over the notebooks in one call, and ends with what did not run and why."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CELL_LIMIT_S = 120


class NotRun:
    """Collects the reasons of skipped checks and shows each once, above pytest's own last line."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.left_out = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (
            report.skipped
            and isinstance(report.longrepr, tuple)
            and not hasattr(report, "wasxfail")
        ):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.left_out += len(items)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = [f"{count:>4}  {reason}" for reason, count in sorted(self.reasons.items())]
        if self.left_out:
            lines.append(
                f"{self.left_out:>4}  left out by -m or -k; `make test-all` runs the slow ones"
            )
        if lines:
            terminalreporter.section("not run because")
            terminalreporter.write_line("\n".join(lines))


def main(arguments: list[str]) -> int:
    every = "--all" in arguments
    given = [word for word in arguments if word != "--all"]
    # -p no:cacheprovider would lose --lf; a checkout that cannot be written only warns.
    options = ["-rfE", "--nbval-lax", f"--nbval-cell-timeout={CELL_LIMIT_S}", "--nbval-current-env"]
    options += (
        [] if every else ["-m", "not slow", "--ignore=notebooks/cases"]
    )  # told cases take a minute
    places = (
        []
        if any((ROOT / word.split("::")[0]).exists() for word in given)
        else ["tests", "notebooks"]
    )
    return int(pytest.main([*options, *given, *places], plugins=[NotRun()]))


if __name__ == "__main__":
    sys.path[:1] = [str(ROOT)]
    sys.exit(main(sys.argv[1:]))
