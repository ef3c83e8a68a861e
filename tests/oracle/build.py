"""What the real allocator needs to run here: a torch wheel alone in a folder, and the device of a rehearsal to preload.

The stand-in driver is the one that programs are rehearsed on (helpers/rehearse/device.c), here with its log of calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from helpers.rehearse import build, torches
from helpers.rehearse.build import tools as tools
from helpers.rehearse.torches import NotReady as NotRun


def install(torch: str, folder: Path, python: str) -> None:
    """Puts a torch into ``folder`` (0.6 to 0.9 GB of download, 2 GB on disk). Raises NotRun with pip's last words."""
    if torches.read_torch(folder) is None:
        torches.install(python, torch, folder)


def preload(target: Path, folder: Path) -> list[Path]:
    """The libraries to preload for the torch in ``target``, in order, built below ``folder``. Raises NotRun."""
    torch = torches.read_torch(target)
    if torch is None:
        raise NotRun(f"{target}: no CUDA build of torch; expected a folder of pip install --target")
    return build.build(torch, folder)


def environment(target: Path, libraries: Sequence[Path]) -> dict[str, str]:
    """The environment of a Python whose ``import torch`` is the one in ``target``, on the device that is not there."""
    left_out = ("FAKE_", "PYTORCH_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(target), str(target / torches.NEEDS)]),
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "TORCH_CPP_LOG_LEVEL": "FATAL",
        "PYTHONWARNINGS": "ignore",
    }
