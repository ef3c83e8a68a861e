"""Changes of a program that keeps tensors which nobody needs on the card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from helpers.fix.change import NOTHING, Change, Edit, Results
from helpers.fix.collected import changes_of_collections
from helpers.fix.loads import state_on_the_cpu
from helpers.fix.program import Program
from helpers.fix.regions import forward_regions, is_without_gradients, names_that_train
from helpers.fix.source import Source, called
from helpers.fix.stores import Store, last_name, stores_that_keep
from helpers.ground.units import show_bytes
from helpers.judge.program_facts import GrowerFacts

SCALAR = re.compile(
    r"(?:loss|metric|error|accuracy|score|reward|perplexity)(?:es|s)?$|^(?:acc|mse|psnr|nll|kl)$"
)
"""Names under which people keep one number."""
NOT_TENSORS = (cst.Integer, cst.Float, cst.SimpleString, cst.FormattedString, cst.Comparison)
NUMBERS = ("item", "len", "int", "float", "str", "tolist", "numpy", "time", "perf_counter")


def changes_of_what_is_kept(program: Program) -> Iterator[Change]:
    """Changes that let go of what the program keeps more of with each step, smallest first."""
    growth = program.facts.growth
    if growth is None:
        return
    growers = growth.growers[:3]
    stores = list(stores_that_keep(program, growers))
    graph = any(grower.through_graph for grower in growers)
    if graph:
        yield from _cut_carried_states(program)
        yield from _cut_graphs(program, growers)
    keep_graphs = [grower for grower in growers if grower.with_graphs]
    yield from _without_gradients(program, [grower.line for grower in keep_graphs])
    yield from _states_on_the_cpu(stores)
    yield from changes_of_collections(program, stores)
    are_tensors_alone = all(grower.tensors_alone for grower in growers)
    may_have_graphs = (graph or program.trains) and not are_tensors_alone
    for ending in (".item()", ".clone()", ".detach()", ".detach().cpu()"):
        if may_have_graphs or ending != ".detach()":  # without a graph it frees nothing
            yield from _kept_as(stores, ending, growers[0].bytes_per_step)
    yield from _cleared_at_the_end(stores)
    if not program.trains:
        yield from _without_gradients(program, [grower.asked_at for grower in growers])


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
    elif isinstance(value, cst.Call) and called(value)[:1].isupper():
        parts = [argument.value for argument in value.args]
    else:
        return [] if _is_number(source, value) else [value]
    return [tensor for part in parts for tensor in _tensors_in(source, part)]


def _is_number(source: Source, value: cst.BaseExpression) -> bool:
    """Whether a value is surely no tensor: a literal, a counter of a loop, a number taken out."""
    if isinstance(value, NOT_TENSORS):
        return True
    if isinstance(value, cst.Call):
        return called(value) in NUMBERS
    return isinstance(value, cst.Name) and value.value in _counters(source)


def _counters(source: Source) -> set[str]:
    """Names that loops count with."""
    names = set()
    loops: list[cst.For | cst.CompFor] = [*source.find(cst.For), *source.find(cst.CompFor)]
    for loop in loops:
        over = loop.iter
        if not isinstance(over, cst.Call):
            continue
        target: cst.BaseExpression = loop.target
        if called(over) == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        if called(over) in ("range", "enumerate", "trange") and isinstance(target, cst.Name):
            names.add(target.value)
    return names


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
        every = tuple(dict.fromkeys(edit for change in changes for edit in change.edits))
        yield Change(
            title=f"Append {ending} to everything that {stores[0].name} keeps",
            results=max((change.results for change in changes), key=list(Results).index),
            why=changes[0].why,
            costs=changes[0].costs,
            edits=every,
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
    detached = (
        ".detach()" in text or ".data" in text or is_without_gradients(source, store.statement)
    )
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


def _cut_carried_states(program: Program) -> Iterator[Change]:
    """Detach what a turn of a training loop leaves for the next one, behind its backward pass."""
    for region in forward_regions(program):
        for name in sorted(region.carried - {region.loss}):
            yield from _detached(region.source, region.backward, name)


def _detached(source: Source, statement: cst.CSTNode, name: str) -> Iterator[Change]:
    """Behind a statement, a tensor without its graph, or all parts of a tuple without theirs."""
    for value in (f"{name}.detach()", f"tuple(part.detach() for part in {name})"):
        line = source.lines_after(statement, f"{name} = {value}")
        yield _graph_change(source, statement, line)


def _cut_graphs(program: Program, growers: Sequence[GrowerFacts]) -> Iterator[Change]:
    """Detach the state that is handed from step to step with its graph."""
    for source, line in program.places([grower.line for grower in growers if grower.through_graph]):
        for statement in source.statements_at(line):
            for small in statement.body:
                if isinstance(small, cst.AugAssign):
                    text = source.operand(small.value)
                    cut = source.replaced(small.value, f"{text}.detach()")
                    yield _sum_without_its_graph(source, small, source.place(statement), cut)
                if not isinstance(small, cst.Assign):
                    continue
                target = small.targets[-1].target
                names = [source.code(target)]
                if isinstance(target, cst.Tuple):
                    names = [source.code(element.value) for element in target.elements]
                keepers = {last_name(grower.keeper) for grower in growers}
                for name in names:
                    if len(names) > 1 and last_name(name) not in keepers:
                        continue
                    yield from _detached(source, statement, name)


def _sum_without_its_graph(
    source: Source, statement: cst.AugAssign, place: str, cut: Edit
) -> Change:
    """What is added up loses its graph; where the sum goes backward, the measurement finds it."""
    name = source.code(statement.target)
    return Change(
        title=f"Keep {name} without its graph ({place})",
        results=Results.SAME,
        why=f"detach() keeps the values, and no gradient flows through {name}",
        edits=(cut,),
        only_if_measured=bool(source.calls("backward")),
    )


def _graph_change(source: Source, statement: cst.CSTNode, edit: Edit) -> Change:
    trains = bool(source.calls("backward"))
    results = Results.OTHER if trains else Results.SAME
    why = "no gradient is computed here, so none can be lost"
    if trains:
        why = "gradients no longer reach earlier steps; the values of this step stay the same"
    place = source.place(statement)
    return Change(
        f"Cut the graph that reaches back to the first step ({place})",
        results,
        why,
        edits=(edit,),
        cuts_graphs=trains,
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


def _without_gradients(program: Program, frames: Sequence[str]) -> Iterator[Change]:
    """no_grad for a function that computes no gradient, with those that it calls."""
    for source, line in program.places(frames):
        yield from without_gradients(program, source, line)


def without_gradients(program: Program, source: Source, line: int) -> Iterator[Change]:
    """The functions around a line through which no gradient flows, each under torch.no_grad()."""
    statements = [*source.statements_at(line), *source.functions_at(line)]
    if any(is_without_gradients(source, statement) for statement in statements):
        return
    training = names_that_train(program)
    for function in source.functions_at(line):
        name = function.name.value
        goes_backward = source.calls("backward", "step", "fit", "train", below=function)
        if name in training or name == "__init__" or goes_backward:
            continue
        first = function.decorators[0] if function.decorators else function
        yield Change(
            title=f"Compute {name} without gradients ({source.place(function)})",
            results=Results.SAME,
            why="no backward pass uses the values that it returns",
            edits=(source.lines_before(first, "@torch.no_grad()"),),
            only_if_measured=program.trains,
        )
