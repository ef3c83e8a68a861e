"""A notebook as a program: its code cells are one source, and a change goes back into its cells."""

from __future__ import annotations

import difflib
import json
import os
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers.fix.change import TextEdit, edited
from helpers.fix.source import SourceFile
from helpers.ground.child import watch

CELL = "# %% cell {number}\n"
"""The line above each cell while the cells are one source."""
CELLS = "cells_of_notebook.py"
"""What the cells are called as one script."""
HIDDEN = "pass  # not Python: "
"""What stands before a line of IPython's own, such as %matplotlib, while the cells are one source.
"""
_IPYTHON = re.compile(r"(\s*)([%!?].*|[\w.]+\?+\s*)")
"""A line of IPython's own: a magic (%), a shell command (!), or a question (?name, name?)."""
_FRAME = re.compile(r"cell (\d+), line (\d+)")
"""A frame in a notebook's cell, as allocator/stack_frames.py writes it."""
IMPORT_S = 60.0
"""How long the import of papermill may take: far more than the few seconds that it needs."""
Cell = dict[str, Any]
"""A cell as a file of nbformat 4 has it."""
INDENTS = (1, 2, 4, None)
"""How the JSON of a notebook may be indented (None: on one line); nbformat's own 1 first."""


class NoNotebook(ValueError):
    """A file that is no notebook: one line."""


class Notebook(SourceFile):
    """The code cells of a notebook that are run, joined, each below a line that names it.

    Raises NoNotebook where the file is none, and libcst.ParserSyntaxError where a cell is no
    Python.
    """

    def __init__(self, name: str, file: bytes) -> None:
        self.file = file
        self.cells = list(_code_cells(name, file))
        pieces: list[str] = []
        self._starts = []
        for number, cell in enumerate(self.cells, 1):
            self._starts.append(sum(piece.count("\n") for piece in pieces) + 1)
            pieces += [CELL.format(number=number), _as_python(cell), "\n"]
        super().__init__(name, "".join(pieces).encode())

    def line_of(self, frame: str) -> int:
        """The line of the joined cells that a frame names; 0 where it names no cell of them."""
        match = _FRAME.match(frame)
        if match is None or int(match[1]) > len(self.cells):
            return 0
        # A cell's first line is the one after the line that names it.
        return self._starts[int(match[1]) - 1] + int(match[2])

    def place_of(self, line: int) -> str:
        """Where a line of the joined cells is, such as "cell 4, line 9"."""
        number = max(1, bisect(self._starts, line))
        return f"cell {number}, line {line - self._starts[number - 1]}"

    def edited(self, edits: Iterable[TextEdit]) -> bytes:
        """The notebook's file with the edits made in its cells; all else of it stays as it is."""
        before = _split(self.text.decode())
        after = _split(edited(self.text, edits).decode())
        content = json.loads(self.file)
        cells = _cells_run(content["cells"])
        for cell, old, new in zip(cells, before, after, strict=True):
            if old == new:
                continue
            if isinstance(cell["source"], list):
                cell["source"] = new.splitlines(keepends=True)
            else:
                cell["source"] = new
        written = json.dumps(content, indent=self._indent(), ensure_ascii=False)
        if self.file.endswith(b"\n"):
            written += "\n"
        return written.encode()

    def _indent(self) -> int | None:
        """How the file is indented, found by writing it again; as nbformat does where that fails."""
        content = json.loads(self.file)
        for indent in INDENTS:
            written = json.dumps(content, indent=indent, ensure_ascii=False)
            if written.encode() == self.file.strip():
                return indent
        return INDENTS[0]

    def diff(self, changed: bytes) -> Iterator[str]:
        """A unified diff for each cell that differs in the changed file, with its number and first
        line.
        """
        after = _code_cells(self.name, changed)
        for number, (old, new) in enumerate(zip(self.cells, after, strict=True), 1):
            if old == new:
                continue
            first = old.strip().splitlines()[0]
            yield from difflib.unified_diff(
                f"{old}\n".splitlines(keepends=True),
                f"{new}\n".splitlines(keepends=True),
                f"a/{self.name} (cell {number}: {first})",
                f"b/{self.name} (cell {number}: {first})",
            )


def command_of(notebook: str) -> list[str]:
    """The command that runs a notebook's cells in its folder, and writes the result to nowhere."""
    path = Path(notebook)
    papermill = ["python", "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    return [*papermill, "--cwd", str(path.parent), notebook, os.devnull]


def why_no_papermill(python: str) -> str:
    """Why an interpreter cannot run a notebook's cells; empty where it can."""
    ended = watch([python, "-c", "import ipykernel, papermill"], IMPORT_S)
    if ended.exit_code == 0:
        return ""
    return (
        f"{python} cannot run notebooks: {ended.last_line}; install papermill and ipykernel there, "
        "or name another with --torch-python"
    )


def _code_cells(name: str, file: bytes) -> Iterator[str]:
    """The texts of the code cells that are run, in order. Raises NoNotebook."""
    try:
        cells = json.loads(file)["cells"]
        yield from map(_source, _cells_run(cells))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        expected = "expected a notebook of format 4, as Jupyter writes it"
        raise NoNotebook(f"{name}: {error}; {expected}") from error


def _cells_run(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that papermill runs and counts: code that is not empty."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [cell for cell in code if _source(cell).strip()]


def _source(cell: Cell) -> str:
    """The text of a cell, which a notebook holds as one string or as a list of lines."""
    return "".join(cell["source"])


def _as_python(cell: str) -> str:
    """A cell with IPython's own lines hidden, each still on its line; of a cell that begins with a
    magic such as %%bash, whose text is of another language, all lines.
    """
    is_other_language = cell.lstrip().startswith("%%")
    lines = []
    for line in cell.split("\n"):
        match = _IPYTHON.fullmatch(line)
        if is_other_language:
            lines.append(f"{HIDDEN}{line}")
        elif match is not None:
            lines.append(f"{match[1]}{HIDDEN}{match[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def _split(text: str) -> list[str]:
    """The texts of the cells of the joined source."""
    pieces = re.split(f"^{CELL.format(number='[0-9]+')}", text, flags=re.MULTILINE)[1:]
    return [piece.removesuffix("\n").replace(HIDDEN, "") for piece in pieces]
