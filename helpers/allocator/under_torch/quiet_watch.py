"""Whether a recorded process still does anything, and the stacks of its threads when it does not."""

from __future__ import annotations

import faulthandler
import os
import time
from types import ModuleType
from typing import IO, Any

from .private_files import open_text

MOST_REPORTS = 5
IDLE_POLL_S = 5.0


class QuietWatch:
    """Does the program still do anything?

    ``newly_quiet`` is called every ``poll_s`` seconds. ``after_s``: seconds of quiet after which a
    program counts as hung; 0 where nobody wants to watch.

    Output is every byte that this process wrote to any file, pipe or terminal, as the kernel
    counts them (/proc/self/io, see proc(5)), so no stream is touched. Allocations are counted
    on the GPU only. Where a call that holds the interpreter's lock never returns (the start of
    a sick driver, or the allocator's own lock), ``newly_quiet`` is not called any more: then the
    timer of faulthandler, which needs no lock, writes the stacks. A process has one such timer: a
    program that sets it takes it from here. It is armed only while the watching thread waits for
    that lock, so when it fires, no thread has run Python for long: stacks that are read without
    the lock while a thread runs crash the process (seen in Python 3.11).
    """

    def __init__(self, base: str, after_s: float):
        self.base = base
        self.after_s = after_s
        self.poll_s = IDLE_POLL_S
        self.reports = 0
        self._quiet_since = time.monotonic()
        self._reported = False
        self._written = written_bytes()
        self._allocations = -1
        self._timer: IO[str] | None = None
        self._armed = False
        if after_s:
            self.poll_s = max(0.05, min(IDLE_POLL_S, after_s / 4))
            self._timer = open_text(f"{base}-stuck.stacks")

    def newly_quiet(self, torch: ModuleType | None) -> dict[str, Any] | None:
        """The hang that has just become one, as facts; None otherwise.

        ``torch`` is None where it has used no GPU.
        """
        self.arm()
        written = written_bytes()
        allocations = -1 if torch is None else allocation_count(torch)
        if (written, allocations) != (self._written, self._allocations):
            self._written = written
            self._allocations = allocations
            self._quiet_since = time.monotonic()
            self._reported = False
            return None
        quiet_s = time.monotonic() - self._quiet_since
        if quiet_s < self.after_s or self._reported or self.reports >= MOST_REPORTS:
            return None
        self.disarm()
        self._reported = True
        self.reports += 1
        signs = []
        if torch is not None:
            signs.append("allocation on the GPU")
        if written is not None:
            signs.append("output")
        if not signs:
            signs.append("sign of life that could be seen")
        says = f"no {' and no '.join(signs)} for {quiet_s:.1f} s"
        number = "" if self.reports == 1 else str(self.reports)
        path = self.write_stacks(f"hang{number}", says)
        return {"says": says, "stacks": os.path.basename(path), "at": time.time()}

    def forget_own_writes(self) -> None:
        """What the recorder itself has written since the last tick is no sign of life."""
        self._written = written_bytes()

    def arm(self) -> None:
        """Start the timer anew, before a wait of at most ``poll_s`` or a call that may never
        give the lock back.
        """
        if self._timer is not None:
            self._armed = True
            faulthandler.dump_traceback_later(
                self.after_s + 2 * self.poll_s, file=self._timer
            )

    def disarm(self) -> None:
        """Stop the timer."""
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False

    def end(self) -> None:
        """Watch no more."""
        self.after_s = 0
        self._timer = None
        self.disarm()

    def write_stacks(self, reason: str, says: str = "") -> str:
        """Write the stack of every thread; the path of the file."""
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
            return next(
                int(line.split()[1]) for line in fields if line.startswith(b"wchar")
            )
    except (OSError, StopIteration, ValueError):
        return None


def allocation_count(torch: ModuleType) -> int:
    """Allocations on all devices since the start of the process."""
    devices = range(torch.cuda.device_count())
    stats = [torch.cuda.memory_stats(index) for index in devices]
    return sum(counters.get("allocation.all.allocated", 0) for counters in stats)
