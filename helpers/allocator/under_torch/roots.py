"""The names with which a walk to the tensors of a program begins, its *roots*: variables of running
functions and global names.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator

from .own_files import file_of, is_own, is_own_module, running_frames
from .references import Reference, variables_kept_by, variables_of


def roots() -> list[Iterable[Reference]]:
    """The groups of names in the order in which they are walked: the program's variables, its
    global names, variables of frames that do not run, then a group for each running function of a
    library.

    A tensor gets its name from the first group that reaches it. So this order prefers variables to
    globals, and names of the program to those of libraries.
    """
    return [_variables(), _globals(), _left_behind(), *_variables_of_libraries()]


def _variables() -> Iterator[Reference]:
    """The variables of the program's own functions that are running, the innermost first."""
    for frame in running_frames():
        if is_own(frame.f_code.co_filename):
            yield from variables_of(frame, "variable")


def _variables_of_libraries() -> list[list[Reference]]:
    """A group of variables for each running function of a library, the outermost function first.

    A caller and the function that it calls often have a variable for the same object. The first
    group that reaches an object names it, so this order names the caller's variable: that one
    keeps the object after the called function has returned.
    """
    frames = [
        frame for frame in running_frames() if not is_own(frame.f_code.co_filename)
    ]
    return [list(variables_of(frame, "variable")) for frame in reversed(frames)]


def _globals() -> Iterator[Reference]:
    """The global names of all modules of the program."""
    for references in globals_by_module().values():
        yield from references


def globals_by_module() -> dict[str, list[Reference]]:
    """The global names of each module of the program, by the module's name in sys.modules."""
    references = {}
    for module_name, module in list(sys.modules.items()):
        if module_name == "__main__" or is_own_module(module):
            where = os.path.basename(file_of(module))
            if not where:  # __main__ of a notebook or of python -c has no file
                where = module_name
            references[module_name] = [
                Reference(value, name, "global", where)
                for name, value in list(vars(module).items())
            ]
    return references


def _left_behind() -> Iterator[Reference]:
    """The variables in frames that do not run: those that an exception keeps in its traceback, and
    those of suspended generators.
    """
    for candidate in gc.get_objects():
        yield from variables_kept_by(candidate)
