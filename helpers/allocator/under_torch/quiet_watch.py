"""Watches whether a recorded process still does anything, and writes the stacks of its threads when
it does not.
"""

from __future__ import annotations

import faulthandler
import os
import time
from types import ModuleType
from typing import IO, Any

from .private_files import open_text

MOST_REPORTS = 5
"""Hangs of one process that are reported: a program that is slow all the time would fill the disk.
"""
LONGEST_POLL_S = 5.0
SHORTEST_POLL_S = 0.05
POLLS_IN_QUIET = 4
"""Looks in the time after which a program counts as hung, so that it is noticed a quarter later at
most.
"""


class QuietWatch:
    """A process is quiet while it neither writes nor allocates. Output is every byte that it wrote
    to any file, pipe or terminal, as the kernel counts them (/proc/self/io, see proc(5)), so no
    stream is touched. Allocations are counted on the GPU only.

    The recorder's thread calls ``newly_quiet`` every ``poll_s`` seconds. ``after_s``: seconds of
    quiet after which a program counts as hung; 0 for no watch.

    A call that holds the interpreter's lock may never return (the start of a sick driver, or the
    allocator's own lock). Then ``newly_quiet`` is not called any more, but the timer of
    faulthandler, which needs no lock, writes the stacks. A process has one such timer, so a program
    that sets it takes it from here. It is armed only while the watching thread waits for that lock:
    when it fires, no thread has run Python for long. Stacks that are read without the lock while a
    thread runs crash the process (seen in Python 3.11).
    """

    def __init__(self, base: str, after_s: float):
        self.base = base
        self.after_s = after_s
        self.poll_s = LONGEST_POLL_S
        self.reports = 0
        self._quiet_since = time.monotonic()
        self._reported = False
        self._written = written_bytes()
        self._allocations = -1  # not counted yet
        self._timer_file: IO[str] | None = None
        self._armed = False
        if after_s:
            quarter_s = after_s / POLLS_IN_QUIET
            self.poll_s = max(SHORTEST_POLL_S, min(LONGEST_POLL_S, quarter_s))
            self._timer_file = open_text(f"{base}-stuck.stacks")

    def newly_quiet(self, torch: ModuleType | None) -> dict[str, Any] | None:
        """A hang that has not been reported: what it ``says``, its file of ``stacks``, and ``at``,
        the time of now. None where the process is not quiet for ``after_s`` seconds, where this
        quiet spell was reported before, and after MOST_REPORTS.

        ``torch`` is None where the process has used no GPU.
        """
        self.arm()
        written = written_bytes()
        allocations = -1  # not counted
        if torch is not None:
            allocations = allocation_count(torch)
        if (written, allocations) != (self._written, self._allocations):
            self._written = written
            self._allocations = allocations
            self._quiet_since = time.monotonic()
            self._reported = False
            return None
        quiet_s = time.monotonic() - self._quiet_since
        if quiet_s < self.after_s or self._reported or self.reports >= MOST_REPORTS:
            return None
        self.disarm()  # this report has the stacks that the timer would write
        self._reported = True
        self.reports += 1
        signs = []
        if torch is not None:
            signs.append("allocation on the GPU")
        if written is not None:
            signs.append("output")
        if not signs:  # nothing can be counted here, so any process looks quiet
            signs.append("sign of life that could be seen")
        says = f"no {' and no '.join(signs)} for {quiet_s:.1f} s"
        reason = "hang"
        if self.reports > 1:
            reason += str(self.reports)
        path = self.write_stacks(reason, says)
        return {"says": says, "stacks": os.path.basename(path), "at": time.time()}

    def forget_own_writes(self) -> None:
        """Count output from now on: the recorder's own is no sign of life."""
        self._written = written_bytes()

    def arm(self) -> None:
        """Start the timer again, before a wait of at most ``poll_s`` or a call that may never give
        the lock back.
        """
        if self._timer_file is not None:
            self._armed = True
            # newly_quiet reports a hang at most one poll_s after after_s; one more to be sure.
            fires_after_s = self.after_s + 2 * self.poll_s
            faulthandler.dump_traceback_later(fires_after_s, file=self._timer_file)

    def disarm(self) -> None:
        """Stop the timer."""
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False

    def end(self) -> None:
        """Watch no more: after_s 0 tells the recorder to ask no more."""
        self.after_s = 0
        self._timer_file = None
        self.disarm()

    def write_stacks(self, reason: str, says: str = "") -> str:
        """Write the stack of every thread; returns the path of the file, which ``reason`` names."""
        path = f"{self.base}-{reason}.stacks"
        header = f"process {os.getpid()} at {time.strftime('%Y-%m-%dT%H:%M:%S%z')}"
        if says:
            header += f": {says}"
        with open_text(path) as file:
            file.write(header + "\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        return path


def written_bytes() -> int | None:
    """Bytes that this process has written so far; None where the kernel does not count them."""
    try:
        with open("/proc/self/io", "rb") as fields:
            for line in fields:
                name, _, count = line.partition(b":")
                if name == b"wchar":
                    # bytes passed to write(2), whatever they were written to
                    return int(count)
    except (OSError, ValueError):
        return None
    return None


def allocation_count(torch: ModuleType) -> int:
    """How many allocations there were on all devices since the start of the process."""
    devices = range(torch.cuda.device_count())
    stats = [torch.cuda.memory_stats(index) for index in devices]
    return sum(counters.get("allocation.all.allocated", 0) for counters in stats)
