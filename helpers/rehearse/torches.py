"""The CUDA builds of torch that a rehearsal can run under: the program's own, or one put into a
folder of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import watch
from helpers.ground.units import show_bytes
from helpers.look import files
from helpers.rehearse.words import WORDS
from helpers.trials.interpreter import torch_files, torch_interpreter

DEFAULT_TORCH = "2.14.1"
"""The release that is installed where none is asked for: the newest that was tested."""
SIZE_WORDS = "0.6 to 0.8 GB to download, 1.2 to 1.6 GB on disk"
"""Measured: torch 2.14.1 alone is 555 MB to download and 1.2 GB on disk, 2.6.0 alone 766 MB and
1.6 GB.
"""
NEEDED_BYTES = 4 << 30
"""Free disk that an installation asks for: the wheel and what is unpacked of it, and some to spare.
"""
PIP_S = 3600.0
"""How long pip may take: 0.8 GB over 2 Mbit/s."""
NEEDS = "needs"
"""The folder below a torch for the packages in pure Python that it imports."""


class NotReady(ValueError):
    """Why nothing can be rehearsed yet, in one line: what is missing and what to do."""


@dataclass(frozen=True)
class Torch:
    """A CUDA build of torch. ``folder``: it holds the folder torch; ``version``: as torch prints
    it; ``is_users``: it is the user's own, and was not downloaded.
    """

    folder: Path
    version: str
    is_users: bool


def cache_folder(folder: str = "") -> Path:
    """The folder for all that rehearsals install or build: ``folder``, else vram-casebook/rehearse
    in XDG_CACHE_HOME, else in ~/.cache.
    """
    if folder:
        return Path(folder).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = str(Path.home() / ".cache")
    return Path(base, "vram-casebook", "rehearse")


def remove(folder: Path) -> int:
    """Delete the cache folder. Returns the bytes that it held; raises NotReady where it holds what
    no rehearsal put there.
    """
    if not folder.is_dir():
        return 0
    for path in folder.iterdir():
        # As find_torch and build name their folders.
        if not path.name.startswith(("torch-", "device-")):
            why = f"{path.name} is not of a rehearsal; expected the folder given as --cache before"
            raise NotReady(f"{folder}: {why}")
    size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def interpreter(command: Sequence[str], python: str = "") -> str:
    """The Python whose torch a command uses: ``python``, else the one that the command names, else
    the one that the user chose for torch (torch_interpreter).
    """
    first = python
    if not first:
        first = "".join(command[:1])  # empty for an empty command
    if os.path.basename(first).startswith("python") and shutil.which(first):
        return first
    return torch_interpreter()


def read_torch(folder: Path, is_users: bool = False) -> Torch | None:
    """The CUDA build of torch in a folder; None where there is no torch, or another build of it."""
    text = files.text("", f"{folder.absolute()}/torch/version.py")
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)  # None in others
    library = folder / "torch/lib/libtorch_cuda.so"
    if not (version and cuda and library.exists()):
        return None
    return Torch(folder, version[1], is_users)


def find_torch(python: str, version: str, folder: Path) -> tuple[Torch | None, Path]:
    """The torch to rehearse under, and the folder in the cache ``folder`` for it: the program's own
    CUDA torch where that is of the ``version`` (empty: any), else the installed one, None where it
    is still to be installed. Raises NotReady where ``python`` does not run.
    """
    # The path of its torch/__init__.py, and a tag such as cp311; both empty where it does not run.
    origin, tag = torch_files(python)
    if not tag:
        why = "it does not run; expected a Python; give one with --torch-python"
        raise NotReady(f"{python}: {why}")
    place = folder / f"torch-{version or DEFAULT_TORCH}-{tag}"
    if origin.endswith("__init__.py"):
        mine = read_torch(Path(origin).parents[1], is_users=True)
        if mine is not None:
            release, _, _ = mine.version.partition("+")  # 2.14.1 of 2.14.1+cu130
            if version in ("", release, mine.version):
                return mine, place
    return read_torch(place), place


def install(python: str, version: str, place: Path) -> Torch:
    """Install torch without its dependencies into ``place``, and those in pure Python (``needs`` in
    words.json) into a folder there that comes last on the path of a program. Raises NotReady.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    if not version:
        version = DEFAULT_TORCH
    free_bytes = shutil.disk_usage(place.parent).free
    if free_bytes < NEEDED_BYTES:
        expected = (
            f"expected {show_bytes(NEEDED_BYTES)}; name another folder with --cache"
        )
        raise NotReady(f"{place.parent}: {show_bytes(free_bytes)} free; {expected}")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="torch-") as scratch:
        # In a folder of its own: ``place`` appears at once, with all that belongs to it.
        target = Path(scratch) / "t"
        pip_install(python, [f"torch==={version}"], target)
        pip_install(python, WORDS["needs"], target / NEEDS)
        torch = read_torch(target)
        if torch is None:
            why = (
                "is no CUDA build; expected PyPI's own wheel; look at the index of pip"
            )
            raise NotReady(f"the torch {version} that pip found {why}")
        os.rename(target, place)
    return Torch(place, torch.version, is_users=False)


def pip_install(python: str, packages: Sequence[str], target: Path) -> None:
    """Install packages without their dependencies into a folder. Raises NotReady with pip's words."""
    flags = "-q --no-deps --no-cache-dir --disable-pip-version-check --target"
    argv = [*_installer(python), *flags.split(), str(target), *packages]
    ended = watch(argv, PIP_S)
    if ended.exit_code == 0:
        return
    lines = ended.last_words.splitlines()
    errors = [line for line in lines if "ERROR" in line or "No module" in line]
    why = f"pip {ended.fate}"
    if errors:
        why = errors[-1]
    raise NotReady(f"pip did not install {packages[0]} for {python}: {why}")


def _installer(python: str) -> list[str]:
    """The command that installs for a Python: its own pip, ours (--python: since pip 22.3), or uv,
    whose environments have no pip; where all are missing, its own pip, which then says so.
    """
    for owner, options in ((python, []), (sys.executable, ["--python", python])):
        if watch([owner, "-c", "import pip"], PIP_S).exit_code == 0:
            return [owner, "-m", "pip", *options, "install"]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python]
    return [python, "-m", "pip", "install"]
