"""Prints the progress of a batch in lines.

Nothing here ends a batch: a closed terminal and a full disk under a log are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from helpers.tell.verdict import tagged

from .shapes import STATES, Run
from .time_left import short_time, time_left_s
from .which_runs import swept

FIRST_LINE_S = 2.0
LONGEST_PAUSE_S = 30.0
"""Pauses between the lines of a run: each as long as all before it, up to this."""


class Plain:
    """Prints a line as a run starts and ends, and in between after 2, 4, 8, 16, 32 seconds and
    every 30 seconds from then on.

    Runs are given by their number in the plan, from 0. ``names`` tells each apart by its box and
    parameters; ``next_line_s`` says of each run under way after how many seconds its next line is
    due. All calls come from the thread of the batch. Without a stream nothing is printed.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream
        self.runs: list[Run] = []
        self.names: list[str] = []
        self.next_line_s: dict[int, float] = {}

    def started(self, folder: Path, runs: Sequence[Run], carried: str = "") -> None:
        """The batch in ``folder`` starts. ``carried`` says who carries the runs out, if that is not
        this machine alone.
        """
        self.runs = list(runs)
        self.names = [
            ", ".join([run.short, *values])
            for run, values in zip(runs, swept(runs), strict=True)
        ]
        line = f"{len(runs)} runs into {folder}"
        if len(runs) == 1:
            line = f"1 run into {folder}"
        ended_before = sum(run.state not in ("planned", "started") for run in runs)
        if ended_before:
            line += f", {ended_before} of them ended before"
        self._print(line)
        if carried:
            self._print(carried)

    def run_started(self, number: int, run: Run) -> None:
        """A run starts."""
        self.runs[number] = run
        self.next_line_s[number] = FIRST_LINE_S
        self._say(number, self.names[number])

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        """A run is in ``cell``, counted from 1, of ``cells`` (0: its kernel starts), ``seconds``
        after its start; prints a line if one is due.
        """
        due_s = self.next_line_s.get(number, FIRST_LINE_S)
        if seconds < due_s:
            return
        while due_s <= seconds:
            due_s += min(due_s, LONGEST_PAUSE_S)
        self.next_line_s[number] = due_s
        where = "starting"
        if cells:
            where = f"cell {cell} of {cells}"
        self._say(number, f"{where}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        """A run has ended; prints its state, its answer, its cause and how long it took."""
        self.next_line_s.pop(number, None)
        self.runs[number] = run
        words = f"{self.names[number]}: {run.state}"
        if run.verdict:
            words += f": {tagged(run.verdict)}"
        if run.cause:
            words += f"; {run.cause}"
        seconds = 0.0
        if run.seconds is not None:
            seconds = run.seconds
        self._say(number, f"{words} ({seconds:.1f} s){self._left()}")

    def ended(self) -> None:
        """The batch has ended; prints the counts."""
        if len(self.runs) > 1:
            self._print(self.summary())

    def counts(self) -> dict[str, int]:
        """How many runs are in each state, in the order of STATES, by their last records."""
        counts: Counter[str] = Counter(run.state for run in self.runs)
        return {state: counts[state] for state in STATES if counts[state]}

    def summary(self) -> str:
        """The counts and the time that is left, such as "2 answered, 1 failed; about 3 min
        left".
        """
        words = [
            f"{count} {state.replace('_', ' ')}"
            for state, count in self.counts().items()
        ]
        return ", ".join(words) + self._left()

    def _left(self) -> str:
        """How long the batch will still take, as the end of a line; empty if that is not known."""
        # it has an entry for each run under way
        side_by_side = max(1, len(self.next_line_s))
        left_s = time_left_s(self.runs, side_by_side)
        if not left_s:
            return ""
        return f"; about {short_time(left_s)} left"

    def _say(self, number: int, words: str) -> None:
        """Print a line about one run."""
        self._print(f"run {number + 1} of {len(self.runs)}: {words}")

    def _print(self, line: str) -> None:
        if self.stream is None:
            return
        # OSError: the terminal is gone or the disk full; ValueError: the stream is closed.
        with suppress(OSError, ValueError):
            print(line, file=self.stream, flush=True)
