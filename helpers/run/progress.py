"""How a batch goes on: a live table on a terminal, plain lines elsewhere, several runs side by side in both.

Nothing here ends a batch: a terminal that is closed, a full disk under a log and a run never heard of are all no matter.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from .record import short_time, time_left_s
from .shapes import STATES, Run

FIRST_LINE_S, REFRESH_S = 2.0, 0.2
MOST_ROWS = 16
"""Running runs that the live table shows; a fleet may have more."""


class Quiet:
    """Shows nothing of how a batch goes on, and is the base of what does. All calls come from the thread of the batch."""

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        """The batch in ``folder`` begins or goes on, with its runs as they are now."""

    def run_started(self, number: int, run: Run) -> None:
        """The run with this number in the batch starts."""

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        """A few times a second while a run goes on; ``cell`` of ``cells`` is running, 0 of 0 while its kernel starts."""

    def run_ended(self, number: int, run: Run) -> None:
        """The run with this number has ended, or was skipped."""

    def ended(self) -> None:
        """The batch is over, or goes on elsewhere."""


def for_terminal(stream: TextIO | None = None) -> Quiet:
    """The progress that suits a stream (standard error): live on a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Live(stream) if stream.isatty() else Plain(stream)


def into_file(path: Path) -> Plain:
    """Plain lines with the time of day, added to the end of a file: for a batch whose terminal is gone. Raises OSError."""
    log = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)
    return Plain(log, clock=True)


@dataclass
class Going:
    """A run that goes on: where it stands, and when the next line says so."""

    run: Run
    where: str = "starting"
    seconds: float = 0.0
    next_line_s: float = FIRST_LINE_S


class Plain(Quiet):
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at most every 30."""

    def __init__(self, stream: TextIO, clock: bool = False):
        self.stream, self.clock = stream, clock
        self.runs: list[Run] = []
        self.going: dict[int, Going] = {}

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        before = sum(run.state not in ("planned", "started") for run in runs)
        ended = f", {before} of them ended before" if before else ""
        self._print(f"{len(runs)} run{'s' * (len(runs) != 1)} into {folder}{ended}")

    def run_started(self, number: int, run: Run) -> None:
        self.going[number] = Going(run)
        self._say(number, run.short)

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        going = self.going.setdefault(number, Going(self.runs[number]))
        going.seconds, going.where = seconds, f"cell {cell} of {cells}" if cells else "starting"
        if seconds >= going.next_line_s:
            while going.next_line_s <= seconds:
                going.next_line_s += min(going.next_line_s, 30.0)
            self._say(number, f"{going.where}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        self.going.pop(number, None)
        self.runs[number] = run
        answer = f": {run.verdict.short}" if run.verdict else ""
        answer += f"; {run.cause}" if run.cause else ""
        seconds = f"({run.seconds or 0:.1f} s)"
        self._say(number, f"{run.short}: {run.state}{answer} {seconds}{self.left()}")

    def ended(self) -> None:
        if len(self.runs) > 1:
            self._print(self.summary())

    def counts(self) -> dict[str, int]:
        """Runs in each state, in the order of the states; ``running`` is what goes on here."""
        states = ["running" if at in self.going else run.state for at, run in enumerate(self.runs)]
        by = Counter(states)
        return {state: by[state] for state in ("running", *STATES) if by[state]}

    def summary(self) -> str:
        """The counts and the time that is left, in a few words."""
        words = [f"{count} {state.replace('_', ' ')}" for state, count in self.counts().items()]
        return ", ".join(words) + self.left()

    def left(self) -> str:
        """The time that is left in a few words, or nothing."""
        left_s = time_left_s(self.runs, {at: one.seconds for at, one in self.going.items()})
        return f"; about {short_time(left_s)} left" if left_s else ""

    def _say(self, number: int, words: str) -> None:
        self._print(f"run {number + 1} of {len(self.runs)}: {words}")

    def _print(self, line: str) -> None:
        time_of_day = time.strftime("%H:%M:%SZ ", time.gmtime()) if self.clock else ""
        with suppress(OSError, ValueError):  # a closed terminal must not end a night's batch
            print(time_of_day + line, file=self.stream, flush=True)


class Live(Plain):
    """A table that moves: the runs that go on with cell and seconds, below it counts and time left. Ended runs above.

    It is redrawn by whoever calls, from no thread of its own: a terminal that is gone costs no more than the table.
    """

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__(stream)
        self.console, self._drawn_s = Console(file=stream), 0.0
        options: dict[str, Any] = {"auto_refresh": False, "transient": True}
        options.update(redirect_stdout=False, redirect_stderr=False)
        self.screen = Screen(console=self.console, **options)

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        super().started(folder, runs)
        with suppress(OSError, ValueError):
            self.screen.start()

    def run_started(self, number: int, run: Run) -> None:
        self.going[number] = Going(run, next_line_s=float("inf"))
        self._draw()

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        super().tick(number, cell, cells, seconds)
        if time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def run_ended(self, number: int, run: Run) -> None:
        super().run_ended(number, run)
        self._draw()

    def ended(self) -> None:
        with suppress(OSError, ValueError):
            self.screen.stop()
        super().ended()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        with suppress(OSError, ValueError):
            self.screen.update(self.table(), refresh=True)

    def table(self) -> Any:
        """What the terminal shows now, for rich to draw."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        for number, going in list(self.going.items())[:MOST_ROWS]:
            short = Text(going.run.short, overflow="ellipsis", no_wrap=True)
            seconds = f"{going.seconds:.0f} s"
            rows.add_row(Text(f"run {number + 1}", "dim"), short, Text(going.where), seconds)
        more = len(self.going) - MOST_ROWS
        below = [Text(f"and {more} more", "dim")] if more > 0 else []
        return Group(rows, *below, Text(self.summary(), "bold"))

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
