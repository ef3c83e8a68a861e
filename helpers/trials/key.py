"""Is this trial the same as one that was recorded? The key that names a record.

Another content of anything that a trial is given is another key: its program's files, its torch,
a GPU's driver, the settings, the limits, the seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from helpers.settings.presets import Preset
from helpers.trials.interpreter import torch_files
from helpers.trials.record import Limits
from helpers.trials.targets import CPU, Target
from helpers.trials.workload import Workload

PROGRAMS = Path(__file__).resolve().parent / "under_torch"
SOURCES = (".py", ".pyx", ".sh", ".c", ".h", ".cpp", ".cu", ".hip")
NOT_SOURCES = ("__pycache__", "site-packages", "node_modules")
MOST_SOURCES = 2000
MOST_FOLDERS = 4000
HASHED_BYTES = 16 << 20


def key_of(
    workload: Workload,
    preset: Preset,
    *,
    python: str,
    seed: int,
    limits: Limits,
    repeat: int,
    target: Target,
) -> str:
    """The name of the trial's record: workload, preset and a digest of all that it is given."""
    parts = [
        workload.name,
        sorted(workload.given.items()),
        workload.command,
        sorted(preset.environ.items()),
        python,
        seed,
        asdict(limits),
        repeat,
        target.pci,
        what_runs(workload, python, target),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{workload.name}-{preset.name}-{digest[:16]}"


def what_runs(workload: Workload, python: str, target: Target) -> list[str]:
    """What a trial's program is made of beyond its command line: contents of its files, its
    torch, and a GPU's driver.
    """
    if workload.command:
        python = shutil.which(workload.command[0]) or python
        contents = [_content(Path(python)), *_command_contents(workload.command)]
    else:
        contents = [_content(path) for path in sorted(PROGRAMS.glob("*.py"))]
    if not workload.command or Path(python).name.startswith("python"):
        origin, tag = torch_files(python)
        version = _content(Path(origin).with_name("version.py")) if origin else ""
        contents += [tag, origin, version]
    if target.pci != CPU.pci:
        modules = [Path(f"/sys/module/{name}/version") for name in ("amdgpu", "nvidia")]
        contents += [os.uname().release, *map(_content, modules)]
    return contents


def _command_contents(command: Sequence[str]) -> Iterator[str]:
    """Contents of the files that a command names, and of the sources near them: in their
    folders, in the current one and on PYTHONPATH, as far as MOST_SOURCES goes.
    """
    named = []
    for word in command:
        named += [Path(part) for part in (word, word.partition("=")[2]) if os.path.isfile(part)]
    yield from map(_content, named)
    folders = {Path.cwd(), *(path.parent.resolve() for path in named if path.suffix in SOURCES)}
    folders |= {Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    for folder in sorted(folders):
        for path in _sources(folder):
            yield f"{path.relative_to(folder)} {_content(path)}"


def _content(path: Path) -> str:
    """What tells this content of a file from another: a digest; of a large one size and time.

    Empty: no such file.
    """
    try:
        about = path.stat()
        if about.st_size > HASHED_BYTES:
            return f"{about.st_size} {about.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _sources(folder: Path) -> Iterator[Path]:
    """Source files below a folder, in order; not those of hidden folders and of installed
    packages.
    """
    listed = 0
    for visited, (place, folders, names) in enumerate(os.walk(folder)):
        if visited == MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if _is_walked(Path(place, name)))
        for name in sorted(names):
            if not name.endswith(SOURCES):
                continue
            if listed == MOST_SOURCES:
                return
            listed += 1
            yield Path(place, name)


def _is_walked(folder: Path) -> bool:
    """Whether sources of the user may stand in this folder: no hidden one, no environment."""
    if folder.name.startswith(".") or folder.name in NOT_SOURCES:
        return False
    return not (folder / "pyvenv.cfg").exists()
