"""Whether a batch or a run of it was asked to stop, by Ctrl-C, by a signal, or because its terminal is gone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Holds the first signal that asked this process to stop, and how many came.

    In the main thread only. ``on_signal`` is called at each signal. With ``raises`` a signal also
    ends what the main thread does just now, by KeyboardInterrupt.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        self.on_signal = on_signal
        self.signal = ""
        self.times = 0
        self.raises = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, a signal is held and ends nothing by itself."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number).name
        self.times += 1
        self.on_signal()
        if self.raises:
            raise KeyboardInterrupt
