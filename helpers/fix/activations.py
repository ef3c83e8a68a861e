"""Changes of activations, which the forward pass keeps for the backward pass: keep none, recompute
them, or keep them in RAM.
"""

from __future__ import annotations

import re

from helpers.fix.change import Change, Changes, Results
from helpers.fix.graphs import line_without_gradients
from helpers.fix.program import Program
from helpers.fix.recomputed import recomputed_parts
from helpers.fix.regions import (
    GRADIENT_FREE,
    fails_in_evaluation,
    forward_regions,
)

WEIGHTS = re.compile(
    r"\bnn\.|Module|Parameter|requires_grad|from_pretrained|models\.|\.load\("
)
"""Words of a source that make or load weights. Only with weights, which require gradients, does
torch keep activations.
"""


def changes_of_activations(program: Program) -> Changes:
    """no_grad around the lines that hold the memory, where gradients are not needed; then, of a
    program that trains, checkpoints in its forward pass, of any other no gradients at all.
    """
    if fails_in_evaluation(program):  # there no activations are kept
        return
    if program.mentions(WEIGHTS):
        for source, line in program.holding_places():
            yield from line_without_gradients(program, source, line)
    if program.trains:
        yield from recomputed_parts(program)
    elif program.mentions(WEIGHTS):
        yield from _without_any_gradients(program)


def _without_any_gradients(program: Program) -> Changes:
    """Gradients turned off after the imports of the first source, for a program that has no
    backward pass. Nothing where that source has no imports, or a source turns gradients off
    already.
    """
    source = program.sources[0]
    if not source.imports or program.mentions(GRADIENT_FREE):
        return
    last = source.imports[-1]
    yield Change(
        title=f"Compute no gradients ({source.place(last)})",
        results=Results.SAME,
        why="the program has no backward pass",
        edits=(source.lines_after(last, "", "torch.set_grad_enabled(False)"),),
        only_if_measured=True,
    )


def activations_in_ram(program: Program) -> Changes:
    """The first forward pass of the sources under save_on_cpu, which keeps its activations in RAM;
    nothing where the sources have no forward pass before a backward pass.
    """
    region = next(forward_regions(program), None)
    if region is None:
        return
    header = "with torch.autograd.graph.save_on_cpu():"
    yield Change(
        title=f"Keep activations in RAM until the backward pass ({region.place})",
        results=Results.ROUNDED,
        why="the same values come back from the CPU, but perhaps laid out for another kernel",
        costs="RAM for all activations, and a transfer in each direction in every step",
        edits=(region.source.within(region.first, region.last, header),),
        only_on_a_gpu=True,
    )
