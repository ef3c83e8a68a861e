"""Notices that a batch or a run was asked to stop: by Ctrl-C, a signal, or a terminal that
closes.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; kill and systemd; the end of the terminal."""


class Stop:
    """The name of the first ``signal`` that asked this process to stop (empty: none so far), and
    how many ``times`` one came.

    ``on_signal`` is called at each signal. While ``raises`` is true, a signal also raises
    KeyboardInterrupt in the main thread.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        self.on_signal = on_signal
        self.signal = ""
        self.times = 0
        self.raises = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, a signal is noted here instead of ending the process.

        Only the main thread may set handlers (module signal); in another this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # under nohup SIGHUP stays ignored
                signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        """The handler of a signal."""
        if not self.signal:
            self.signal = signal.Signals(number).name
        self.times += 1
        self.on_signal()
        if self.raises:
            raise KeyboardInterrupt
