"""Finds the lines of a program that compute the tensors through which the next backward pass goes.

They belong to the running step, also those in loops: the tensors that a loop keeps for this backward
pass are freed by it, so they are no growth from step to step. In the terms of Python's grammar, a
*suite* is a block of statements.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import os
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from .cells import place
from .keeping_lines import ADDING, lines_of
from .own_files import is_own, running_frames

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SUITES = ("body", "orelse", "finalbody")
"""The fields in which statements have suites, except handlers of try and cases of match."""


class PartOfStep(NamedTuple):
    """A backward pass and the lines that belong to it. ``backward``: the line of its call.
    ``lines``: the lines that compute the tensors for it, and the lines of the call itself.
    ``loops``: those of ``lines`` that are in loops.
    """

    backward: int
    lines: tuple[int, ...]
    loops: tuple[int, ...]


def running_part_of_step() -> dict[str, Any]:
    """The part of a step that runs now: a dictionary with the fields of PartOfStep, lines written
    as "train.py:12 step". If several running functions have a part of a step, the innermost counts.
    Empty where no backward pass follows.

    Where a library such as a trainer runs the step, the function of the program that it calls
    belongs to the step as a whole: ``lines`` are then all lines of that function.
    """
    called: types.CodeType | None = (
        None  # the outermost of the program's functions passed so far
    )
    for frame in running_frames():
        code = frame.f_code
        part = _part_that_runs(frame)
        if is_own(code.co_filename):
            called = code
        if part is None or called is None:
            # or a library's step that runs no function of the program
            continue
        lines = part.lines
        if called is not code:  # a library runs the step
            lines = tuple(line for _, line in dis.findlinestarts(called) if line)
        return {
            "backward": _place(code, part.backward),
            "lines": [_place(called, line) for line in lines],
            "loops": [_place(code, line) for line in part.loops],
        }
    return {}


def _part_that_runs(frame: types.FrameType) -> PartOfStep | None:
    """The part of a step that runs in a function, by its source; None where the function calls no
    backward pass, and in torch, which runs backward passes but no steps.
    """
    code = frame.f_code
    is_torch = os.sep + "torch" + os.sep in code.co_filename
    if is_torch or not any(map(_is_backward, code.co_names)):
        return None
    return part_of_step("".join(linecache.getlines(code.co_filename)), frame.f_lineno)


def _is_backward(name: str) -> bool:
    """Whether a function of that name runs a backward pass: backward, manual_backward,
    autograd.grad.
    """
    return "backward" in name or name == "grad"


def _place(code: types.CodeType, line: int) -> str:
    """A line of a function, as "train.py:12 step"."""
    return f"{place(code.co_filename, line)} {code.co_name}"


def part_of_step(source: str, line: int) -> PartOfStep | None:
    """The part of a step that runs at a line. That is so if the line itself calls a backward pass,
    or if one follows in the same pass of the same loop and goes through what the line computes.
    None elsewhere, and where the source is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    for suite, running in _suites_around(tree, line):
        for number, statement in enumerate(suite[running:], running):
            # From the running statement on: the first backward pass that the line belongs to.
            for call in _backward_calls(statement):
                makers = _makers(suite[:number], _read_in(call))
                runs_now = number == running and line in lines_of(call)
                if runs_now or suite[running] in makers:
                    return PartOfStep(
                        backward=call.lineno,
                        lines=_lines_in(*makers, call),
                        loops=_lines_in(*_loops_in(makers)),
                    )
    return None


def _lines_in(*nodes: ast.stmt | ast.expr) -> tuple[int, ...]:
    """The lines of some nodes, each once and in order."""
    return tuple(sorted(set().union(*map(lines_of, nodes))))


def _loops_in(statements: list[ast.stmt]) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loops among some statements and inside them."""
    nodes = itertools.chain(*map(ast.walk, statements))
    return [node for node in nodes if isinstance(node, LOOPS)]


def _suites_around(tree: ast.Module, line: int) -> list[tuple[list[ast.stmt], int]]:
    """The suites around a line within its innermost function, the innermost suite first, as pairs
    of the suite and the index in it of the statement that has the line. Empty where no statement
    has it.
    """
    around: list[tuple[list[ast.stmt], int]] = []
    suites = [tree.body]
    while suites:
        suite = suites.pop(0)
        for number, statement in enumerate(suite):
            if line in lines_of(statement):
                around.insert(0, (suite, number))
                if isinstance(statement, FUNCTIONS):
                    around.clear()  # what is outside of the function is no part of it
                suites = _suites_of(statement)
                break
    return around


def _suites_of(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The suites of a compound statement; none for any other."""
    inside = [getattr(statement, name, None) for name in SUITES]
    parts = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
    return [suite for suite in inside if suite] + [part.body for part in parts]


def _backward_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """The calls of a backward pass in a statement, such as loss.backward(), fabric.backward(loss)
    and torch.autograd.grad(loss, x). None in a loop, whose passes are steps of their own.
    """
    if isinstance(statement, (*LOOPS, *FUNCTIONS)):
        return
    suites = _suites_of(statement)
    if suites:  # an if, a with, a try: what its suites call
        for inner in itertools.chain(*suites):
            yield from _backward_calls(inner)
        return
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if _is_backward(node.func.attr) and not _keeps_graph(node):
            yield node


def _keeps_graph(call: ast.Call) -> bool:
    """Whether a backward pass is called with create_graph=True or retain_graph=True. It keeps its
    graph because another backward pass follows, and so ends no step.
    """
    for word in call.keywords:
        is_true = isinstance(word.value, ast.Constant) and bool(word.value.value)
        if word.arg in ("create_graph", "retain_graph") and is_true:
            return True
    return False


def _makers(statements: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """Those of ``statements`` that compute the values of some names, or other values from which
    these are computed; the last statement first. Names are texts such as "loss" and "self.scale".
    """
    makers = []
    for statement in reversed(statements):
        bound = _bound_in(statement)
        if bound.isdisjoint(names):
            continue
        makers.append(statement)
        if isinstance(statement, ast.Assign):
            names = names - bound  # earlier values of these are replaced here
        names = names | _read_in(statement)
    return makers


def _bound_in(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, or to whose collections it adds."""
    bound = set()
    for node in ast.walk(statement):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            # x = 1, x[0] = 1, for x in y
            bound.add(_written(node))
            continue
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ADDING:  # such as losses.append(loss)
            bound.add(_written(node.func.value))
    return bound


def _read_in(node: ast.AST) -> set[str]:
    """The names and attributes that a node reads, such as "loss" and "self.scale"."""
    read = set()
    for part in ast.walk(node):
        if not isinstance(part, (ast.Name, ast.Attribute)):
            continue
        if isinstance(part.ctx, ast.Load):
            read.add(ast.unparse(part))
    return read


def _written(node: ast.AST) -> str:
    """The text of an expression without its keys: "losses" of losses[0]."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    return ast.unparse(node)
