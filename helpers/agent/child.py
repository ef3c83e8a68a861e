"""A command of the workbook in a child, while an agent waits: with its progress, and ended when the
agent gives up.
"""

from __future__ import annotations

import json
import sys
import time
from tempfile import TemporaryFile
from typing import Any

import anyio
from anyio.abc import Process
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from helpers.ground.places import CHECKOUT

Answer = dict[str, Any]
TICK_S = 2.0
"""How often an agent is told that a command still runs: often enough for one that gives up where
it hears nothing.
"""
PATIENCE_S = 5.0
"""How long a child that was asked to end may take before it is killed."""


async def answer(
    context: Context,
    verb: str,
    *arguments: str,
    text: str = "",
    folder: str | None = None,
) -> Answer:
    """The JSON that a command prints; ``text`` is its standard input, ``folder`` where it runs.

    Raises ToolError with the line that the command printed instead.
    """
    program = str(CHECKOUT / "helpers" / "__main__.py")
    # -I: no module of the folder where it runs, and none of PYTHONPATH, is imported.
    command = [sys.executable, "-I", program, verb, "--json", *arguments]
    # Files, since a pipe that nobody reads meanwhile would stop a command that prints much.
    with (
        TemporaryFile() as input_file,
        TemporaryFile() as printed,
        TemporaryFile() as said,
    ):
        input_file.write(text.encode(errors="replace"))
        input_file.seek(0)
        child = await anyio.open_process(
            command,
            stdin=input_file,
            stdout=printed,
            stderr=said,
            cwd=folder,
            start_new_session=True,
        )
        try:
            await _end_of(child, context, verb)
        finally:
            # Also where the agent gives up, which would interrupt this wait without the shield.
            with anyio.CancelScope(shield=True):
                await terminate_posix_process_tree(child, PATIENCE_S)
        said.seek(0)
        printed.seek(0)
        try:
            return parsed(printed.read())
        except ValueError:
            complaints = said.read().decode(errors="replace").strip()
            _, _, last_line = complaints.rpartition("\n")
            if not last_line:
                last_line = f"{verb} printed no answer"
            raise ToolError(last_line) from None


async def _end_of(child: Process, context: Context, verb: str) -> None:
    """Wait for a child, and tell the agent every TICK_S how long it has run."""
    began = time.monotonic()
    while child.returncode is None:
        with anyio.move_on_after(TICK_S):
            await child.wait()
        seconds = time.monotonic() - began
        await context.report_progress(
            seconds, message=f"{verb} has run for {seconds:.0f} s"
        )


def parsed(printed: bytes) -> Answer:
    """The JSON object with which an output ends, whose first line is only a brace. Raises
    ValueError where there is none.
    """
    # of the object in ``printed``; -1 for none
    start = (b"\n" + printed).rfind(b"\n{\n")
    answer_object: Answer = json.loads(printed[max(0, start) :])
    return answer_object
