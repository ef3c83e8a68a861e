"""Changes of gradients that keep their own graphs: a tensor and its gradient then hold each other.

torch warns of it where ``backward`` is called with ``create_graph=True``, and recommends
``torch.autograd.grad`` (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.source import SourceFile


def gradients_without_cycles(program: Program) -> Changes:
    """torch.autograd.grad in place of ``backward(create_graph=True)``, for the tensors whose
    gradients the same function reads. Left as it is where the call is not a statement of its own,
    is no method of the loss, or is given a gradient by position.
    """
    for source, call in program.calls("backward"):
        statement = source.statement(call)
        is_alone = isinstance(statement, cst.SimpleStatementLine)
        has_a_gradient = any(argument.keyword is None for argument in call.args)
        is_method = isinstance(call.func, cst.Attribute)
        if not is_alone or not is_method or has_a_gradient:
            continue
        if not source.argument(call, "create_graph"):
            continue
        yield from _gradients_of_lists(source, call)
        reads = _gradients_read(source, call)
        if not reads:
            continue
        tensors = {read: source.code(read.value) for read in reads}
        names = list(dict.fromkeys(tensors.values()))
        results = ", ".join(map(_gradient_of, names))
        computed = _computed(source, call, f"[{', '.join(names)}]")
        edits = [source.instead(statement, statement, [f"({results},) = {computed}"])]
        for read, tensor in tensors.items():
            edits.append(source.replaced(read, _gradient_of(tensor)))
        costs = "nothing; no weight gets a gradient on this line, only"
        yield _computed_for(source, call, f"{costs} {' and '.join(names)}", *edits)


def _gradients_of_lists(source: SourceFile, call: cst.Call) -> Changes:
    """torch.autograd.grad in place of a backward pass and ``[p.grad for p in params]`` after it: of
    several such lists the first, since one call gives one list.
    """
    for row in source.find(cst.ListComp, source.scope(call)):
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
    """The expression that computes the gradients of ``tensors`` (code) in place of a backward pass."""
    loss = source.code(call.func).removesuffix(".backward")
    makes_graphs = source.argument(call, "create_graph")
    return f"torch.autograd.grad({loss}, {tensors}, create_graph={makes_graphs})"


def _computed_for(
    source: SourceFile, call: cst.Call, costs: str, *edits: TextEdit
) -> Change:
    """The change by which torch.autograd.grad computes gradients in place of a backward pass."""
    return Change(
        title=f"Compute these gradients with torch.autograd.grad ({source.place(call)})",
        results=Results.SAME,
        why="the same gradients",
        costs=costs,
        edits=edits,
        only_if_measured=True,
    )


def _gradients_read(source: SourceFile, call: cst.Call) -> list[cst.Attribute]:
    """Where the function of a backward pass reads the gradient of a tensor after it, by a name: the
    variable of a loop stands for several tensors and is left out.
    """
    function = source.scope(call)
    loop_names: set[str] = set()
    for loop in source.loops(function):
        loop_names |= source.names_in(loop.target)
    reads = []
    for read in source.find(cst.Attribute, function):
        tensor = source.code(read.value)
        if read.attr.value != "grad" or tensor == "torch.autograd":
            continue
        first, _, _ = tensor.partition(".")
        is_name = tensor.replace(".", "").isidentifier() and first not in loop_names
        is_after = source.line(read) > source.line(call)
        # x.grad = None, x.grad.zero_()
        is_part = isinstance(source.parent(read), (cst.AssignTarget, cst.Attribute))
        if is_after and is_name and not is_part:
            reads.append(read)
    return reads


def _gradient_of(tensor: str) -> str:
    """The variable for a tensor's gradient: ``x_grad``, ``self_x_grad``."""
    return f"{tensor.replace('.', '_')}_grad"
