"""Changes around what the forward pass keeps for a backward pass: never kept, recomputed, in RAM."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import NOTHING, Change, Results
from helpers.fix.kept import without_gradients
from helpers.fix.program import Program
from helpers.fix.recomputed import recomputed_parts
from helpers.fix.regions import fails_in_evaluation, forward_regions, is_without_gradients
from helpers.fix.source import Source

WEIGHTS = re.compile(r"\bnn\.|Module|Parameter|requires_grad|from_pretrained|models\.|\.load\(")
"""How a program says that it has something by which gradients could flow."""


def changes_of_activations(program: Program) -> Iterator[Change]:
    """Activations never kept, or recomputed."""
    if fails_in_evaluation(program):
        return
    if program.mentions(WEIGHTS):
        for source, line in program.holding_places():
            yield from without_gradients(program, source, line)
            yield from _loop_without_gradients(source, line)
    if program.trains:
        yield from recomputed_parts(program)


def _loop_without_gradients(source: Source, line: int) -> Iterator[Change]:
    """The outermost loop around a line of no function, where no backward pass follows."""
    for statement in source.statements_at(line):
        above = list(source.above(statement))
        loops = [outer for outer in above if isinstance(outer, cst.For)]
        is_in_function = any(isinstance(outer, cst.FunctionDef) for outer in above)
        if not loops or is_in_function or is_without_gradients(source, statement):
            continue
        if not source.calls("backward", "step", "fit", "train", below=loops[-1]):
            yield Change(
                title=f"Compute this loop without gradients ({source.place(loops[-1])})",
                results=Results.SAME,
                why="no backward pass uses the values that it computes",
                costs=NOTHING,
                edits=(source.within(loops[-1], loops[-1], "with torch.no_grad():"),),
                only_if_measured=True,
            )


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
