"""The environment variables with settings of torch's allocator: their values, and the lines of the
program that set them.

Nothing else of the environment is kept. A misspelt name, such as PYTORCH_CUDA_ALOC_CONF, is kept
too, so that the diagnosis can say so.
"""

from __future__ import annotations

import os
import re
from types import FrameType

LONGEST = 400
"""Characters kept of a value: all settings at once take fewer."""
NAME = re.compile(
    r"(PYT(?!HON|EST)|PTY|PYO|TORCH)\w{0,30}(AL+OC|CONF)\w{0,9}", re.IGNORECASE
)
"""PYTORCH_..ALLOC.. or ..CONF, also with letters swapped or left out; not PYTHON.. or PYTEST..."""
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
OF_PYTHON = ("<frozen", os.path.dirname(os.__file__) + os.sep)
"""What the files of the standard library begin with."""
ASSIGNMENTS: list[dict[str, str]] = []
"""The assignments of this process: name, value, and ``where``, the line."""


def present() -> dict[str, str]:
    """The allocator's variables of this process, as they are now."""
    return {
        name: value[:LONGEST]
        for name, value in os.environ.items()
        if NAME.fullmatch(name)
    }


def note(name: str, value: str, frame: FrameType) -> None:
    """Keep an assignment to such a variable, with the line of ``frame`` that makes it."""
    if NAME.fullmatch(name):
        ASSIGNMENTS.append(
            {"name": name, "value": value[:LONGEST], "where": _line(frame)}
        )


def _line(frame: FrameType | None) -> str:
    """The innermost line of the program itself that led to ``frame``; without one the innermost
    line of an installed library, and "" where only Python's own code is in the stack.
    """
    library_line = ""
    while frame is not None:
        file = frame.f_code.co_filename
        line = f"{os.path.basename(file)}:{frame.f_lineno}"
        if INSTALLED.search(file):
            if not library_line:  # keep the innermost
                library_line = line
        elif not file.startswith(OF_PYTHON):
            return line
        frame = frame.f_back
    return library_line
