"""The objects from which the tensors of a kernel are looked for: variables of the person first,
then what the notebook keeps by itself.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from ..allocator.under_torch.own_files import is_own
from ..allocator.under_torch.references import Reference, length_of, variables_of
from ..allocator.under_torch.roots import globals_by_module
from .kinds import COLLECTION, rank
from .names import UNDERSCORES, names_of_the_person

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

OF_A_LIBRARY = "variable of a library"
"""The kind of a reference from a library's function, which no line of the notebook assigns."""


@dataclass(frozen=True)
class Root:
    """An object from which tensors are looked for, with the name and the kind of its holder.

    ``references``: the object itself, or the places inside it from which to begin.
    """

    value: object
    name: str
    kind: str
    references: list[Reference]


def _root(value: object, name: str, kind: str) -> Root:
    return Root(value, name, kind, [Reference(value, name, kind, "")])


def roots(torch: ModuleType, shell: InteractiveShell) -> Iterator[Root]:
    """The roots, in order: a tensor that several of them reach is counted for the first."""
    variables = names_of_the_person(shell)
    for name in sorted(variables, key=lambda name: _turn(variables[name], torch)):
        yield _root(variables[name], name, "variable")
    by_module = globals_by_module()
    by_module.pop("__main__", None)
    for module, references in by_module.items():
        for reference in references:
            if not reference.name.startswith("__"):
                yield _root(reference.value, f"{module}.{reference.name}", "module")
    yield from _threads()
    yield from _open_widgets()
    for number, value in shell.user_ns.get("Out", {}).items():
        yield _root(value, f"Out[{number}]", "output")
    for name in UNDERSCORES:
        if name in shell.user_ns:
            yield _root(shell.user_ns[name], name, "output")
    for error in kept_errors(shell):
        references = list(_variables_of_failed_calls(error))
        if references:
            yield Root(error, "the last error", "error", references)


def _turn(value: object, torch: ModuleType) -> tuple[int, int]:
    """The key that sorts variables: by rank, and long collections after short ones, because the
    look may run out of time in a long one.
    """
    order = rank(value, torch)
    length = 0
    if order == COLLECTION:
        length = length_of(value)
    return order, length


def _threads() -> Iterator[Root]:
    """A root for each other thread that runs functions of the notebook: their variables."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        variables: list[Reference] = []
        for frame, _ in traceback.walk_stack(innermost):
            if is_own(frame.f_code.co_filename):
                variables += variables_of(frame, "thread")
        if variables:
            name = f"thread {names.get(ident, ident)}"
            yield Root(None, name, "thread", variables)


def _open_widgets() -> Iterator[Root]:
    """The widgets that are not closed: until then ipywidgets keeps each one with its callbacks
    (ipywidgets/widgets/widget.py: _instances).
    """
    module = sys.modules.get("ipywidgets.widgets.widget")
    instances = getattr(module, "_instances", None)
    if isinstance(instances, dict):
        yield _root(instances, "open widgets", "widgets")


def kept_errors(shell: InteractiveShell) -> list[BaseException]:
    """The exceptions of failed cells that Python and IPython still keep, each once."""
    return linked_errors(
        getattr(sys, "last_exc", None),
        getattr(sys, "last_value", None),
        getattr(shell.last_execution_result, "error_in_exec", None),
    )


def linked_errors(*errors: BaseException | None) -> list[BaseException]:
    """Errors, and those that they were raised from or while handling, each once."""
    waiting = list(errors)
    linked: dict[int, BaseException] = {}
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in linked:
            linked[id(error)] = error
            waiting += [error.__context__, error.__cause__]
    return list(linked.values())


def _variables_of_failed_calls(error: BaseException) -> Iterator[Reference]:
    """The variables of the functions that an error came through, from the notebook's first on:
    the frames before it are IPython's.
    """
    is_past_ipython = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if is_own(frame.f_code.co_filename):
            is_past_ipython = True
            yield from variables_of(frame, "error")
        elif is_past_ipython:
            yield from variables_of(frame, OF_A_LIBRARY)
