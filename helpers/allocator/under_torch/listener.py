"""Signals of a recorded process: heard at once, also while its main thread waits in a driver."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from .quiet_watch import QuietWatch

SIGNALS = (signal.SIGUSR1, signal.SIGTERM)
NO_PIPE = (-1, -1)
FROM_PYTHON = 128
"""Added to the number of a signal that the Python handler writes, not the C handler."""


class Listener:
    """``on_signal`` gets the number of a SIGUSR1 or SIGTERM, and whether the process ends right
    after it.

    A signal that the program handles itself, now or later, is its own: the handler runs as
    before, and ``on_signal`` is called as well. SIGTERM ends the process as before where the
    program has no handler: by the signal itself, not an exit code.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]):
        self.on_signal = on_signal
        self._pipe = NO_PIPE
        self._from_c: Counter[int] = Counter()
        self._thread: threading.Thread | None = None

    def listen(self) -> str:
        """Begin; an empty text, or why not."""
        if self._pipe != NO_PIPE:
            return ""
        if threading.current_thread() is not threading.main_thread():
            return (
                "signals are not listened to: torch was not started in the main thread"
            )
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        earlier = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if earlier != -1:
            signal.set_wakeup_fd(earlier)
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
        return ""

    def owners(self) -> dict[str, str]:
        """Whose handler each signal has now; empty where nobody listens."""
        if self._pipe == NO_PIPE:
            return {}
        owners = {
            number.name: "the program's own handler, which ran as ever"
            for number in SIGNALS
        }
        for number in self._handled():
            owners[number.name] = "recorder"
        return owners

    def _handled(self) -> list[signal.Signals]:
        """The signals whose handler is the recorder's."""
        return [
            number for number in SIGNALS if signal.getsignal(number) == self._handle
        ]

    def attend(self, tick: Callable[[], QuietWatch]) -> None:
        """Start the thread that hears signals and calls ``tick``, as often as the watch that it
        returns asks for. Without it, signals are handled in the main thread: a second thread
        makes Python 3.12 warn at every fork, so it starts late.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._attend, args=(tick,), name="casebook-recorder", daemon=True
            )
            self._thread.start()

    def forget(self) -> None:
        """In a forked child: its signals are not its parent's."""
        if self._pipe != NO_PIPE:
            signal.set_wakeup_fd(-1)
            for end in self._pipe:
                os.close(end)
            for number in self._handled():
                signal.signal(number, signal.SIG_DFL)
        self._pipe = NO_PIPE
        self._from_c.clear()
        self._thread = None

    def _handle(self, number: int, _frame: object) -> None:
        if self._thread is None:
            self._act(number)
        else:
            os.write(self._pipe[1], bytes([number + FROM_PYTHON]))

    def _act(self, number: int) -> None:
        ends = number == signal.SIGTERM and number in self._handled()
        self.on_signal(number, ends)
        if ends:
            # signal.signal is for the main thread alone, which may be waiting in a driver for ever.
            ctypes.CDLL(None).signal(number, None)
            os.kill(os.getpid(), number)

    def _attend(self, tick: Callable[[], QuietWatch]) -> None:
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
        if self._pipe == NO_PIPE:
            time.sleep(wait_s)
            return []
        readable, _, _ = select.select([self._pipe[0]], [], [], wait_s)
        if not readable:
            return []
        heard = []
        for byte in os.read(self._pipe[0], 64):
            number = byte % FROM_PYTHON
            if byte < FROM_PYTHON:
                self._from_c[number] += 1
            elif self._from_c[number]:
                self._from_c[number] -= 1
                continue
            if number in SIGNALS:
                heard.append(number)
        return heard
