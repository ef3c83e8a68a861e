"""Numbers of the program that say how much is done at once, made smaller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from helpers.fix.change import Change, Results
from helpers.fix.program import Program
from helpers.fix.source import Source, called

PORTIONS = re.compile(
    r"^(?:chunk|tile)(?:_?size)?$|^(?:eval|val|valid|test|infer|encode)_?(?:batch_?size|bs)$"
)
"""Names of how much is computed at once, of work that is done in any case."""
BATCHES = re.compile(r"^(?:train_?)?(?:batch(?:_?size)?|bs|n_?envs|num_envs|n_rays)$|batch_size")
LENGTHS = re.compile(
    r"^(?:max_?|block_?|seq_?|context_?|ctx_?)(?:len(?:gth)?|size|seq_?len(?:gth)?|tokens|ctx)$"
    r"|^(?:seq|context)_?(?:len|length)$"
)
FACTORS = (2, 4, 8, 16, 32, 64)
LEAST = 2


@dataclass(frozen=True)
class Number:
    """A whole number of the program, by the name it has there."""

    source: Source
    node: cst.Integer
    name: str

    @property
    def value(self) -> int:
        return int(self.node.value.replace("_", ""))


@dataclass(frozen=True)
class Kind:
    """A kind of number: how it is called, and what comes of a smaller one."""

    names: re.Pattern[str]
    results: Results
    why: str
    costs: str


PORTION = Kind(PORTIONS, Results.ROUNDED, "the same work in smaller portions", "more GPU kernels")
BATCH = Kind(
    BATCHES,
    Results.OTHER,
    "each step computes with fewer samples",
    "more steps for as many samples",
)
LENGTH = Kind(
    LENGTHS,
    Results.OTHER,
    "the model no longer sees what lies beyond a shorter context",
    "texts are cut sooner",
)


def smaller_portions(program: Program) -> Iterator[Change]:
    """Chunks, tiles and evaluation batches."""
    yield from _smaller(program, PORTION)


def smaller_batches(program: Program) -> Iterator[Change]:
    """The batch, then the context, in the source or on the command line."""
    yield from _smaller(program, BATCH)
    yield from _smaller(program, LENGTH)


def _smaller(program: Program, kind: Kind) -> Iterator[Change]:
    for factor in factors(program):
        for number in _numbers(program):
            smaller = number.value // factor
            place = number.source.place(number.node)
            if kind.names.search(number.name):
                yield from change_to(
                    kind,
                    smaller,
                    title=f"{number.name} = {smaller:,} instead of {number.value:,} ({place})",
                    edits=(number.source.replaced(number.node, str(smaller)),),
                )
        for position, name, value in _arguments(program):
            smaller = value // factor
            if kind.names.search(name):
                title = f"--{name} {smaller} instead of {value}"
                replaces = {position: str(smaller)}
                yield from change_to(kind, smaller, title=title, replaces=replaces)


def change_to(kind: Kind, smaller: int, **how: Any) -> Iterator[Change]:
    """The change to a smaller number, unless nothing would be left of it."""
    if smaller >= LEAST:
        yield Change(results=kind.results, why=kind.why, costs=kind.costs, **how)


def factors(program: Program) -> list[int]:
    """By how much to divide: the least that may do, and the next."""
    return [factor for factor in FACTORS if factor > program.times_too_large][:2]


def _arguments(program: Program) -> Iterator[tuple[int, str, int]]:
    """Options of the command line with a whole number: its position, the name, the number."""
    for at, word in enumerate(program.command[:-1]):
        value = program.command[at + 1]
        if word.startswith("--") and value.isdigit():
            yield at + 1, word.lstrip("-").replace("-", "_"), int(value)


def _numbers(program: Program) -> Iterator[Number]:
    """Every whole number that has a name, but for those of functions that nobody calls."""
    idle = {function for source in program.sources for function in _idle(source, program)}
    for source, node in program.find(cst.Integer):
        name = _name_of(source, node)
        if name and not idle.intersection(source.above(node)):
            yield Number(source, node, name.lower())


def _idle(source: Source, program: Program) -> Iterator[cst.CSTNode]:
    """Functions of a file that are named nowhere else and have no decorator that may call them."""
    for function in source.module.body:
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            continue
        named = re.compile(rf"\b{function.name.value}\b".encode())
        if sum(len(named.findall(other.text)) for other in program.sources) == 1:
            yield function


def _name_of(source: Source, node: cst.CSTNode) -> str:
    """The variable, the parameter, the keyword or the option that a number is given to."""
    for outer in source.above(node):
        if isinstance(outer, cst.Arg):
            if outer.keyword is None:
                return ""
            if outer.keyword.value != "default":
                return outer.keyword.value
            call = source.around(outer, cst.Call)
            is_option = call is not None and called(call) in ("add_argument", "option", "Option")
            first = source.code(call.args[0].value) if call and is_option else ""
            return first.strip("'\"-").replace("-", "_")
        if isinstance(outer, cst.Param):
            return outer.name.value
        if isinstance(outer, cst.AnnAssign):
            return source.code(outer.target).rpartition(".")[2]
        if isinstance(outer, cst.DictElement):
            return source.code(outer.key).strip("'\"")
        if isinstance(outer, cst.Assign):
            target = outer.targets[0].target
            return (
                source.code(target).rpartition(".")[2]
                if outer.value is node
                else _in_tuple(source, outer, node)
            )
        if not isinstance(outer, (cst.Tuple, cst.Element, cst.AssignTarget)):
            return ""
    return ""


def _in_tuple(source: Source, assign: cst.Assign, node: cst.CSTNode) -> str:
    """``B, T = 8, 1024``: the name at the number's position."""
    target = assign.targets[0].target
    if not (isinstance(assign.value, cst.Tuple) and isinstance(target, cst.Tuple)):
        return ""
    for name, element in zip(target.elements, assign.value.elements, strict=False):
        if element.value is node:
            return source.code(name.value)
    return ""
