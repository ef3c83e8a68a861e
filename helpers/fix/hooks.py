"""Hooks that a program registers again and again, and never removes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.source import Source, called

REGISTERS = re.compile(r"register_(\w+_)?hook")
OVER_PARTS = re.compile(r"modules|children|parameters|layers|blocks|names|stages")
"""What a loop goes over that gives each part of a model its hook."""
HANDLES = "handles"
MOST_CALLERS = 3
"""How many calls up it is looked for a loop."""


@dataclass(frozen=True)
class Handles:
    """The handles of registered hooks: ``name`` is a handle, or a collection of some.

    ``edits``: what gives the handles that name.
    """

    name: str
    are_many: bool
    edits: tuple[Edit, ...] = ()

    @property
    def removal(self) -> list[str]:
        """The lines that remove the hooks."""
        if not self.are_many:
            return [f"{self.name}.remove()"]
        return [f"for handle in {self.name}:", "    handle.remove()"]


def hooks_removed(program: Program) -> Iterator[Change]:
    """Hooks that are removed at the end of the function, or of the turn of a loop, that needs them."""
    for source, call in program.find(cst.Call):
        is_removed = isinstance(source.parent(call), cst.WithItem)
        if is_removed or not REGISTERS.fullmatch(called(call)):
            continue
        owner = source.around(call, cst.ClassDef)
        function = source.around(call, cst.FunctionDef)
        is_module = owner is not None and "Module" in "".join(map(source.code, owner.bases))
        if owner is None or is_module or function is None:
            yield from _removed(program, source, source.statement(call), _handles(source, call))
            continue
        handles = _handles(source, call, "self.")
        for user, made in program.calls(owner.name.value):
            yield from _removed_from_object(program, source, owner, handles, user, made)


def _handles(source: Source, call: cst.Call, prefix: str = "") -> Handles:
    """The name that the handle of a hook has, or gets; ``prefix``: what a new name begins with."""
    statement = source.statement(call)
    first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    loop = _loop_over_parts(source, call)
    if isinstance(first, cst.Assign) and loop is None:
        return Handles(source.code(first.targets[0].target), are_many=first.value is not call)
    outer = first.value if isinstance(first, cst.Expr) else None
    if isinstance(outer, cst.Call) and called(outer) == "append":
        return Handles(source.code(outer.func).removesuffix(".append"), are_many=True)
    if loop is None:
        name = f"{prefix}handle"
        return Handles(name, False, (source.replaced(call, f"{name} = {source.code(call)}"),))
    name = f"{prefix}{HANDLES}"
    collected = source.replaced(call, f"{name}.append({source.code(call)})")
    return Handles(name, True, (source.lines_before(loop, f"{name} = []"), collected))


def _loop_over_parts(source: Source, call: cst.Call) -> cst.For | None:
    """The loop around a call that goes over the parts of a model."""
    for outer in source.above(call):
        if isinstance(outer, cst.FunctionDef):
            return None
        if isinstance(outer, cst.For) and OVER_PARTS.search(source.code(outer.iter)):
            return outer
    return None


def _removed_from_object(
    program: Program,
    source: Source,
    owner: cst.ClassDef,
    handles: Handles,
    user: Source,
    made: cst.Call,
) -> Iterator[Change]:
    """Hooks that an object registers for itself, removed where the object is used."""
    assign = user.parent(made)
    if not isinstance(assign, cst.Assign):
        return
    name = user.code(assign.targets[0].target)
    removes = [
        method.name.value
        for method in source.find(cst.FunctionDef, owner)
        if ".remove()" in source.code(method) and not method.name.value.startswith("__")
    ]
    if removes:
        if not list(program.calls(removes[0])):
            called_so = _Removal([f"{name}.{removes[0]}()"], ())
            yield from _at_the_end(program, user, user.statement(made), called_so)
    elif handles.name.startswith("self."):
        outside = Handles(handles.name.replace("self", name, 1), handles.are_many)
        removal = _Removal(outside.removal, handles.edits)
        yield from _at_the_end(program, user, user.statement(made), removal)


@dataclass(frozen=True)
class _Removal:
    """Lines that remove hooks, and what else has to be edited for them."""

    lines: Sequence[str]
    edits: tuple[Edit, ...]


def _removed(
    program: Program, source: Source, statement: cst.CSTNode, handles: Handles
) -> Iterator[Change]:
    """Hooks that a function or a loop registers by itself, removed at its end."""
    if any(line.strip() in source.text.decode() for line in handles.removal[:1]):
        return
    yield from _at_the_end(program, source, statement, _Removal(handles.removal, handles.edits))


def _at_the_end(
    program: Program, source: Source, statement: cst.CSTNode, removal: _Removal
) -> Iterator[Change]:
    scope = _runs_again(program, source, statement)
    if scope is None:
        return
    edits = list(removal.edits)
    if isinstance(scope, cst.FunctionDef):
        edits += _before_returns(source, scope, removal.lines)
    else:
        edits.append(source.lines_after(scope.body.body[-1], *removal.lines))
    yield Change(
        title=f"Remove the hook when it is no longer needed ({source.place(statement)})",
        results=Results.SAME,
        why="the hooks of earlier iterations no longer run",
        edits=tuple(edits),
        only_if_measured=True,
        shows_late=True,
    )


def _runs_again(
    program: Program, source: Source, node: cst.CSTNode, callers: int = MOST_CALLERS
) -> cst.FunctionDef | cst.For | cst.While | None:
    """The function or the loop around a node that does the same in each turn; None where it runs
    once.
    """
    for outer in source.above(node):
        if isinstance(outer, cst.For) and OVER_PARTS.search(source.code(outer.iter)):
            continue
        if isinstance(outer, (cst.For, cst.While)):
            return outer
        if not isinstance(outer, cst.FunctionDef):
            continue
        name = outer.name.value
        calls = list(program.calls(name)) if callers else []
        is_called_again = any(
            _runs_again(program, user, call, callers - 1) is not None for user, call in calls
        )
        return outer if is_called_again or name == "forward" else None
    return None


def _before_returns(
    source: Source, function: cst.FunctionDef, lines: Sequence[str]
) -> Iterator[Edit]:
    """Lines at each end of a function, after what it returns was computed."""
    for returned in source.find(cst.Return, function):
        if source.around(returned, cst.FunctionDef) is not function:
            continue
        statement = source.statement(returned)
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        value = returned.value
        if value is None or isinstance(value, cst.Name):
            yield source.lines_before(statement, *lines)
        else:
            computed = f"result = {source.code(value)}"
            yield source.instead(statement, statement, [computed, *lines, "return result"])
    last = function.body.body[-1]
    if not (isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[0], cst.Return)):
        yield source.lines_after(last, *lines)
