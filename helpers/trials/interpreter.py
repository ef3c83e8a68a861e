"""Which Python of this machine has torch, and where that torch is."""

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
ASK_S = 60
"""Time for the start of a Python, which may be on a network disk."""


def torch_interpreter() -> str:
    """The path of the interpreter that has torch, as set-up recorded it, else of the one that runs
    now.
    """
    return recorded_python() or sys.executable


@lru_cache(maxsize=8)
def torch_files(python: str) -> tuple[str, str]:
    """(the file that ``python`` would import as torch, empty if it has none; its version of Python,
    such as cp311). Both are empty if the interpreter does not run. torch is not imported.
    """
    argv = [python, "-c", ASK_TORCH]
    try:
        printed = subprocess.check_output(
            argv, stderr=subprocess.DEVNULL, text=True, timeout=ASK_S
        )
    except (OSError, subprocess.SubprocessError):
        return "", ""
    # A sitecustomize may have printed lines before these.
    _, _, answer = printed.rpartition("torch:")
    origin, _, tag = answer.strip().rpartition("\n")
    return origin.strip(), tag


def stated_by_torch(origin: str) -> dict[str, str]:
    """The texts that torch's version.py assigns, such as ``__version__`` and ``cuda``, by name;
    ``origin`` is the file of torch (``torch_files``). Empty if it cannot be read.
    """
    if not origin:
        return {}
    version_file = Path(origin).with_name("version.py")
    text = files.text("", str(version_file))
    # Lines such as: cuda: Optional[str] = '13.0'
    return dict(re.findall(r"^(\w+)\b[^=\n]*= '([^']+)'", text, re.MULTILINE))
