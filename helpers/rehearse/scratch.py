"""A copy of the working folder, in which a program runs again without changing the original."""

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
"""A folder of more bytes or files is not copied: each rehearsal would wait seconds for it."""
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""An entry of one of these names marks the folder of a Python environment (venv, conda), which is
linked and not copied.
"""


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
    """Make a folder the current one, and go back at the end."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy of a folder, deleted at the end. Raises OSError.

    What is around the folder has links around the copy, so that a relative path such as
    ``../data`` leads where it led.
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
        # The inner ones first: what is written into a folder changes its time.
        for original, target in reversed(folders):
            shutil.copystat(original, target)
        yield copy


def in_copy(command: Sequence[str], folder: Path, copy: Path) -> list[str]:
    """A command in which absolute paths into the folder lead into its copy; paths that only begin
    with the same characters stay as they are.
    """
    inside = re.compile(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w.-])")
    return [inside.sub(lambda _: str(copy), word) for word in command]


def _link_surroundings(folder: Path, scratch: Path) -> None:
    """Link what is beside a folder, and beside each folder above it except the root."""
    for child in (folder, *folder.parents[:-1]):
        above = Path(scratch, *child.parent.parts[1:])
        try:
            for sibling in child.parent.iterdir():
                if sibling != child:
                    (above / sibling.name).symlink_to(sibling)
        except PermissionError:
            continue  # such a folder can be passed through, but not be listed


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """The entries to copy, a folder before what is in it; without recordings of this workbook,
    sockets and pipes.
    """
    with os.scandir(folder) as scanned:
        entries = {entry.name: entry for entry in scanned}
    for name, entry in entries.items():
        stem, suffix = os.path.splitext(name)
        is_recording = suffix in (".pickle", ".record") and f"{stem}.record" in entries
        can_be_copied = entry.is_symlink() or entry.is_dir() or entry.is_file()
        if is_recording or not can_be_copied:
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False) and not _is_environment(entry):
            yield from _entries(entry.path)


def _is_environment(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is the folder of a Python environment."""
    return any(os.path.lexists(os.path.join(entry.path, name)) for name in ENVIRONMENTS)
