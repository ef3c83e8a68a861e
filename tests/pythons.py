"""The other Pythons of this machine, for what has to run on a user's own."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path


def starts(python: str) -> str:
    """The interpreter of that name on PATH or among pyenv's, whose shims on PATH may stand for nothing."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    # glob leaves out what may not be read, as another user's folder that PYENV_ROOT names; Path.glob does not.
    there = glob.glob(f"{pyenv}/versions/{python[6:]}.*/bin/{python}")
    for place in (shutil.which(python), *there):
        if (
            place
            and subprocess.run([str(place), "-c", ""], capture_output=True, check=False).returncode
            == 0
        ):
            return str(place)
    return ""
