"""Results of modules whose weights no step behind a backward pass changes, without their graphs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import NOTHING, Change, Results
from helpers.fix.optimizers import optimizers
from helpers.fix.program import Program
from helpers.fix.regions import Region, forward_regions

STEP = re.compile(r"(\w+)\.step\(\)|\.step\((\w+)\)")


def detached_results(program: Program) -> Iterator[Change]:
    """``module(x).detach()`` before a backward pass, as of a teacher, or of a generator where the
    other network is trained.
    """
    for region in forward_regions(program):
        weights = _weights_of_step(program, region)
        for call, module in _module_calls(program, region):
            if f"{module}.parameters()" in weights or ".parameters()" not in weights:
                continue
            if _is_fed_by(region, call, weights):
                continue
            yield Change(
                title=f"Detach what {module} computes ({region.source.place(call)})",
                results=Results.SAME,
                why=f"the step behind this backward pass changes no weights of {module}",
                costs=NOTHING,
                edits=(region.source.after(call, ".detach()"),),
                only_if_measured=True,
            )


def _weights_of_step(program: Program, region: Region) -> str:
    """The code that makes the optimizer whose step follows a backward pass."""
    behind = "\n".join(region.source.code(statement) for statement in region.after)
    step = STEP.search(behind)
    for source, call in optimizers(program):
        assign = source.parent(call)
        if step and isinstance(assign, cst.Assign):
            if source.code(assign.targets[0].target) in step.groups():
                return source.code(call)
    return ""


def _statements_of(region: Region) -> list[cst.CSTNode]:
    """The statements from the backward pass before it in the same block to that of a region."""
    statements: list[cst.CSTNode] = []
    for statement in region.before:
        is_backward = region.source.calls("backward", below=statement)
        statements = [] if is_backward else [*statements, statement]
    return [*statements, *region.forward]


def _module_calls(program: Program, region: Region) -> Iterator[tuple[cst.Call, str]]:
    """Calls of modules whose results lead to a loss, each with the module's name."""
    for statement in _statements_of(region):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for call in region.source.find(cst.Call, statement):
            module = region.source.code(call.func)
            if program.is_module(module):
                yield call, module


def _is_fed_by(region: Region, call: cst.Call, weights: str) -> bool:
    """Whether what a module gets comes from another one that the step changes."""
    source = region.source
    read = set().union(*(source.names_in(argument) for argument in call.args))
    for statement in _statements_of(region):
        for assign in source.find(cst.Assign, statement):
            if source.code(assign.targets[0].target) in read:
                read |= source.names_in(assign.value)
    return any(f"{name}.parameters()" in weights for name in read)
