"""Changes of a program that keeps graphs of autograd through which no backward pass goes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.optimizers import optimizers
from helpers.fix.program import Program
from helpers.fix.regions import (
    MOVES,
    forward_regions,
    is_without_gradients,
    names_assigned,
    names_that_train,
)
from helpers.fix.source import SourceFile, is_return
from helpers.fix.stores import PUTS, last_name
from helpers.judge.program_facts import GrowerFacts

TAKES_GRADIENTS = (
    r"\.grad\b|autograd\.functional|torch\.func\b|set_grad_enabled\(False|requires_grad"
)
"""Words of a program that takes gradients without ``backward()``, or turns them off itself."""
NAMES = re.compile(r"[A-Za-z_][\w.]*")
"""Names in an expression. With one word in place of each, alike formulas are equal."""
TRAINS_AGAIN = ("train", "backward", "step", "fit")
"""Methods with whose call an evaluation is over and training goes on."""


def may_take_gradients(program: Program) -> bool:
    """Whether a program has a backward pass, or takes gradients in another way."""
    return program.trains or program.mentions(TAKES_GRADIENTS)


def changes_of_graphs(program: Program, growers: Sequence[GrowerFacts]) -> Changes:
    """Changes that let go of a graph, then changes that compute no graph; the larger the part of
    the program that a change is made in, the later it comes.
    """
    # Where no variable, list or attribute is known to keep a grower, a graph may keep it.
    by_graph = any(grower.through_graph or not grower.keeper for grower in growers)
    with_graphs = [grower for grower in growers if grower.with_graphs]
    if by_graph:
        yield from _cut_carried_states(program)
        yield from _cut_graphs(program, growers)
    if by_graph or with_graphs:
        yield from _evaluations_without_gradients(program)
        for source, line in program.places([grower.line for grower in with_graphs]):
            yield from _functions_without_gradients(program, source, line)
        yield from passes_without_gradients(program, growers)
    if by_graph:
        yield from _cut_attributes(program)


def _cut_carried_states(program: Program) -> Changes:
    """Behind a backward pass, detach the variables that the next iteration reads."""
    for region in forward_regions(program):
        for name in sorted(region.carried - {region.loss}):
            yield from _detached(program, region.source, region.backward, name)


def _cut_graphs(program: Program, growers: Sequence[GrowerFacts]) -> Changes:
    """Detach what the growing lines assign: a state that each step computes from the one before."""
    keepers = {last_name(grower.keeper) for grower in growers}
    frames = [grower.line for grower in growers if grower.through_graph]
    for source, statement in program.statements_at(frames):
        for assign in source.find(cst.Assign, statement):
            target = assign.targets[-1].target
            if isinstance(target, cst.Attribute):
                yield from _cut_attribute(program, source, assign)
                continue
            names = [source.code(target)]
            # Of ``output, state = ...`` only what a grower is kept in carries a graph on.
            if isinstance(target, cst.Tuple):
                parts = [source.code(element.value) for element in target.elements]
                names = [part for part in parts if last_name(part) in keepers]
            for name in names:
                yield from _detached(program, source, statement, name)


def _detached(
    program: Program, source: SourceFile, statement: cst.CSTNode, name: str
) -> Changes:
    """Behind a statement, a tensor without its graph, or all parts of a tuple without theirs."""
    for value in (f"{name}.detach()", f"tuple(part.detach() for part in {name})"):
        line = source.lines_after(statement, f"{name} = {value}")
        yield _graph_change(program, source, statement, line)


def _cut_attributes(program: Program) -> Changes:
    """Detach attributes that a method computes from their own earlier values."""
    for source, assign in program.find(cst.Assign):
        is_attribute = isinstance(assign.targets[-1].target, cst.Attribute)
        is_none = source.code(assign.value) == "None"
        if is_attribute and not is_none and _reads_of(source, assign):
            yield from _cut_attribute(program, source, assign)


def _cut_attribute(program: Program, source: SourceFile, assign: cst.Assign) -> Changes:
    """Ways to detach an attribute, each a change: together with others of its formula, where it is
    set (as a tensor, or as a tuple of tensors), or where the next step reads it.
    """
    value = assign.value
    carried = _carried_alike(source, assign)
    if len(carried) > 1:
        edits = [_without_graph(source, other.value) for other in carried]
        yield _graph_change(program, source, carried[0], *edits)
    if not isinstance(value, cst.Tuple):
        yield _graph_change(program, source, assign, _without_graph(source, value))
    if isinstance(value, (cst.Name, cst.Tuple)):
        parts = f"tuple(part.detach() for part in {source.code(value)})"
        yield _graph_change(program, source, assign, source.replaced(value, parts))
    reads = _reads_of(source, assign)
    if reads:
        edits = [_without_graph(source, read) for read in reads]
        yield _graph_change(program, source, assign, *edits)


def _without_graph(source: SourceFile, value: cst.BaseExpression) -> TextEdit:
    """A value, detached."""
    return source.replaced(value, f"{source.operand(value)}.detach()")


def _carried_alike(source: SourceFile, assign: cst.Assign) -> list[cst.Assign]:
    """The assignments of a method that compute an attribute from its earlier value by the same
    formula, such as a running mean and a running variance; ``assign`` itself is one.
    """
    method = source.around(assign, cst.FunctionDef)
    if method is None:
        return [assign]
    formula = NAMES.sub("name", source.code(assign.value))
    alike = []
    for other in source.find(cst.Assign, method):
        is_attribute = isinstance(other.targets[-1].target, cst.Attribute)
        has_formula = NAMES.sub("name", source.code(other.value)) == formula
        if is_attribute and has_formula and _reads_of(source, other):
            alike.append(other)
    return alike


def _reads_of(source: SourceFile, assign: cst.Assign) -> list[cst.Attribute]:
    """Where a method computes with an attribute before it assigns it, or in the same line."""
    method = source.around(assign, cst.FunctionDef)
    if method is None:
        return []
    name = source.code(assign.targets[-1].target)
    computed_in = (cst.Arg, cst.BinaryOperation, cst.Element)
    reads = []
    for read in source.find(cst.Attribute, method):
        is_earlier = source.line(read) <= source.line(assign)
        is_computed_with = isinstance(source.parent(read), computed_in)
        if source.code(read) == name and is_earlier and is_computed_with:
            reads.append(read)
    return reads


def _graph_change(
    program: Program, source: SourceFile, statement: cst.CSTNode, *edits: TextEdit
) -> Change:
    """Edits that cut a graph, as one change; ``statement``: whose line its title names. In a
    program that takes gradients a cut may change them, so that is measured.
    """
    trains = may_take_gradients(program)
    results = Results.SAME
    why = "no gradient is computed here, so none can be lost"
    if trains:
        results = Results.OTHER
        why = "gradients no longer reach earlier steps; the values of this step stay the same"
    return Change(
        title=f"Cut the graph that reaches back to the first step ({source.place(statement)})",
        results=results,
        why=why,
        edits=edits,
        cuts_graphs=trains,
    )


def passes_without_gradients(
    program: Program, growers: Sequence[GrowerFacts]
) -> Changes:
    """no_grad for the functions and loops of a program that takes no gradients: those of the
    growing lines first, then every other ``for`` loop.
    """
    if may_take_gradients(program):
        return
    frames = [grower.line for grower in growers]
    frames += [grower.asked_at for grower in growers]
    places = list(program.places(frames))
    for source, loop in program.find(cst.For):
        places.append((source, source.line(loop.body.body[0])))
    for source, line in places:
        yield from line_without_gradients(program, source, line)


def line_without_gradients(program: Program, source: SourceFile, line: int) -> Changes:
    """no_grad for the functions around a line, and around the loop that it is in."""
    yield from _functions_without_gradients(program, source, line)
    yield from _loop_without_gradients(program, source, line)


def _evaluations_without_gradients(program: Program) -> Changes:
    """no_grad for what a training loop does between model.eval() and model.train(), or the next
    step.
    """
    if not program.trains:
        return
    for source, call in program.calls("eval"):
        statement = source.statement(call)
        siblings = source.siblings(statement)
        # At the top level of a file, eval() is followed by all the rest of the program.
        is_in_block = source.around(statement, cst.IndentedBlock) is not None
        if not siblings or not is_in_block or is_without_gradients(source, statement):
            continue
        evaluation: list[cst.CSTNode] = []
        for other in siblings[siblings.index(statement) + 1 :]:
            if is_return(other) or source.calls(*TRAINS_AGAIN, below=other):
                break
            evaluation.append(other)
        if evaluation:
            yield _block_without_gradients(
                program, source, first=evaluation[0], last=evaluation[-1]
            )


def frozen_parts(program: Program) -> Changes:
    """no_grad for modules whose weights no optimizer gets, in a forward pass of the training: for
    each statement that calls only modules of which no optimizer is given ``parameters()``.
    """
    trained = " ".join(source.code(call) for source, call in optimizers(program))
    if ".parameters()" not in trained:  # it does not show whose weights are trained
        return
    for region in forward_regions(program):
        source = region.source
        for statement in [*region.before, *region.forward]:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            is_loss = region.loss in names_assigned(source, statement)
            if is_loss or is_without_gradients(source, statement):
                continue
            modules = _modules_in(program, source, statement)
            parameters = [f"{last_name(module)}.parameters()" for module in modules]
            if modules and not any(text in trained for text in parameters):
                yield _block_without_gradients(program, source, statement, statement)


def _modules_in(
    program: Program, source: SourceFile, statement: cst.CSTNode
) -> list[str]:
    """The modules of the program's own classes that a statement calls, or gives to a call."""
    classes = program.classes
    names: set[str] = set()
    for call in source.find(cst.Call, statement):
        names.add(source.code(call.func))
        names |= {source.code(argument.value) for argument in call.args}
    return [name for name in names if program.classes_of(name) & classes]


def _loop_without_gradients(program: Program, source: SourceFile, line: int) -> Changes:
    """The outermost loop around a line outside of functions, unless the loop trains."""
    for statement in source.statements_at(line):
        above = list(source.above(statement))
        loops = [outer for outer in above if isinstance(outer, (cst.For, cst.While))]
        is_in_function = any(isinstance(outer, cst.FunctionDef) for outer in above)
        if not loops or is_in_function or is_without_gradients(source, statement):
            continue
        if not source.calls(*TRAINS_AGAIN, below=loops[-1]):
            yield _block_without_gradients(program, source, loops[-1], loops[-1])


def _block_without_gradients(
    program: Program, source: SourceFile, first: cst.CSTNode, last: cst.CSTNode
) -> Change:
    """The statements from ``first`` to ``last`` under torch.no_grad()."""
    return Change(
        title=f"Compute this without gradients ({source.place(first)})",
        results=Results.SAME,
        why="no backward pass uses the values that it computes",
        edits=(source.within(first, last, "with torch.no_grad():"),),
        only_if_measured=may_take_gradients(program),
    )


def _functions_without_gradients(
    program: Program, source: SourceFile, line: int
) -> Changes:
    """The functions around a line through which no gradient flows, each under torch.no_grad()."""
    statements = [*source.statements_at(line), *source.functions_at(line)]
    if any(is_without_gradients(source, statement) for statement in statements):
        return
    # A constructor makes weights, and torch itself calls a method named backward.
    keep_gradients = {*names_that_train(program), "__init__", "backward"}
    for function in source.functions_at(line):
        name = function.name.value
        computes = source.names_called(function.body) - MOVES - set(PUTS)
        trains = source.calls(*TRAINS_AGAIN, below=function)
        if trains or name in keep_gradients or not computes:
            continue
        first: cst.CSTNode = function
        if function.decorators:
            first = function.decorators[0]
        yield Change(
            title=f"Compute {name} without gradients ({source.place(function)})",
            results=Results.SAME,
            why="no backward pass uses the values that it returns",
            edits=(source.lines_before(first, "@torch.no_grad()"),),
            only_if_measured=may_take_gradients(program),
        )
