"""A batch: every run of a plan, each in a process of its own, each with its record, and the
next one on a clean box.

What only looks may go on side by side; what loads or provokes has the box to itself, and what
reads the batch's own records waits for all runs before it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, get_args

from helpers.ground.shapes import Confidence
from helpers.ground.units import plain

from .gate import Between
from .journal import Journal
from .plan import PlanError, Step, load_plan
from .record import (
    boot_id,
    in_words,
    move,
    node,
    replaced,
    short_time,
    strikes_by_node,
    time_left_s,
)
from .runner import TICK_S, Job, Local, Stop, mark_of
from .shapes import STATES, Run, StoppedBy

LOG = "batch.log"
SUCCESS = "on_confidence"
"""The stop rule under which the runs that are left out are not needed any more."""
SURE = get_args(Confidence)
Capture = Callable[[Path], Path]
"""Writes an evidence bundle of this box to the path that it is given and returns where it lies."""


@dataclass(frozen=True)
class BatchResult:
    """Every run of a batch in order. ``interrupted`` is the signal that stopped it, or empty.

    ``unrecorded`` names each run whose record could not be written, with the reason: what is
    said here of it is nowhere else.
    """

    folder: Path
    runs: tuple[Run, ...]
    interrupted: str = ""
    unrecorded: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every run answered, and its record is kept; 1: some did not; 130: interrupted."""
        good = all(run.state == "answered" or SUCCESS in run.cause for run in self.runs)
        good = good and not self.unrecorded
        return 130 if self.interrupted else 0 if good else 1


def run_plan(
    path: Path,
    out_root: Path,
    *,
    box: str = "",
    capture: Capture | None = None,
    progress: Quiet | None = None,
    carrier: Local | None = None,
    resume: Path | None = None,
    gate: Any = None,
    again: Collection[str] = (),
    stop: Stop | None = None,
) -> BatchResult:
    """Run a plan into a new folder below ``out_root``, or go on with the batch in ``resume``.

    Raises PlanError before anything ran; afterwards records say it all.

    ``box`` takes the place of ``live``. ``capture`` is called once, before the first run, where
    a run needs it. ``again`` names runs of a resumed batch that are repeated whatever they did.
    A ``carrier`` of one's own hears of signals by the ``stop`` that both are given. ``gate`` is
    the module helpers.batch.gate or a stand-in for it; without one no look is taken.
    """
    checked = load_plan(path, box)
    if capture is None and any(map(_wants_live, checked.steps)):
        why = "a run wants the box 'live' and nothing captures it here; give a recorded box"
        raise PlanError(f"{path}: {why}")
    stop = stop or Stop()
    carrier = carrier or Local(checked.plan.jobs, stop)
    journal = None
    try:
        with stop.listening():
            carrier.check(checked)
            if resume:
                journal = Journal.reopen(resume, checked, again)
            else:
                journal = Journal.begin(out_root, checked)
            return _Batch(journal, carrier, stop, progress or Quiet(), gate).go(capture)
    finally:
        carrier.close()
        if journal:
            journal.close()


class _Batch:
    """The loop: starts what may start, waits for what goes on, and looks at the box when
    nothing does.
    """

    def __init__(self, journal: Journal, carrier: Local, stop: Stop, progress: Quiet, gate: Any):
        self.journal = journal
        self.carrier = carrier
        self.stop = stop
        self.progress = progress
        self.checked = journal.checked
        self.plan = journal.checked.plan
        gate = gate if carrier.one_box else None
        self.box = Between(gate, self.plan.gates, journal.folder, lambda: bool(stop.signal))
        planned = [at for at, run in enumerate(journal.runs) if run.state == "planned"]
        self.waiting = deque(planned)
        self.going: dict[Future[Run], int] = {}
        self.at: dict[int, tuple[int, int, float]] = {}
        self.since: list[int] = []  # what ended since the box was last seen clean
        self.live = self.no_live = self.halt = ""
        self.began = time.monotonic()
        self.hung_up = False

    def go(self, capture: Capture | None) -> BatchResult:
        self.progress.started(self.journal.folder, tuple(self.journal.runs))
        try:
            if self.waiting:
                self._close_for_stuck()
                self.box.take_up(self.journal.runs)
            self._judge()
            self._capture(capture)
            while self.waiting or self.going:
                if self.stop.hung_up and not self.hung_up:
                    self._to_file()
                self._start_what_may()
                if self.going:
                    self._wait()
        finally:
            self.journal.retry()
            self.progress.ended()
        held = [f"{name}: not recorded: {why}" for name, why in self.journal.held.items()]
        runs = tuple(self.journal.runs)
        return BatchResult(self.journal.folder, runs, self.stop.signal, tuple(held))

    def _start_what_may(self) -> None:
        while self.waiting:
            number = self.waiting[0]
            why, kind = self._refusal(number)
            if not self._has_room(number) and kind in ("", "quarantine"):
                return  # what ends meanwhile may lift a quarantine
            self.waiting.popleft()
            if why:
                run = self.journal.runs[number]
                self._ended({number: move(run, "skipped", cause=why, stopped_by=kind)})
            else:
                self._start(number)

    def _wait(self) -> None:
        done, _ = wait(self.going, TICK_S, FIRST_COMPLETED)
        self.box.watch()
        for number in self.going.values():
            if number in self.at:
                self.progress.tick(number, *self.at[number])
        self._ended({self.going.pop(future): future.result() for future in done})

    def _refusal(self, number: int) -> tuple[str, StoppedBy]:
        """Why a run must not start, and the kind of reason; empty where it may."""
        step = self.checked.steps[number]
        run = self.journal.runs[number]
        if self.stop.signal:
            return f"interrupted ({self.stop.signal})", "interrupt"
        if self._left_s() <= 0:
            return f"the plan's limit of {self.checked.total_s:g} s was reached", "limit"
        if self.halt:
            return self.halt, "stop_rule"
        if self.no_live and self._is_given_live(step):
            return self.no_live, "box"
        why = self.box.refuses(run, idle=not self.going)
        return why, "quarantine" if why else ""

    def _is_given_live(self, step: Step) -> bool:
        """Whether a run gets the bundle that is captured here; the nodes of a fleet capture
        their own.
        """
        return _wants_live(step) and (self.carrier.one_box or step.waits)

    def _has_room(self, number: int) -> bool:
        if not self.going:
            return True
        step = self.checked.steps[number]
        if step.waits or len(self.going) >= self.carrier.slots:
            return False
        beside = [self.checked.steps[one] for one in self.going.values()]
        look = all(one.danger == "looks" for one in (step, *beside))
        return not self.carrier.one_box or (look and len(self.going) < self.plan.jobs)

    def _start(self, number: int) -> None:
        run = self.journal.runs[number]
        self.progress.run_started(number, run)

        def tick(cell: int, cells: int, seconds: float) -> None:  # from the thread of the run
            self.at[number] = (cell, cells, seconds)

        folder = self.journal.folder / run.run_id
        job = self._job(number)
        self.going[self.carrier.submit(folder, run, job, tick)] = number

    def _job(self, number: int) -> Job:
        """The notebook and every parameter in full.

        ``{batch}`` in a text means the batch's folder.
        """
        step = self.checked.steps[number]
        run = self.journal.runs[number]
        batch = str(self.journal.folder)
        here = self.journal.folder / run.run_id
        box = self.live if step.box == "live" else step.box
        offered = {"box": box, "batch": batch, "out": str(here), "preset": step.preset}
        given = {name: value for name, value in offered.items() if name in step.takes and value}
        for name, value in step.parameters.items():
            given[name] = replaced(value, "{batch}", batch)
        job: Job = {"source": str(step.source), "parameters": given, "cell_s": step.cell_s}
        return {**job, "run_s": min(step.run_s, self._left_s()), "mark": mark_of(here, run.attempt)}

    def _ended(self, runs: dict[int, Run]) -> None:
        """Keep what runs came to; when nothing goes on any more, see whether the box is clean."""
        for number, run in runs.items():
            if run.state == "stuck" and self.carrier.one_box:
                run = self.box.close_for(run)
            self.journal.put(run)
            if run.state != "skipped":
                self.since.append(number)
        if self.since and not self.going:
            for run in self.box.after([self.journal.runs[number] for number in self.since]):
                self.journal.put(run)
            self.since.clear()
        for number in runs:
            self.progress.run_ended(number, self.journal.runs[number])
        if any(run.state != "skipped" for run in runs.values()):
            self.journal.retry()
            self._judge()

    def _close_for_stuck(self) -> None:
        """Close the GPUs of stuck runs for which that was not done before: their supervisor was
        killed, or the journal saw them.
        """
        for run in list(self.journal.runs) if self.carrier.one_box else []:
            if run.state == "stuck" and not run.quarantined and run.boot_id == boot_id():
                self.journal.put(self.box.close_for(run))

    def _judge(self) -> None:
        """Whether a stop rule of the plan holds by now."""
        rules = self.plan.stop
        runs = self.journal.runs
        others = ("planned", "started", "answered", "skipped")
        failures = sum(run.state not in others for run in runs)
        met = next((run for run in runs if run.state in rules.on_states), None)
        enough = SURE[: SURE.index(rules.on_confidence) + 1] if rules.on_confidence else ()
        won = next((run for run in runs if run.verdict and run.verdict.confidence in enough), None)
        strikes = strikes_by_node(runs)[node()] if self.carrier.one_box else 0
        fewer = "the plan allows fewer than"
        rule = ""
        if rules.after_failures is not None and failures >= rules.after_failures:
            rule = f"after_failures: {failures} runs did not answer; {fewer} {rules.after_failures}"
        elif won is not None:
            rule = f"{SUCCESS}: {won.run_id} answered, {rules.on_confidence} or surer"
        elif met is not None:
            rule = f"on_states: {met.run_id} {met.state}"
        elif rules.node_strikes is not None and strikes >= rules.node_strikes:
            rule = f"node_strikes: {strikes} on {node()}; {fewer} {rules.node_strikes}"
        self.halt = f"stop rule {rule}" if rule else self.halt

    def _left_s(self) -> float:
        return self.checked.total_s - (time.monotonic() - self.began)

    def _to_file(self) -> None:
        """The terminal is gone: from now on the batch's own file hears how it goes on, and what
        else would be printed.
        """
        self.hung_up = True
        with suppress(OSError, ValueError):
            self.progress.ended()
        self.progress = Quiet()
        with suppress(OSError):
            path = self.journal.folder / LOG
            log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.close(log)
            self.progress = into_file(path)
            self.progress.started(self.journal.folder, tuple(self.journal.runs))
            for number in self.going.values():
                self.progress.run_started(number, self.journal.runs[number])

    def _capture(self, capture: Capture | None) -> None:
        """The bundle of this box that live runs are given, or why there is none; another one
        each time the batch is resumed.
        """
        wanted = any(self._is_given_live(self.checked.steps[number]) for number in self.waiting)
        if capture is None or self.stop.signal or not wanted:
            return
        names = ["box", *(f"box-{number}" for number in range(2, 1000))]
        places = (self.journal.folder / name for name in names)
        try:
            self.stop.raises = True
            place = capture(next(place for place in places if not place.exists()))
            self.live = str(Path(place).resolve())
        except KeyboardInterrupt:
            self.no_live = "interrupted"
        except Exception as error:  # noqa: BLE001  a box that cannot be captured must not cost the runs on recorded ones
            self.no_live = f"this box could not be captured: {in_words(error)}"
        finally:
            self.stop.raises = False


def _wants_live(step: Step) -> bool:
    return step.box == "live" and "box" in step.takes


# How a batch goes on after a logout, a login or a reboot: texts for a person to install, and
# how to take them away again.
#
# Nothing is installed here and nothing needs root. What a run did to the box stays true: a run
# that rebooted it is not repeated.


# One run that the kernel's OOM killer ends must not end the batch (OOMPolicy, systemd 243; the
# default is stop), and only the supervisor is asked to stop (KillMode=mixed): it ends its runs
# and writes their records. systemd.service(5).
UNIT = """# Save as ~/.config/systemd/user/{name}
# Install: systemctl --user daemon-reload && systemctl --user enable {name}
# Also at boot, before anybody logs in: loginctl enable-linger
# Look: systemctl --user status {name}; journalctl --user -u {name}
# Remove: systemctl --user disable --now {name} && rm ~/.config/systemd/user/{name}
#         loginctl disable-linger   (where nothing else needs it)
[Unit]
Description=Resume the batch {batch}

[Service]
Type=oneshot
WorkingDirectory={here}
ExecStart=/bin/sh -c 'exec "$$@"' sh {words}
KillMode=mixed
TimeoutStopSec=120
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
CRONTAB = """# Add: crontab -e, and paste this line. Remove: crontab -e, and delete it.
@reboot {line}
"""
DETACHED = """# Without a terminal (stop: kill and the number that it prints):
nohup {command} >> {log} 2>&1 < /dev/null & echo $!
# In a terminal to come back to (back: tmux attach -t casebook; stop: Ctrl-C there):
tmux new-session -d -s casebook {word}
# Where logind has KillUserProcesses=yes both end at logout; the user unit with loginctl enable-linger does not.
"""


def resume_argv(plan: Path, checkout: Path, folder: Path, box: str = "") -> list[str]:
    """The command that resumes the batch in ``folder``, with absolute paths, so that it runs
    from anywhere.

    Raises ValueError for a path that no unit and no crontab can hold.
    """
    program = str(checkout.resolve() / "helpers" / "__main__.py")
    paths = [str(plan.resolve()), "--resume", str(folder.resolve())]
    argv = [sys.executable, program, "run", *paths, *["--box", box] * bool(box)]
    for word in argv:
        if re.search(r"[\x00-\x1f\x7f]", word) or word.endswith(("\\", " ")):
            seen = "seen a line break, or a blank or backslash at its end"
            raise ValueError(f"path {word!r}: {seen}; expected a plain path; rename it")
    return argv


def unit_name(folder: Path) -> str:
    """The name of the batch's unit: letters, digits and ".-_" alone."""
    return f"casebook-{re.sub(r'[^A-Za-z0-9._-]', '_', folder.resolve().name)}.service"


def resume_texts(
    plan: Path, checkout: Path, folder: Path, start: Path, box: str = ""
) -> tuple[str, str, str]:
    """Three ways to have a batch resumed, as ``resume_argv`` does it: a unit, a line of a
    crontab, lines for a shell.

    The systemd user unit resumes it at every login, or at every boot where the user lingers
    (loginctl). The crontab is for a box without either. The lines for a shell go on after the
    terminal is closed, but not after a reboot. They start in ``start``.
    """
    argv = resume_argv(plan, checkout, folder, box)
    name = unit_name(folder)
    here = str(start.resolve())
    log = shlex.quote(str(folder.resolve() / "resumed.log"))
    # The program of ExecStart has its variables not expanded, its arguments have: a shell makes
    # all of them arguments.
    quoted = [re.sub(r'(["\\])', r"\\\1", word) for word in argv]
    words = " ".join(f'"{word}"' for word in quoted).replace("%", "%%").replace("$", "$$")
    batch = name[len("casebook-") : -len(".service")]
    unit = UNIT.format(name=name, batch=batch, here=here.replace("%", "%%"), words=words)
    command = shlex.join(argv)
    line = f"cd {shlex.quote(here)} && exec {command} >> {log} 2>&1"
    at_reboot = CRONTAB.format(line=line.replace("%", "\\%"))  # crontab(5): a % ends the command
    detached = DETACHED.format(command=command, log=log, word=shlex.quote(command))
    return unit, at_reboot, detached


# How a batch goes on: a live table on a terminal, plain lines elsewhere, several runs side by
# side in both.
#
# Nothing here ends a batch: a terminal that is closed, a full disk under a log and a run never
# heard of are all no matter.

FIRST_LINE_S = 2.0
REFRESH_S = 0.2
MOST_ROWS = 16
"""Running runs that the live table shows; a fleet may have more."""


class Quiet:
    """Shows nothing of how a batch goes on, and is the base of what does.

    All calls come from the thread of the batch.
    """

    def started(self, folder: Path, runs: Sequence[Run]) -> None:
        """The batch in ``folder`` begins or goes on, with its runs as they are now."""

    def run_started(self, number: int, run: Run) -> None:
        """The run with this number in the batch starts."""

    def tick(self, number: int, cell: int, cells: int, seconds: float) -> None:
        """A few times a second while a run goes on; ``cell`` of ``cells`` is running, 0 of 0
        while its kernel starts.
        """

    def run_ended(self, number: int, run: Run) -> None:
        """The run with this number has ended, or was skipped."""

    def ended(self) -> None:
        """The batch is over, or goes on elsewhere."""


def for_terminal(stream: TextIO | None = None) -> Quiet:
    """The progress that suits a stream (standard error): live on a terminal, else plain lines."""
    stream = stream or sys.stderr
    return Live(getattr(stream, "drawn", stream)) if stream.isatty() else Plain(stream)


def into_file(path: Path) -> Plain:
    """Plain lines with the time of day, added to the end of a file: for a batch whose terminal
    is gone. Raises OSError.
    """
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
    """One line as a run starts and ends; in between a line after 2, 4, 8 ... seconds and at
    most every 30.
    """

    def __init__(self, stream: TextIO, clock: bool = False):
        self.stream = stream
        self.clock = clock
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
        going.seconds = seconds
        going.where = f"cell {cell} of {cells}" if cells else "starting"
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
    """A table that moves: the runs that go on with cell and seconds, below it counts and time left.

    Ended runs above.

    It is redrawn by whoever calls, from no thread of its own: a terminal that is gone costs no
    more than the table.
    """

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__(stream)
        self.console = Console(file=stream)
        self._drawn_s = 0.0
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
            short = Text(plain(going.run.short), overflow="ellipsis", no_wrap=True)
            seconds = f"{going.seconds:.0f} s"
            rows.add_row(Text(f"run {number + 1}", "dim"), short, Text(going.where), seconds)
        more = len(self.going) - MOST_ROWS
        below = [Text(f"and {more} more", "dim")] if more > 0 else []
        return Group(rows, *below, Text(self.summary(), "bold"))

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self.console.print(plain(line), markup=False, highlight=False, soft_wrap=True)
