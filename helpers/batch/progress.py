"""How a batch goes on, in lines, with several runs side by side.

Nothing here ends a batch: a terminal that is closed, a full disk under a log and a run never
heard of are all no matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from helpers.tell.verdict import tagged

from .shapes import STATES, Run
from .time_left import short_time, time_left_s
from .which_runs import swept

FIRST_LINE_S = 2.0


@dataclass
class Going:
    """A run that goes on: where it stands, and when the next line says so."""

    run: Run
    where: str = "starting"
    seconds: float = 0.0
    next_line_s: float = FIRST_LINE_S


class Plain:
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at
    most every 30.

    All calls come from the thread of the batch. Without a stream nothing is said.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream
        self.runs: list[Run] = []
        self.names: list[str] = []
        self.going: dict[int, Going] = {}

    def started(self, folder: Path, runs: Sequence[Run], carried: str = "") -> None:
        """``carried`` says who carries the runs out, where that is not this machine alone."""
        self.runs = list(runs)
        self.names = [
            ", ".join([run.short, *values])
            for run, values in zip(runs, swept(runs), strict=True)
        ]
        before = sum(run.state not in ("planned", "started") for run in runs)
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        ended = f", {before} of them ended before" if before else ""
        self._print(f"{count} into {folder}{ended}")
        if carried:
            self._print(carried)

    def run_started(self, number: int, run: Run) -> None:
        self.going[number] = Going(run)
        self._say(number, self.names[number])

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        going = self.going.setdefault(number, Going(self.runs[number]))
        going.seconds = seconds
        going.where = f"cell {cell} of {cells}" if cells else "starting"
        if seconds >= going.next_line_s:
            while going.next_line_s <= seconds:
                going.next_line_s += min(going.next_line_s, 30.0)
            self._say(number, f"{going.where}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        self.going.pop(number, None)
        self.runs[number] = run
        answer = f": {tagged(run.verdict)}" if run.verdict else ""
        if run.cause:
            answer += f"; {run.cause}"
        took = f"({run.seconds or 0:.1f} s)"
        words = f"{self.names[number]}: {run.state}{answer} {took}{self._left()}"
        self._say(number, words)

    def ended(self) -> None:
        if len(self.runs) > 1:
            self._print(self.summary())

    def counts(self) -> dict[str, int]:
        """Runs in each state, in the order of the states; ``running`` is what goes on here."""
        counts = Counter(
            "running" if number in self.going else run.state
            for number, run in enumerate(self.runs)
        )
        return {state: counts[state] for state in ("running", *STATES) if counts[state]}

    def summary(self) -> str:
        """The counts and the time that is left, in a few words."""
        words = [
            f"{count} {state.replace('_', ' ')}"
            for state, count in self.counts().items()
        ]
        return ", ".join(words) + self._left()

    def _left(self) -> str:
        left_s = time_left_s(self.runs, max(1, len(self.going)))
        return f"; about {short_time(left_s)} left" if left_s else ""

    def _say(self, number: int, words: str) -> None:
        self._print(f"run {number + 1} of {len(self.runs)}: {words}")

    def _print(self, line: str) -> None:
        if self.stream is None:
            return
        # A closed terminal must not end a night's batch.
        with suppress(OSError, ValueError):
            print(line, file=self.stream, flush=True)
