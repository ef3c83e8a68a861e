"""Changes of a program that keeps tensors which nobody needs on the card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import libcst as cst

from helpers.fix.change import NOTHING, Change, Edit, Results
from helpers.fix.collected import changes_of_collections, last_entries, unread_entries
from helpers.fix.exceptions import exceptions_without_frames
from helpers.fix.graphs import changes_of_graphs, passes_without_gradients
from helpers.fix.hooks import hooks_removed
from helpers.fix.loads import state_on_the_cpu
from helpers.fix.program import Program
from helpers.fix.regions import is_without_gradients
from helpers.fix.second_order import gradients_without_cycles
from helpers.fix.shared import changes_of_shared
from helpers.fix.source import Source, called
from helpers.fix.stores import Store, is_number, stores_that_keep
from helpers.fix.unused import emptied_before_they_are_filled, results_used
from helpers.ground.units import show_bytes
from helpers.judge.program_facts import GrowerFacts

SCALAR = re.compile(
    r"(?:loss|metric|error|accuracy|score|reward|perplexity)(?:es|s)?$|^(?:acc|mse|psnr|nll|kl)$"
)
"""Names under which people keep one number."""
WORTH_A_TRY = 0.1
"""Of the memory that a program can use, what must be kept for that to be changed."""


def changes_of_what_is_kept(program: Program) -> Iterator[Change]:
    """Changes that let go of what the program keeps more of with each step, smallest first."""
    yield from hooks_removed(program)
    growth = program.facts.growth
    if growth is None or not growth.growers:
        return
    kept_bytes = sum(grower.kept_bytes for grower in growth.growers)
    if kept_bytes < WORTH_A_TRY * program.facts.usable_bytes:
        return
    growers = growth.growers[:3]
    stores = list(stores_that_keep(program, growers))
    yield from gradients_without_cycles(program)
    yield from exceptions_without_frames(program)
    yield from results_used(program, growers, stores)
    yield from emptied_before_they_are_filled(program, stores)
    yield from _circles_collected(program, growers)
    yield from changes_of_graphs(program, growth.growers)
    yield from _states_on_the_cpu(stores)
    yield from changes_of_shared(stores)
    yield from changes_of_collections(program, stores)
    may_have_graphs = program.trains or any(
        grower.through_graph or grower.with_graphs for grower in growers
    )
    are_tensors_alone = all(grower.tensors_alone for grower in growers)
    for ending in (".item()", ".clone()", ".detach()", ".detach().cpu()"):
        is_needed = may_have_graphs and not are_tensors_alone
        if is_needed or ending != ".detach()":  # without a graph it frees nothing
            yield from _kept_as(stores, ending, growers[0].bytes_per_step)
    yield from unread_entries(program, stores)
    yield from last_entries(program, stores)
    yield from _cleared_at_the_end(stores)
    yield from passes_without_gradients(program, growers)


def _circles_collected(program: Program, growers: Sequence[GrowerFacts]) -> Iterator[Change]:
    """Objects that refer to each other, collected in each turn of the loop that makes them."""
    in_circles = [grower for grower in growers if grower.in_circle]
    frames = [grower.line for grower in in_circles] + [grower.asked_at for grower in in_circles]
    for source, line in program.places(frames):
        for statement in source.statements_at(line):
            loops = [outer for outer in source.above(statement) if isinstance(outer, cst.For)]
            if not loops:
                continue
            collects = source.lines_after(loops[-1].body.body[-1], "gc.collect()")
            yield Change(
                title=f"Collect garbage at the end of each iteration ({source.place(loops[-1])})",
                results=Results.SAME,
                why="garbage is what nothing refers to any more",
                costs="the time of a collection in each iteration",
                edits=(*source.with_import("import gc"), collects),
            )


def _states_on_the_cpu(stores: Sequence[Store]) -> Iterator[Change]:
    """Copies of a model's state that are collected, in RAM."""
    for store in stores:
        for call in store.source.calls("deepcopy", below=store.value):
            yield from state_on_the_cpu(store.source, call)


def _tensors_in(source: Source, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The parts of a value that may be tensors, each to be changed by itself."""
    if isinstance(value, (cst.Tuple, cst.List)):
        parts = [element.value for element in value.elements]
    elif isinstance(value, cst.Dict):
        parts = [element.value for element in value.elements]
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.right, (cst.List, cst.Tuple)):
        parts = [value.right]
    elif isinstance(value, cst.Lambda):
        parts = [parameter.default for parameter in value.params.params if parameter.default]
    elif isinstance(value, (cst.GeneratorExp, cst.ListComp)):
        parts = [value.elt]
    elif isinstance(value, cst.DictComp):
        parts = [value.value]
    elif (
        isinstance(value, cst.Call)
        and called(value) in ("tuple", "list", "dict", "deque")
        and value.args
    ):
        parts = [value.args[0].value]
    elif isinstance(value, cst.Call) and called(value) == "partial":
        parts = [argument.value for argument in value.args[1:]]
    elif isinstance(value, cst.Call) and called(value)[:1].isupper():
        parts = [argument.value for argument in value.args]
    else:
        return [] if is_number(source, value) else [value]
    return [tensor for part in parts for tensor in _tensors_in(source, part)]


def _kept_as(stores: Sequence[Store], ending: str, step_bytes: int) -> Iterator[Change]:
    """Each store, and then all together, with that ending behind every tensor.

    ``step_bytes``: how much more the program keeps with each step.
    """
    changes = []
    for store in stores:
        edits = tuple(_with_ending(store, ending))
        if edits:
            changes.append(_change_of_ending(store, ending, edits, step_bytes))
    yield from changes
    if len(changes) > 1:
        joined = chain.from_iterable(change.edits for change in changes)
        yield Change(
            title=f"Append {ending} to everything that {stores[0].name} keeps",
            results=max((change.results for change in changes), key=list(Results).index),
            why=changes[0].why,
            costs=changes[0].costs,
            edits=tuple(dict.fromkeys(joined)),
            only_on_a_gpu=changes[0].only_on_a_gpu,
        )


def _with_ending(store: Store, ending: str) -> Iterator[Edit]:
    source = store.source
    value = store.value
    if isinstance(value, cst.Name) and value.value in _star_parameters(source, store.statement):
        if ending in (".detach()", ".detach().cpu()"):
            wanted = _shortest(source, store, ending)
            yield source.replaced(value, f"tuple(item{wanted} for item in {value.value})")
        return
    for tensor in _tensors_in(source, value):
        text = source.operand(tensor)
        if ending == ".item()" and not _is_one_number(tensor):
            continue
        if ending == ".clone()" and not isinstance(tensor, cst.Subscript):
            continue
        wanted = _shortest(source, store, ending, text)
        if wanted:
            yield source.replaced(tensor, text + wanted)


def _star_parameters(source: Source, node: cst.CSTNode) -> set[str]:
    """The name of the function's ``*arguments``."""
    function = source.around(node, cst.FunctionDef)
    star = function.params.star_arg if function else None
    return {star.name.value} if isinstance(star, cst.Param) else set()


def _is_one_number(value: cst.BaseExpression) -> bool:
    name = value.attr.value if isinstance(value, cst.Attribute) else getattr(value, "value", "")
    return isinstance(name, str) and bool(SCALAR.search(name.lower()))


def _shortest(source: Source, store: Store, ending: str, text: str = "") -> str:
    """What is still missing of an ending: without gradients nothing needs detaching."""
    detached = any(
        word in text for word in (".detach()", ".data", "deepcopy(")
    ) or is_without_gradients(source, store.statement)
    if ".cpu()" in text or ".item()" in text:
        return ""
    if detached and ending.startswith(".detach()"):
        return ending.removeprefix(".detach()")
    return ending


def _change_of_ending(
    store: Store, ending: str, edits: tuple[Edit, ...], step_bytes: int
) -> Change:
    results = Results.SAME
    costs = NOTHING
    if ending == ".item()":
        title = f"Keep numbers in {store.name} instead of tensors with their graphs"
        why = "the number is the tensor's value"
        costs = "this line waits for the GPU"
    elif ending == ".clone()":
        title = f"Keep copies in {store.name} instead of views of larger tensors"
        why = "a copy has the same values"
        costs = "the time and memory of a small copy"
    elif ending == ".detach()":
        title = f"Keep the tensors in {store.name} without their graphs"
        if store.is_sum:
            title = f"Keep {store.name} without its graph"
        why = "detach() keeps the values, and no gradient flows through these tensors"
    else:
        title = f"Keep the entries of {store.name} on the CPU"
        results = Results.ROUNDED
        why = (
            "the copies have the same values, but a sum over them may round differently on the CPU"
        )
        most = show_bytes(step_bytes)
        costs = f"RAM instead of GPU memory, up to {most} more each step, and a copy of each entry"
        if store.is_sum:
            title = f"Add {store.name} up on the CPU"
            costs = "this line waits for the GPU"
    return Change(
        title=f"{title} ({store.place})",
        results=results,
        why=why,
        costs=costs,
        edits=edits,
        only_on_a_gpu=ending.endswith(".cpu()"),
    )


HOOKS = (
    "on_validation_epoch_end",
    "on_test_epoch_end",
    "on_train_epoch_end",
    "on_predict_epoch_end",
)


def _cleared_at_the_end(stores: Sequence[Store]) -> Iterator[Change]:
    """What a step of Lightning collects is cleared where its epoch ends."""
    for store in stores:
        source = store.source
        owner = source.around(store.statement, cst.ClassDef)
        if owner is None or not store.name.startswith("self."):
            continue
        for method in source.find(cst.FunctionDef, owner):
            body = source.code(method)
            ends_an_epoch = method.name.value in HOOKS
            if ends_an_epoch and store.name in body and f"{store.name}.clear()" not in body:
                last = method.body.body[-1]
                yield Change(
                    title=f"Clear {store.name} at the end of each epoch ({source.place(last)})",
                    results=Results.OTHER,
                    why="results of earlier epochs no longer count, as was probably meant",
                    edits=(source.lines_after(last, f"{store.name}.clear()"),),
                )
