"""Parts of the forward pass that are computed again in the backward pass, in place of keeping what
they computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Results, TextEdit
from helpers.fix.program import Program
from helpers.fix.regions import forward_regions, names_that_train
from helpers.fix.source import SourceFile, called

CHECKPOINT = "from torch.utils.checkpoint import checkpoint"
RECOMPUTED = "the forward pass of each block runs twice (about a third more time)"
SAME_AGAIN = "each block is computed again from the same input, with the same random numbers of torch"
RUNNING = re.compile(r"BatchNorm|batch_norm|torchvision|timm")
"""Layers that update running statistics in each forward pass, and libraries of models with them."""
UPDATED_TWICE = (
    "the training steps are the same, but a BatchNorm that trains updates its running statistics twice "
    "in each, so an evaluation differs"
)
LEAVES = re.compile(
    r"Linear|Dropout|Embedding|\w*Norm|Conv\w*|Parameter|Tensor|ReLU|GELU|SiLU"
)
"""Modules that keep little beside their input."""
Loop = cst.For | cst.While | cst.ListComp | cst.GeneratorExp


def recomputed_parts(program: Program) -> Iterator[Change]:
    """What loops call, and other blocks, each under a checkpoint."""
    blocks = [(source, call) for source, call in _training_calls(program) if call.args]
    blocks = [block for block in blocks if _is_block(program, *block)]
    blocks = [block for block in blocks if not _is_inside(block[0], block[1], blocks)]
    in_loops = [block for block in blocks if _loop_around(*block) is not None]
    if in_loops:
        yield _under_checkpoints(
            program, "what each iteration of the loop calls", in_loops
        )
    yield from _recomputed_layers(program)
    one_by_one = [block for block in blocks if block not in in_loops]
    if len(one_by_one) > 1:
        yield _under_checkpoints(program, "each block", one_by_one)


def _training_calls(program: Program) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Calls in functions through which gradients flow, and in loops before a backward pass."""
    training = names_that_train(program)
    around: list[tuple[SourceFile, cst.CSTNode]] = []
    for source, function in program.find(cst.FunctionDef):
        if function.name.value in training and not source.calls(
            "backward", below=function
        ):
            around.append((source, function))
    for region in forward_regions(program):
        loops = [
            node for node in region.forward if isinstance(node, (cst.For, cst.While))
        ]
        around += [(region.source, loop) for loop in loops]
    for source, node in around:
        for call in source.find(cst.Call, node):
            yield source, call


def _loop_around(source: SourceFile, node: cst.CSTNode) -> Loop | None:
    """The innermost loop around a node within its function, unless it is one of whole steps."""
    for outer in source.above(node):
        if isinstance(outer, cst.FunctionDef):
            return None
        if isinstance(outer, Loop) and not _is_below(source, node, outer):
            return None if source.calls("backward", "step", below=outer) else outer
    return None


def _is_below(source: SourceFile, node: cst.CSTNode, loop: Loop) -> bool:
    """Whether a node is part of what a loop goes over."""
    if isinstance(loop, cst.While):
        return False
    over = loop.iter if isinstance(loop, cst.For) else loop.for_in.iter
    return node is over or over in source.above(node)


def _is_block(program: Program, source: SourceFile, call: cst.Call) -> bool:
    """Whether a call is one of a module with more than one layer, or of a function of the program."""
    name = source.code(call.func)
    loop = _loop_around(source, call)
    if (
        isinstance(call.func, cst.Name)
        and loop is not None
        and name in _targets(source, loop)
    ):
        return True
    functions = {function.name.value for _, function in program.find(cst.FunctionDef)}
    if called(call) in functions and re.fullmatch(r"(self\.)?\w+", name):
        return loop is not None
    owners = {owner.name.value for _, owner in program.find(cst.ClassDef)}
    module = name.partition("[")[0]
    kinds = program.classes_of(module)
    if loop is not None:
        is_leaf = bool(kinds) and all(LEAVES.fullmatch(kind) for kind in kinds)
        return program.is_module(module) and not is_leaf
    return bool(kinds & (owners | {"Sequential", "TransformerEncoderLayer"}))


def _targets(source: SourceFile, loop: Loop) -> set[str]:
    """The names that a loop gives a new value in each iteration."""
    if isinstance(loop, cst.While):
        return set()
    target = loop.target if isinstance(loop, cst.For) else loop.for_in.target
    return source.names_in(target)


def _is_inside(
    source: SourceFile, call: cst.Call, blocks: Sequence[tuple[SourceFile, cst.Call]]
) -> bool:
    """Whether a call stands among the arguments of another of these."""
    calls = {id(other) for _, other in blocks}
    return any(id(outer) in calls for outer in source.above(call))


def _under_checkpoints(
    program: Program, what: str, calls: Sequence[tuple[SourceFile, cst.Call]]
) -> Change:
    edits: list[TextEdit] = []
    for source, call in calls:
        edits += _under_checkpoint(source, call)
    places = [source.place(call) for source, call in calls]
    return _recomputed(
        program,
        what,
        list(dict.fromkeys(places)),
        edits,
        may_do_more=any(_may_do_more(program, *place) for place in calls),
    )


def _may_do_more(program: Program, user: SourceFile, call: cst.Call) -> bool:
    """Whether what is called may do more than to assign to names of its own and return: a function
    of the program, else the forward pass of any of its modules.
    """
    functions = list(program.find(cst.FunctionDef))
    wanted = called(call)
    if wanted not in {function.name.value for _, function in functions}:
        wanted = "forward"
    for source, function in functions:
        if function.name.value != wanted or function in user.above(call):
            continue
        if any(source.find(kind, function) for kind in (cst.Global, cst.Nonlocal)):
            return True
        if any(
            not isinstance(node.value, cst.SimpleString)
            for node in source.find(cst.Expr, function)
        ):
            return True
        targets: list[cst.AssignTarget | cst.AugAssign] = [
            *source.find(cst.AssignTarget, function),
            *source.find(cst.AugAssign, function),
        ]
        if any(
            isinstance(node.target, (cst.Attribute, cst.Subscript)) for node in targets
        ):
            return True
    return False


def _recomputed(
    program: Program,
    what: str,
    places: Sequence[str],
    edits: Iterable[TextEdit],
    *,
    may_do_more: bool = False,
) -> Change:
    """Parts of a forward pass that run again in the backward pass. ``may_do_more``: than compute,
    as append to a list, which they would do twice.
    """
    keeps_statistics = program.mentions(RUNNING)
    return Change(
        title=f"Recompute {what} in the backward pass ({', '.join(places)})",
        results=Results.OTHER if keeps_statistics else Results.SAME,
        why=UPDATED_TWICE if keeps_statistics else SAME_AGAIN,
        costs=RECOMPUTED,
        edits=tuple(dict.fromkeys(edits)),
        only_if_measured=may_do_more,
    )


def _under_checkpoint(source: SourceFile, call: cst.Call) -> list[TextEdit]:
    words = [
        source.code(call.func),
        *(source.code(argument).rstrip(" ,") for argument in call.args),
    ]
    text = f"checkpoint({', '.join(words)}, use_reentrant=False)"
    return [*source.with_import(CHECKPOINT), source.replaced(call, text)]


def _recomputed_layers(program: Program) -> Iterator[Change]:
    """The layers of nn.TransformerEncoder and nn.TransformerDecoder."""
    edits: list[TextEdit] = []
    places = []
    for source, assign in program.find(cst.Assign):
        if source.calls("TransformerEncoder", "TransformerDecoder", below=assign.value):
            name = source.code(assign.targets[0].target)
            again = "layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)"
            loop = (f"for layer in {name}.layers:", f"    {again}")
            edits += source.with_import("from functools import partial")
            edits += source.with_import(CHECKPOINT)
            edits.append(source.lines_after(source.statement(assign), *loop))
            places.append(source.place(assign))
    if edits:
        yield _recomputed(program, "each layer", places, edits)
