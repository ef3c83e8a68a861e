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
# Measured: torch 2.14.1 alone is 555 MB to download and 1.2 GB on disk, 2.6.0 alone 766 MB and
# 1.6 GB.
SIZE_WORDS = "0.6 to 0.8 GB to download, 1.2 to 1.6 GB on disk"
NEEDED_BYTES = 4 << 30
PIP_S = 3600.0
NEEDS = "needs"


class NotReady(ValueError):
    """Why nothing can be rehearsed yet, in one line: what is missing and what to do."""


@dataclass(frozen=True)
class Torch:
    """A CUDA build of torch: the folder that holds it, its version as it prints itself;
    ``is_users``: the user's own, not downloaded.
    """

    folder: Path
    version: str
    is_users: bool


def cache_folder(folder: str = "") -> Path:
    """Where everything is kept: ``folder``, else vram-casebook/rehearse in XDG_CACHE_HOME."""
    if folder:
        return Path(folder).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "vram-casebook", "rehearse")


def remove(folder: Path) -> int:
    """Take the folder away; the bytes that it held.

    Raises NotReady where it holds what no rehearsal put there.
    """
    if not folder.is_dir():
        return 0
    for path in folder.iterdir():
        if not path.name.startswith(("torch-", "device-")):
            why = f"{path.name} is not of a rehearsal; expected the folder given as --cache before"
            raise NotReady(f"{folder}: {why}")
    size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def interpreter(command: Sequence[str], python: str = "") -> str:
    """The Python whose torch a command uses: ``python``, else the one that the command names,
    else the one that owns torch.
    """
    first = python or "".join(command[:1])
    if os.path.basename(first).startswith("python") and shutil.which(first):
        return first
    return torch_interpreter()


def read_torch(folder: Path, is_users: bool = False) -> Torch | None:
    """The CUDA torch in a folder, or None where there is none or another build."""
    text = files.text("", f"{folder.absolute()}/torch/version.py")
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    library = folder / "torch/lib/libtorch_cuda.so"
    if not (version and cuda and library.exists()):
        return None
    return Torch(folder, version[1], is_users)


def find_torch(python: str, version: str, folder: Path) -> tuple[Torch | None, Path]:
    """The torch to rehearse under, and where it would be put.

    It is the program's own CUDA torch where that is of the ``version`` that was asked for. Raises
    NotReady.
    """
    origin, tag = torch_files(python)
    if not tag:
        why = "it does not run; expected a Python; give one with --torch-python"
        raise NotReady(f"{python}: {why}")
    place = folder / f"torch-{version or DEFAULT_TORCH}-{tag}"
    if origin.endswith("__init__.py"):
        mine = read_torch(Path(origin).parents[1], is_users=True)
        if mine and version in ("", mine.version.split("+")[0], mine.version):
            return mine, place
    return read_torch(place), place


def install(python: str, version: str, place: Path) -> Torch:
    """Put torch alone into ``place``, and its pure-Python needs where only a Python that lacks
    them looks. Raises NotReady.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    version = version or DEFAULT_TORCH
    free_bytes = shutil.disk_usage(place.parent).free
    if free_bytes < NEEDED_BYTES:
        expected = (
            f"expected {show_bytes(NEEDED_BYTES)}; name another folder with --cache"
        )
        raise NotReady(f"{place.parent}: {show_bytes(free_bytes)} free; {expected}")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="torch-") as scratch:
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
    """Install packages alone into a folder. Raises NotReady with pip's own words."""
    flags = "-q --no-deps --no-cache-dir --disable-pip-version-check --target"
    argv = [*_installer(python), *flags.split(), str(target), *packages]
    ended = watch(argv, PIP_S)
    if ended.exit_code == 0:
        return
    lines = ended.last_words.splitlines()
    errors = [line for line in lines if "ERROR" in line or "No module" in line]
    why = errors[-1] if errors else f"pip {ended.fate}"
    raise NotReady(f"pip did not install {packages[0]} for {python}: {why}")


def _installer(python: str) -> list[str]:
    """What installs for a Python: its own pip, ours (since pip 22.3), or uv, whose environments have
    no pip.
    """
    for owner, options in ((python, []), (sys.executable, ["--python", python])):
        if watch([owner, "-c", "import pip"], PIP_S).exit_code == 0:
            return [owner, "-m", "pip", *options, "install"]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python]
    return [python, "-m", "pip", "install"]
