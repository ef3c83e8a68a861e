"""Which Python of this machine owns torch, and where that torch stands."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from helpers.look import files
from helpers.look.framework import recorded_python

ASK_TORCH = """import importlib.util, sys
spec = importlib.util.find_spec("torch")
print("torch:", spec.origin if spec and spec.origin else "")
print("cp%d%d" % sys.version_info[:2])
"""


def torch_interpreter() -> str:
    """The interpreter that owns torch, as set-up recorded it; without a record the one that
    runs now.
    """
    return recorded_python() or sys.executable


@lru_cache(maxsize=8)
def torch_files(python: str) -> tuple[str, str]:
    """(the file that ``python`` would import as torch, or empty; its version of Python, such as
    cp311). Both are empty where there is no such interpreter. torch itself is not imported.
    """
    argv = [python, "-c", ASK_TORCH]
    try:
        printed = subprocess.check_output(
            argv, stderr=subprocess.DEVNULL, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "", ""
    origin, _, tag = printed.rpartition("torch:")[2].strip().rpartition("\n")
    return origin.strip(), tag


def stated_by_torch(origin: str) -> dict[str, str]:
    """What the torch at this place says of itself in its version.py, such as ``__version__`` and
    ``cuda``; empty where it says nothing.
    """
    if not origin:
        return {}
    text = files.text("", str(Path(origin).with_name("version.py")))
    return dict(re.findall(r"^(\w+)\b[^=\n]*= '([^']+)'", text, re.MULTILINE))
