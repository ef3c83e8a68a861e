"""Gradients that keep their own graphs: a tensor and its gradient then hold each other.

torch warns of it where ``backward`` is called with ``create_graph=True``, and recommends
``torch.autograd.grad`` (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Results
from helpers.fix.program import Program
from helpers.fix.source import Source, keyword


def gradients_without_cycles(program: Program) -> Iterator[Change]:
    """``backward(create_graph=True)`` for tensors whose gradients are read in the same function,
    with torch.autograd.grad instead.
    """
    for source, call in program.calls("backward"):
        makes_graphs = keyword(call, "create_graph")
        statement = source.statement(call)
        is_alone = isinstance(statement, cst.SimpleStatementLine)
        has_a_gradient = any(argument.keyword is None for argument in call.args)
        if makes_graphs is None or not is_alone or has_a_gradient:
            continue
        if not isinstance(call.func, cst.Attribute):
            continue
        yield from _gradients_of_lists(source, statement, call)
        reads = _gradients_read(source, call)
        if not reads:
            continue
        tensors = list(dict.fromkeys(source.code(read.value) for read in reads))
        results = ", ".join(map(_gradient_of, tensors))
        words = [source.code(call.func.value), f"[{', '.join(tensors)}]"]
        words.append(f"create_graph={source.code(makes_graphs.value)}")
        computed = f"({results},) = torch.autograd.grad({', '.join(words)})"
        yield Change(
            title=f"Compute these gradients with torch.autograd.grad ({source.place(call)})",
            results=Results.SAME,
            why="the same gradients",
            costs=f"nothing; no weight gets a gradient on this line, only {' and '.join(tensors)}",
            edits=(
                source.instead(statement, statement, [computed]),
                *(source.replaced(read, _gradient_of(source.code(read.value))) for read in reads),
            ),
            only_if_measured=True,
        )


def _gradients_of_lists(source: Source, statement: cst.CSTNode, call: cst.Call) -> Iterator[Change]:
    """``[p.grad for p in params]`` behind the backward pass as the gradients themselves."""
    assert isinstance(call.func, cst.Attribute)
    function = source.around(call, cst.FunctionDef) or source.module
    makes_graphs = keyword(call, "create_graph")
    for row in source.find(cst.ListComp, function):
        loop = row.for_in
        reads_gradients = source.code(row.elt) == f"{source.code(loop.target)}.grad"
        is_plain = not loop.ifs and loop.inner_for_in is None
        if makes_graphs is None or not (reads_gradients and is_plain):
            continue
        if source.line(row) <= source.line(call):
            continue
        tensors = source.code(loop.iter)
        words = [source.code(call.func.value), tensors]
        words.append(f"create_graph={source.code(makes_graphs.value)}")
        yield Change(
            title=f"Compute these gradients with torch.autograd.grad ({source.place(call)})",
            results=Results.SAME,
            why="the same gradients",
            costs=f"nothing; on this line no weight gets a gradient, only the list of {tensors}",
            edits=(
                source.without(statement),
                source.replaced(row, f"list(torch.autograd.grad({', '.join(words)}))"),
            ),
            only_if_measured=True,
        )
        return


def _gradients_read(source: Source, call: cst.Call) -> list[cst.Attribute]:
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
