"""Hooks that a program registers again and again, and never removes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called, is_return

REGISTERS = re.compile(r"register_(\w+_)?hook")
OVER_PARTS = re.compile(r"modules|children|parameters|layers|blocks|names|stages")
"""What a loop goes over that gives each part of a model its hook."""
Scope = cst.FunctionDef | cst.For | cst.While


def hooks_removed(program: Program) -> Changes:
    """Hooks that are removed at the end of the function, or of the iteration, that needs them."""
    for source, call in program.find(cst.Call):
        statement = source.statement(call)
        if not REGISTERS.fullmatch(called(call)):
            continue
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        owner = source.around(call, cst.ClassDef)
        if owner is not None and not any(
            "Module" in source.code(base) for base in owner.bases
        ):
            yield from _removed_by_users(program, source, owner, call)
            continue
        handle, edits = _handle(source, call, "handle")
        removal = f"{handle}.remove()"
        if removal not in source.content:
            yield from _removed(program, source, statement, removal, edits)


def _removed_by_users(
    program: Program, source: SourceFile, owner: cst.ClassDef, registers: cst.Call
) -> Changes:
    """A hook that an object of the program registers, removed by whoever makes the object: by its
    own method, if it has one that nobody calls.
    """
    handle, edits = _handle(source, registers, "self.handle")
    closing = _closing_method(source, owner)
    for user, call in program.calls(owner.name.value):
        assign = user.parent(call)
        if not isinstance(assign, cst.Assign):
            continue
        name = user.target(assign)
        statement = user.statement(call)
        if closing and not list(program.calls(closing)):
            yield from _removed(program, user, statement, f"{name}.{closing}()", [])
        elif not closing and handle.startswith("self."):
            removal = f"{handle.replace('self', name, 1)}.remove()"
            yield from _removed(program, user, statement, removal, edits)


def _handle(
    source: SourceFile, call: cst.Call, name: str
) -> tuple[str, Sequence[TextEdit]]:
    """The name that the handle of a hook has, or the edit by which it gets this one."""
    outer = source.parent(call)
    if isinstance(outer, cst.Assign):
        return source.target(outer), ()
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
) -> Changes:
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
        if isinstance(outer, cst.While):
            return outer
        if isinstance(outer, cst.For):
            is_over_parts = OVER_PARTS.search(source.code(outer.iter))
            return None if is_over_parts else outer
        if isinstance(outer, cst.FunctionDef):
            name = outer.name.value
            loops = [user.around(call, cst.For) for user, call in program.calls(name)]
            is_called_again = name == "forward" or any(loops)
            return outer if is_called_again else None
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
            lines = [f"result = {source.code(value)}", line, "return result"]
            yield source.instead(statement, statement, lines)
    last = function.body.body[-1]
    if not is_return(last):
        yield source.lines_after(last, line)
