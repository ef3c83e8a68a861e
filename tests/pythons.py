"""The other Pythons of this machine, for what has to run on a user's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def starts(python: str) -> str:
    """The interpreter of that name on PATH or among pyenv's, whose shims on PATH may stand for nothing."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for place in (shutil.which(python), *pyenv.glob(f"versions/{python[6:]}.*/bin/{python}")):
        if (
            place
            and subprocess.run([str(place), "-c", ""], capture_output=True, check=False).returncode
            == 0
        ):
            return str(place)
    return ""
