"""Hooks that a program registers again and again, and never removes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called

REGISTERS = re.compile(r"register_(\w+_)?hook")
OVER_PARTS = re.compile(r"modules|children|parameters|layers|blocks|names|stages")
"""What a loop goes over that gives each part of a model its hook."""
Scope = cst.FunctionDef | cst.For | cst.While


def hooks_removed(program: Program) -> Iterator[Change]:
    """Hooks that are removed at the end of the function, or of the iteration, that needs them."""
    for source, call in program.find(cst.Call):
        statement = source.statement(call)
        if not REGISTERS.fullmatch(called(call)):
            continue
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        owner = source.around(call, cst.ClassDef)
        is_module = owner is not None and "Module" in "".join(
            map(source.code, owner.bases)
        )
        if owner is None or is_module:
            handle, edits = _handle(source, call, "handle")
            if f"{handle}.remove()" not in source.text.decode():
                yield from _removed(
                    program, source, statement, f"{handle}.remove()", edits
                )
            continue
        handle, edits = _handle(source, call, "self.handle")
        for user, call in program.calls(owner.name.value):
            assign = user.parent(call)
            if not isinstance(assign, cst.Assign):
                continue
            name = user.code(assign.targets[0].target)
            closing = _closing_method(source, owner)
            if closing and not list(program.calls(closing)):
                yield from _removed(
                    program, user, user.statement(call), f"{name}.{closing}()", []
                )
            elif not closing and handle.startswith("self."):
                removal = f"{handle.replace('self', name, 1)}.remove()"
                yield from _removed(program, user, user.statement(call), removal, edits)


def _handle(
    source: SourceFile, call: cst.Call, name: str
) -> tuple[str, Sequence[TextEdit]]:
    """The name that the handle of a hook has, or the edit by which it gets this one."""
    outer = source.parent(call)
    if isinstance(outer, cst.Assign):
        return source.code(outer.targets[0].target), ()
    return name, [source.replaced(call, f"{name} = {source.code(call)}")]


def _closing_method(source: SourceFile, owner: cst.ClassDef) -> str:
    """The method by which an object removes its hooks; empty where it has none."""
    for method in source.find(cst.FunctionDef, owner):
        name = method.name.value
        if ".remove()" in source.code(method) and not name.startswith("__"):
            return name
    return ""


def _removed(
    program: Program,
    source: SourceFile,
    statement: cst.CSTNode,
    removal: str,
    edits: Sequence[TextEdit],
) -> Iterator[Change]:
    """A line that removes a hook, at the end of what runs again."""
    scope = _runs_again(program, source, statement)
    if scope is None:
        return
    if isinstance(scope, cst.FunctionDef):
        ends = list(_before_returns(source, scope, removal))
    else:
        ends = [source.lines_after(scope.body.body[-1], removal)]
    yield Change(
        title=f"Remove the hook when it is no longer needed ({source.place(statement)})",
        results=Results.SAME,
        why="the hooks of earlier iterations no longer run",
        edits=(*edits, *ends),
        only_if_measured=True,
        shows_late=True,
    )


def _runs_again(
    program: Program, source: SourceFile, node: cst.CSTNode
) -> Scope | None:
    """The loop around a node, or the function that a loop calls; None where it runs once."""
    for outer in source.above(node):
        if isinstance(outer, (cst.For, cst.While)):
            over = source.code(outer.iter) if isinstance(outer, cst.For) else ""
            return None if OVER_PARTS.search(over) else outer
        if isinstance(outer, cst.FunctionDef):
            name = outer.name.value
            calls = list(program.calls(name))
            loops = [user.around(call, cst.For) for user, call in calls]
            return outer if any(loops) or name == "forward" else None
    return None


def _before_returns(
    source: SourceFile, function: cst.FunctionDef, line: str
) -> Iterator[TextEdit]:
    """A line at each end of a function, after what it returns was computed."""
    for returned in source.find(cst.Return, function):
        statement = source.statement(returned)
        is_inner = source.around(returned, cst.FunctionDef) is not function
        if is_inner or not isinstance(statement, cst.SimpleStatementLine):
            continue
        value = returned.value
        if value is None or isinstance(value, cst.Name):
            yield source.lines_before(statement, line)
        else:
            computed = f"result = {source.code(value)}"
            yield source.instead(
                statement, statement, [computed, line, "return result"]
            )
    last = function.body.body[-1]
    if not (
        isinstance(last, cst.SimpleStatementLine)
        and isinstance(last.body[0], cst.Return)
    ):
        yield source.lines_after(last, line)
