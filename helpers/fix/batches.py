"""A batch computed in parts, whose gradients add up to those of the whole batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.regions import Region, forward_regions
from helpers.fix.source import Source

PARTS = (2, 4, 8, 16, 32)
MEANS = re.compile(
    r"cross_entropy|mse_loss|l1_loss|huber|nll_loss|kl_div|binary_cross|criterion|loss_f|\.mean\(\)|Loss\("
)
"""How a loss is written that is a mean over the samples."""
NO_MEANS = re.compile(
    r"ignore_index|reduction|weight=|\.sum\(\)|\.T\b|\.t\(\)|cdist|logsumexp|topk|\.max\("
)
"""What makes a loss another one when samples are taken apart."""
STATISTICS = re.compile(r"BatchNorm|batch_norm|torchvision|timm|SyncBatch|\.var\(|\.std\(")
"""Layers that compute over the whole batch."""


def micro_batches(program: Program) -> Iterator[Change]:
    """Each training step in parts of its batch, the fewest first."""
    if any(STATISTICS.search(source.text.decode()) for source in program.sources):
        return
    times_too_large = program.times_too_large
    for region in forward_regions(program):
        text = region.text
        inputs = _inputs(region)
        if not inputs or not MEANS.search(text) or NO_MEANS.search(text):
            continue
        for parts in [count for count in PARTS if count > times_too_large][:2]:
            yield Change(
                title=f"Compute each batch in {parts} parts and add up the gradients ({region.place})",
                results=Results.ROUNDED,
                why="unless the loss weighs samples or dropout draws in another order",
                costs="smaller GPU kernels, so a step takes longer",
                edits=(_in_parts(region, inputs, parts),),
                only_if_measured=True,
            )


def _inputs(region: Region) -> list[str]:
    """The names of the batch's tensors: what the region reads and its loop gives anew."""
    source = region.source
    loop = source.around(region.first, cst.For)
    if loop is None:
        return []
    fresh = _plain_names(source, loop.target)
    if isinstance(loop.iter, cst.Call) and source.code(loop.iter.func) in (
        "range",
        "trange",
        "tqdm",
        "count",
    ):
        fresh = set()
    for statement in region.before:
        for assign in source.find(cst.Assign, statement):
            for target in assign.targets:
                fresh |= _plain_names(source, target.target)
    read = [name.value for name in region.names]
    inside = region.assigned
    return [name for name in dict.fromkeys(read) if name in fresh and name not in inside]


def _plain_names(source: Source, target: cst.BaseExpression) -> set[str]:
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, cst.Tuple):
        return {
            element.value.value
            for element in target.elements
            if isinstance(element.value, cst.Name)
        }
    return set()


def _in_parts(region: Region, inputs: list[str], parts: int) -> Edit:
    """The region and its backward pass in a loop over parts of the batch."""
    source = region.source
    loss = region.loss
    indent = source.indent(region.first)
    names = ", ".join(f"{name}_part" for name in inputs)
    chunks = ", ".join(f"{name}.chunk({parts})" for name in inputs)
    over = f"zip({chunks})" if len(inputs) > 1 else chunks
    first = inputs[0]
    before = [source.code(statement) for statement in region.zeroing]
    inside = []
    for statement in [*region.forward, region.backward]:
        text = source.code(statement)
        for name in inputs:
            text = re.sub(rf"(?<![\w.]){name}\b(?!\s*=[^=])", f"{name}_part", text)
        if statement is region.backward:
            inside.append(f"{loss} = {loss} * (len({first}_part) / len({first}))")
        inside.append(text)
    inside.append(f"whole_{loss} += {loss}.detach()")
    lines = [*before, f"whole_{loss} = 0", f"for {names} in {over}:"]
    body = "\n".join(inside).replace("\n" + indent, "\n").splitlines()
    lines += [f"    {line}" for line in body]
    lines.append(f"{loss} = whole_{loss}")
    return source.instead(region.first, region.backward, lines)
