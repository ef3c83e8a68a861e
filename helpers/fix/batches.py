"""A batch computed in parts, whose gradients add up to those of the whole batch."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Located, Program
from helpers.fix.regions import (
    STATISTICS,
    Region,
    calls_that_failed,
    forward_regions,
    is_without_gradients,
)
from helpers.fix.sizes import factors
from helpers.fix.source import SourceFile
from helpers.fix.stores import counters

COUNTING = re.compile(r"(?:tqdm(?:\.tqdm)?\()?(?:range|trange|(?:itertools\.)?count)\(")
"""What a loop goes over that only counts: its variable is no batch."""
MEANS = re.compile(
    r"cross_entropy|mse_loss|l1_loss|huber|nll_loss|kl_div|binary_cross|criterion|loss_?f"
    r"|\.mean\(\)|Loss\("
)
"""Words of a forward pass whose loss is a mean over the samples, the default of torch's losses;
loss_f: as in loss_fn.
"""
NO_MEANS = re.compile(
    r"ignore_index|reduction|weight=|\.sum\(\)|\.T\b|\.t\(\)|cdist|logsumexp|topk|\.max\("
)
"""Words of a forward pass where the losses of the parts do not add up to that of the batch: it
weighs samples or leaves some out, is a sum, or compares the samples of a batch with each other.
"""
MOVES = ("to", "cuda", "cpu", "float", "half")
"""Methods that move a tensor or change its type, and leave its shape as it is."""
SMALLER_KERNELS = "smaller GPU kernels, so it takes longer"


def micro_batches(program: Program) -> Changes:
    """Changes that compute each training step in parts of its batch, the fewest parts first."""
    if program.mentions(STATISTICS):  # those of a part differ from those of the batch
        return
    for region in forward_regions(program):
        text = region.text
        inputs = _inputs(region)
        if not inputs or not MEANS.search(text) or NO_MEANS.search(text):
            continue
        results = region.assigned - {region.loss}
        # A tensor that the next step or a later statement reads has the size of the whole batch.
        if region.carried or results & region.read_after:
            continue
        for parts in factors(program):
            title = f"Compute each batch in {parts} parts and add up the gradients"
            yield Change(
                title=f"{title} ({region.place})",
                results=Results.ROUNDED,
                why="unless the loss weighs samples or dropout draws in another order",
                costs="smaller GPU kernels, so a step takes longer",
                edits=(_in_parts(region, inputs, parts),),
                only_if_measured=True,
            )


def _inputs(region: Region) -> list[str]:
    """The names of the batch's tensors, in the order in which the region reads them.

    A tensor of the batch is new in each step: the target of the loop around the region, else a
    parameter of its function, or a variable that its block assigns before the region.
    """
    source = region.source
    loop = source.around(region.first, cst.For)
    fresh: set[str] = set()
    if loop is None:
        fresh = _tensors_given(region)
    elif re.search(r"\.(?:split|chunk)\(", source.code(loop.iter)):
        return []  # a loop over parts is the program's own way to make them smaller
    elif not COUNTING.match(source.code(loop.iter)):
        fresh = _plain_names(source, loop.target) - counters(source)
    for statement in region.before:
        fresh |= _variables_assigned(source, statement)
    fresh -= region.assigned
    read = dict.fromkeys(name.value for name in region.names)
    return [name for name in read if name in fresh]


def _tensors_given(region: Region) -> set[str]:
    """The parameters of a function that its forward pass hands on to calls."""
    function = region.source.around(region.first, cst.FunctionDef)
    if function is None:
        return set()
    arguments: set[str] = set()
    for statement in region.forward:
        for call in region.source.find(cst.Call, statement):
            arguments |= {region.source.code(argument.value) for argument in call.args}
    return {parameter.name.value for parameter in function.params.params} & arguments


def _variables_assigned(source: SourceFile, node: cst.CSTNode) -> set[str]:
    """The variables that a node assigns to; no attributes and no items."""
    names: set[str] = set()
    for assign in source.find(cst.Assign, node):
        for target in assign.targets:
            names |= _plain_names(source, target.target)
    return names


def _plain_names(source: SourceFile, target: cst.BaseExpression) -> set[str]:
    """The variables that a target names; none where it is an attribute or an item."""
    if not isinstance(target, (cst.Name, cst.Tuple)):
        return set()
    return source.names_in(target)


def _in_parts(region: Region, inputs: list[str], parts: int) -> TextEdit:
    """The region and its backward pass in a loop over parts of the batch.

    Each loss counts with its share of the samples, so that the gradients add up to those of the
    mean over the batch.
    """
    source = region.source
    loss = region.loss
    indent = source.indent(region.first)
    first = inputs[0]
    lines = [source.code(statement) for statement in region.zeroing]
    inside = [_of_part(source.code(node), inputs) for node in region.forward]
    inside.append(f"{loss} = {loss} * (len({first}_part) / len({first}))")
    inside.append(source.code(region.backward))
    is_read_again = _is_read_elsewhere(region)
    if is_read_again:
        lines.append(f"whole_{loss} = 0")
        inside.append(f"whole_{loss} += {loss}.detach()")
    lines.append(f"{_loop_over_parts(inputs, str(parts))}:")
    # The statements as if they stood at the margin: code() indents all lines but the first.
    body = "\n".join(inside).replace("\n" + indent, "\n").splitlines()
    lines += [f"    {line}" for line in body]
    if is_read_again:
        lines.append(f"{loss} = whole_{loss}")
    return source.instead(region.first, region.backward, lines)


def _of_part(text: str, inputs: Sequence[str]) -> str:
    """Code that computes on parts of its inputs, as ``x_part`` in place of ``x``. Attributes and
    keywords of that name (``self.x``, ``x=``) stay as they are.
    """
    for name in inputs:
        text = re.sub(rf"(?<![\w.]){name}\b(?!\s*=[^=])", f"{name}_part", text)
    return text


def _loop_over_parts(inputs: Sequence[str], chunks: str) -> str:
    """``for x_part, y_part in zip(x.chunk(2), y.chunk(2))``. ``chunks``: the arguments of chunk, as
    ``2`` or ``2, dim=2``.
    """
    names = ", ".join(f"{name}_part" for name in inputs)
    over = ", ".join(f"{name}.chunk({chunks})" for name in inputs)
    if len(inputs) > 1:
        over = f"zip({over})"
    return f"for {names} in {over}"


def _is_read_elsewhere(region: Region) -> bool:
    """Whether the function names the loss outside the forward and the backward pass."""
    source = region.source
    names = [*region.names, *source.find(cst.Name, region.backward)]
    inside = [name.value for name in names].count(region.loss)
    everywhere = source.find(cst.Name, source.scope(region.first))
    return [name.value for name in everywhere].count(region.loss) > inside


def evaluation_in_chunks(program: Program) -> Changes:
    """Computations without gradients that led to the refused request, on parts of their batch, then
    on strips of their images.
    """
    possible_parts = factors(program)
    if not possible_parts:
        return
    # ``factors`` gives up to two numbers of parts, the smaller one first. The larger one is taken,
    # because without a backward pass more parts cost little time.
    parts = possible_parts[-1]
    has_images = program.mentions("Conv2d")
    for source, assign in _assigned_without_gradients(program):
        batch = _batch_of(source, assign)
        if not batch:
            continue
        place = source.place(assign)
        edit = _concatenated(source, assign, batch, parts, dimension="")
        yield _in_chunks(f"Compute each batch in {parts} parts ({place})", edit)
        if has_images and len(batch) == 1:
            # torch has images as batch, channels, rows, columns: dimension 2 are the rows.
            along_rows = ", dim=2"
            yield Change(
                title=f"Evaluate each image in {parts} strips ({place})",
                results=Results.OTHER,
                why="at the edge of a strip the convolutions see zeros, not the next rows",
                costs=SMALLER_KERNELS,
                edits=(
                    _concatenated(source, assign, batch, parts, dimension=along_rows),
                ),
            )
    # Calls whose result is part of an expression, as in ``total += model(x).sum()``.
    for source, call in _modules_without_gradients(program):
        argument = source.operand(call.args[0].value)
        of_part = f"{source.code(call.func)}(part)"
        text = f"torch.cat([{of_part} for part in {argument}.chunk({parts})])"
        title = f"Compute what {source.code(call.func)} gets in {parts} parts ({source.place(call)})"
        yield _in_chunks(title, source.replaced(call, text))


def _in_chunks(title: str, edit: TextEdit) -> Change:
    """A computation without gradients, done on parts of its batch."""
    return Change(
        title=title,
        results=Results.ROUNDED,
        why="each sample is computed by itself",
        costs=SMALLER_KERNELS,
        edits=(edit,),
        only_if_measured=True,
    )


def _modules_without_gradients(program: Program) -> Located[cst.Call]:
    """Calls of modules inside larger expressions, among those that led to the refused request."""
    for source, statement in _failed_without_gradients(program):
        for call in source.find(cst.Call, statement):
            # The whole value of an assignment is what _assigned_without_gradients finds.
            is_value = isinstance(source.parent(call), cst.Assign)
            if is_value or not isinstance(call.func, cst.Name) or len(call.args) != 1:
                continue
            if program.is_module(call.func.value):
                yield source, call


def _assigned_without_gradients(program: Program) -> Located[cst.Assign]:
    """The assignments in the statements that led to the refused request, where no gradients are
    computed.
    """
    for source, statement in _failed_without_gradients(program):
        for assign in source.find(cst.Assign, statement):
            yield source, assign


def _failed_without_gradients(program: Program) -> Located[cst.CSTNode]:
    """The statements that led to the refused request, without those that compute gradients. A
    statement computes none if it, or a statement that called it, is below no_grad. The nearest to
    the request comes first.
    """
    frames = list(calls_that_failed(program))
    for at, (source, statement) in enumerate(frames):
        callers = frames[at:]  # and the statement itself
        if any(is_without_gradients(*caller) for caller in callers):
            yield source, statement


def _batch_of(source: SourceFile, assign: cst.Assign) -> list[str]:
    """The arguments of a call such as ``model(batch.to(device)).cpu()`` that are variables: those
    that its loop sets in each turn, or all where it sets none. Empty where the assigned value is no
    call, or one of torch itself.
    """
    result = _unmoved(assign.value)
    if not isinstance(result, cst.Call):
        return []
    if source.code(result.func).startswith(("torch.", "F.")):
        return []
    arguments = [_unmoved(argument.value) for argument in result.args]
    names = [argument.value for argument in arguments if isinstance(argument, cst.Name)]
    loop = source.around(assign, cst.For)
    if loop is None:
        return names
    set_by_loop = _plain_names(source, loop.target) | _variables_assigned(source, loop)
    fresh = [name for name in names if name in set_by_loop]
    if not fresh:
        return names
    return fresh


def _unmoved(value: cst.BaseExpression) -> cst.BaseExpression:
    """An expression without the MOVES that end it: ``x`` of ``x.float().cpu()``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value not in MOVES:
            break
        value = value.func.value
    return value


def _concatenated(
    source: SourceFile, assign: cst.Assign, batch: list[str], parts: int, dimension: str
) -> TextEdit:
    """The results of the parts of a batch, put together again. ``dimension``: more text for the
    arguments of chunk and cat, as ``, dim=2``; empty: along the batch.
    """
    of_part = _of_part(source.code(assign.value), batch)
    every = f"{of_part} {_loop_over_parts(batch, f'{parts}{dimension}')}"
    together = f"torch.cat([{every}]{dimension})"
    if isinstance(assign.targets[0].target, cst.Tuple):
        # Each part gives several results: each of them is put together by itself.
        together = f"map(torch.cat, zip(*({every})))"
    return source.replaced(assign.value, together)
