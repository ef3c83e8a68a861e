"""Expressions over all pairs or triples of rows, of a few rows at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from helpers.fix.change import Change, Results
from helpers.fix.expressions import Place, places
from helpers.fix.program import Program
from helpers.fix.recomputed import CHECKPOINT, RECOMPUTED

PARTS = 16
TO_ONE_NUMBER = ("sum", "mean")
OF_EACH_ROW = ("sum", "mean", "amax", "amin", "logsumexp", "argmax", "argmin", "norm", "squeeze")
"""Methods behind which the first dimension is still there, given another dimension."""


def broadcasts_in_parts(program: Program) -> Iterator[Change]:
    """``(a[:, None] - b[None]).abs().mean()`` and the like, for a part of the rows of ``a`` at a time;
    in a program that trains each part is computed again in the backward pass.
    """
    holding = program.holding_lines
    for source in program.sources:
        done: set[int] = set()
        for place in places(source):
            if (source.name, place.line) not in holding or place.line in done:
                continue
            text = _in_parts(place, recomputes=program.trains)
            if not text:
                continue
            done.add(place.line)
            yield Change(
                title=f"Compute {PARTS} parts of all pairs one by one ({source.place_of(place.line)})",
                results=Results.ROUNDED,
                why="the same terms in another order",
                costs=RECOMPUTED if program.trains else "more and smaller GPU kernels",
                edits=(
                    *(source.with_import(CHECKPOINT) if program.trains else ()),
                    source.in_place_of(place.node, text),
                ),
                only_if_measured=True,
            )


def _in_parts(place: Place, *, recomputes: bool) -> str:
    """The code that computes a place in parts; empty where it goes over no pairs of rows."""
    node = place.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    how = node.func.attr
    is_number = how in TO_ONE_NUMBER and not node.args and not node.keywords
    dimensions = [ast.unparse(argument) for argument in node.args]
    keeps_rows = how in OF_EACH_ROW and dimensions[:1] not in ([], ["0"])
    rows = _Rows()
    written = ast.get_source_segment(place.source.text.decode(), node) or ""
    inner = ast.unparse(rows.visit(ast.parse(f"({written})", mode="eval")))
    if not rows.names or not (is_number or keeps_rows):
        return ""
    names = list(rows.names)
    parts = ", ".join(f"{name}_part" for name in names)
    of_part = inner
    if recomputes:
        of_part = f"checkpoint(lambda {parts}: {inner}, {parts}, use_reentrant=False)"
    chunks = [f"{name}.chunk({PARTS})" for name in names]
    over = chunks[0] if len(chunks) == 1 else f"zip({', '.join(chunks)})"
    if keeps_rows:
        return f"torch.cat([{of_part} for {parts} in {over}])"
    if how == "mean":
        of_part = f"{of_part} * (len({names[0]}_part) / len({names[0]}))"
    return f"sum({of_part} for {parts} in {over})"


class _Rows(ast.NodeTransformer):
    """Names whose rows stand along the first dimension of all pairs, as ``a`` in ``a[:, None]``."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        index = ast.unparse(node.slice).strip("()")
        if isinstance(node.value, ast.Name) and index.startswith(":") and "None" in index:
            node.value = self._part(node.value)
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name() as name, attr="unsqueeze"),
                args=[ast.Constant(value=1 | 2)],
            ):
                return ast.Call(
                    ast.Attribute(self._part(name), "unsqueeze", ast.Load()), node.args, []
                )
        return self.generic_visit(node)

    def _part(self, name: ast.Name) -> ast.Name:
        self.names[name.id] = None
        return ast.Name(f"{name.id}_part", ast.Load())
