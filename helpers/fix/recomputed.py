"""Changes that compute parts of the forward pass again in the backward pass (checkpoints of torch),
so that these keep nothing until then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.program import Located, Program
from helpers.fix.regions import forward_regions, names_that_train
from helpers.fix.source import SourceFile, called

CHECKPOINT = "from torch.utils.checkpoint import checkpoint"
RECOMPUTED = "the forward pass of each block runs twice (about a third more time)"
SAME_AGAIN = "each block is computed again from the same input, with the same random numbers of torch"
RUNNING = re.compile(r"BatchNorm|batch_norm|torchvision|timm")
"""Layers that update running statistics in each forward pass, and libraries whose models have them.
"""
# Why results differ where RUNNING is found.
UPDATED_TWICE = (
    "the training steps are the same, but a BatchNorm that trains updates its running statistics twice "
    "in each, so an evaluation differs"
)
LEAVES = re.compile(
    r"Linear|Dropout|Embedding|\w*Norm|Conv\w*|Parameter|Tensor|ReLU|GELU|SiLU"
)
"""Modules that keep little beside their input."""
Loop = cst.For | cst.While | cst.ListComp | cst.GeneratorExp


def recomputed_parts(program: Program) -> Changes:
    """The blocks that loops call, the layers of torch's own transformers, and the other blocks,
    each under a checkpoint. A checkpoint needs an argument, to find where the gradients go.
    """
    blocks = [(source, call) for source, call in _training_calls(program) if call.args]
    blocks = [block for block in blocks if _is_block(program, *block)]
    blocks = [block for block in blocks if not _is_inside(*block, blocks)]
    in_loops = [block for block in blocks if _loop_around(*block) is not None]
    if in_loops:
        parts = "what each iteration of the loop calls"
        yield _under_checkpoints(program, parts, in_loops)
    yield from _recomputed_layers(program)
    one_by_one = [block for block in blocks if block not in in_loops]
    if len(one_by_one) > 1:
        yield _under_checkpoints(program, "each block", one_by_one)


def _training_calls(program: Program) -> Located[cst.Call]:
    """Calls in functions through which gradients flow, and in loops before a backward pass."""
    training = names_that_train(program)
    around: list[tuple[SourceFile, cst.CSTNode]] = []
    for source, function in program.find(cst.FunctionDef):
        # A function with the backward pass in it runs a whole step: its loops come below.
        goes_backward = source.calls("backward", below=function)
        if function.name.value in training and not goes_backward:
            around.append((source, function))
    for region in forward_regions(program):
        for node in region.forward:
            if isinstance(node, (cst.For, cst.While)):
                around.append((region.source, node))
    for source, node in around:
        for call in source.find(cst.Call, node):
            yield source, call


def _loop_around(source: SourceFile, node: cst.CSTNode) -> Loop | None:
    """The innermost loop around a node within its function; None where there is none, or where it
    is the loop of the training's steps.
    """
    for outer in source.above(node):
        if isinstance(outer, cst.FunctionDef):
            return None
        if not isinstance(outer, Loop):
            continue
        if not isinstance(outer, cst.While):
            over = _head(outer).iter
            if over in (node, *source.above(node)):
                continue  # the node is part of what the loop goes over
        if source.calls("backward", "step", below=outer):
            return None
        return outer
    return None


def _head(loop: cst.For | cst.ListComp | cst.GeneratorExp) -> cst.For | cst.CompFor:
    """The node with a loop's ``target`` and ``iter``: of a comprehension its ``for``."""
    if isinstance(loop, cst.For):
        return loop
    return loop.for_in


def _is_block(program: Program, source: SourceFile, call: cst.Call) -> bool:
    """Whether a call computes a block, worth a checkpoint: a module with several layers, or what a
    loop calls: a function of the program, or a module that is no single layer.
    """
    name = source.code(call.func)
    loop = _loop_around(source, call)
    # for block in self.blocks: x = block(x)
    if loop is not None and not isinstance(loop, cst.While):
        is_name = isinstance(call.func, cst.Name)
        if is_name and name in source.names_in(_head(loop).target):
            return True
    # A function is taken as a block only where a loop calls it.
    if called(call) in program.functions and re.fullmatch(r"(self\.)?\w+", name):
        return loop is not None
    module, _, _ = name.partition("[")
    kinds = program.classes_of(module)
    if loop is not None:
        is_leaf = bool(kinds) and all(LEAVES.fullmatch(kind) for kind in kinds)
        return program.is_module(module) and not is_leaf
    return bool(kinds & (program.classes | {"Sequential", "TransformerEncoderLayer"}))


def _is_inside(
    source: SourceFile, call: cst.Call, blocks: Sequence[tuple[SourceFile, cst.Call]]
) -> bool:
    """Whether a call stands among the arguments of another of ``blocks``, under whose checkpoint it
    is then computed again, too.
    """
    calls = {id(other) for _, other in blocks}
    return any(id(outer) in calls for outer in source.above(call))


def _under_checkpoints(
    program: Program, parts: str, calls: Sequence[tuple[SourceFile, cst.Call]]
) -> Change:
    """These calls, each under a checkpoint; ``parts``: their name in the title."""
    edits: list[TextEdit] = []
    for source, call in calls:
        edits += _under_checkpoint(source, call)
    places = [source.place(call) for source, call in calls]
    change = _recomputed(program, parts, places, edits)
    may_do_more = any(_may_do_more(program, *block) for block in calls)
    return replace(change, only_if_measured=may_do_more)


def _may_do_more(program: Program, user: SourceFile, call: cst.Call) -> bool:
    """Whether the called function may have effects beside its result, such as to append to a list,
    which a checkpoint would repeat. Of a module: whether any ``forward`` of the program may.
    """
    wanted = called(call)
    if wanted not in program.functions:
        wanted = "forward"
    return any(
        _has_effects(source, function)
        for source, function in program.find(cst.FunctionDef)
        if function.name.value == wanted and function not in user.above(call)
    )


def _has_effects(source: SourceFile, function: cst.FunctionDef) -> bool:
    """Whether a function changes more than its own variables."""
    if any(source.find(kind, function) for kind in (cst.Global, cst.Nonlocal)):
        return True
    # A call whose result is not used, such as append, is there for its effect.
    values = [node.value for node in source.find(cst.Expr, function)]
    if any(not isinstance(value, cst.SimpleString) for value in values):
        return True
    targets = [node.target for node in source.find(cst.AssignTarget, function)]
    targets += [node.target for node in source.find(cst.AugAssign, function)]
    return any(isinstance(node, (cst.Attribute, cst.Subscript)) for node in targets)


def _recomputed(
    program: Program, parts: str, places: Sequence[str], edits: Sequence[TextEdit]
) -> Change:
    """The change that runs parts of the forward pass again; ``places``: their lines, for its title."""
    change = Change(
        title=f"Recompute {parts} in the backward pass ({', '.join(dict.fromkeys(places))})",
        results=Results.SAME,
        why=SAME_AGAIN,
        costs=RECOMPUTED,
        edits=tuple(dict.fromkeys(edits)),
    )
    if program.mentions(RUNNING):
        return replace(change, results=Results.OTHER, why=UPDATED_TWICE)
    return change


def _under_checkpoint(source: SourceFile, call: cst.Call) -> list[TextEdit]:
    """A call under a checkpoint, and the import that it needs."""
    words = [source.code(call.func)]
    words += [source.code(argument).rstrip(" ,") for argument in call.args]
    text = f"checkpoint({', '.join(words)}, use_reentrant=False)"
    return [*source.with_import(CHECKPOINT), source.replaced(call, text)]


def _recomputed_layers(program: Program) -> Changes:
    """The layers of nn.TransformerEncoder and nn.TransformerDecoder, each under a checkpoint: their
    own code calls them, so their ``forward`` is replaced.
    """
    edits: list[TextEdit] = []
    places = []
    for source, assign in program.find(cst.Assign):
        if source.calls("TransformerEncoder", "TransformerDecoder", below=assign.value):
            name = source.target(assign)
            again = "layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)"
            loop = (f"for layer in {name}.layers:", f"    {again}")
            edits += source.with_import("from functools import partial")
            edits += source.with_import(CHECKPOINT)
            edits.append(source.lines_after(source.statement(assign), *loop))
            places.append(source.place(assign))
    if edits:
        yield _recomputed(program, "each layer", places, edits)
