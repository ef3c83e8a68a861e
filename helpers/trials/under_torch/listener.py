"""Signals and quiet spells of a recorded process: heard at once, also while its main thread
waits in a driver.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from .frame import owners_alone

SIGNALS = ("SIGUSR1", "SIGTERM")
THEIRS = "the program's own handler, which ran as ever"
NO_PIPE = (-1, -1)
COOKED = 128
MOST_REPORTS = 5
IDLE_POLL_S = 5.0


class HangWatch:
    """Does the program still do anything?

    Asked again and again by ``tick``. ``after_s`` 0: nobody asked to watch.

    Output is every byte that this process wrote to any file, pipe or terminal, as the kernel
    counts them (/proc/self/io, see proc(5)), so no stream is touched. Allocations are counted
    on the GPU only. Where a call that holds the interpreter's lock never returns (the start of
    a sick driver, or the allocator's own lock), ``tick`` is not called any more: then the timer
    of faulthandler, which needs no lock, writes the stacks. There is one such timer: a program
    that sets it takes it away. It is armed only while the watching thread does nothing longer
    than to wait for that lock: so when it fires, no thread has run Python for long. Stacks read
    without the lock while a thread does run crash the process (seen, Python 3.11).
    """

    def __init__(self, base: str, after_s: float):
        self.base = base
        self.after_s = after_s
        self.poll_s = max(0.05, min(IDLE_POLL_S, after_s / 4)) if after_s else IDLE_POLL_S
        self.reports = 0
        self._since = time.monotonic()
        self._reported = False
        self._written = written_bytes()
        self._allocations = -1
        self._timer = _open(f"{base}-stuck.stacks") if after_s else None
        self._armed = False

    def tick(self, torch: Any) -> dict[str, Any] | None:
        """The hang that has just become one, as facts; None otherwise.

        ``torch`` is None where it has used no GPU.
        """
        self.arm()
        written = written_bytes()
        allocations = -1 if torch is None else allocation_count(torch)
        if (written, allocations) != (self._written, self._allocations):
            self._written = written
            self._allocations = allocations
            self._since = time.monotonic()
            self._reported = False
            return None
        quiet_s = time.monotonic() - self._since
        if quiet_s < self.after_s or self._reported or self.reports >= MOST_REPORTS:
            return None
        self.disarm()
        self._reported = True
        self.reports = self.reports + 1
        kinds = (("allocation on the GPU", torch is not None), ("output", written is not None))
        missing = " and no ".join(what for what, known in kinds if known)
        says = f"no {missing or 'sign of life that could be seen'} for {quiet_s:.1f} s"
        path = self.stacks(f"hang{'' if self.reports == 1 else self.reports}", says)
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
            faulthandler.dump_traceback_later(self.after_s + 2 * self.poll_s, file=self._timer)

    def disarm(self) -> None:
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
            self._armed = False

    def end(self) -> None:
        """Watch no more."""
        self.after_s = 0
        self._timer = None
        self.disarm()

    def stacks(self, reason: str, says: str = "") -> str:
        """Write the stack of every thread; the path of the file."""
        path = f"{self.base}-{reason}.stacks"
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with _open(path) as file:
            file.write(f"process {os.getpid()} at {when}{': ' + says if says else ''}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        return path


def _open(path: str) -> IO[str]:
    return open(path, "w", encoding="utf-8", opener=owners_alone)


def written_bytes() -> int | None:
    """Bytes that this process has written so far; None where the kernel does not count them."""
    try:
        with open("/proc/self/io", "rb") as fields:
            return next(int(line.split()[1]) for line in fields if line.startswith(b"wchar"))
    except (OSError, StopIteration, ValueError):
        return None


def allocation_count(torch: Any) -> int:
    """Allocations on all devices since the start of the process."""
    devices = range(torch.cuda.device_count())
    stats = (torch.cuda.memory_stats(index) for index in devices)
    return sum(one.get("allocation.all.allocated", 0) for one in stats)


class Listener:
    """``on_signal`` gets the number of a SIGUSR1 or SIGTERM, and whether the process ends right
    after it.

    A signal that the program handles itself, now or later, is its own: the handler runs as
    ever, and ``on_signal`` hears of it beside that. SIGTERM ends the process as ever where the
    program has no handler: by the signal itself, not an exit code. ``in_main`` is called first,
    and in the main thread, before such an end.
    """

    def __init__(self, on_signal: Callable[[int, bool], None], in_main: Callable[[], None]):
        self.on_signal = on_signal
        self.in_main = in_main
        self.whose: dict[str, str] = {}
        self._pipe = NO_PIPE
        self._raw: dict[int, int] = {}
        self._thread: threading.Thread | None = None

    def listen(self) -> str:
        """Begin; an empty text, or why not."""
        if self._pipe != NO_PIPE:
            return ""
        if threading.current_thread() is not threading.main_thread():
            return "signals are not listened to: torch was not started in the main thread"
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        earlier = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if earlier != -1:
            signal.set_wakeup_fd(earlier)
        for name in SIGNALS:
            free = signal.getsignal(getattr(signal, name)) == signal.SIG_DFL
            self.whose[name] = "recorder" if free else THEIRS
            if free:
                signal.signal(getattr(signal, name), self._handle)
        return ""

    def ours(self) -> dict[str, str]:
        """Whose handler each signal has in the end."""
        for name, who in self.whose.items():
            if who == "recorder" and signal.getsignal(getattr(signal, name)) != self._handle:
                self.whose[name] = THEIRS
        return self.whose

    def attend(self, tick: Callable[[], HangWatch]) -> None:
        """Start the thread that hears signals and calls ``tick``, as often as the watch that it
        returns asks for. Without it, signals are handled in the main thread: a second thread
        makes Python 3.12 warn at every fork, so it starts late.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._attend, args=(tick,), daemon=True)
            thread.name = "casebook-recorder"
            self._thread = thread
            thread.start()

    def forget(self) -> None:
        """In a forked child: its signals are not its parent's."""
        if self._pipe != NO_PIPE:
            signal.set_wakeup_fd(-1)
            for end in self._pipe:
                os.close(end)
            for name in SIGNALS:
                if signal.getsignal(getattr(signal, name)) == self._handle:
                    signal.signal(getattr(signal, name), signal.SIG_DFL)
        self._pipe = NO_PIPE
        self._raw = {}
        self._thread = None
        self.whose = {}

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            self.in_main()
        if self._thread is None:
            self._act(number)
        else:
            os.write(self._pipe[1], bytes([number + COOKED]))

    def _act(self, number: int) -> None:
        ends = number == signal.SIGTERM and signal.getsignal(number) == self._handle
        self.on_signal(number, ends)
        if ends:
            # signal.signal is for the main thread alone, which may be waiting in a driver for ever.
            ctypes.CDLL(None).signal(int(number), None)
            os.kill(os.getpid(), number)

    def _attend(self, tick: Callable[[], HangWatch]) -> None:
        while True:
            watch = tick()
            watch.arm()
            heard = self._heard(watch.poll_s)
            if heard:
                watch.disarm()
            for number in heard:
                self._act(number)

    def _heard(self, wait_s: float) -> list[int]:
        """Signals since the last call.

        The C handler writes each number at once (signal.set_wakeup_fd); the Python handler
        writes it again, later, which counts only where the first went to another owner of that
        descriptor (asyncio).
        """
        pipe = self._pipe[0]
        if not select.select([pipe] if pipe >= 0 else [], [], [], wait_s)[0]:
            return []
        heard = []
        for byte in os.read(pipe, 64):
            number = byte % COOKED
            if byte < COOKED:
                self._raw[number] = self._raw.get(number, 0) + 1
            elif self._raw.get(number, 0) > 0:
                self._raw[number] -= 1
                continue
            if number in (signal.SIGUSR1, signal.SIGTERM):
                heard.append(number)
        return heard
