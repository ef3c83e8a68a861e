"""Functions of autograd that keep their own output, so that neither is ever freed."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.source import Source


def outputs_saved_for_backward(program: Program) -> Iterator[Change]:
    """What a function returns, kept by save_for_backward instead of as an attribute: the output
    refers to the function that made it, so an attribute closes a circle.
    """
    for source, owner in program.find(cst.ClassDef):
        bases = "".join(source.code(base) for base in owner.bases)
        methods = {node.name.value: node for node in source.find(cst.FunctionDef, owner)}
        if "Function" in bases and {"forward", "backward"} <= methods.keys():
            yield from _saved(source, methods["forward"], methods["backward"])


def _saved(source: Source, forward: cst.FunctionDef, backward: cst.FunctionDef) -> Iterator[Change]:
    returned: set[str] = set()
    for statement in source.find(cst.Return, forward):
        returned |= source.names_in(statement)
    if not forward.params.params or not backward.params.params:
        return
    context = forward.params.params[0].name.value
    for assign in source.find(cst.Assign, forward):
        target, value = assign.targets[0].target, assign.value
        is_output = isinstance(value, cst.Name) and value.value in returned
        if is_output and source.code(target).startswith(f"{context}."):
            name = source.code(target).removeprefix(f"{context}.")
            yield Change(
                title=f"Save {source.code(value)} for the backward pass ({source.place(assign)})",
                results=Results.SAME,
                why="the backward pass gets the same tensor",
                edits=tuple(_edits(source, forward, backward, assign, name)),
                only_if_measured=True,
            )


def _edits(
    source: Source,
    forward: cst.FunctionDef,
    backward: cst.FunctionDef,
    assign: cst.Assign,
    name: str,
) -> Iterator[Edit]:
    output = source.code(assign.value)
    context = forward.params.params[0].name.value
    saves = source.calls("save_for_backward", below=forward)
    if saves:
        words = [source.code(argument).rstrip(" ,") for argument in saves[0].args]
        saved = f"{source.code(saves[0].func)}({', '.join([*words, output])})"
        yield source.replaced(saves[0], saved)
        yield source.without(source.statement(assign))
    else:
        yield source.replaced(assign, f"{context}.save_for_backward({output})")
    context = backward.params.params[0].name.value
    for attribute in source.find(cst.Attribute, backward):
        if source.code(attribute) == f"{context}.{name}":
            yield source.replaced(attribute, f"{context}.saved_tensors[-1]")
        elif saves and source.code(attribute) == f"{context}.saved_tensors":
            yield source.replaced(attribute, f"{context}.saved_tensors[:-1]")
