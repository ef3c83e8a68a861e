"""Signals of a recorded process: heard at once, also while its main thread waits in a driver."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable

from .quiet_watch import QuietWatch

SIGNALS = ("SIGUSR1", "SIGTERM")
THEIRS = "the program's own handler, which ran as ever"
NO_PIPE = (-1, -1)
COOKED = 128


class Listener:
    """``on_signal`` gets the number of a SIGUSR1 or SIGTERM, and whether the process ends right
    after it.

    A signal that the program handles itself, now or later, is its own: the handler runs as
    ever, and ``on_signal`` hears of it beside that. SIGTERM ends the process as ever where the
    program has no handler: by the signal itself, not an exit code.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]):
        self.on_signal = on_signal
        self.whose: dict[str, str] = {}
        self._pipe = NO_PIPE
        self._raw: dict[int, int] = {}
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
        for name in SIGNALS:
            free = signal.getsignal(getattr(signal, name)) == signal.SIG_DFL
            self.whose[name] = "recorder" if free else THEIRS
            if free:
                signal.signal(getattr(signal, name), self._handle)
        return ""

    def owners(self) -> dict[str, str]:
        """Whose handler each signal has in the end."""
        for name, who in self.whose.items():
            if (
                who == "recorder"
                and signal.getsignal(getattr(signal, name)) != self._handle
            ):
                self.whose[name] = THEIRS
        return self.whose

    def attend(self, tick: Callable[[], QuietWatch]) -> None:
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
        pipe = self._pipe[0]
        watched = [pipe] if pipe >= 0 else []
        readable, _, _ = select.select(watched, [], [], wait_s)
        if not readable:
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
