"""The variables by which this process tells torch's allocator what to do: their values, and the
lines that set them.

Nothing else of the environment is kept. A name that is nearly one of the allocator's may be meant
as one, and is.
"""

from __future__ import annotations

import os
import re
from types import FrameType

LONGEST = 400
NAME = re.compile(
    r"(PYT(?!HON|EST)|PTY|PYO|TORCH)\w{0,30}(AL+OC|CONF)\w{0,9}", re.IGNORECASE
)
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
PYTHONS = ("<frozen", os.path.dirname(os.__file__) + os.sep)
ASSIGNMENTS: list[dict[str, str]] = []
"""What this process sets: name, value, and the line, ``where``."""


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
    """The innermost line of the program's own, else of a library, that led here."""
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        line = f"{os.path.basename(file)}:{frame.f_lineno}"
        if INSTALLED.search(file):
            library = library or line
        elif not file.startswith(PYTHONS):
            return line
        frame = frame.f_back
    return library
