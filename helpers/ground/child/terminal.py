"""The user's own program, in the user's own terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from helpers.ground import umask

POLL_S = 0.05
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def run_here(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    receivers: Callable[[int], Sequence[int]] = lambda _number: (),
    term_s: float = 0.0,
    ends_after_s: float = 0.0,
) -> int:
    """Run ``argv`` to its end, with this process's terminal, input and output; its exit code,
    minus n where signal n ended it.

    Its umask is the user's, and there is no limit. Signals of FORWARDED that come meanwhile are
    passed on, where this is the main thread: to the processes that ``receivers`` names for that
    signal, else to the program. ``term_s`` above 0: whoever received SIGTERM has so many
    seconds to end and is killed then. ``ends_after_s`` above 0: that SIGTERM comes by itself.
    Raises OSError where it cannot be run.
    """
    process = _start_as_user(argv, env)
    forwarding = _Forwarding(process, receivers, term_s)
    ending = threading.Timer(ends_after_s, forwarding.end)
    ending.daemon = True
    if ends_after_s:
        ending.start()
    try:
        return forwarding.wait()
    finally:
        ending.cancel()
        forwarding.restore()


def _start_as_user(
    argv: Sequence[str], env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    own_umask = os.umask(umask.users_umask) if umask.users_umask >= 0 else -1
    try:
        return subprocess.Popen(argv, env=env)
    finally:
        if own_umask >= 0:
            os.umask(own_umask)


class _Forwarding:
    """Passes signals that this process gets on to the program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        receivers: Callable[[int], Sequence[int]],
        term_s: float,
    ):
        self.process = process
        self.receivers = receivers
        self.term_s = term_s
        self.killer = threading.Timer(term_s, self._kill_all)
        self.killer.daemon = True
        self.handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self.handlers[number] = signal.signal(number, self._forward)

    def wait(self) -> int:
        code = self.process.wait()
        while self.killer.is_alive() and self.receivers(signal.SIGTERM):
            time.sleep(POLL_S)
        killed_here = self.killer.ident is not None and code == -signal.SIGKILL
        return -signal.SIGTERM if killed_here else code

    def restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _frame: object) -> None:
        # The terminal sends Ctrl-C to the program by itself; a second one would stop its clean-up.
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return
        if number == signal.SIGTERM:
            self.end()
        else:
            self._send(number, meant_for=number)

    def end(self) -> None:
        """Ask all of it to end, and see to it."""
        self._send(signal.SIGTERM, meant_for=signal.SIGTERM)
        if self.term_s and self.killer.ident is None:
            self.killer.start()

    def _send(self, number: int, meant_for: int) -> None:
        """Sends a signal to who receives the signal ``meant_for``."""
        pids = list(self.receivers(meant_for))
        if not pids and self.process.returncode is None:
            pids = [self.process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_all(self) -> None:
        for _ in range(20):
            self._send(signal.SIGKILL, meant_for=signal.SIGTERM)
            time.sleep(POLL_S)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
