"""A command of the workbook in a child, while an agent waits: with its progress, and ended when the
agent gives up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from helpers.ground.places import CHECKOUT

TICK_S = 2.0
WRONG_USE = 2
"""The exit code of a command that printed one line and no answer."""
PATIENCE_S = 5.0
"""How long a child that was asked to end may take."""

Report = Callable[[float, str], Awaitable[None]]


class Refused(ValueError):
    """The one line that a command printed instead of an answer."""


async def answer(arguments: Sequence[str], report: Report, text: str = "", folder: str = "") -> Any:
    """The JSON that a command prints; ``text`` is its standard input, ``folder`` where it runs.

    ``report`` is told every two seconds how long it has taken. Raises Refused.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", str(CHECKOUT / "helpers" / "__main__.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder or None,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tick, arguments[0], report)
            out, err = await anyio.to_thread.run_sync(
                child.communicate, text, abandon_on_cancel=True
            )
            tasks.cancel_scope.cancel()
    finally:
        await _end(child)
    if child.returncode == WRONG_USE:
        raise Refused(err.strip().rpartition("\n")[2])
    # A program that is run has the first stream for itself.
    return _parsed(err if folder else out)


async def _tick(verb: str, report: Report) -> None:
    began = time.monotonic()
    while True:
        await anyio.sleep(TICK_S)
        seconds = time.monotonic() - began
        await report(seconds, f"{verb} has run for {seconds:.0f} s")


async def _end(child: subprocess.Popen[str]) -> None:
    """End a child that still runs, with what it has started: both are in a session of their own."""
    ends_at = time.monotonic() + PATIENCE_S
    with anyio.CancelScope(shield=True):
        while child.poll() is None:
            late = time.monotonic() > ends_at
            os.killpg(child.pid, signal.SIGKILL if late else signal.SIGTERM)
            await anyio.sleep(0.2)


def _parsed(printed: str) -> Any:
    """The answer: the last thing that was printed. Raises Refused where it is none."""
    start = ("\n" + printed).rfind("\n{\n")
    try:
        return json.loads(printed[max(0, start) :])
    except ValueError:
        raise Refused("the command printed no answer") from None
