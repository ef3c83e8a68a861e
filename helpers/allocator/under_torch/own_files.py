"""Tells the program's own files, frames and classes from those of libraries and of the recorder."""

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
"""Where torch calls an operator: below it may be the code of a rehearsal."""
TYPED = ("<stdin", "<ipython", "<string")
"""What the names begin with of code that was typed or given with -c, and is in no file."""


def files_of_the_program() -> set[str]:
    """The files of the program's own code that was imported or runs, cells of a notebook included."""
    files = {frame.f_code.co_filename for frame in running_frames()}
    files.update(cells())
    for module in list(sys.modules.values()):
        file = file_of(module)
        if file.endswith(".py"):
            files.add(file)
    own_files = set()
    for file in filter(is_own, files):
        if not file.startswith("<"):  # "<stdin>" is no path
            file = os.path.abspath(file)
        own_files.add(file)
    return own_files


def file_of(module: object) -> str:
    """The file of a module; empty for a module without one, and for what is no module."""
    if not isinstance(module, types.ModuleType):
        return ""
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return ""
    return file


def running_frames() -> Iterator[types.FrameType]:
    """The frames of all threads, the innermost of each first; without those of the recorder, and
    those in which torch calls an operator.
    """
    for innermost in sys._current_frames().values():
        for frame, _ in traceback.walk_stack(innermost):
            file = frame.f_code.co_filename
            is_recorders = os.path.dirname(file) in _recorders_folders()
            if not is_recorders and not file.endswith(OPERATORS):
                yield frame


def only_line(pattern: re.Pattern[str]) -> str:
    """The one line of the program, comments apart, in which a pattern is found, such as
    "train.py:24 evaluate"; empty where there are none or several.
    """
    found = []
    for path in sorted(files_of_the_program()):
        for number, line in enumerate(linecache.getlines(path), start=1):
            code, _, _comment = line.partition("#")
            if pattern.search(code):
                found.append((path, number))
    if len(found) != 1:
        return ""
    path, number = found[0]
    functions = functions_by_line("".join(linecache.getlines(path)))
    return f"{place(path, number)} {functions.get(number, '<module>')}"


@functools.cache
def _recorders_folders() -> tuple[str, ...]:
    """The folders of our code that runs beside the user's: the recorder, a rehearsal, a notebook's
    extension.
    """
    # In a recorded program sitecustomize.own_module made this package, and put the folders of a
    # rehearsal into its path.
    package = sys.modules[__package__]
    helpers = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    beside = ("ground", "magics", os.path.join("rehearse", "under_torch"))
    folders = [os.path.join(helpers, folder) for folder in beside]
    return (os.path.dirname(__file__), *package.__path__, *folders)


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Folders whose files are not the program's, each with a slash at its end: Python's own, the
    recorder's, and the one in which torch is (a rehearsal's torch is not installed).
    """
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *_recorders_folders()]
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch:
        folders.append(os.path.dirname(os.path.dirname(torch)))
    return tuple(folder + os.sep for folder in folders)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the program's own: neither installed, nor Python's, nor the recorder's. Of
    names such as "<stdin>", which are no files, those of typed code are (TYPED).
    """
    if file.startswith("<"):
        return file.startswith(TYPED)
    path = os.path.abspath(file)
    if "site-packages" in path or "dist-packages" in path:
        return False
    return not path.startswith(_libraries())


def is_own_module(module: object) -> bool:
    """Whether a module was imported from a file of the program."""
    file = file_of(module)
    return bool(file) and is_own(file)


def is_own_class(kind: type) -> bool:
    """Whether a class is the program's own. No code of a metaclass runs, which getattr would call."""
    home = type.__getattribute__(kind, "__module__")
    if not isinstance(home, str):
        return False
    return home == "__main__" or is_own_module(sys.modules.get(home))
