"""Places in the program's code, in a notebook by its cells."""

from __future__ import annotations

import os
import sys


def cells() -> dict[str, int]:
    """The number of each cell that ran, by the name that IPython gave to the file of its code
    (IPython/core/compilerop.py); empty outside of IPython.
    """
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return dict(numbers) if isinstance(numbers, dict) else {}


def place(path: str, line: int) -> str:
    """A line of a file as it is said: "train.py:12", "cell 6, line 1"."""
    number = cells().get(path)
    if number is None:
        return f"{os.path.basename(path)}:{line}"
    return f"cell {number}, line {line}"
