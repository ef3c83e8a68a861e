"""Attention that is written out with its scores, as one call that never makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from helpers.fix.change import Change, Results
from helpers.fix.program import Program
from helpers.fix.source import Source

TRANSPOSED = r"\.transpose\((?:-2, ?-1|-1, ?-2)\)|\.mT|\.permute\(0, ?1, ?3, ?2\)"
FACTOR = r"[\w.]+(?:\([^()]*(?:\([^()]*\))?\))?"
"""One name, number or call, which the scores are multiplied with or divided by."""
SCORES = re.compile(
    rf"(?P<query>[\w.]+) @ (?P<key>[\w.]+?)(?:{TRANSPOSED})(?:(?P<how> \* | / )(?P<scale>{FACTOR}))?$"
    rf"|torch\.matmul\((?P<query2>[\w.]+), (?P<key2>[\w.]+?)(?:{TRANSPOSED})\)(?:(?P<how2> \* | / )(?P<scale2>{FACTOR}))?$",
)
FILLED = r"{name}\.masked_fill\((?P<mask>.+), (?:float\(['\"]-inf['\"]\)|-?torch\.inf|-math\.inf|-1e\d+|torch\.finfo\(.+\)\.min)\)$"
ADDED = r"{name} \+ (?P<bias>.+)$"
WEIGHTS = r"(?:torch\.|F\.|nn\.functional\.)?softmax\({name}, (?:dim=)?-1\)$|{name}\.softmax\((?:dim=)?-1\)$"


def changes_of_attention(program: Program) -> Iterator[Change]:
    """Each attention that is written out, in every function of the sources."""
    for source, function in program.find(cst.FunctionDef):
        for block in source.find(cst.IndentedBlock, function):
            change = _change(source, block)
            if change is not None:
                yield change


class _Attention:
    """What is seen of an attention so far, statement by statement."""

    def __init__(self, query: str, key: str, scale: str, name: str, first: cst.CSTNode) -> None:
        self.query = query
        self.key = key
        self.scale = scale
        self.mask = ""
        self.name = name
        self.first = first
        self.is_softmax = False


def _change(source: Source, block: cst.IndentedBlock) -> Change | None:
    """The attention of a block; None where it has none, or another."""
    seen: _Attention | None = None
    for statement in block.body:
        name, value = _assigned(source, statement)
        if not name:
            if seen is not None:
                return None
            continue
        scores = SCORES.match(value)
        if seen is None and scores:
            seen = _attention(scores, name, statement)
            continue
        if seen is None:
            continue
        ends = _weighted(value, seen)
        if ends:
            return _one_call(source, seen, statement, name, ends)
        if not _goes_on(seen, name, value):
            return None  # what stands in between would be lost
    return None


def _assigned(source: Source, statement: cst.CSTNode) -> tuple[str, str]:
    """The name and the value of a plain assignment; nothing for another statement."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return "", ""
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return "", ""
    target = assign.targets[0].target
    if not isinstance(target, cst.Name):
        return "", ""
    value = source.code(assign.value)
    if value[:1] == "(" and value[-1:] == ")" and value.count("(") == 1:
        value = value[1:-1]
    return target.value, value


def _attention(scores: re.Match[str], name: str, statement: cst.CSTNode) -> _Attention:
    groups = scores.groupdict()
    how = groups["how"] or groups["how2"]
    scale = groups["scale"] or groups["scale2"] or "1.0"
    if how and "/" in how:
        scale = f"1.0 / {scale}"
    return _Attention(
        groups["query"] or groups["query2"], groups["key"] or groups["key2"], scale, name, statement
    )


def _goes_on(seen: _Attention, name: str, value: str) -> bool:
    """Take up a mask or the softmax; False for something else."""
    old = re.escape(seen.name)
    filled = re.match(FILLED.format(name=old), value)
    added = re.match(ADDED.format(name=old), value)
    if re.match(WEIGHTS.format(name=old), value):
        seen.is_softmax = True
    elif filled and not seen.mask:
        mask = filled["mask"]
        seen.mask = mask[1:] if re.fullmatch(r"~[\w.]+(\[.*\])?", mask) else f"~({mask})"
    elif added and not seen.mask:
        seen.mask = added["bias"]
    else:
        return False
    seen.name = name
    return True


def _weighted(value: str, seen: _Attention) -> str:
    """The values that the weights are multiplied with; empty where this is another statement."""
    old = re.escape(seen.name)
    softmax = WEIGHTS.format(name=old).replace("$", "")
    weights = old if seen.is_softmax else f"(?:{softmax})"
    match = re.match(rf"(?:{weights}) @ ([\w.]+)$|torch\.matmul\((?:{weights}), ([\w.]+)\)$", value)
    return (match[1] or match[2]) if match else ""


def _one_call(
    source: Source, seen: _Attention, last: cst.CSTNode, name: str, values: str
) -> Change:
    words = [seen.query, seen.key, values]
    if seen.mask:
        words.append(f"attn_mask={seen.mask}")
    words.append(f"scale={seen.scale}")
    has_short_name = "import torch.nn.functional as F" in source.text.decode()
    functional = "F" if has_short_name else "torch.nn.functional"
    line = f"{name} = {functional}.scaled_dot_product_attention({', '.join(words)})"
    place = source.place(seen.first)
    return Change(
        title=f"Compute attention without storing its matrix of scores ({place})",
        results=Results.ROUNDED,
        why="the same sums in another order",
        costs="nothing; it is faster",
        edits=(source.instead(seen.first, last, [line]),),
    )
