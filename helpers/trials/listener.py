"""Listens to a trial while it runs, and says how long it may be silent."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from helpers.ground.child import Sampler, json_row
from helpers.ground.child.bounded import LAST_BYTES
from helpers.trials.leftovers import driver_used_bytes
from helpers.trials.record import TrialLimits
from helpers.trials.targets import Target
from helpers.trials.workload import Workload

STACKS_BEFORE_S = 2.0
"""How long before its limit the stacks of a silent trial are taken, while it still hangs; of a
short limit it is a quarter.
"""


@dataclass
class Listener:
    """Steps, losses and events of one trial, and the sampler of its memory.

    ``events`` has the last row of each kind that a built-in workload told, ``loss`` and ``step_s``
    (seconds) have an entry for each step, ``tail`` is the end of its stdout. ``began`` is when the
    trial started, ``ready`` when its first word came (None: none yet) and ``heard`` when its last,
    in seconds of the monotonic clock. A word is a line that shows progress.
    """

    workload: Workload
    limits: TrialLimits
    target: Target
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    loss: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    steps: int = 0
    tail: str = ""
    sampler: Sampler | None = None
    ready: float | None = None
    began: float = field(default_factory=time.monotonic)
    heard: float = 0.0

    def __post_init__(self) -> None:
        self.heard = self.began

    def start(self, pid: int) -> None:
        """Begin to sample the memory of the process, which has ``start_s`` until its first word."""
        self.sampler = Sampler(pid, 0.0, lambda: driver_used_bytes(self.target.pci))
        self._allow(self.limits.start_s)
        self.sampler.start()

    def stop(self) -> None:
        """End the sampling."""
        if self.sampler is not None:
            self.sampler.stop()

    def take(self, line: str) -> float | None:
        """Take a line of its stdout; returns the seconds that it may be silent from now on, None if
        the line is no word, and so changes nothing.

        With a marker of steps (``Workload.step``) only a line that matches it is a word; of a
        command without one, and of a built-in workload, every line is.
        """
        now = time.monotonic()
        self.tail = (self.tail + line + "\n")[-LAST_BYTES:]
        if self.workload.step:
            mark = re.search(self.workload.step, line)
            if mark is None:
                return None
            self._take_mark(mark, now)
        elif not self.workload.command:
            self._take_event(json_row(line))
        self.heard = now
        if self.ready is None:
            self.ready = now
        return self._allow(self.limits.silent_s)

    def _take_mark(self, mark: re.Match[str], now: float) -> None:
        """Count a step of a user's command. The first group in its mark that matched is the loss,
        if it is a number.
        """
        self.steps += 1
        # The time before the first word is that of the program's start, not of a step.
        if self.ready is not None:
            self.step_s.append(now - self.heard)
        for group in filter(None, mark.groups()):
            with suppress(ValueError):
                self.loss.append(float(group))
            break

    def _take_event(self, row: dict[str, Any]) -> None:
        """Keep a row of a built-in workload (under_torch/workloads.py)."""
        if "event" not in row:
            return
        self.events[str(row["event"])] = row
        if row["event"] == "step":
            self.steps += 1
            self.loss.append(float(row["loss"]))
            self.step_s.append(float(row["seconds"]))

    def _allow(self, silent_s: float) -> float:
        """The seconds that it may be silent now, at most what is left of the whole trial's time;
        tells the sampler when to take the stacks if it stays silent.
        """
        now = time.monotonic()
        left_s = self.began + self.limits.seconds - now
        silent_s = max(0.0, min(silent_s, left_s))
        if self.sampler is not None:
            self.sampler.stacks = ""  # of an earlier silence, which has ended
            before_s = min(STACKS_BEFORE_S, silent_s / 4)
            self.sampler.deadline = now + silent_s - before_s
        return silent_s
