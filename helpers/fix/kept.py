"""Changes of a program that keeps more tensors on the card with each step than it needs there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from helpers.fix.change import NOTHING, Change, Changes, Results, TextEdit
from helpers.fix.collected import changes_of_collections
from helpers.fix.exceptions import exceptions_without_frames
from helpers.fix.graphs import (
    changes_of_graphs,
    may_take_gradients,
    passes_without_gradients,
)
from helpers.fix.hooks import hooks_removed
from helpers.fix.loads import state_on_the_cpu
from helpers.fix.program import Program
from helpers.fix.regions import is_without_gradients
from helpers.fix.second_order import gradients_without_cycles
from helpers.fix.source import SourceFile, called
from helpers.fix.stores import StoreStatement, is_number, stores_that_keep
from helpers.ground.units import show_bytes
from helpers.judge.program_facts import GrowerFacts

SCALAR = re.compile(
    r"(?:loss|metric|error|accuracy|score|reward|perplexity)(?:es|s)?$|^(?:acc|mse|psnr|nll|kl)$"
)
"""Names under which programs keep one number; after _ they may end a longer one: total_loss."""
WORTH_A_TRY = 0.1
"""The share of the usable memory that must have been kept, so that letting go of it is tried. Our
choice: every try costs a rehearsal, also for a leak too small to have filled the card.
"""
MOST_GROWERS = 3
"""For how many of the growers it is searched what keeps them: those on lines of the program come
first, and of these the ones that keep the most with each step (growth.py).
"""


@dataclass(frozen=True)
class KeptEnding:
    """``text`` to write after each tensor that is kept, as a change. ``title`` has a gap for the
    ``name`` of what keeps it, ``costs`` one for the ``most`` that it keeps more with each step.
    """

    text: str
    title: str
    why: str
    results: Results = Results.SAME
    costs: str = NOTHING


NUMBER = KeptEnding(
    text=".item()",
    title="Keep numbers in {name} instead of tensors with their graphs",
    why="the number is the tensor's value",
    costs="this line waits for the GPU",
)
COPY = KeptEnding(
    text=".clone()",
    title="Keep copies in {name} instead of views of larger tensors",
    why="a copy has the same values",
    costs="the time and memory of a small copy",
)
WITHOUT_GRAPH = KeptEnding(
    text=".detach()",
    title="Keep {name} without graphs",
    why="detach() keeps the values, and no gradient flows through these tensors",
)
ON_THE_CPU = KeptEnding(
    text=".detach().cpu()",
    title="Keep {name} on the CPU",
    results=Results.ROUNDED,
    why="the copies have the same values, but a sum over them may round differently on the CPU",
    costs="RAM instead of GPU memory, up to {most} more each step, and a copy of each entry",
)


def changes_of_what_is_kept(program: Program) -> Changes:
    """Changes that let go of what the program keeps more of with each step, those that change the
    program least first. Hooks are looked for even where nothing was seen to grow; all else only
    where the growers keep enough (WORTH_A_TRY).
    """
    yield from hooks_removed(program)
    growth = program.facts.growth
    if growth is None or not growth.growers:
        return
    kept_bytes = sum(grower.kept_bytes for grower in growth.growers)
    if kept_bytes < WORTH_A_TRY * program.facts.usable_bytes:
        return
    growers = growth.growers[:MOST_GROWERS]
    stores = list(stores_that_keep(program, growers))
    yield from gradients_without_cycles(program)
    yield from exceptions_without_frames(program)
    yield from changes_of_graphs(program, growth.growers)
    for store in stores:
        for call in store.source.calls("deepcopy", below=store.value):
            yield from state_on_the_cpu(store.source, call)
    yield from changes_of_collections(program, stores)
    yield from _kept_otherwise(program, growers, stores)
    yield from passes_without_gradients(program, growers)


def _kept_otherwise(
    program: Program, growers: Sequence[GrowerFacts], stores: Sequence[StoreStatement]
) -> Changes:
    """The stored tensors as numbers, as copies, without graphs, or on the CPU."""
    have_graphs = any(grower.through_graph or grower.with_graphs for grower in growers)
    may_have_graphs = program.trains or have_graphs
    are_tensors_alone = all(grower.tensors_alone for grower in growers)
    most = show_bytes(growers[0].bytes_per_step)
    for ending in (NUMBER, COPY, WITHOUT_GRAPH, ON_THE_CPU):
        cuts_graph = ending is WITHOUT_GRAPH
        if cuts_graph and (are_tensors_alone or not may_have_graphs):
            continue  # there is no graph that it could free
        needs_proof = cuts_graph and may_take_gradients(program)
        for store in stores:
            change = _kept_as(store, ending, most)
            yield replace(change, only_if_measured=needs_proof)


def _kept_as(store: StoreStatement, ending: KeptEnding, most: str) -> Change:
    """What a statement stores, with an ending after every tensor that it suits; an empty change
    where it suits none. ``most``: how much more the program keeps with each step, in words.
    """
    return Change(
        title=f"{ending.title.format(name=store.name)} ({store.place})",
        results=ending.results,
        why=ending.why,
        costs=ending.costs.format(most=most),
        edits=tuple(_with_ending(store, ending)),
        only_on_a_gpu=ending is ON_THE_CPU,
    )


def _with_ending(store: StoreStatement, ending: KeptEnding) -> Iterator[TextEdit]:
    """The ending after each tensor of a store that it suits and that does not have it yet.

    Only what may be one number suits NUMBER, and only a part of a tensor, which keeps the whole,
    suits COPY.
    """
    source = store.source
    for tensor in _tensors_in(source, store.value):
        text = source.operand(tensor)
        missing = ending.text
        is_detached = re.search(r"\.detach\(\)|\.data\b|deepcopy\(", text)
        if is_detached or is_without_gradients(source, store.statement):
            missing = missing.removeprefix(".detach()")
        is_moved = ".cpu()" in text or ".item()" in text
        fits_number = ending is not NUMBER or _is_one_number(tensor)
        fits_copy = ending is not COPY or isinstance(tensor, cst.Subscript)
        if missing and fits_number and fits_copy and not is_moved:
            yield source.replaced(tensor, text + missing)


def _tensors_in(
    source: SourceFile, value: cst.BaseExpression
) -> list[cst.BaseExpression]:
    """The parts of a stored value that may be tensors: the entries of a collection, what a call
    puts into an object, else the value itself; numbers are left out.
    """
    parts: list[cst.BaseExpression]
    if isinstance(value, (cst.Tuple, cst.List, cst.Dict)):
        parts = [element.value for element in value.elements]
    elif isinstance(value, (cst.GeneratorExp, cst.ListComp)):
        parts = [value.elt]
    elif isinstance(value, cst.DictComp):
        parts = [value.value]
    elif isinstance(value, cst.Call) and _makes_an_object(value):
        parts = [argument.value for argument in value.args]
    elif is_number(source, value):
        return []
    else:
        return [value]
    tensors: list[cst.BaseExpression] = []
    for part in parts:
        tensors += _tensors_in(source, part)
    return tensors


def _makes_an_object(call: cst.Call) -> bool:
    """Whether a call puts its arguments into a collection, or into an object of a class."""
    is_class = called(call)[:1].isupper()
    return is_class or called(call) in ("tuple", "list", "dict", "deque")


def _is_one_number(value: cst.BaseExpression) -> bool:
    """Whether a variable or attribute has a name under which programs keep one number."""
    if isinstance(value, cst.Attribute):
        value = value.attr
    return isinstance(value, cst.Name) and bool(SCALAR.search(value.value.lower()))
