"""Gradients that keep their own graphs: a tensor and its gradient then hold each other.

torch warns of it where ``backward`` is called with ``create_graph=True``, and recommends
``torch.autograd.grad`` (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, keyword


def gradients_without_cycles(program: Program) -> Iterator[Change]:
    """``backward(create_graph=True)`` for tensors whose gradients are read in the same function,
    with torch.autograd.grad instead.
    """
    for source, call in program.calls("backward"):
        makes_graphs = keyword(call, "create_graph")
        statement = source.statement(call)
        is_alone = isinstance(statement, cst.SimpleStatementLine)
        has_a_gradient = any(argument.keyword is None for argument in call.args)
        is_method = isinstance(call.func, cst.Attribute)
        if makes_graphs is None or not is_alone or not is_method or has_a_gradient:
            continue
        yield from _gradients_of_lists(source, call)
        reads = _gradients_read(source, call)
        if not reads:
            continue
        tensors = list(dict.fromkeys(source.code(read.value) for read in reads))
        results = ", ".join(map(_gradient_of, tensors))
        computed = _computed(source, call, f"[{', '.join(tensors)}]")
        yield _computed_for(
            source,
            call,
            f"nothing; no weight gets a gradient on this line, only {' and '.join(tensors)}",
            source.instead(statement, statement, [f"({results},) = {computed}"]),
            *(
                source.replaced(read, _gradient_of(source.code(read.value)))
                for read in reads
            ),
        )


def _gradients_of_lists(source: SourceFile, call: cst.Call) -> Iterator[Change]:
    """``[p.grad for p in params]`` behind the backward pass as the gradients themselves."""
    function = source.around(call, cst.FunctionDef) or source.module
    for row in source.find(cst.ListComp, function):
        loop = row.for_in
        reads_gradients = source.code(row.elt) == f"{source.code(loop.target)}.grad"
        is_plain = not loop.ifs and loop.inner_for_in is None
        if reads_gradients and is_plain and source.line(row) > source.line(call):
            tensors = source.code(loop.iter)
            yield _computed_for(
                source,
                call,
                f"nothing; on this line no weight gets a gradient, only the list of {tensors}",
                source.without(source.statement(call)),
                source.replaced(row, f"list({_computed(source, call, tensors)})"),
            )
            return


def _computed(source: SourceFile, call: cst.Call, tensors: str) -> str:
    """The gradients of tensors, as an expression in place of a backward pass."""
    makes_graphs = keyword(call, "create_graph")
    assert isinstance(call.func, cst.Attribute) and makes_graphs is not None
    words = f"{source.code(call.func.value)}, {tensors}"
    return (
        f"torch.autograd.grad({words}, create_graph={source.code(makes_graphs.value)})"
    )


def _computed_for(
    source: SourceFile, call: cst.Call, costs: str, *edits: TextEdit
) -> Change:
    return Change(
        title=f"Compute these gradients with torch.autograd.grad ({source.place(call)})",
        results=Results.SAME,
        why="the same gradients",
        costs=costs,
        edits=edits,
        only_if_measured=True,
    )


def _gradients_read(source: SourceFile, call: cst.Call) -> list[cst.Attribute]:
    """Where the function of a backward pass reads a tensor's gradient behind it."""
    function = source.around(call, cst.FunctionDef) or source.module
    counters: set[str] = set()
    loops: list[cst.For | cst.CompFor] = []
    loops += [*source.find(cst.For, function), *source.find(cst.CompFor, function)]
    for loop in loops:
        counters |= source.names_in(loop.target)
    return [
        read
        for read in source.find(cst.Attribute, function)
        if read.attr.value == "grad"
        and source.code(read) != "torch.autograd.grad"
        and source.line(read) > source.line(call)
        and source.code(read.value).split(".")[0] not in counters
        and source.code(read.value).replace(".", "").isidentifier()
        and not isinstance(source.parent(read), (cst.AssignTarget, cst.Attribute))
    ]


def _gradient_of(tensor: str) -> str:
    """The name for a tensor's gradient."""
    return f"{tensor.replace('.', '_')}_grad"
