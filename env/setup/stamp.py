"""What does .venv hold, and is it what this checkout asks for? The record is .venv/casebook.json, written last."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
SETS: dict[str, tuple[str, ...]] = {
    "base": ("requirements.txt", "torch.txt"),
    "test": ("requirements-test.txt",),
    "maintain": ("requirements-maintain.txt",),
}


@dataclass(frozen=True)
class Made:
    """How .venv was made: its Python, and the pip that fills it."""

    way: str
    python: str
    version: str
    pip: tuple[str, ...]


@dataclass(frozen=True)
class Torch:
    """Which interpreter runs the programs that need torch; `torch_python` None where there is none, `why` in words.

    `owner` is the interpreter itself, where `torch_python` is a script that restores what it finds its torch through.
    `asked` is the last --torch or --torch-python, kept for later set-ups; `all` is every interpreter that was looked at.
    """

    torch_python: str | None = None
    owner: str | None = None
    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    how_found: str | None = None
    why: str = ""
    asked: str | None = None
    all: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Stamp:
    """The record of a finished set-up. `sets` maps a set's name to the fingerprint it was installed from."""

    made: Made
    python_real: str
    sets: dict[str, str] = field(default_factory=dict)
    torch: Torch = field(default_factory=Torch)

    def stands(self) -> bool:
        """Whether the Python under .venv is still the one it was made with (a distribution's upgrade may change it)."""
        python = self.made.python
        return os.path.exists(python) and os.path.realpath(python) == self.python_real

    def missing(self, root: Path, needs: tuple[str, ...]) -> list[str]:
        """The sets that are not installed as this checkout asks for; no child process, four small files read."""
        sets = [name for name in needs if name in SETS]
        wanted = {name: fingerprint(root, name, self.made.version) for name in sets}
        return [name for name, digest in wanted.items() if self.sets.get(name) != digest]


def made_from(said: dict[str, Any]) -> Made:
    return Made(said["way"], said["python"], said["version"], tuple(said["pip"]))


def fingerprint(root: Path, name: str, python_version: str) -> str:
    digest = hashlib.sha256(".".join(python_version.split(".")[:2]).encode())
    for file in SETS[name]:
        digest.update(b"\0" + (root / "env" / file).read_bytes())
    return digest.hexdigest()


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file so that a reader, or an interruption, meets the old text or the new, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write(venv: Path, stamp: Stamp) -> None:
    whole = asdict(stamp)
    text = {"schema_version": SCHEMA_VERSION, **whole.pop("torch"), **whole}
    write_whole(venv / "casebook.json", json.dumps(text, indent=1) + "\n")


def read(venv: Path) -> Stamp | None:
    """The record, or None where there is none, it is torn, or another version of the set-up wrote it."""
    try:
        said = json.loads((venv / "casebook.json").read_text(encoding="utf-8"))
        if said.pop("schema_version") != SCHEMA_VERSION:
            return None
        made, python, sets = (said.pop(name) for name in ("made", "python_real", "sets"))
        stamp = Stamp(made_from(made), python, sets, Torch(**said))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # A checkout that was moved or copied: the record speaks of another place.
    return stamp if stamp.made.python.startswith(f"{venv}{os.sep}") else None
