"""Finds the processes that a program left running, whatever session they moved to, and ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from helpers.ground.child.proc import carrying, process_of

PATIENCE_S = 0.5
"""A process that ends by itself within this time was not left behind."""
SWEEP_S = 3.0
"""A process that SIGKILL does not end within this time waits inside the kernel."""
POLL_S = 0.05


def sweep(left_behind: Callable[[], list[int]]) -> tuple[list[str], list[str]]:
    """End the processes whose numbers ``left_behind`` returns. Returns those that ended, and those
    that SIGKILL did not end, each as "name (pid)".
    """
    began = time.monotonic()
    left_pids = left_behind()
    while left_pids and time.monotonic() - began < PATIENCE_S:
        time.sleep(POLL_S)
        left_pids = left_behind()
    names: dict[int, str] = {}
    while left_pids and time.monotonic() - began < PATIENCE_S + SWEEP_S:
        for pid in left_pids:
            names.setdefault(pid, _named(pid))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
        left_pids = left_behind()
    ended = [name for pid, name in names.items() if pid not in left_pids]
    return ended, [_named(pid) for pid in left_pids]


def _named(pid: int) -> str:
    """A process by its name and number: ``python (4711)``, or ``gone (4711)`` if it has ended."""
    name = process_of(pid).name
    if not name:
        name = "gone"
    return f"{name} ({pid})"


class ProcessMark:
    """A variable of the environment by which the processes of one program are recognised: they
    pass it on to whatever they start.
    """

    NAME = "CASEBOOK_TRIAL"

    def __init__(self) -> None:
        self.value = f"{os.getpid()}-{time.monotonic_ns()}"

    @property
    def variables(self) -> dict[str, str]:
        """What to add to the program's environment."""
        return {self.NAME: self.value}

    def swept(self) -> Iterator[str]:
        """End the processes that carry the mark; yields a line about those that ended, and one
        about those that did not.
        """
        ended, alive = sweep(lambda: carrying(f"{self.NAME}={self.value}"))
        if ended:
            yield f"left behind and ended here: {', '.join(ended)}"
        if alive:
            yield f"left behind, and SIGKILL does not end it: {', '.join(alive)}"
