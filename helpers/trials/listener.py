"""What a trial tells line by line while it runs, and until when it may be silent."""

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


@dataclass
class Listener:
    """Steps, losses and events of one trial, and the sampler of its memory.

    ``events`` has the last event of each kind; ``tail`` the end of its stdout. ``ready`` is when
    its first word came (None: none yet), ``heard`` when the last, ``began`` when it was started,
    in seconds of the monotonic clock.
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
        """Begin to sample the process, which has ``start_s`` until its first word."""
        self.sampler = Sampler(pid, 0.0, lambda: driver_used_bytes(self.target.pci))
        self._allow(self.limits.start_s)
        self.sampler.start()

    def stop(self) -> None:
        """End the sampling."""
        if self.sampler is not None:
            self.sampler.stop()

    def take(self, line: str) -> float | None:
        """Take a line of its stdout; returns the seconds that it has from now on.

        None where the line is no word of the work, and its time goes on.
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
        """A step of a user's command; a group in its mark is the loss."""
        self.steps += 1
        if self.ready is not None:
            self.step_s.append(now - self.heard)
        with suppress(ValueError):
            self.loss.append(float(next(filter(None, mark.groups()), "")))

    def _take_event(self, row: dict[str, Any]) -> None:
        """An event of a built-in workload."""
        if "event" not in row:
            return
        self.events[str(row["event"])] = row
        if row["event"] == "step":
            self.steps += 1
            self.loss.append(float(row["loss"]))
            self.step_s.append(float(row["seconds"]))

    def _allow(self, silent_s: float) -> float:
        """The seconds that it may be silent now.

        The stacks are taken a little before, while it still waits where it waits.
        """
        now = time.monotonic()
        left = max(0.0, min(silent_s, self.began + self.limits.seconds - now))
        if self.sampler is not None:
            self.sampler.stacks = ""
            self.sampler.deadline = now + left - min(2.0, left / 4)
        return left
