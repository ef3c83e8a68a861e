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
from typing import TYPE_CHECKING, Any, TextIO

from .shapes import STATES, Run

if TYPE_CHECKING:
    from .batch import BatchResult, Progress

FIRST_LINE_S, REFRESH_S, MEMORY_S = 2.0, 0.2, 5.0
MOST_ROWS = 16
"""Running runs that the live table shows; a fleet may have more."""
DRM = Path("/sys/class/drm")
MEMINFO = Path("/proc/meminfo")


def for_terminal(stream: TextIO | None = None) -> Progress:
    """The progress that suits a stream (standard error): live on a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Live(stream) if stream.isatty() else Plain(stream)


def into_file(path: Path) -> Progress:
    """Plain lines with the time of day, added to the end of a file: for a batch whose terminal is gone.

    Tell it ``started`` with the runs as they are now; then it goes on like any other. Raises OSError.
    """
    return Plain(
        open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1), clock=True
    )


@dataclass
class Going:
    """A run that goes on: where it stands, and when it says so next."""

    run: Run
    cell: int = 0
    cells: int = 0
    seconds: float = 0.0
    next_line_s: float = FIRST_LINE_S


class Tally:
    """How many runs are in which state, which ones go on, and how long the rest may take."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.going: dict[int, Going] = {}
        self._took: dict[str, list[float]] = {}

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
        by = Counter(
            "running" if number in self.going else run.state for number, run in enumerate(self.runs)
        )
        return {state: by[state] for state in ("running", *STATES) if by[state]}

    def left_s(self) -> float | None:
        """Seconds until the end if the rest goes like what was seen; None while nothing is known of some run."""
        whole = 0.0
        for number, run in enumerate(self.runs):
            if run.state in ("planned", "started"):
                expected = self._expected(run)
                if expected is None:
                    return None
                whole += (
                    max(0.0, expected - self.going[number].seconds)
                    if number in self.going
                    else expected
                )
        return whole / max(1, len(self.going))

    def line(self) -> str:
        """The counts and the time that is left, in a few words."""
        left = self.left_s()
        words = [f"{count} {state.replace('_', ' ')}" for state, count in self.counts().items()]
        return ", ".join(words) + (f"; about {short_time(left)} left" if left else "")

    def _expected(self, run: Run) -> float | None:
        """The median of this notebook's runs so far, else the plan's estimate, else the median of all runs."""
        took = self._took.get(run.notebook)
        if took is None and run.estimate_s is not None:
            return run.estimate_s
        took = took or self._took.get("")
        return median(took) if took else None

    def _learn(self, run: Run) -> None:
        if run.seconds is not None and run.state not in ("planned", "started", "skipped"):
            for name in (run.notebook, ""):
                self._took.setdefault(name, []).append(run.seconds)
                del self._took[name][:-99]


class Plain:
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at most every 30."""

    def __init__(self, stream: TextIO, clock: bool = False):
        self.stream, self.clock, self.tally = stream, clock, Tally()

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        self.tally.begin(runs)
        self._print(beginning(folder, runs))

    def run_started(self, number: int, run: Run) -> None:
        self.tally.go(number, run)
        self._print(f"{self._which(number)}: {title(run)}")

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        going = self.tally.at(number, cell, cells, seconds)
        if seconds >= going.next_line_s:
            while going.next_line_s <= seconds:
                going.next_line_s += min(going.next_line_s, 30.0)
            self._print(f"{self._which(number)}: {where(cell, cells)}, {seconds:.0f} s")

    def run_ended(self, number: int, run: Run) -> None:
        self.tally.end(number, run)
        left = self.tally.left_s()
        self._print(
            f"{self._which(number)}: {ending(run)}"
            + (f"; about {short_time(left)} left" if left else "")
        )

    def ended(self, result: BatchResult) -> None:
        if len(self.tally.runs) > 1:
            self._print(self.tally.line())

    def _which(self, number: int) -> str:
        return f"run {number + 1} of {len(self.tally.runs)}"

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a closed terminal must not end a night's batch
            print(
                f"{time.strftime('%H:%M:%SZ', time.gmtime())} " * self.clock + line,
                file=self.stream,
                flush=True,
            )


class Live(Plain):
    """A table that moves: the runs that go on with cell and seconds, below it counts, time left and memory. Ended runs above.

    It is redrawn by whoever calls, from no thread of its own: a terminal that is gone costs no more than the table.
    """

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__(stream)
        self.console, self.memory = Console(file=stream), Memory()
        self.screen = Screen(
            console=self.console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
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
        self._draw()

    def run_ended(self, number: int, run: Run) -> None:
        self.tally.end(number, run)
        self._print(f"{self._which(number)}: {ending(run)}")
        self._draw(now=True)

    def ended(self, result: BatchResult) -> None:
        with suppress(OSError, ValueError):
            self.screen.stop()
        super().ended(result)

    def _draw(self, now: bool = False) -> None:
        clock = time.monotonic()
        if clock - self._memory_s >= MEMORY_S:
            looks = all(going.run.danger == "looks" for going in self.tally.going.values())
            self._memory_s, self._memory = clock, self.memory.line(quiet=not looks)
        if now or clock - self._drawn_s >= REFRESH_S:
            self._drawn_s = clock
            with suppress(OSError, ValueError):
                self.screen.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows = Table.grid(padding=(0, 2))
        for number, going in list(self.tally.going.items())[:MOST_ROWS]:
            rows.add_row(
                Text(f"run {number + 1}", "dim"),
                Text(title(going.run), overflow="ellipsis", no_wrap=True),
                Text(where(going.cell, going.cells)),
                Text(f"{going.seconds:.0f} s"),
            )
        more = len(self.tally.going) - MOST_ROWS
        small = (
            [Text(f"and {more} more", "dim")] * (more > 0),
            [Text(self._memory, "dim")] * bool(self._memory),
        )
        return Group(rows, *small[0], Text(self.tally.line(), "bold"), *small[1])

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Memory:
    """Memory in use: of each GPU that sysfs or nvidia-smi shows, else of the host; empty where nothing says.

    nvidia-smi runs as a child that is looked at later and never waited for: a driver that hangs must not hang the batch. Beside
    a run that loads a GPU it is not started: it would open the driver again and again in the middle of what is measured.
    """

    def __init__(self, drm: Path = DRM, meminfo: Path = MEMINFO, smi: str | None = None):
        self.drm, self.meminfo, self.smi = (
            drm,
            meminfo,
            smi if smi is not None else which("nvidia-smi"),
        )
        self._child: subprocess.Popen[str] | None = None
        self._nvidia: list[str] = []

    def line(self, quiet: bool = False) -> str:
        """One line of what is in use now; of NVIDIA's as it was a moment ago, and nothing while it has to be ``quiet``."""
        if self.smi and not quiet:
            self._ask(self.smi)
        return ", ".join([*amd_memory(self.drm), *([] if quiet else self._nvidia)]) or host_memory(
            self.meminfo
        )

    def _ask(self, smi: str) -> None:
        if self._child and self._child.poll() is None:
            return  # no second one beside a child that does not end
        if self._child and self._child.stdout:
            rows = [
                [part.strip() for part in row.split(",")]
                for row in self._child.stdout.read().splitlines()
            ]
            self._nvidia = [
                f"GPU {row[0]} {_of(int(row[1]) << 20, int(row[2]) << 20)}"
                for row in rows
                if len(row) == 3 and row[1].isdigit() and row[2].isdigit()
            ]
            self._child.stdout.close()
        with suppress(OSError):
            self._child = subprocess.Popen(
                [
                    smi,
                    "--query-gpu=index,memory.used,memory.total",
                    "--format=csv,noheader,nounits",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )


def amd_memory(drm: Path) -> list[str]:
    """What each AMD card has in use, of VRAM and of GTT."""
    said = []
    for card in sorted(drm.glob("card[0-9]*/device/mem_info_vram_used")):
        for kind in ("vram", "gtt"):
            with suppress(OSError, ValueError):
                used, total = (
                    int((card.parent / f"mem_info_{kind}_{what}").read_text())
                    for what in ("used", "total")
                )
                said.append(f"{card.parts[-3]} {kind.upper()} {_of(used, total)}")
    return said


def host_memory(meminfo: Path) -> str:
    """What of the host's memory is in use, or nothing."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        fields = {
            line.split(":")[0]: int(line.split()[1]) << 10
            for line in meminfo.read_text().splitlines()[:5]
        }
        return "host memory " + _of(fields["MemTotal"] - fields["MemAvailable"], fields["MemTotal"])
    return ""


def _of(used: int, total: int) -> str:
    return f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB"


def beginning(folder: Path, runs: Sequence[Run]) -> str:
    """What a batch starts with, also one that goes on where it stopped."""
    before = sum(run.state not in ("planned", "started") for run in runs)
    return (
        f"{len(runs)} run{'s' * (len(runs) != 1)} into {folder}"
        + f", {before} of them ended before" * bool(before)
    )


def title(run: Run) -> str:
    """A run in a few words."""
    return f"{run.notebook} on {run.box}" if run.box else run.notebook


def where(cell: int, cells: int) -> str:
    """Where a run stands."""
    return f"cell {cell} of {cells}" if cells else "starting"


def ending(run: Run) -> str:
    """How a run ended, in one line."""
    answer = f": {run.verdict.short}" if run.verdict else ""
    return (
        f"{title(run)}: {run.state}{answer}"
        + f"; {run.cause}" * bool(run.cause)
        + f" ({run.seconds or 0:.1f} s)"
    )


def short_time(seconds: float) -> str:
    """A time that is only about right: ``40 s``, ``12 min``, ``3 h 10 min``."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
