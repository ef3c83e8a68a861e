"""The program's own source files: the one that is run, and what it imports from around it."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import libcst as cst

from helpers.fix.notebook import Notebook
from helpers.fix.source import SourceFile

MOST_FILES = 200
"""Files that are read at most: one of 170 lines took 0.1 s, so that all take less than half a
minute.
"""


def sources_of(
    command: Sequence[str], folder: Path, frames: Sequence[str]
) -> list[SourceFile]:
    """The Python files below ``folder`` that the command runs, those that ``frames`` of its
    recording name, and those that these import, in that order. Left out are files that are no
    Python, and those outside the folder or behind a link: a copy of the folder shares them with the
    original.
    """
    waiting = [*_scripts(command, folder), *_named(frames, folder)]
    sources: dict[Path, SourceFile] = {}
    while waiting and len(sources) < MOST_FILES:
        path = waiting.pop(0)
        if path in sources or not _is_inside(path, folder):
            continue
        try:
            text = path.read_bytes()
            kind: type[SourceFile] = SourceFile
            if path.suffix == ".ipynb":
                kind = Notebook
            sources[path] = kind(str(path.relative_to(folder)), text)
        except (OSError, ValueError, cst.ParserSyntaxError, RecursionError):
            continue
        waiting += _imported(sources[path].text, path, folder)
    return list(sources.values())


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a file is in the folder itself, with no link on the way to it."""
    if not path.is_relative_to(folder):
        return False
    return path.resolve() == folder.resolve() / path.relative_to(folder)


def _scripts(command: Sequence[str], folder: Path) -> Iterator[Path]:
    """Python files of the command line and of shell scripts in it, and the module of ``-m``."""
    for at, word in enumerate(command):
        if word.endswith(".sh"):
            with suppress(OSError, ValueError):
                words = shlex.split(Path(folder, word).read_text(), comments=True)
                yield from _scripts(words, folder)
        elif word.endswith((".py", ".ipynb")):
            yield _below(folder, Path(folder, word))
        elif at and command[at - 1] == "-m":
            yield from _files_of(word, [folder])


def _below(folder: Path, path: Path) -> Path:
    """The file to which ``path`` leads through links, as a path that begins with ``folder``."""
    return folder / os.path.relpath(path.resolve(), folder.resolve())


def _named(frames: Sequence[str], folder: Path) -> Iterator[Path]:
    """Files that frames such as "train.py:36 evaluate" name. A frame has no folder, so of several
    files of its name the one with the shortest path is taken; libraries in .venv are left out.
    """
    matches = [re.match(r"([\w.-]+\.py):\d+ ", frame) for frame in frames]
    for name in sorted({match[1] for match in matches if match}):
        paths = [path for path in folder.rglob(name) if ".venv" not in path.parts]
        yield from sorted(paths, key=lambda path: len(path.parts))[:1]


def _imported(text: bytes, path: Path, folder: Path) -> Iterator[Path]:
    """Files below the folder that a file imports; none where ast cannot parse its ``text``."""
    roots = [path.parent, folder]
    try:
        tree = ast.parse(text)
    except SyntaxError:  # of a newer Python than this one
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            start = roots
            if node.level:  # how many dots are before the module's name
                start = [path.parents[node.level - 1]]
            names = [alias.name for alias in node.names]
            if node.module:
                names = [f"{node.module}.{name}" for name in names]
                yield from _files_of(node.module, start)
            # An imported name may itself be a module.
            for name in names:
                yield from _files_of(name, start)


def _files_of(module: str, roots: Sequence[Path]) -> Iterator[Path]:
    """The files that importing a module runs: those of its packages, and its own. Of ``roots`` the
    first that has a file counts.
    """
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        place = Path(*names[:depth])
        for root in roots:
            choices = (root / place / "__init__.py", root / f"{place}.py")
            files = [path for path in choices if path.is_file()]
            if files:
                yield files[0]
                break
