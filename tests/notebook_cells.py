"""Cells of a notebook that is not on screen: each list of them runs in an IPython of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SESSION = Path(__file__).with_name("notebook_session.py")
EXTENSION = ROOT / "helpers/magics/extension"
LOAD = f"import sys; sys.path.insert(0, {str(EXTENSION)!r})\n%load_ext vram_casebook"
TORCH = "import torch"
SMALL_CARD = "raise RuntimeError('CUDA out of memory. Tried to allocate 4.00 MiB')"


class Sessions:
    """Notebooks without a front end: each list of cells runs in an IPython of its own."""

    def __init__(self, folder, *modules):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["IPYTHONDIR"] = str(folder)
        command = [sys.executable, str(SESSION), *modules]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
        )

    def run(self, *sources, folder):
        self.process.stdin.write(json.dumps({"cells": sources, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def rows(text):
    """The rows of a printed table: name and size."""
    return dict(re.findall(r"^(\S.*?) {2,}([\d.]+ [KMG]iB)  ", text, flags=re.MULTILINE))
