"""What a program left running, ended and named, whatever session it moved to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from helpers.ground.child.proc import carrying, process_of

PATIENCE_S = 0.5
SWEEP_S = 3.0


def sweep(left_behind: Callable[[], list[int]]) -> tuple[list[str], list[str]]:
    """End what ``left_behind`` finds; returns (ended, still there) as "name (pid)".

    What ends by itself within PATIENCE_S is not counted. What SIGKILL does not end within
    SWEEP_S waits inside the system and is only named.
    """
    began = time.monotonic()
    while (left := left_behind()) and time.monotonic() - began < PATIENCE_S:
        time.sleep(0.05)
    names: dict[int, str] = {}
    while left and time.monotonic() - began < PATIENCE_S + SWEEP_S:
        for pid in left:
            names.setdefault(pid, _named(pid))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        left = left_behind()
    return [name for pid, name in names.items() if pid not in left], [
        _named(pid) for pid in left
    ]


def _named(pid: int) -> str:
    """A process by its name and number: ``python (4711)``."""
    return f"{process_of(pid).name or 'gone'} ({pid})"


class ProcessMark:
    """A variable of the environment by which the processes of one program are recognised."""

    NAME = "CASEBOOK_TRIAL"

    def __init__(self) -> None:
        self.value = f"{os.getpid()}-{time.monotonic_ns()}"

    @property
    def variables(self) -> dict[str, str]:
        """What the program's environment has besides."""
        return {self.NAME: self.value}

    def swept(self) -> Iterator[str]:
        """End what carries the mark, and say so in a line each."""
        ended, deaf = sweep(lambda: carrying(f"{self.NAME}={self.value}"))
        if ended:
            yield f"left behind and ended here: {', '.join(ended)}"
        if deaf:
            yield f"left behind, and SIGKILL does not end it: {', '.join(deaf)}"
