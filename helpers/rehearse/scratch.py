"""A copy of the working folder, in which a program runs again and changes nothing of the original."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.ground.units import MIB, show_bytes

MOST_BYTES = 256 * MIB
MOST_FILES = 20_000
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""What marks the folder of a Python environment, which is linked and not copied."""


def why_not_copied(folder: Path) -> str:
    """Why a folder cannot be copied or is too much for that; empty where it can be."""
    size = 0
    try:
        for number, entry in enumerate(_entries(folder), 1):
            if entry.is_file(follow_symlinks=False):
                size += entry.stat(follow_symlinks=False).st_size
            if size > MOST_BYTES or number > MOST_FILES:
                most = f"{show_bytes(MOST_BYTES)} or {MOST_FILES:,} files"
                return f"the working folder has more than {most}, too much to be copied"
    except OSError as error:
        return f"the working folder cannot be copied: {error}"
    return ""


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a folder the current one, and afterwards the one before."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy of a folder, which goes at the end.

    What lies around the folder is around the copy too, by links, so that a relative path leads
    where it led. Raises OSError.
    """
    with tempfile.TemporaryDirectory(prefix="repeat-") as scratch:
        copy = Path(scratch, *folder.parts[1:])
        copy.mkdir(parents=True)
        _link_surroundings(folder, Path(scratch))
        folders = [(folder, copy)]
        for entry in _entries(folder):
            target = copy / os.path.relpath(entry.path, folder)
            if entry.is_symlink():
                target.symlink_to(os.readlink(entry.path))
            elif _is_environment(entry):
                target.symlink_to(entry.path)
            elif entry.is_dir():
                target.mkdir()
                folders.append((Path(entry.path), target))
            else:
                shutil.copy2(entry.path, target)
        for original, target in reversed(folders):
            shutil.copystat(original, target)
        yield copy


def in_copy(command: Sequence[str], folder: Path, copy: Path) -> list[str]:
    """A command whose absolute paths into the folder lead into its copy."""
    inside = re.compile(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w.-])")
    return [inside.sub(lambda _: str(copy), word) for word in command]


def _link_surroundings(folder: Path, scratch: Path) -> None:
    """Link what lies beside a folder, and beside each folder above it."""
    for child in (folder, *folder.parents[:-1]):
        above = Path(scratch, *child.parent.parts[1:])
        try:
            for sibling in child.parent.iterdir():
                if sibling != child:
                    (above / sibling.name).symlink_to(sibling)
        except PermissionError:
            continue  # a folder that may be passed through and not be listed


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """What is to be copied: a folder before what is in it, no recordings, sockets and pipes."""
    with os.scandir(folder) as scanned:
        entries = {entry.name: entry for entry in scanned}
    for name, entry in entries.items():
        stem, suffix = os.path.splitext(name)
        recorded = suffix in (".pickle", ".record") and f"{stem}.record" in entries
        if recorded or not (entry.is_symlink() or entry.is_dir() or entry.is_file()):
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False) and not _is_environment(entry):
            yield from _entries(entry.path)


def _is_environment(entry: os.DirEntry[str]) -> bool:
    return any(os.path.lexists(os.path.join(entry.path, name)) for name in ENVIRONMENTS)
