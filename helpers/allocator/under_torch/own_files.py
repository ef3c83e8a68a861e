"""The program's own files, frames and classes, told from those of libraries and of the recorder."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator

from .cells import cells, place
from .keeping_lines import functions_by_line

OPERATORS = os.path.join("torch", "_ops.py")


def files_of_the_program() -> set[str]:
    """The files of the program's own code, as far as it was imported or runs; cells that ran, too."""
    files = {frame.f_code.co_filename for frame in running_frames()}
    files.update(cells())
    of_modules = map(file_of, list(sys.modules.values()))
    files.update(file for file in of_modules if file.endswith(".py"))
    return {
        file if file[:1] == "<" else os.path.abspath(file)
        for file in files
        if is_own(file)
    }


def file_of(module: object) -> str:
    """The file of a module; empty where it has none, and of what is no module."""
    if not isinstance(module, types.ModuleType):
        return ""
    file = vars(module).get("__file__")
    return file if isinstance(file, str) else ""


def running_frames() -> Iterator[types.FrameType]:
    """The frames of all threads, the innermost of each first; none of the recorder's own, nor
    those in which torch calls an operator for it.
    """
    for innermost in sys._current_frames().values():
        for frame, _ in traceback.walk_stack(innermost):
            file = frame.f_code.co_filename
            if os.path.dirname(file) not in _recorders_folders() and not file.endswith(
                OPERATORS
            ):
                yield frame


def only_line(pattern: re.Pattern[str]) -> str:
    """The one line of the program, comments apart, in which a pattern is found, such as
    "train.py:24 evaluate"; empty where there are none or several.
    """
    lines = [
        (path, number)
        for path in sorted(files_of_the_program())
        for number, line in enumerate(linecache.getlines(path), start=1)
        if pattern.search(line.partition("#")[0])
    ]
    if len(lines) != 1:
        return ""
    path, number = lines[0]
    functions = functions_by_line("".join(linecache.getlines(path)))
    return f"{place(path, number)} {functions.get(number, '<module>')}"


@functools.cache
def _recorders_folders() -> tuple[str, ...]:
    """The folders of what runs beside the user's code: the recorder, a rehearsal, a notebook's
    extension.
    """
    package = sys.modules[__package__]
    helpers = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    beside = ("ground", "magics", os.path.join("rehearse", "under_torch"))
    folders = [os.path.join(helpers, folder) for folder in beside]
    return (os.path.dirname(__file__), *package.__path__, *folders)


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of what is not the program's: Python's own, the recorder's, and where torch
    lies (a rehearsal's torch is not installed).
    """
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *_recorders_folders()]
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        folders.append(os.path.dirname(os.path.dirname(torch)))
    return tuple(folder + os.sep for folder in folders)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the program's: neither installed, nor Python's, nor the recorder's."""
    if file.startswith("<"):
        return file.startswith(("<stdin", "<ipython", "<string"))
    path = os.path.abspath(file)
    if "site-packages" in path or "dist-packages" in path:
        return False
    return not path.startswith(_libraries())


def is_own_module(module: object) -> bool:
    """Whether a module was imported from a file of the program."""
    file = file_of(module)
    return bool(file) and is_own(file)


def is_own_class(kind: type) -> bool:
    """Whether a class is the program's; a metaclass of the program's is not asked."""
    home = type.__getattribute__(kind, "__module__")
    if not isinstance(home, str):
        return False
    return home == "__main__" or is_own_module(sys.modules.get(home))
