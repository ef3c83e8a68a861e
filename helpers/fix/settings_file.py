"""A file that the program reads its settings from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from helpers.fix.change import TextEdit, edited
from helpers.fix.source import SourceFile

ENDINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
MOST_BYTES = 1 << 20
"""A file of more is data, and no settings."""


@dataclass(frozen=True)
class SettingsFile:
    """A file that the program reads its settings from. ``name``: its path below the folder."""

    name: str
    text: bytes
    encoding: str = "utf-8"

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """The file with edits made."""
        return edited(self.text, edits)


def settings_files(
    command: Sequence[str], sources: Sequence[SourceFile], folder: Path
) -> list[SettingsFile]:
    """The settings files below ``folder`` that a word of the command line or a string of the
    sources names.
    """
    names = [word.rpartition("=")[2] for word in command]  # of --config=a.yaml the file
    for source in sources:
        for string in source.find(cst.SimpleString):
            value = string.evaluated_value
            if isinstance(value, str):
                names.append(value)
    files = {}
    folder = folder.resolve()
    for name in names:
        path = folder / name
        # A link leads out of the copy in which a change is made.
        if not name.endswith(ENDINGS) or not path.is_file() or path.is_symlink():
            continue
        path = path.resolve()
        if path.is_relative_to(folder) and path.stat().st_size <= MOST_BYTES:
            below = str(path.relative_to(folder))
            files[below] = SettingsFile(below, path.read_bytes())
    return list(files.values())
