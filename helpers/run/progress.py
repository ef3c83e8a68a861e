"""How a batch goes on: a live table on a terminal, plain lines elsewhere, several runs side by side in both.

Nothing here ends a batch: a terminal that is closed, a full disk under a log and a run never heard of are all no matter.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any, TextIO

from helpers.child import field

from .shapes import STATES, Run

FIRST_LINE_S, REFRESH_S, MEMORY_S = 2.0, 0.2, 5.0
MOST_ROWS = 16
"""Running runs that the live table shows; a fleet may have more."""
DRM, MEMINFO = Path("/sys/class/drm"), Path("/proc/meminfo")
SMI = ("--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")


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
    cell: int = 0
    cells: int = 0
    seconds: float = 0.0
    next_line_s: float = FIRST_LINE_S

    @property
    def where(self) -> str:
        return f"cell {self.cell} of {self.cells}" if self.cells else "starting"


class Tally:
    """How many runs are in which state, which ones go on, and how long the rest may take."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.going: dict[int, Going] = {}
        self._seconds: dict[str, list[float]] = {}

    def begin(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        for run in self.runs:
            self._learn(run)

    def go(self, number: int, run: Run) -> Going:
        self.going[number] = Going(run)
        return self.going[number]

    def at(self, number: int, cell: int, cells: int, seconds: float) -> Going:
        going = self.going.get(number) or self.go(number, self.runs[number])
        going.cell, going.cells, going.seconds = cell, cells, seconds
        return going

    def end(self, number: int, run: Run) -> None:
        self.going.pop(number, None)
        self.runs[number] = run
        self._learn(run)

    def counts(self) -> dict[str, int]:
        """Runs in each state, in the order of the states; ``running`` is what goes on here."""
        states = ["running" if at in self.going else run.state for at, run in enumerate(self.runs)]
        by = Counter(states)
        return {state: by[state] for state in ("running", *STATES) if by[state]}

    def left_s(self) -> float | None:
        """Seconds until the end if the rest goes like the runs before; None while nothing is known of some run."""
        whole = 0.0
        for number, run in enumerate(self.runs):
            if run.state in ("planned", "started"):
                expected = self._expected(run)
                if expected is None:
                    return None
                spent_s = self.going[number].seconds if number in self.going else 0.0
                whole += max(0.0, expected - spent_s)
        return whole / max(1, len(self.going))

    def left(self) -> str:
        """The time that is left in a few words, or nothing."""
        left = self.left_s()
        return f"; about {short_time(left)} left" if left else ""

    def line(self) -> str:
        """The counts and the time that is left, in a few words."""
        words = [f"{count} {state.replace('_', ' ')}" for state, count in self.counts().items()]
        return ", ".join(words) + self.left()

    def _expected(self, run: Run) -> float | None:
        """The median of this notebook's runs so far, else the plan's estimate, else the median of all runs."""
        of_notebook = self._seconds.get(run.notebook)
        if of_notebook is None and run.estimate_s is not None:
            return run.estimate_s
        known = of_notebook or self._seconds.get("")
        return median(known) if known else None

    def _learn(self, run: Run) -> None:
        if run.seconds is not None and run.state not in ("planned", "started", "skipped"):
            for name in (run.notebook, ""):
                self._seconds.setdefault(name, []).append(run.seconds)
                del self._seconds[name][:-99]


class Plain(Quiet):
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at most every 30."""

    def __init__(self, stream: TextIO, clock: bool = False):
        self.stream, self.clock, self.tally = stream, clock, Tally()

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        self.tally.begin(runs)
        before = sum(run.state not in ("planned", "started") for run in runs)
        ended = f", {before} of them ended before" if before else ""
        self._print(f"{len(runs)} run{'s' * (len(runs) != 1)} into {folder}{ended}")

    def run_started(self, number: int, run: Run) -> None:
        self.tally.go(number, run)
        self._say(number, run.short)

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        going = self.tally.at(number, cell, cells, seconds)
        if seconds >= going.next_line_s:
            while going.next_line_s <= seconds:
                going.next_line_s += min(going.next_line_s, 30.0)
            self._say(number, f"{going.where}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        self.tally.end(number, run)
        self._say(number, ending(run) + self.tally.left())

    def ended(self) -> None:
        if len(self.tally.runs) > 1:
            self._print(self.tally.line())

    def _say(self, number: int, words: str) -> None:
        self._print(f"run {number + 1} of {len(self.tally.runs)}: {words}")

    def _print(self, line: str) -> None:
        time_of_day = time.strftime("%H:%M:%SZ ", time.gmtime()) if self.clock else ""
        with suppress(OSError, ValueError):  # a closed terminal must not end a night's batch
            print(time_of_day + line, file=self.stream, flush=True)


class Live(Plain):
    """A table that moves: the runs that go on with cell and seconds, below it counts, time left and memory. Ended runs above.

    It is redrawn by whoever calls, from no thread of its own: a terminal that is gone costs no more than the table.
    """

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__(stream)
        self.console, self.memory = Console(file=stream), Memory()
        options: dict[str, Any] = {"auto_refresh": False, "transient": True}
        options.update(redirect_stdout=False, redirect_stderr=False)
        self.screen = Screen(console=self.console, **options)
        self._drawn_s, self._memory_s, self._memory = 0.0, -MEMORY_S, ""

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        super().started(folder, runs)
        with suppress(OSError, ValueError):
            self.screen.start()

    def run_started(self, number: int, run: Run) -> None:
        self.tally.go(number, run)
        self._draw(now=True)

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        self.tally.at(number, cell, cells, seconds)
        self._draw(now=False)

    def run_ended(self, number: int, run: Run) -> None:
        self.tally.end(number, run)
        self._say(number, ending(run))
        self._draw(now=True)

    def ended(self) -> None:
        with suppress(OSError, ValueError):
            self.screen.stop()
        super().ended()

    def _draw(self, now: bool) -> None:
        clock = time.monotonic()
        if clock - self._memory_s >= MEMORY_S:
            looks = all(going.run.danger == "looks" for going in self.tally.going.values())
            self._memory_s, self._memory = clock, self.memory.line(quiet=not looks)
        if now or clock - self._drawn_s >= REFRESH_S:
            self._drawn_s = clock
            with suppress(OSError, ValueError):
                self.screen.update(self.table(), refresh=True)

    def table(self) -> Any:
        """What the terminal shows now, for rich to draw."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        for number, going in list(self.tally.going.items())[:MOST_ROWS]:
            short = Text(going.run.short, overflow="ellipsis", no_wrap=True)
            seconds = f"{going.seconds:.0f} s"
            rows.add_row(Text(f"run {number + 1}", "dim"), short, Text(going.where), seconds)
        more = len(self.tally.going) - MOST_ROWS
        below = [Text(f"and {more} more", "dim")] if more > 0 else []
        below.append(Text(self.tally.line(), "bold"))
        return Group(rows, *below, *([Text(self._memory, "dim")] if self._memory else []))

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Memory:
    """Memory in use: of each GPU that sysfs or nvidia-smi shows, else of the host; empty where nothing says.

    nvidia-smi runs as a child that is looked at later and never waited for: a driver that hangs must not hang the batch. Beside
    a run that loads a GPU it is not started: it would open the driver again and again in the middle of what is measured.
    """

    def __init__(self, drm: Path = DRM, meminfo: Path = MEMINFO, smi: str | None = None):
        self.drm, self.meminfo = drm, meminfo
        self.smi = which("nvidia-smi") if smi is None else smi
        self.child: subprocess.Popen[str] | None = None
        self._nvidia: list[str] = []

    def line(self, quiet: bool = False) -> str:
        """One line of what is in use now; of NVIDIA's as it was a moment ago, and nothing while it has to be ``quiet``."""
        if self.smi and not quiet:
            self._ask(self.smi)
        return ", ".join([*self._amd(), *([] if quiet else self._nvidia)]) or self._host()

    def _amd(self) -> list[str]:
        """What each AMD card has in use, of VRAM and of GTT."""
        cards = []
        for card in sorted(self.drm.glob("card[0-9]*/device/mem_info_vram_used")):
            for kind in ("vram", "gtt"):
                file = f"{card.parent}/mem_info_{kind}_"
                with suppress(OSError, ValueError):
                    used, total = (int(Path(file + what).read_text()) for what in ("used", "total"))
                    cards.append(f"{card.parts[-3]} {kind.upper()} {_of(used, total)}")
        return cards

    def _host(self) -> str:
        total, free = (field(self.meminfo, name) for name in ("MemTotal:", "MemAvailable:"))
        if total is None or free is None:
            return ""
        return "host memory " + _of((total - free) << 10, total << 10)

    def _ask(self, smi: str) -> None:
        if self.child and self.child.poll() is None:
            return  # no second one beside a child that does not end
        if self.child and self.child.stdout:
            rows = ["".join(line.split()).split(",") for line in self.child.stdout]
            self._nvidia = [
                f"GPU {row[0]} {_of(int(row[1]) << 20, int(row[2]) << 20)}"
                for row in rows
                if len(row) == 3 and row[1].isdigit() and row[2].isdigit()
            ]
            self.child.stdout.close()
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        pipes.update(stderr=subprocess.DEVNULL, text=True, errors="replace")
        with suppress(OSError):
            self.child = subprocess.Popen([smi, *SMI], start_new_session=True, **pipes)


def _of(used: int, total: int) -> str:
    return f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"


def ending(run: Run) -> str:
    """How a run ended, in one line."""
    answer = f": {run.verdict.short}" if run.verdict else ""
    cause = f"; {run.cause}" if run.cause else ""
    return f"{run.short}: {run.state}{answer}{cause} ({run.seconds or 0:.1f} s)"


def short_time(seconds: float) -> str:
    """A time that is only about right: ``40 s``, ``12 min``, ``3 h 10 min``."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
