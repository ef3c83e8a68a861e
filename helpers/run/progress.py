"""How a batch goes on, on a terminal: a live table where there is one, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from .batch import BatchResult, Progress
from .shapes import Run

FIRST_LINE_S = 2.0


def for_terminal(stream: TextIO | None = None) -> Progress:
    """The progress that suits a stream (standard error): live on a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Live(stream) if stream.isatty() else Plain(stream)


class Plain:
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at most every 30."""

    def __init__(self, stream: TextIO):
        self.stream, self.of, self.next_line_s = stream, 0, FIRST_LINE_S

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        self.of = len(runs)
        self._print(f"{len(runs)} run{'s' * (len(runs) != 1)} into {folder}")

    def run_started(self, number: int, run: Run) -> None:
        self.next_line_s = FIRST_LINE_S
        self._print(f"run {number + 1} of {self.of}: {title(run)}")

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        if seconds >= self.next_line_s:
            self.next_line_s += min(self.next_line_s, 30.0)
            self._print(f"run {number + 1} of {self.of}: {where(cell, cells)}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        self._print(f"run {number + 1} of {self.of}: {ending(run)}")

    def ended(self, result: BatchResult) -> None:
        pass

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a closed terminal must not end a night's batch
            print(line, file=self.stream, flush=True)


class Live:
    """A line that moves for the run that goes on, with a spinner, its cell and its seconds; ended runs stay above it."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
                   TextColumn("{task.fields[where]}", markup=False), TimeElapsedColumn())
        self.bars = Bars(*columns, console=Console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False)
        self.of, self.task = 0, None

    task: Any

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        self.of = len(runs)
        self._print(f"{len(runs)} run{'s' * (len(runs) != 1)} into {folder}")
        self.bars.start()

    def run_started(self, number: int, run: Run) -> None:
        self.task = self.bars.add_task(f"run {number + 1} of {self.of}: {title(run)}", total=None, where=where(0, 0))

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        self.bars.update(self.task, completed=max(0, cell - 1), total=cells or None, where=where(cell, cells))

    def run_ended(self, number: int, run: Run) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
            self.task = None
        self._print(f"run {number + 1} of {self.of}: {ending(run)}")

    def ended(self, result: BatchResult) -> None:
        self.bars.stop()

    def _print(self, line: str) -> None:
        self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


def title(run: Run) -> str:
    """A run in a few words."""
    return f"{run.notebook} on {run.box}" if run.box else run.notebook


def where(cell: int, cells: int) -> str:
    """Where a run stands."""
    return f"cell {cell} of {cells}" if cells else "starting"


def ending(run: Run) -> str:
    """How a run ended, in one line."""
    answer = f": {run.verdict.cause} ({run.verdict.confidence})" if run.verdict else ""
    return f"{title(run)}: {run.state}{answer}" + f"; {run.cause}" * bool(run.cause) + f" ({run.seconds or 0:.1f} s)"
