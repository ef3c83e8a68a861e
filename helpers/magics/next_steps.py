"""What to do about an out-of-memory in a cell, the surest first."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterator

from ..allocator.under_torch.keepers import Keeper
from ..allocator.under_torch.own_files import only_line
from ..ground.units import show_bytes
from .failure import SHARE_WORTH_A_STEP, CellFailure
from .holder import Holder
from .names import in_a_sentence

# By the kind of a part: objects that keep the frames of functions, and what to do about them.
KEEPING_FRAMES = {
    "exception": "exceptions",
    "generator": "generators that have not ended",
}
INSTEAD_OF_FRAMES = {
    "exception": "keep str(error) instead",
    "generator": "call close() on each that you no longer need",
}
CREATES_GRAPHS = re.compile(r"\bcreate_graph\s*=\s*True")
FEWEST_USES = 5
"""Uses of one parameter in one graph that show several steps: a network may use shared weights a
few times in one pass.
"""
LARGEST_NUMBER = 16
"""Bytes of a complex number in double precision: a tensor of at most that size is a
single number.
"""
MOST_NAMED = 3
"""Variables that one sentence names."""


def next_steps(failure: CellFailure) -> Iterator[str]:
    """What to do, one text for each step, the surest first; none where nothing is known to help."""
    yield from _let_go_of_leftovers(failure)
    steps = {}  # by the name of the holder; Holdings has the holders most bytes first
    with_a_name = ("variable", "module", "error", "thread", "widgets")
    for holder in failure.holdings.of_kind(*with_a_name):
        most_bytes = failure.on_device(holder.bytes)
        if holder.kind != "error":  # an error's bytes include those of its graphs
            most_bytes += _most_in_graphs(holder, failure)
        step = step_of_holder(holder, failure)
        if step and failure.is_worth_a_step(most_bytes):
            steps[holder.name] = step
    yield from steps.values()
    yield from _shrink_the_pass(failure, besides=steps)
    yield from _end_others(failure)
    yield from _join_the_pieces(failure)
    yield from _delete_variables(failure, besides=steps)
    yield from _let_go_of_failed_call(failure)


def step_of_holder(holder: Holder, failure: CellFailure) -> str:
    """What to change about a name that keeps more than it needs; empty where nothing shows that."""
    size = failure.on_device(holder.bytes)
    if holder.is_exception:
        return (
            f"{holder.name} is a kept exception, and keeps the variables of the functions that it "
            f"came through, {show_bytes(size)}: keep str({holder.name}) instead. %vram free "
            f"{holder.name} deletes it."
        )
    if holder.lacks_model:
        return (
            f"{holder.name} keeps {show_bytes(size)} for parameters that no model has. If their "
            f"model was deleted or made anew, %vram free {holder.name} lets go of them."
        )
    if holder.kind == "thread":
        part = holder.parts[0]
        return (
            f"A function that runs in {holder.name} keeps {show_bytes(size)} ({part.name} in "
            f"{in_a_sentence(part.where)}): end it, or have it let go of these tensors."
        )
    if holder.kind == "widgets":
        return (
            f"Widgets that were not closed keep {show_bytes(size)} in their callbacks: call close() "
            "on each that you replace. ipywidgets.Widget.close_all() closes all."
        )
    if holder.joining_lines and failure.is_large(holder.parts[0].bytes):
        return _about_joined(holder)
    for part in holder.parts_worth_a_line:
        step = _step_of_part(holder, part, failure)
        if step:
            return step
    if holder.parts and _grows(holder, failure):
        return _about_collection(holder, holder.parts[0], failure)
    return ""


def _step_of_part(holder: Holder, part: Keeper, failure: CellFailure) -> str:
    """What to change about a part that keeps frames, gradients with graphs, states of optimizers, a
    collection of results, or a running sum; empty for other parts.
    """
    if part.name in holder.with_parameters:  # a model needs its parameters
        return ""
    if part.kind in KEEPING_FRAMES:
        return _about_frames(holder, part, failure)
    if part.graphs and part.name.endswith(".grad"):
        return _about_gradients(holder, failure)
    if part.name in holder.of_optimizers and part.lines:
        return _about_optimizers(holder, part, failure)
    if part.collection and part.tensors > 1 and part.graphs > 1:
        return _about_collection(holder, part, failure)
    is_sum = part.graphs == 1 and part.lines and not part.collection
    if is_sum and holder.parameter_uses >= FEWEST_USES:
        return _about_sum(holder, part, failure)
    return ""


def _grows(holder: Holder, failure: CellFailure) -> bool:
    """Whether a collection grows: it got longer with each run of the cell, or a known line adds to
    it and it is large.
    """
    if holder.name in failure.growth.entries_each:
        return True
    part = holder.parts[0]
    is_collection = part.collection and part.tensors > 1
    # The variables of a function (of a closure, or its defaults) may grow as a collection does.
    if not is_collection and part.kind != "function":
        return False
    if not part.lines or part.name in holder.with_parameters:
        return False
    size = part.bytes
    # A list or a dict grows as a whole; of an object only the part that has a line.
    if holder.is_mutable:
        size = failure.on_device(holder.bytes)
    return failure.is_large(size)


def _about_collection(holder: Holder, part: Keeper, failure: CellFailure) -> str:
    """The step for a collection that keeps results of each step; ``part`` is its largest, or one
    with graphs.
    """
    name = part.name
    if part.collection:
        name = part.collection
    tensors = f"{part.tensors:,} tensors"
    size = part.bytes
    # Of a collection with several kinds of entries, such as a dict of lists, all are counted.
    if holder.is_mutable and len(holder.parts) > 1 and not holder.has_graph:
        name = holder.name
        tensors = f"{holder.tensors:,} tensors"
        size = failure.on_device(holder.bytes)
    most_in_graphs = 0
    if part.graphs:
        tensors += " with their graphs"
        most_in_graphs = _most_in_graphs(holder, failure)
    if most_in_graphs:
        in_graphs = show_bytes(most_in_graphs)
        sizes = f"{show_bytes(size)} and up to {in_graphs} in those graphs"
    else:
        sizes = show_bytes(size + failure.on_device(holder.graph_bytes))
    step = (
        f"{name} keeps {tensors}, {sizes}{_added_at(part)}: keep "
        "numbers (.item()) or copies on the CPU (.detach().cpu()), or only the last ones."
    )
    if holder.kind == "module":
        step += f" {how_to_empty(holder)} empties it."
    return step


def _about_joined(holder: Holder) -> str:
    """A tensor that is joined with new ones in each step (torch.cat)."""
    tensor = holder.parts[0]
    line = in_a_sentence(holder.joining_lines[0])
    return (
        f"{tensor.name} takes {show_bytes(tensor.bytes)} and grows each time {line} runs, which "
        "needs the old and the new tensor at once: put the parts into a list on the CPU (.cpu()) "
        "and join them once, or make the tensor once in its final size and fill it."
    )


def _about_frames(holder: Holder, part: Keeper, failure: CellFailure) -> str:
    """Exceptions and generators in a collection or an object: they keep variables of functions."""
    size = show_bytes(failure.on_device(holder.bytes))
    return (
        f"{holder.name} keeps {KEEPING_FRAMES[part.kind]}, and they keep variables of their "
        f"functions ({part.name} in {in_a_sentence(part.where)}), {size}{_added_at(part)}: "
        f"{INSTEAD_OF_FRAMES[part.kind]}."
    )


def _about_gradients(holder: Holder, failure: CellFailure) -> str:
    """Gradients that have graphs of their own."""
    size = show_bytes(failure.on_device(holder.graph_bytes))
    where = ""
    line = only_line(CREATES_GRAPHS)
    if line:
        where = f" ({in_a_sentence(line)})"
    return (
        f"Gradients of {holder.name} carry graphs, {size}, which backward(create_graph=True) "
        f"makes{where}: leave create_graph out, or call zero_grad() after each step."
    )


def _about_optimizers(holder: Holder, part: Keeper, failure: CellFailure) -> str:
    """A collection of optimizers, each with its states."""
    size = show_bytes(failure.on_device(holder.bytes))
    return (
        f"{holder.name} keeps states of optimizers, {size}{_added_at(part)}: keep only the "
        "optimizer that still trains."
    )


def _about_sum(holder: Holder, part: Keeper, failure: CellFailure) -> str:
    """A tensor that is computed from its own previous value, and keeps the graph of every step."""
    size = show_bytes(failure.on_device(holder.graph_bytes))
    most = _most_in_graphs(holder, failure)
    if most:
        size = f"up to {show_bytes(most)}"
    without_graph = f"use {part.name}.detach()"
    if part.bytes <= LARGEST_NUMBER:
        without_graph = "add the number alone, with .item()"
    return (
        f"{part.name} is computed from its own previous value "
        f"({in_a_sentence(part.lines[0])}), so it keeps the graph of every step, {size}: "
        f"at that line {without_graph}, unless a backward pass goes through all of them."
    )


def _added_at(part: Keeper) -> str:
    """The lines that add to a part, in brackets; empty where they are not known."""
    if not part.lines:
        return ""
    return f" (added to at {', '.join(map(in_a_sentence, part.lines))})"


def how_to_empty(holder: Holder) -> str:
    """A statement that lets go of what a module's variable, ``module.variable``, holds: clear() for
    a collection, None in its place for any other value.
    """
    module, _, _ = holder.name.rpartition(".")
    if holder.is_mutable:
        return f"import {module}; {holder.name}.clear()"
    return f"import {module}; {holder.name} = None"


def _let_go_of_leftovers(failure: CellFailure) -> Iterator[str]:
    """The step that lets go of outputs of cells and circles of objects, which nobody needs."""
    leftovers = failure.holdings.of_kind("output", "circle")
    sizes = {holder.name: failure.on_device(holder.bytes) for holder in leftovers}
    size = sum(sizes.values())
    if not failure.is_worth_a_step(size):
        return
    names = ", ".join(name for name, size in sizes.items() if size)
    amount = show_bytes(size)
    if failure.holdings.of_kind("graph"):  # some of these may be of an output
        amount = f"at least {amount}"
    again = "Then run the cell again."
    if failure.holdings.of_kind("circle") and not gc.isenabled():
        again = "Python's garbage collector is off: gc.enable() has it let go of such objects."
    yield f"%vram free lets go of {amount} that no variable holds ({names}). {again}"


def _shrink_the_pass(failure: CellFailure, besides: Collection[str]) -> Iterator[str]:
    """The step for a forward pass that is too large for the card.

    ``besides``: the names that have a step of their own; their graphs are not counted.
    """
    size = 0
    # Where a name has a step, the graphs of unknown owner may be those that its step frees.
    if not besides:
        size = _in_graphs_of_unknown_owner(failure)
    for holder in failure.holdings.holders:
        if holder.name not in besides:
            size += failure.on_device(holder.graph_bytes)
    if failure.is_large(size) and failure.is_worth_a_step(size):
        yield (
            f"{show_bytes(size)} is kept for a backward pass, and grows with the batch: make the "
            "batch smaller and accumulate gradients, use activation checkpointing "
            "(torch.utils.checkpoint), or torch.no_grad() where nothing is trained."
        )


def _end_others(failure: CellFailure) -> Iterator[str]:
    """A step for each other process with much of the card."""
    for process in failure.others:
        if process.bytes is not None and failure.is_worth_a_step(process.bytes):
            yield (
                f"Process {process.pid} ({process.name}) has {show_bytes(process.bytes)} of the "
                "card: end it if it is yours, or use another card."
            )


def _join_the_pieces(failure: CellFailure) -> Iterator[str]:
    """The step against fragmentation: torch kept enough, but in pieces that are too small."""
    if failure.requested and failure.in_pieces >= failure.requested:
        yield (
            f"torch had {show_bytes(failure.in_pieces)} in pieces, none of them large enough. "
            "Restart the kernel with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True set before "
            "torch uses the GPU."
        )


def _delete_variables(failure: CellFailure, besides: Collection[str]) -> Iterator[str]:
    """The step that names at most MOST_NAMED variables to delete: the first of Holdings, which has
    the variables of most bytes first.

    ``besides``: the names that have a step of their own, and are not named again. Where no variable
    is large enough and no name has a step, the step says so; where only a name has one, there is no
    step here.
    """
    variables = failure.holdings.of_kind("variable")
    sizes = {holder.name: failure.on_device(holder.bytes) for holder in variables}
    least = SHARE_WORTH_A_STEP * max([*sizes.values(), failure.requested])
    others = [holder for holder in variables if holder.name not in besides]
    to_delete = [
        _with_details(holder, failure)
        for holder in others[:MOST_NAMED]
        if sizes[holder.name] > least
    ]
    last_resort = "make the batch or the model smaller"
    if not to_delete:
        if not besides:
            yield (
                "No variable holds much, compared with what was asked for. If the cell itself needs "
                f"more than there is, {last_resort}."
            )
        return
    which = "largest"
    if besides:
        which = "next largest"
    subject = f"The {which} variable is"
    if len(to_delete) > 1:
        subject = f"The {which} variables are"
    yield (
        f"{subject} {', '.join(to_delete)}. %vram free NAME deletes one that you no longer "
        f"need; if you need them all, {last_resort}."
    )


def _with_details(holder: Holder, failure: CellFailure) -> str:
    """A variable with its size, who else reaches it, and since when no cell has named it."""
    words = [show_bytes(failure.on_device(holder.bytes))]
    if holder.other_variables:
        words.append(f"also reached from {' and '.join(holder.other_variables)}")
    last = failure.last_named.get(holder.name, 0)
    if last:  # 0: this cell names it, or none does, such as a variable of %run
        words.append(f"no cell after cell {last} names it")
    return f"{holder.name} ({', '.join(words)})"


def _let_go_of_failed_call(failure: CellFailure) -> Iterator[str]:
    """The step that frees the variables of the failed call. It is the last one: their memory is
    what the next try needs again, so to free it does not make the cell fit.
    """
    errors = failure.holdings.of_kind("error")
    size = sum(failure.on_device(holder.bytes) for holder in errors)
    if failure.is_worth_a_step(size):
        yield (
            f"Before the next try, %vram free lets go of {show_bytes(size)} that variables of the "
            "failed call hold."
        )


def _most_in_graphs(holder: Holder, failure: CellFailure) -> int:
    """The most bytes that the graphs of a holder may keep beyond those that are counted for it.

    Torch before 2.13 does not show which graph keeps a tensor, so any holder with a graph may keep
    all tensors of graphs without an owner. 0 for a holder without a graph, and where torch shows
    the owners: then the holder has its ``graph_bytes``. Of an error these are returned.
    """
    if holder.kind == "error":
        return failure.on_device(holder.graph_bytes)
    if not holder.has_graph or holder.graph_bytes:
        return 0
    return _in_graphs_of_unknown_owner(failure)


def _in_graphs_of_unknown_owner(failure: CellFailure) -> int:
    """Bytes that only graphs keep, where torch does not show whose graphs they are."""
    graphs = failure.holdings.of_kind("graph")
    return sum(failure.on_device(holder.bytes) for holder in graphs)
