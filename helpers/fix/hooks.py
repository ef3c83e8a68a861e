"""Hooks that a program registers again and again, and never removes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called, is_return

REGISTERS = re.compile(r"register_(\w+_)?hook")
"""Methods of torch that register a hook, such as register_forward_hook; each returns a handle with
a method remove().
"""
OVER_PARTS = re.compile(r"modules|children|parameters|layers|blocks|names|stages")
"""Words in what a loop goes over that gives each part of a model its hook. Such a loop does not
repeat: its hooks are meant to stay.
"""
Scope = cst.FunctionDef | cst.For | cst.While
"""What may run again and again."""


def hooks_removed(program: Program) -> Changes:
    """Hooks that are removed at the end of the function, or of the iteration, that needs them."""
    for source, call in program.find(cst.Call):
        statement = source.statement(call)
        if not REGISTERS.fullmatch(called(call)):
            continue
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        owner = source.around(call, cst.ClassDef)
        # A class that is no module is a helper of the program, such as an extractor of features:
        # its user knows when the hook is no longer needed.
        if owner is not None and not _is_module(source, owner):
            yield from _removed_by_users(program, source, owner, call)
            continue
        handle, edits = _handle(source, call, "handle")
        removal = f"{handle}.remove()"
        if removal not in source.content:  # else the program removes it itself
            yield from _removed(program, source, statement, removal, edits)


def _is_module(source: SourceFile, owner: cst.ClassDef) -> bool:
    """Whether a class inherits from a module of torch or Lightning, by the names of its bases."""
    return any("Module" in source.code(base) for base in owner.bases)


def _removed_by_users(
    program: Program, source: SourceFile, owner: cst.ClassDef, registers: cst.Call
) -> Changes:
    """A hook that an object of the program registers, removed where the object is made: by its own
    closing method if it has one that the program never calls, else by the handle that it keeps.
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
    """The variable that keeps the handle of a hook, and the edits for it: none where the program
    keeps the handle already, else one that assigns it to ``name``.
    """
    outer = source.parent(call)
    if isinstance(outer, cst.Assign):
        return source.target(outer), ()
    return name, [source.replaced(call, f"{name} = {source.code(call)}")]


def _closing_method(source: SourceFile, owner: cst.ClassDef) -> str:
    """The method by which an object removes its hooks; empty where it has none."""
    for method in source.find(cst.FunctionDef, owner):
        name = method.name.value
        # __exit__ and __del__ are not called by name.
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
    """The line ``removal`` at the end of the loop or function that registers a hook anew each time;
    ``edits``: more edits that it needs.
    """
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
    """The innermost loop or function around a node, if it runs again and again; else None. A
    function does so if a loop calls it, or if it is the forward pass of a module.
    """
    for outer in source.above(node):
        if isinstance(outer, Scope):
            if _is_repeated(program, source, outer):
                return outer
            return None
    return None


def _is_repeated(program: Program, source: SourceFile, scope: Scope) -> bool:
    """Whether a loop or a function runs what is in it again and again."""
    if isinstance(scope, cst.While):
        return True
    if isinstance(scope, cst.For):
        return not OVER_PARTS.search(source.code(scope.iter))
    name = scope.name.value
    loops = [user.around(call, cst.For) for user, call in program.calls(name)]
    return name == "forward" or any(loops)


def _before_returns(
    source: SourceFile, function: cst.FunctionDef, line: str
) -> Iterator[TextEdit]:
    """Edits that put a line before each return of a function; a value that the function computes as
    it returns is computed before that line.

    A return on the line of its condition (``if x: return``) is left alone: there is no place for a
    second statement. Such an end keeps the hook, and the rehearsal shows whether that matters.
    """
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
