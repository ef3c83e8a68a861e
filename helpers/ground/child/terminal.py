"""Runs the user's own program in the user's own terminal."""

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
KILLS = 20
"""How often SIGKILL is sent, POLL_S apart: meanwhile the program may start another process."""
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What a person or a scheduler sends to a program. Signals of the terminal's job control
(Ctrl-Z) reach the program without help.
"""


def run_here(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    receivers: Callable[[int], Sequence[int]] = lambda _number: (),
    term_s: float = 0.0,
    ends_after_s: float = 0.0,
) -> int:
    """Run ``argv`` to its end, with this process's terminal, input and output, the user's umask,
    and no limit. Returns its exit code, or minus n if signal n ended it. Raises OSError if it
    cannot be run.

    If this is the main thread, it passes on the signals of FORWARDED: to the processes whose
    numbers ``receivers`` returns for a signal's number, or, if there are none, to the program.
    ``term_s`` above 0: who received SIGTERM is killed after so many seconds. ``ends_after_s``
    above 0: SIGTERM is sent after so many seconds without anybody asking.
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
    if umask.users_umask < 0:
        return subprocess.Popen(argv, env=env)
    own_umask = os.umask(umask.users_umask)
    try:
        return subprocess.Popen(argv, env=env)
    finally:
        os.umask(own_umask)


class _Forwarding:
    """Passes on to the program the signals that this process gets, until ``restore``. ``killer``
    kills those who received SIGTERM ``term_s`` seconds later; ``handlers`` are the signal handlers
    that were there before.
    """

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
                # Under nohup SIGHUP is ignored, and stays so.
                if signal.getsignal(number) != signal.SIG_IGN:
                    self.handlers[number] = signal.signal(number, self._forward)

    def wait(self) -> int:
        """Wait for the program and, after a SIGTERM, for the other receivers. Returns the exit
        code of the program; minus SIGTERM if it was asked to end and then killed.
        """
        code = self.process.wait()
        while self.killer.is_alive() and self.receivers(signal.SIGTERM):
            time.sleep(POLL_S)
        was_asked_to_end = self.killer.ident is not None
        if was_asked_to_end and code == -signal.SIGKILL:
            return -signal.SIGTERM
        return code

    def restore(self) -> None:
        """Put back the signal handlers that were there before."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _frame: object) -> None:
        # A terminal sends Ctrl-C and Ctrl-\ to every process of its foreground group, so also to
        # the program; a second one would stop its clean-up.
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return
        if number == signal.SIGTERM:
            self.end()
        else:
            self._send(number, meant_for=number)

    def end(self) -> None:
        """Send SIGTERM to the receivers, and start the time after which they are killed."""
        self._send(signal.SIGTERM, meant_for=signal.SIGTERM)
        if self.term_s and self.killer.ident is None:
            self.killer.start()

    def _send(self, number: int, meant_for: int) -> None:
        """Send the signal ``number`` to the receivers of the signal ``meant_for``, or, if there
        are none, to the program if it still runs.
        """
        pids = list(self.receivers(meant_for))
        if not pids and self.process.returncode is None:
            pids = [self.process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_all(self) -> None:
        for _ in range(KILLS):
            self._send(signal.SIGKILL, meant_for=signal.SIGTERM)
            time.sleep(POLL_S)


def _in_foreground() -> bool:
    """Whether this process is in the foreground group of its terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
