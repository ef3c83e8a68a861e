"""What else would have happened to a program that ran out of memory: rehearsed once more without
a limit, and once more with expandable segments.

By count these two alone tell capacity, a leak and fragmentation apart. The repeats run in a copy
of the working folder, with uploads off.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from helpers.ground.units import show_bytes
from helpers.look.cards import GpuCard
from helpers.rehearse.rehearsal import STOPPED, Limits, Rehearsal
from helpers.rehearse.scratch import copied, in_copy, why_not_copied
from helpers.settings.table import CONF_NAMES

BUDGET_S = 60.0
TIMES_AS_LONG = 3
"""A repeat that would go on for longer than the first run did is ended then."""
GRACE_S = 5.0
"""Seconds that what does not end by itself has beyond that, before SIGTERM ends it."""
TIMES_THE_CARD = 16
"""A growth that would never end is ended at so many times the card."""
SAME_SHARE = 0.9
"""A repeat that allocated less than this share of the first run did something else."""
ENDED_FROM_OUTSIDE = (128 + signal.SIGINT, 128 + signal.SIGKILL, STOPPED)
UPLOADS_OFF = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "WANDB_MODE": "offline",
}
"""What keeps the trackers that programs report to from sending anything (their documentations)."""
MAY_WRITE = (
    "the repeats ran in a copy of this folder, with uploads to trackers off; what the program "
    "writes outside of this folder or sends elsewhere, it wrote and sent again"
)
EXPANDABLE = "expandable_segments:True"

Run = Callable[..., Rehearsal]
"""A rehearsal of a command on a card, kept at a path (rehearse.run.rehearse)."""


@dataclass(frozen=True)
class Repeat:
    """One repeat: on how large a card, with which settings, and how it ended.

    ``stopped``: by which limit, so that the peaks are those reached until then. ``trace`` is its
    recording, None where it left none.
    """

    capacity_bytes: int
    conf: str
    fits: bool
    ooms: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    seconds: float
    stopped: str
    trace: Path | None


@dataclass(frozen=True)
class Counterfactual:
    """The repeats of a rehearsal that ran out of memory; None with ``why_not`` where one was
    left out.
    """

    without_limit: Repeat | None = None
    expandable: Repeat | None = None
    why_not: str = ""
    says: str = ""

    def as_shape(self) -> dict[str, Any]:
        """As it stands in record.json."""
        return asdict(self)

    def in_lines(self) -> list[str]:
        """What came of each repeat, and what the repeats may have written."""
        repeats = {
            "without a limit": self.without_limit,
            "with expandable segments": self.expandable,
        }
        lines = [f"{name} it {_in_words(run)}" for name, run in repeats.items() if run]
        if self.why_not:
            lines.append(f"not run again: {self.why_not}")
        return [*lines, self.says]


def why_no_repeats(first: Rehearsal, folder: Path) -> str:
    """Why a rehearsal is not repeated; empty where it is."""
    if not first.ooms:
        return "it did not run out of memory"
    if not first.exit_code:
        return "it caught its out-of-memory and ended well"
    if first.exit_code in ENDED_FROM_OUTSIDE:
        return "it was ended from outside"
    if 3 * first.seconds > BUDGET_S:
        return f"three runs would take more than {BUDGET_S:.0f} s"
    return why_not_copied(folder)


class Repeats:
    """The repeats of one rehearsal of ``command``, whose record is in the folder ``record``.

    ``run`` rehearses as the first was; ``conf``, ``extra`` and ``limits`` are those of the first.
    """

    def __init__(
        self,
        run: Run,
        command: list[str],
        first: Rehearsal,
        record: Path,
        *,
        conf: str | None,
        extra: Mapping[str, str],
        limits: Limits,
    ) -> None:
        self.run = run
        self.command = command
        self.first = first
        self.record = record
        self.conf = conf
        self.extra = {**extra, **UPLOADS_OFF}
        self.limits = limits
        self.ends_at = time.monotonic() + BUDGET_S - first.seconds
        self.folder = Path.cwd()
        self.why_none = why_no_repeats(first, self.folder)

    def announcement(self) -> str:
        """What is about to run, for whoever waits; empty where nothing is."""
        if self.why_none:
            return ""
        runs = "once more without a limit"
        if not self.first.expandable:
            runs += " and once more with expandable segments"
        how = "in a copy of this folder, with uploads off; --no-counterfactual leaves that out"
        most_s = self.ends_at - time.monotonic()
        return f"it ran out of memory, so it runs {runs}, {how} (at most {most_s:.0f} s)"

    def run_all(self) -> Counterfactual:
        """Both repeats. A signal ends them, and takes away what they kept."""
        if self.why_none:
            return Counterfactual(why_not=self.why_none)
        try:
            with _signals_interrupt():
                return self._both()
        except KeyboardInterrupt:
            for name in ("without-limit", "expandable"):
                _take_away(self.record / f"{name}.pickle")
            return Counterfactual(why_not="the repeats were ended from outside")

    def _both(self) -> Counterfactual:
        card = self.first.device
        ample = replace(card, total_bytes=TIMES_THE_CARD * card.total_bytes)
        left_s = self.ends_at - time.monotonic()
        without_limit, why = self._once("without-limit", ample, self.conf, left_s / 2)
        if why:
            return Counterfactual(why_not=f"without a limit {why}")
        conf = ",".join(filter(None, [self._conf_in_force(), EXPANDABLE]))
        expandable = None
        if self.first.expandable:
            why = "its segments are expandable already"
        else:
            left_s = self.ends_at - time.monotonic()
            expandable, why = self._once("expandable", card, conf, left_s)
            if why:
                why = f"with expandable segments {why}"
        return Counterfactual(without_limit, expandable, why, MAY_WRITE)

    def _conf_in_force(self) -> str:
        """The allocator's settings of the first run, by option or by the environment."""
        if self.conf is not None:
            return self.conf
        confs = [os.environ[name] for name in CONF_NAMES if os.environ.get(name)]
        return confs[0] if confs else ""

    def _once(
        self, name: str, card: GpuCard, conf: str | None, share_s: float
    ) -> tuple[Repeat | None, str]:
        """One repeat, or why there is none."""
        if share_s < self.first.seconds:
            return None, "no time was left"
        seconds = min(share_s, TIMES_AS_LONG * self.first.seconds)
        if self.limits.seconds:
            seconds = min(seconds, self.limits.seconds)
        trace = self.record / f"{name}.pickle"
        try:
            with copied(self.folder) as copy:
                again = self.run(
                    in_copy(self.command, self.folder, copy),
                    card,
                    trace,
                    conf=conf,
                    extra=self.extra,
                    log=self.record / f"{name}.log",
                    limits=replace(self.limits, seconds=seconds),
                    working_folder=copy,
                    ends_after_s=seconds + GRACE_S,
                )
            why = self._why_another_run(again, name == "expandable")
        except (OSError, ValueError) as error:
            why = f"it could not run: {error}"
        (self.record / f"{name}.log").unlink(missing_ok=True)
        if why:
            _take_away(trace)
            return None, why
        return _repeat(again, conf), ""

    def _why_another_run(self, again: Rehearsal, with_expandable: bool) -> str:
        """Why a repeat says nothing about the first run; empty where it does."""
        first = self.first
        if again.failed_otherwise:
            return f"it ended otherwise: {again.error or f'exit code {again.exit_code}'}"
        least_bytes = SAME_SHARE * (first.peak_allocated_bytes or 0)
        came_as_far = not again.stopped or again.allocations >= first.allocations
        if (again.peak_allocated_bytes or 0) < least_bytes or not came_as_far:
            return "it did not come as far as the first run"
        if with_expandable and not again.expandable:
            return "the program's own settings took the place of that"
        return ""


def keep(counterfactual: Counterfactual, record: Path) -> None:
    """Add it to the record.json of the first run."""
    path = record / "record.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["counterfactual"] = counterfactual.as_shape()
    path.write_text(json.dumps(fields, indent=1, default=str), encoding="utf-8")


def _in_words(run: Repeat) -> str:
    peaks = f"peak allocated {show_bytes(run.peak_allocated_bytes)}"
    peaks += f", reserved {show_bytes(run.peak_reserved_bytes)}"
    if run.ooms:
        end = f"runs out of memory at {show_bytes(run.capacity_bytes)}"
    elif run.stopped:
        end = f"was still running after {run.seconds:.0f} s"
    else:
        end = "finishes"
    return f"{end} ({peaks})"


def _repeat(again: Rehearsal, conf: str | None) -> Repeat:
    return Repeat(
        capacity_bytes=again.device.total_bytes,
        conf=conf or "",
        fits=again.fits,
        ooms=again.ooms,
        peak_allocated_bytes=again.peak_allocated_bytes,
        peak_reserved_bytes=again.peak_reserved_bytes,
        seconds=again.seconds,
        stopped=again.stopped,
        trace=again.trace,
    )


def _take_away(trace: Path) -> None:
    """What a repeat kept, or was about to keep, at that name."""
    shutil.rmtree(trace.with_suffix(".record"), ignore_errors=True)
    trace.unlink(missing_ok=True)
    trace.with_suffix(".log").unlink(missing_ok=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does, so that all is taken away."""
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
