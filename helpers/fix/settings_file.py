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
    """The settings files below ``folder`` that the command line or a text of the sources names."""
    names = [word.rpartition("=")[2] for word in command]
    for source in sources:
        for string in source.find(cst.SimpleString):
            value = string.evaluated_value
            names.append(value if isinstance(value, str) else "")
    files = {}
    for name in names:
        path = folder / name
        if not name.endswith(ENDINGS) or not path.is_file() or path in files:
            continue
        is_inside = path.resolve().is_relative_to(folder.resolve())
        if is_inside and not path.is_symlink() and path.stat().st_size <= MOST_BYTES:
            files[path] = SettingsFile(
                str(path.resolve().relative_to(folder.resolve())), path.read_bytes()
            )
    return list(files.values())
