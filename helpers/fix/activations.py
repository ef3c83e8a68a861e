"""Changes that keep fewer results of the forward pass until the backward pass needs them, and
those around a pass that needs no gradients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.kept import without_gradients
from helpers.fix.program import Program
from helpers.fix.regions import fails_in_evaluation, forward_regions
from helpers.fix.source import Source, called

CHECKPOINT = "from torch.utils.checkpoint import checkpoint"
RECOMPUTED = "the forward pass of each block runs twice (about a third more time)"
SAME_AGAIN = "each block is computed again from the same input, with the same random numbers"
RUNNING = re.compile(r"BatchNorm|batch_norm|torchvision|timm")
"""Layers that update running statistics in each forward pass, and libraries of models with them."""
UPDATED_TWICE = (
    "the training steps are the same, but BatchNorm updates its running statistics twice in each, "
    "so an evaluation differs"
)
SEGMENTS = 4


def changes_of_activations(program: Program) -> Iterator[Change]:
    """Activations recomputed, or never kept."""
    if fails_in_evaluation(program):
        return
    if not program.trains:
        for source, line in program.holding_places():
            yield from without_gradients(program, source, line)
        return
    yield from _checkpointed_blocks(program)
    yield from _checkpointed_sequences(program)


def _recomputed(
    program: Program, what: str, places: Sequence[str], edits: Iterable[Edit]
) -> Change:
    """Parts of a forward pass that run again in the backward pass."""
    keeps_statistics = program.mentions(RUNNING)
    return Change(
        title=f"Recompute {what} in the backward pass ({', '.join(places)})",
        results=Results.OTHER if keeps_statistics else Results.SAME,
        why=UPDATED_TWICE if keeps_statistics else SAME_AGAIN,
        costs=RECOMPUTED,
        edits=tuple(dict.fromkeys(edits)),
    )


def _checkpointed_blocks(program: Program) -> Iterator[Change]:
    """``for block in self.blocks: x = block(x)`` with each block under a checkpoint."""
    edits: list[Edit] = []
    places = []
    for source, loop in program.find(cst.For):
        method = source.around(loop, cst.FunctionDef)
        if method is None or method.name.value not in ("forward", "__call__"):
            continue
        if not source.code(loop.iter).startswith("self."):
            continue
        for call in source.calls(source.code(loop.target), below=loop):
            if isinstance(call.func, cst.Name) and call.args:
                edits += _under_checkpoint(source, call)
                places.append(source.place(call))
    if edits:
        yield _recomputed(program, "each block", places, edits)


def _under_checkpoint(source: Source, call: cst.Call) -> list[Edit]:
    words = [
        source.code(call.func),
        *(source.code(argument).rstrip(" ,") for argument in call.args),
    ]
    text = f"checkpoint({', '.join(words)}, use_reentrant=False)"
    return [*source.with_import(CHECKPOINT), source.replaced(call, text)]


def _checkpointed_sequences(program: Program) -> Iterator[Change]:
    """Long nn.Sequential modules called in a forward pass, in segments under checkpoints."""
    for source in program.sources:
        names = _sequences(source)
        edits: list[Edit] = []
        places = []
        for call in source.find(cst.Call):
            if source.code(call.func) in names and len(call.args) == 1:
                if _has_one_inside(source, call, names):
                    continue
                argument = source.code(call.args[0].value)
                words = f"{source.code(call.func)}, {SEGMENTS}, {argument}, use_reentrant=False"
                text = f"checkpoint_sequential({words})"
                edits.append(source.replaced(call, text))
                places.append(source.place(call))
        imports = source.with_import("from torch.utils.checkpoint import checkpoint_sequential")
        if edits:
            yield _recomputed(program, "the layers", places, [*imports, *edits])


def _has_one_inside(source: Source, call: cst.Call, names: set[str]) -> bool:
    """Whether a call of a sequence is made with the result of another."""
    inner = source.find(cst.Call, call.args[0])
    return any(source.code(other.func) in names for other in inner)


def _sequences(source: Source) -> set[str]:
    """Attributes and variables that hold an nn.Sequential with a layer for each segment or more."""
    names = set()
    for assign in source.find(cst.Assign):
        value = assign.value
        if not isinstance(value, cst.Call) or called(value) != "Sequential":
            continue
        is_listed = any(argument.star for argument in value.args)
        if is_listed or len(value.args) >= SEGMENTS:
            names |= {source.code(target.target) for target in assign.targets}
    return names


def activations_in_ram(program: Program) -> Iterator[Change]:
    """What the backward pass will need lies in RAM until then."""
    for region in forward_regions(program):
        header = "with torch.autograd.graph.save_on_cpu():"
        yield Change(
            title=f"Keep activations in RAM until the backward pass ({region.place})",
            results=Results.ROUNDED,
            why="the same values come back from the CPU, but perhaps laid out for another kernel",
            costs="RAM for all activations, and a transfer in each direction in every step",
            edits=(region.source.within(region.first, region.last, header),),
            only_on_a_gpu=True,
        )
        return
