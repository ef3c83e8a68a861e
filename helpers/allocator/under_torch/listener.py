"""Hears signals of a recorded process at once, also while its main thread waits in a driver.

Python runs a handler of its own only in the main thread, between two instructions. But its handler
in C writes the number of each signal to a pipe at once (signal.set_wakeup_fd), which a second
thread reads.
"""

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
"""Added to a number that the handler in Python writes into the pipe. The handler in C writes the
number itself, which is below 128.
"""
MOST_READ = 64
"""Bytes read at once; the rest stays in the pipe for the next time."""


class Listener:
    """Calls ``on_signal`` with the number of a SIGUSR1 or SIGTERM, and whether the process ends
    right after it.

    A signal that the program handles itself, now or later, stays its own: its handler runs as
    before, and ``on_signal`` is called as well. Where the program has no handler, SIGTERM ends the
    process as before, by the signal itself and not with an exit code.
    """

    def __init__(self, on_signal: Callable[[int, bool], None]):
        self.on_signal = on_signal
        self._pipe = NO_PIPE
        self._from_c: Counter[int] = Counter()
        self._thread: threading.Thread | None = None

    def listen(self) -> str:
        """Begin to hear signals. Returns an empty text, or why that is not possible."""
        if self._pipe != NO_PIPE:  # it listens already
            return ""
        if threading.current_thread() is not threading.main_thread():
            # Python sets handlers of signals in its main thread only.
            return (
                "signals are not listened to: torch was not started in the main thread"
            )
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        earlier = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if earlier != -1:
            # A process has one such descriptor: leave it to its owner.
            signal.set_wakeup_fd(earlier)
        for number in SIGNALS:
            # A handler of the program's stays: its signals are heard through the pipe all the same.
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._handle)
        return ""

    def owners(self) -> dict[str, str]:
        """Who handles each signal now, in words, by the name of the signal; empty before
        ``listen``. record.py looks for "recorder" there.
        """
        if self._pipe == NO_PIPE:
            return {}
        owners = {}
        for number in SIGNALS:
            owners[number.name] = "the program's own handler, which ran as ever"
        for number in self._handled():
            owners[number.name] = "recorder"
        return owners

    def _handled(self) -> list[signal.Signals]:
        """The signals whose handler is the recorder's."""
        return [
            number for number in SIGNALS if signal.getsignal(number) == self._handle
        ]

    def attend(self, tick: Callable[[], QuietWatch]) -> None:
        """Start the thread that hears signals and calls ``tick``, as often as the watch that this
        returns asks for (``poll_s``). Before that, signals are handled in the main thread: a second
        thread makes Python 3.12 warn at every fork, so it starts late.
        """
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._attend, args=(tick,), name="casebook-recorder", daemon=True
            )
            self._thread.start()

    def forget(self) -> None:
        """In a forked child: leave the parent's pipe, and the signals as they are without a
        recorder.
        """
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
        """The handler in Python. Without the second thread it does here what the signal asks for;
        else it writes the number for that thread (``_heard``).
        """
        if self._thread is None:
            self._act(number)
        else:
            os.write(self._pipe[1], bytes([number + FROM_PYTHON]))

    def _act(self, number: int) -> None:
        """Call ``on_signal``; after a SIGTERM end the process, unless the program handles it."""
        ends = number == signal.SIGTERM and number in self._handled()
        self.on_signal(number, ends)
        if ends:
            # The default handler again, by the function of C: signal.signal works in the main
            # thread only, which may be waiting in a driver forever.
            ctypes.CDLL(None).signal(number, None)
            os.kill(os.getpid(), number)

    def _attend(self, tick: Callable[[], QuietWatch]) -> None:
        """The thread: watch, and wait for signals. The watch's timer is armed only while it waits."""
        while True:
            watch = tick()
            watch.arm()
            heard = self._heard(watch.poll_s)
            if heard:  # what follows may take long, and is no wait
                watch.disarm()
            for number in heard:
                self._act(number)

    def _heard(self, wait_s: float) -> list[int]:
        """Signals since the last call, for which it waits at most so many seconds.

        The handler in C writes each number at once; the one in Python writes it again, later. This
        second one counts only where the first went elsewhere, as the program has set a descriptor
        of its own (asyncio does).
        """
        if self._pipe == NO_PIPE:
            # no signals, only the watch: it recorded a block, or could not listen
            time.sleep(wait_s)
            return []
        readable, _, _ = select.select([self._pipe[0]], [], [], wait_s)
        if not readable:
            return []
        heard = []
        for byte in os.read(self._pipe[0], MOST_READ):
            number = byte % FROM_PYTHON
            if byte < FROM_PYTHON:
                self._from_c[number] += 1
            elif self._from_c[number]:
                self._from_c[number] -= 1  # heard already
                continue
            if number in SIGNALS:  # the descriptor gets all signals
                heard.append(number)
        return heard
