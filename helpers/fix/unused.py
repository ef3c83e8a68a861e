"""What a program computes and throws away where it was meant to let go of something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Results
from helpers.fix.program import Program
from helpers.fix.shared import collected_anew
from helpers.fix.source import Source, called
from helpers.fix.stores import Store, last_name
from helpers.judge.program_facts import GrowerFacts

NEW_LISTS = ("sorted", "list", "reversed", "filter", "islice", "nlargest", "nsmallest")
NEW_TENSORS = ("detach", "cpu", "to", "half", "bfloat16")
EMPTIES = ("reset", "clear", "start", "restart", "flush", "begin", "zero", "init")
"""Methods by which objects forget what they collected."""


def results_used(
    program: Program, growers: Sequence[GrowerFacts], stores: Sequence[Store]
) -> Iterator[Change]:
    """Statements that compute a shorter list or a smaller tensor for nobody: use the result."""
    keepers = {last_name(grower.keeper) for grower in growers}
    keepers |= {last_name(store.name) for store in stores}
    kept: set[str] = set()
    for store in stores:
        kept |= store.source.names_in(store.value)
    for source, statement in program.find(cst.Expr):
        value = statement.value
        name = _changed(value)
        if name is None:
            continue
        target = source.code(name)
        is_tensor = isinstance(value, cst.Call) and called(value) in NEW_TENSORS
        if last_name(target) not in (kept if is_tensor else keepers):
            continue
        if not is_tensor and not _is_assigned_beside(source, statement, target):
            target = f"{target}[:]"
        yield Change(
            title=f"Use the result of {source.code(value)}, which is thrown away "
            f"({source.place(statement)})",
            results=Results.SAME,
            why="the program then reads the result, as was probably meant",
            edits=(source.replaced(value, f"{target} = {source.code(value)}"),),
            only_if_measured=True,
            shows_late=not is_tensor,
        )


def _changed(value: cst.BaseExpression) -> cst.Name | cst.Attribute | None:
    """The name of what an expression makes a changed copy of; None for another expression."""
    while True:
        if isinstance(value, cst.Subscript):
            value = value.value
        elif isinstance(value, cst.Call) and called(value) in NEW_LISTS and value.args:
            value = value.args[-1 if "largest" in called(value) else 0].value
        elif isinstance(value, cst.Call) and called(value) in NEW_TENSORS:
            if not isinstance(value.func, cst.Attribute):
                return None
            value = value.func.value
        else:
            break
    return value if isinstance(value, (cst.Name, cst.Attribute)) else None


def _is_assigned_beside(source: Source, statement: cst.CSTNode, name: str) -> bool:
    """Whether the function or module of a statement itself assigns a name."""
    function = source.around(statement, cst.FunctionDef)
    if "." in name:
        return True
    return any(
        source.code(assign.targets[0].target) == name
        and source.around(assign, cst.FunctionDef) is function
        for assign in source.find(cst.Assign, function)
    )


def emptied_before_they_are_filled(program: Program, stores: Sequence[Store]) -> Iterator[Change]:
    """Objects that could forget what they collected, and are never told to."""
    for store in stores:
        owner = store.source.around(store.statement, cst.ClassDef)
        if owner is None:
            continue
        for method in store.source.find(cst.FunctionDef, owner):
            name = method.name.value
            forgets = last_name(store.name) in store.source.code(method)
            if name in EMPTIES and forgets and not _is_told(program, name):
                yield from _emptied(program, store, owner, name)


def _is_told(program: Program, method: str) -> bool:
    """Whether something but its own class calls a method."""
    return any(
        not source.code(call.func).startswith("self.") for source, call in program.calls(method)
    )


def _emptied(program: Program, store: Store, owner: cst.ClassDef, method: str) -> Iterator[Change]:
    """An object's method that empties it, called before the loop that fills it."""
    fills = store.source.around(store.statement, cst.FunctionDef)
    if fills is None:
        return
    for source, call in program.calls(fills.name.value):
        loop = source.around(call, cst.For)
        if loop is None or not isinstance(call.func, cst.Attribute):
            continue
        collector = source.code(call.func.value)
        yield collected_anew(
            f"Empty {collector} before it is filled again ({source.place(loop)})",
            (source.lines_before(loop, f"{collector}.{method}()"),),
        )
