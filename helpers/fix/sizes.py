"""Changes that make numbers of the program smaller that say how much it does at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from helpers.fix.change import Change, Changes, Results, TextEdit
from helpers.fix.files import settings_in
from helpers.fix.program import Program
from helpers.fix.source import SourceFile, called

PORTIONS = re.compile(
    r"^(?:chunk|tile)(?:_?size)?$|^(?:eval|val|valid|test|infer|encode)_?(?:batch_?size|bs)$"
)
"""Names of how much of the same work is done at once: chunks and tiles, batches of an evaluation.
"""
BATCHES = re.compile(
    r"^(?:train_?)?(?:batch(?:_?size)?|bs|n_?envs|num_envs|n_rays)$|batch_size"
)
"""Names of how many samples a training step computes: also environments of reinforcement learning,
and rays of a neural radiance field.
"""
LENGTHS = re.compile(
    r"^(?:max_?|block_?|seq_?|context_?|ctx_?)(?:len(?:gth)?|size|seq_?len(?:gth)?|tokens|ctx)$"
    r"|^(?:seq|context)_?(?:len|length)$"
)
"""Names of how many tokens a sequence has at most."""
FACTORS = (2, 4, 8, 16, 32, 64)
"""By what numbers are divided, and into how many parts work is cut: most are powers of two."""
LEAST = 2
"""The least that a number becomes: with one sample or token many programs fail, as BatchNorm does.
"""


@dataclass(frozen=True)
class Number:
    """A whole number of the program, and its ``name`` there. ``edit`` takes it out of its file;
    None where it is the word of the command line at ``position``. ``title``: of a change, with a
    gap for the new number.
    """

    name: str
    value: int
    title: str
    edit: TextEdit | None = None
    position: int = 0


@dataclass(frozen=True)
class Kind:
    """A kind of number: the names that it has in programs, and what a smaller one does to the
    results, why, and at which cost.
    """

    names: re.Pattern[str]
    results: Results
    why: str
    costs: str


PORTION = Kind(
    PORTIONS, Results.ROUNDED, "the same work in smaller portions", "more GPU kernels"
)
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


def smaller_portions(program: Program) -> Changes:
    """Chunks, tiles and evaluation batches."""
    yield from _smaller(program, PORTION)


def smaller_batches(program: Program) -> Changes:
    """The batch, then the context."""
    yield from _smaller(program, BATCH)
    yield from _smaller(program, LENGTH)


def _smaller(program: Program, kind: Kind) -> Changes:
    """Each number of a kind made smaller, unless nothing would be left of it."""
    numbers = [number for number in _numbers(program) if kind.names.search(number.name)]
    for factor in factors(program):
        for number in numbers:
            smaller = number.value // factor
            if smaller < LEAST:
                continue
            change = Change(
                title=number.title.format(f"{smaller:,}"),
                results=kind.results,
                why=kind.why,
                costs=kind.costs,
            )
            if number.edit is not None:
                yield replace(change, edits=(replace(number.edit, text=str(smaller)),))
            else:
                yield replace(change, replaces={number.position: str(smaller)})


def factors(program: Program) -> list[int]:
    """By how much to divide: the smallest of FACTORS that is more than ``times_too_large``, and the
    next; one or none where FACTORS has no more.
    """
    return [factor for factor in FACTORS if factor > program.times_too_large][:2]


def _numbers(program: Program) -> Iterator[Number]:
    """Every whole number that has a name: in the sources, on the command line, in settings files."""
    idle: set[cst.CSTNode] = set()  # numbers in it change nothing
    for source in program.sources:
        idle.update(_idle(source, program))
    for source, node in program.find(cst.Integer):
        name = _name_of(source, node)
        if not name or idle.intersection(source.above(node)):
            continue
        number = node.evaluated_value
        # ``{{}}`` leaves the gap for the new number (Number.title).
        title = f"{name} = {{}} instead of {number:,} ({source.place(node)})"
        yield Number(name.lower(), number, title, source.replaced(node, ""))
    for at, word in enumerate(program.command[:-1]):
        value = program.command[at + 1]
        if word.startswith("--") and value.isdigit():
            name = word.lstrip("-").replace("-", "_")
            title = f"--{name} {{}} instead of {value}"
            yield Number(name, int(value), title, position=at + 1)
    for setting in settings_in(program):
        if setting.value.isdigit():
            title = f"{setting.key}: {{}} instead of {setting.value} ({setting.place})"
            edit = setting.with_value("")
            yield Number(setting.key.lower(), int(setting.value), title, edit)


def _idle(source: SourceFile, program: Program) -> Iterator[cst.CSTNode]:
    """Functions of a file that the program does not use: no source names them a second time, and no
    decorator registers them.
    """
    for function in source.module.body:
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            continue
        name = re.compile(rf"\b{function.name.value}\b")
        counts = [len(name.findall(other.content)) for other in program.sources]
        if sum(counts) == 1:  # its own definition
            yield function


def _name_of(source: SourceFile, node: cst.CSTNode) -> str:
    """The variable, parameter, keyword, key or option whose value a number is; empty for none."""
    for outer in source.above(node):
        if isinstance(outer, cst.Arg):
            return _name_of_argument(source, outer)
        if isinstance(outer, cst.Param):
            return outer.name.value
        if isinstance(outer, cst.AnnAssign):
            return source.code(outer.target).rpartition(".")[2]
        if isinstance(outer, cst.DictElement):
            return source.code(outer.key).strip("'\"")
        if isinstance(outer, cst.Assign):
            if outer.value is node:
                return source.target(outer).rpartition(".")[2]
            return _name_in_tuple(source, outer, node)
        # In any other expression, such as ``2 * width``, a number has no name.
        if not isinstance(outer, (cst.Tuple, cst.Element, cst.AssignTarget)):
            return ""
    return ""


def _name_of_argument(source: SourceFile, argument: cst.Arg) -> str:
    """The keyword of an argument; of the ``default`` of an option the option's name."""
    if argument.keyword is None:
        return ""
    if argument.keyword.value != "default":
        return argument.keyword.value
    call = source.around(argument, cst.Call)
    if call is None or called(call) not in ("add_argument", "option", "Option"):
        return ""
    return source.code(call.args[0].value).strip("'\"-").replace("-", "_")


def _name_in_tuple(source: SourceFile, assign: cst.Assign, node: cst.CSTNode) -> str:
    """The name at a number's position in ``B, T = 8, 1024``; empty where it has none."""
    target = assign.targets[0].target
    if not isinstance(assign.value, cst.Tuple) or not isinstance(target, cst.Tuple):
        return ""
    for name, element in zip(target.elements, assign.value.elements, strict=False):
        if element.value is node:
            return source.code(name.value)
    return ""
