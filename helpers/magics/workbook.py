"""What the workbook says of a text or of the box, asked in a child: the notebook's own folder may
have a package named helpers, and nothing of the workbook is imported into the kernel for it.
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
"""A driver that is sick does not answer; the cell does not wait for it."""
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
        """The JSON that it printed; empty where there is none in time."""
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
