"""A program that ran out of memory, repeated: once without a limit, once with expandable segments.

With these two a card that is too small, a leak and fragmentation can be told apart. The repeats run
in a copy of the working folder, with uploads off.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.look.cards import GpuCard
from helpers.rehearse.box_settings import conf_name
from helpers.rehearse.rehearsal import STOPPED, Rehearsal
from helpers.rehearse.scratch import copied, in_copy, why_not_copied

BUDGET_S = 60.0
"""Seconds that the first run and both repeats may take together: what somebody waits for who asked
for one run.
"""
TIMES_AS_LONG = 3
"""A repeat is ended after so many times the seconds of the first run, which stopped in the middle:
a leak without a limit would run for ever.
"""
GRACE_S = 15.0
"""So many seconds later SIGTERM ends a repeat that did not end by itself: it may be writing its
trace.
"""
TIMES_THE_CARD = 16
"""How many times the card's memory a repeat without a limit has, so that a leak ends there."""
SAME_SHARE = 0.9
"""A repeat that allocated less than this share of the first run did something else. Our
choice: a little less may come from batches of another size.
"""
ENDED_FROM_OUTSIDE = (128 + signal.SIGINT, 128 + signal.SIGKILL, STOPPED)
"""Exit codes of a program that somebody ended by a signal."""
UPLOADS_OFF = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "WANDB_MODE": "offline",
}
"""Variables that keep trackers of experiments from sending anything (their documentations)."""
MAY_WRITE = (
    "the repeats ran in a copy of this folder; where the program writes outside it or to other "
    "servers, it did so again"
)
EXPANDABLE = "expandable_segments:True"


class NoRepeat(Exception):
    """A repeat that was left out, or says nothing about the first run: why, in words that follow
    its name and a colon.
    """


Run = Callable[..., Rehearsal]
"""A rehearsal of a command on a card, kept at a path (rehearse.run.rehearse)."""


@dataclass(frozen=True)
class Counterfactual:
    """The repeats of a rehearsal that ran out of memory; None for one that was left out.

    ``why_not``: why one was; ``says``: what the repeats may have done outside their copy;
    ``whole_step_bytes``: the most that was allocated without a limit until the step in which the
    first run failed had ended. Every such run reaches it, unlike the peak at which a limit happened
    to stop one.
    """

    without_limit: Rehearsal | None = None
    expandable: Rehearsal | None = None
    why_not: str = ""
    says: str = ""
    whole_step_bytes: int = 0

    def as_shape(self) -> dict[str, Any]:
        """The entry ``counterfactual`` of record.json (see _shape)."""
        return {
            "without_limit": _shape(self.without_limit, self.whole_step_bytes),
            "expandable": _shape(self.expandable),
            "why_not": self.why_not,
            "says": self.says,
        }

    @property
    def what_is_missing(self) -> str:
        """Which repeat was left out, and why; empty where none was."""
        if not self.why_not or self.says:
            return self.why_not
        return f"no repeat: {self.why_not}"


def why_no_repeats(first: Rehearsal, folder: Path) -> str:
    """Why a rehearsal should not be repeated; empty where it should."""
    if not first.ooms:
        return "it did not run out of memory"
    if not first.exit_code:
        return "it caught its out-of-memory error and ended well"
    if first.exit_code in ENDED_FROM_OUTSIDE:
        return "it was ended from outside"
    # One repeat takes about as long as the first run.
    if 2 * first.seconds > BUDGET_S:
        return f"with one more run it would take more than {BUDGET_S:.0f} s"
    return why_not_copied(folder)


@dataclass(frozen=True)
class Repeats:
    """Runs the repeats of the rehearsal ``first`` of a command, as it was run: by ``run``, with its
    ``conf`` and ``extra``. ``record``: the folder beside its trace, which takes theirs.
    """

    run: Run
    command: list[str]
    first: Rehearsal
    record: Path
    conf: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def announcement(self) -> str:
        """What is about to run, for the user who waits."""
        runs = "it now runs once more without a memory limit"
        if not self.first.expandable:
            runs += " and once more with expandable segments"
        how = "in a copy of this folder, with uploads off; what it writes elsewhere is written again"
        most_s = BUDGET_S - self.first.seconds
        return (
            f"the program ran out of memory; to find out why, {runs}, {how} "
            f"(at most {most_s:.0f} s; --no-counterfactual skips this)"
        )

    def both(self) -> Counterfactual:
        """Run both repeats. Where a signal ends them, their files are deleted."""
        try:
            with _signals_interrupt():
                return self._both(time.monotonic() + BUDGET_S - self.first.seconds)
        except KeyboardInterrupt:
            for name in ("without-limit", "expandable"):
                _take_away(self.record / f"{name}.pickle")
            return Counterfactual(
                why_not="the repeats were ended from outside", says=MAY_WRITE
            )

    def _both(self, ends_at: float) -> Counterfactual:
        """Both repeats, which have ended by ``ends_at`` (time.monotonic)."""
        card = self.first.device
        ample = replace(card, total_bytes=TIMES_THE_CARD * card.total_bytes)
        share_s = ends_at - time.monotonic()
        if share_s > 2 * self.first.seconds:
            share_s /= 2  # there is time for both: the other half is for the second
        try:
            without_limit = self._once("without-limit", ample, self.conf, share_s)
        except NoRepeat as why:
            return Counterfactual(
                why_not=f"repeat without a memory limit: {why}", says=MAY_WRITE
            )
        expandable = None
        why_not = ""
        try:
            expandable = self._expandable(ends_at - time.monotonic())
        except NoRepeat as why:
            why_not = f"repeat with expandable segments: {why}"
        # The first run failed in step ``steps + 1``. That step is over for certain where the one
        # after it begins to update the weights.
        whole_step_bytes = without_limit.peak_until_step(self.first.steps + 2)
        return Counterfactual(
            without_limit, expandable, why_not, MAY_WRITE, whole_step_bytes
        )

    def _expandable(self, left_s: float) -> Rehearsal:
        """The repeat with expandable segments beside the settings of the first run, in at most
        ``left_s`` seconds. Raises NoRepeat.
        """
        if self.first.expandable:
            raise NoRepeat("not needed, the first run had them")
        conf = self.conf
        if conf is None:
            conf = os.environ.get(conf_name(os.environ), "")
        with_expandable = ",".join(filter(None, (conf, EXPANDABLE)))
        return self._once("expandable", self.first.device, with_expandable, left_s)

    def _once(
        self, name: str, card: GpuCard, conf: str | None, share_s: float
    ) -> Rehearsal:
        """One repeat, of at most ``share_s`` seconds, with its trace under ``name``. Raises
        NoRepeat where it says nothing about the first run.
        """
        if share_s < self.first.seconds:
            raise NoRepeat("it did not run: no time was left")
        seconds = min(share_s, TIMES_AS_LONG * self.first.seconds)
        limits = self.first.limits
        if limits.seconds:
            seconds = min(seconds, limits.seconds)
        trace = self.record / f"{name}.pickle"
        folder = Path.cwd()
        log = self.record / f"{name}.log"
        try:
            with copied(folder) as copy:
                again = self.run(
                    in_copy(self.command, folder, copy),
                    card,
                    trace,
                    conf=conf,
                    extra={**self.extra, **UPLOADS_OFF},
                    log=log,
                    limits=replace(limits, seconds=seconds),
                    working_folder=copy,
                    ends_after_s=seconds + GRACE_S,
                )
            why_not = _why_another_run(self.first, again)
            # It was asked for expandable segments, and the allocator had others.
            if again.conf.endswith(EXPANDABLE) and not again.expandable:
                why_not = "it did not run: the program's own settings took their place"
        except (OSError, ValueError) as error:
            why_not = f"it could not run: {error}"
        log.unlink(missing_ok=True)
        if why_not:
            _take_away(trace)
            raise NoRepeat(why_not)
        return again


def _why_another_run(first: Rehearsal, again: Rehearsal) -> str:
    """Why a repeat says nothing about the first run; empty where it does."""
    if again.failed_otherwise:
        ending = f"exit code {again.exit_code}"
        if again.error:
            ending = again.error
        return f"it ended otherwise: {ending}"
    allocated_less = again.allocated_bytes < SAME_SHARE * first.allocated_bytes
    was_cut_short = again.stopped and again.allocations < first.allocations
    if allocated_less or was_cut_short:
        return "it did not get as far as the first run"
    return ""


def _shape(run: Rehearsal | None, whole_step_bytes: int = 0) -> dict[str, Any] | None:
    """A repeat as record.json has it; None for one that was left out. ``stopped``: the limit that
    ended it, so that its peaks are those that it had reached.
    """
    if run is None:
        return None
    return {
        "capacity_bytes": run.device.total_bytes,
        "conf": run.conf,
        "fits": run.fits,
        "ooms": run.ooms,
        "peak_allocated_bytes": run.peak_allocated_bytes,
        "peak_reserved_bytes": run.peak_reserved_bytes,
        "seconds": run.seconds,
        "stopped": run.stopped,
        "whole_step_bytes": whole_step_bytes,
        "trace": run.trace,
    }


def _take_away(trace: Path) -> None:
    """Delete the trace of a repeat, its record and its log, as far as they are there."""
    shutil.rmtree(trace.with_suffix(".record"), ignore_errors=True)
    trace.unlink(missing_ok=True)
    trace.with_suffix(".log").unlink(missing_ok=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does, so that the copy is deleted. A
    signal that is ignored (nohup) stays so.
    """
    handlers = {}  # those that were there before
    if threading.current_thread() is threading.main_thread():  # others may set none
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
