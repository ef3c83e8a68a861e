"""Data that lies on the card as a whole, though each step needs a batch of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Edit, Results
from helpers.fix.program import Program
from helpers.fix.source import Source, called, keyword

ON_CARD = re.compile(r"cuda|device")
SIZES = ("shape", "size", "ndim", "dtype", "numel")
"""What is asked of a tensor without reading its values."""


def data_on_the_cpu(program: Program) -> Iterator[Change]:
    """Tensors that hold the memory and of which only parts are read: in RAM, each part moved."""
    holding = program.holding_lines
    for source, assign in program.find(cst.Assign):
        target = assign.targets[0].target
        lines = range(source.line(assign), source.end_line(assign) + 1)
        is_holding = any((source.name, line) in holding for line in lines)
        if not is_holding or not isinstance(target, cst.Name):
            continue
        move = _move_of(source, assign.value)
        if move is None:
            continue
        moved, on_the_cpu = move
        parts = _parts_moved(source, target, moved)
        if parts:
            yield Change(
                title=f"Keep {target.value} in RAM and move each batch ({source.place(assign)})",
                results=Results.SAME,
                why="the same values, moved later",
                costs=f"RAM for {target.value}, and a transfer for each batch",
                edits=(on_the_cpu, *parts),
                only_on_a_gpu=True,
            )


def _move_of(source: Source, value: cst.BaseExpression) -> tuple[str, Edit] | None:
    """How a value gets to the card, such as ``.to(device)``, and the edit that leaves it out."""
    if not isinstance(value, cst.Call):
        return None
    function = value.func
    is_model = any(called(call)[:1].isupper() for call in source.find(cst.Call, value))
    if is_model:
        return None
    if isinstance(function, cst.Attribute) and called(value) in ("cuda", "to"):
        owner = source.code(function.value)
        return source.code(value).removeprefix(owner), source.replaced(value, owner)
    device = keyword(value, "device")
    if device is None or not ON_CARD.search(source.code(device)):
        return None
    return f".to({source.code(device.value)})", source.after(value, ".cpu()")


def _parts_moved(source: Source, target: cst.Name, move: str) -> list[Edit]:
    """The reads of a tensor, each moved to the card; none where something reads it as a whole."""
    edits = []
    for name in source.find(cst.Name):
        outer = source.parent(name)
        if name.value != target.value or name is target or isinstance(outer, cst.AssignTarget):
            continue
        if isinstance(outer, cst.Attribute):
            if outer.attr is name or outer.attr.value in SIZES:
                continue
            return []
        if isinstance(outer, cst.Arg):
            if outer.keyword is name or source.code(source.parent(outer)).startswith("len("):
                continue
            return []
        if not isinstance(outer, cst.Subscript) or _is_written(source, outer):
            return []
        index = source.code(outer).removeprefix(f"{name.value}[").removesuffix("]")
        is_on_card = index.isidentifier() and _is_on_card(source, index)
        text = f"{name.value}[{index}.cpu()]" if is_on_card else source.code(outer)
        edits.append(source.replaced(outer, f"{text}{move}"))
    return edits


def _is_written(source: Source, part: cst.Subscript) -> bool:
    """Whether something is assigned to a part of a tensor, or changes it in place."""
    inner: cst.CSTNode = part
    outer = source.parent(part)
    while isinstance(outer, (cst.Subscript, cst.Attribute)):
        if isinstance(outer, cst.Attribute) and outer.attr.value.endswith("_"):
            return True
        inner, outer = outer, source.parent(outer)
    if isinstance(outer, cst.Arg):
        return outer.keyword is not None and outer.keyword.value == "out"
    is_added_to = isinstance(outer, cst.AugAssign) and outer.target is inner
    return isinstance(outer, cst.AssignTarget) or is_added_to


def _is_on_card(source: Source, name: str, deep: int = 3) -> bool:
    """Whether what is assigned to a name lies on the card, as far as its code says so."""
    for assign in source.find(cst.Assign):
        if source.code(assign.targets[0].target) != name or not deep:
            continue
        others = source.names_in(assign.value) - {name}
        if ON_CARD.search(source.code(assign.value)):
            return True
        if any(_is_on_card(source, other, deep - 1) for other in others):
            return True
    return False
