"""Commands of the workbook, run in a child process: nothing of the workbook is imported into the
kernel for them, and a package named helpers in the notebook's folder is not in the way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKOUT = str(Path(__file__).resolve().parents[2])
LONGEST_S = 1.2
"""Seconds until an answer is given up, while LONGEST_LOOK_S of holdings.py passes: a driver that
hangs must not hold the cell up.
"""
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from helpers.cli import main; sys.exit(main())"
)


class WorkbookCommand:
    """A command of the workbook that runs while the notebook's own objects are looked at."""

    def __init__(self, *arguments: str):
        command = [sys.executable, "-I", "-c", START, CHECKOUT, *arguments, "--json"]
        self._ends_at = time.monotonic() + LONGEST_S
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def answer(self) -> dict[str, Any]:
        """The JSON object that the command printed; empty where it printed none in time."""
        left_s = max(0.0, self._ends_at - time.monotonic())
        try:
            printed, _ = self._child.communicate(timeout=left_s)
            answer: dict[str, Any] = json.loads(printed)
            return answer
        except subprocess.TimeoutExpired:
            self._child.kill()
            return {}
        except ValueError:
            return {}
