"""Names lines of the program, those of a notebook by their cells."""

from __future__ import annotations

import os
import sys


def cells() -> dict[str, int]:
    """The number of each cell that ran, by the name that IPython gave to the file of its code
    (CachingCompiler._filename_map in IPython/core/compilerop.py); empty outside of IPython.
    """
    # IPython is never imported here: a program that runs in it has done so.
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    compiler = getattr(shell, "compile", None)
    numbers = getattr(compiler, "_filename_map", None)
    if not isinstance(numbers, dict):
        # not IPython, or a release that keeps no such table
        return {}
    return dict(numbers)


def place(path: str, line: int) -> str:
    """The name of a line: "train.py:12", or in a notebook "cell 6, line 1"."""
    number = cells().get(path)
    if number is None:
        return f"{os.path.basename(path)}:{line}"
    return f"cell {number}, line {line}"
