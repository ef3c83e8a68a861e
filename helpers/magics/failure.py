"""The answer under an out-of-memory: which line asked, who holds the card, and what to do next."""

from __future__ import annotations

import gc
import linecache
import re
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from ..allocator.under_torch.cells import place
from ..allocator.under_torch.keepers import Keeper
from ..allocator.under_torch.own_files import is_own, only_line
from ..ground.units import parse_size, show_bytes
from .devices import (
    DeviceUse,
    OtherProcess,
    devices_in_use,
    other_processes,
    question_of_others,
)
from .holdings import Holdings, NamedTensors, add_lines, find_holdings
from .names import last_cell_naming, said
from .runs import NO_GROWTH, CellGrowth, CellRuns
from .unnamed import add_unnamed

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

SIGNS = re.compile(
    r"out of memory|_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
)
"""Texts of torch's own errors: c10/cuda/CUDACachingAllocator.cpp,
aten/src/ATen/cuda/Exceptions.cpp, c10/core/impl/alloc_cpu.cpp, and the CUDA and HIP runtimes.
"""
REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? ?\w+)")
ALLOCATED = re.compile(r"allocated memory (\d+(?:\.\d+)? ?\w+) is allocated by PyTorch")
UNALLOCATED = re.compile(
    r"and (\d+(?:\.\d+)? ?\w+) is reserved by PyTorch but unallocated"
)
DEVICE = re.compile(r"\bGPU (\d+) has a total capacity")
LONGEST_CHAIN = 20
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
"""Of the same parameter in one graph: a network may use its weights a few times in one pass."""
LARGEST_NUMBER = 16
"""Bytes of a complex number."""
LARGE = 0.25
"""A share of what all tensors take."""
WORTH = 0.05
"""A share of what was asked for; less than that is not worth a step."""


@dataclass
class CellFailure:
    """An out-of-memory in a cell.

    ``place`` and ``code``: the line of the notebook that asked. ``requested``: bytes, None where
    the error does not say. ``device``: "cuda:0", "cpu", or empty where it is not known.
    ``last_named``: the last cell with the name of each variable that
    this cell does not name. ``allocated``, ``in_pieces``: bytes of tensors and of what torch
    kept for later when it failed, by the error; by now the failed line has let go of its own.
    """

    place: str
    code: str
    requested: int | None
    device: str
    holdings: Holdings
    allocated: int | None = None
    in_pieces: int | None = None
    use: DeviceUse | None = None
    others: list[OtherProcess] = field(default_factory=list)
    growth: CellGrowth = NO_GROWTH
    last_named: dict[str, int] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory in an error or in what it came from; None where there is none."""
    for link in _chain(error):
        is_torchs = type(link).__name__ == "OutOfMemoryError"
        if isinstance(link, RuntimeError) and (is_torchs or SIGNS.search(_text(link))):
            return link
    return None


def explained(
    error: BaseException,
    cell: str,
    torch: ModuleType,
    shell: InteractiveShell,
    runs: CellRuns,
) -> CellFailure:
    """Everything about an out-of-memory that this kernel knows. Takes some two seconds at most."""
    text = _text(error)
    question = None if _device(text) == "cpu" else question_of_others()
    where, code = _line_of(error)
    holdings = find_holdings(torch, shell)
    add_lines(holdings.holders)
    add_unnamed(torch, holdings)
    failure = CellFailure(
        place=where,
        code=code,
        requested=_size(REQUESTED, text),
        allocated=_size(ALLOCATED, text),
        in_pieces=_size(UNALLOCATED, text),
        device=_device(text),
        holdings=holdings,
        growth=runs.growth(cell),
    )
    for holder in holdings.of_kind("variable"):
        last = last_cell_naming(holder.name, shell)
        if last < len(shell.user_ns.get("In", ())) - 1:
            failure.last_named[holder.name] = last
    if failure.device != "cpu":
        uses = devices_in_use(torch)
        failure.use = next((use for use in uses if use.name == failure.device), None)
        failure.others = other_processes(question)
    failure.steps = list(_steps(failure))
    return failure


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised from or while handling."""
    waiting = [error]
    seen: set[int] = set()
    while waiting and len(seen) < LONGEST_CHAIN:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [link.__context__, link.__cause__]


def _text(error: BaseException) -> str:
    """The text of an error of torch's: its first argument, no __str__ is called."""
    return next((part for part in error.args if isinstance(part, str)), "")


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return parse_size(match[1]) if match else None


def _device(text: str) -> str:
    if "DefaultCPUAllocator" in text:
        return "cpu"
    match = DEVICE.search(text)
    return f"cuda:{match[1]}" if match else ""


def _line_of(error: BaseException) -> tuple[str, str]:
    """The innermost line of the notebook's own code that an error came through, and its text."""
    calls = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_own(frame.f_code.co_filename)
    ]
    if not calls:
        return "", ""
    frame, line = calls[-1]
    path = frame.f_code.co_filename
    function = frame.f_code.co_name
    inside = "" if function == "<module>" else f", in {function}()"
    return place(path, line) + inside, linecache.getline(path, line).strip()


def _steps(failure: CellFailure) -> Iterator[str]:
    """What to do, the surest first."""
    yield from _step_of_leftovers(failure)
    kept = {}
    for holder in failure.holdings.of_kind(
        "variable", "module", "error", "thread", "widgets"
    ):
        step = _step_of_kept(holder, failure) or _step_of_holder(holder, failure)
        most = _bytes(holder, failure) + _most_in_graphs(holder, failure)
        if step and most > WORTH * (failure.requested or 0):
            kept[holder.name] = step
    yield from kept.values()
    yield from _step_of_graphs(failure, besides=kept)
    yield from _steps_of_others(failure)
    yield from _step_of_pieces(failure)
    yield from _step_of_names(failure, besides=kept)
    yield from _step_of_failed_call(failure)


def _step_of_leftovers(failure: CellFailure) -> Iterator[str]:
    """Nobody needs outputs and circles."""
    leftovers = failure.holdings.of_kind("output", "circle")
    size = sum(_bytes(holder, failure) for holder in leftovers)
    if size <= WORTH * (failure.requested or 0):
        return
    names = ", ".join(holder.name for holder in leftovers if _bytes(holder, failure))
    least = "at least " if failure.holdings.of_kind("graph") else ""
    again = "Then run the cell again."
    if failure.holdings.of_kind("circle") and not gc.isenabled():
        again = "Python's garbage collector is off: gc.enable() has it let go of such objects."
    yield (
        f"%vram free lets go of {least}{show_bytes(size)} that no variable holds ({names}). {again}"
    )


def _step_of_failed_call(failure: CellFailure) -> Iterator[str]:
    """What the failed call has, the next one needs again: it comes last."""
    errors = failure.holdings.of_kind("error")
    size = sum(_bytes(holder, failure) for holder in errors)
    if size > WORTH * (failure.requested or 0):
        yield (
            f"Before the next try, %vram free lets go of {show_bytes(size)} that variables of the "
            "failed call hold."
        )


def _step_of_holder(holder: NamedTensors, failure: CellFailure) -> str:
    """What to change where a name keeps results; empty where it does not."""
    if holder.joins and _is_large(holder.parts[0].bytes, failure):
        return _about_joined(holder)
    for part in holder.parts_worth_a_line:
        if part.name in holder.with_parameters:
            continue
        if part.kind in KEEPING_FRAMES:
            return _about_frames(holder, part, failure)
        if part.graphs and part.name.endswith(".grad"):
            return _about_gradients(holder, failure)
        if part.name in holder.of_optimizers and part.lines:
            return _about_optimizers(holder, part, failure)
        if part.collection and part.tensors > 1 and part.graphs > 1:
            return _about_collection(holder, part, failure)
        if (
            holder.uses >= FEWEST_USES
            and part.graphs == 1
            and part.lines
            and not part.collection
        ):
            return _about_sum(holder, part, failure)
    return _about_growth(holder, failure) if holder.parts else ""


def _about_growth(holder: NamedTensors, failure: CellFailure) -> str:
    """What to keep in a collection that grows: with each run, or by a line that adds to it."""
    part = holder.parts[0]
    if holder.name in failure.growth.entries_each:
        return _about_collection(holder, part, failure)
    is_collection = part.collection and part.tensors > 1 or part.kind == "function"
    is_added_to = (
        is_collection and part.lines and part.name not in holder.with_parameters
    )
    size = _bytes(holder, failure) if holder.is_mutable else part.bytes
    if is_added_to and _is_large(size, failure):
        return _about_collection(holder, part, failure)
    return ""


def _about_collection(holder: NamedTensors, part: Keeper, failure: CellFailure) -> str:
    name = part.collection or part.name
    tensors = part.tensors
    size = part.bytes
    if holder.is_mutable and len(holder.parts) > 1 and not holder.has_graph:
        name = holder.name
        tensors = holder.tensors
        size = _bytes(holder, failure)
    graph = " with their graphs" if part.graphs else ""
    most = _most_in_graphs(holder, failure) if part.graphs else 0
    if not most:
        size += _graph_bytes(holder, failure)
    more = f" and up to {show_bytes(most)} in those graphs" if most else ""
    now = f" {how_to_empty(holder)} empties it." if holder.kind == "module" else ""
    return (
        f"{name} keeps {tensors:,} tensors{graph}, {show_bytes(size)}{more}{_added_at(part)}: keep "
        "numbers (.item()) or copies on the CPU (.detach().cpu()), or only the last ones."
        f"{now}"
    )


def _about_joined(holder: NamedTensors) -> str:
    tensor = holder.parts[0]
    line = said(holder.joins[0])
    return (
        f"{tensor.name} takes {show_bytes(tensor.bytes)} and grows each time {line} runs, which "
        "needs the old and the new tensor at once: put the parts into a list on the CPU (.cpu()) "
        "and join them once, or make the tensor once in its final size and fill it."
    )


def _is_large(size: int, failure: CellFailure) -> bool:
    """Whether it is much of what all tensors took."""
    return size > LARGE * (failure.allocated or 0)


def _about_frames(holder: NamedTensors, part: Keeper, failure: CellFailure) -> str:
    """Exceptions and generators in a collection or an object: they keep variables of functions."""
    size = show_bytes(_bytes(holder, failure))
    return (
        f"{holder.name} keeps {KEEPING_FRAMES[part.kind]}, and they keep variables of their "
        f"functions ({part.name} in {said(part.where)}), {size}{_added_at(part)}: "
        f"{INSTEAD_OF_FRAMES[part.kind]}."
    )


def _about_gradients(holder: NamedTensors, failure: CellFailure) -> str:
    size = show_bytes(_graph_bytes(holder, failure))
    line = only_line(CREATES_GRAPHS)
    where = f" ({said(line)})" if line else ""
    return (
        f"Gradients of {holder.name} carry graphs, {size}, which backward(create_graph=True) "
        f"makes{where}: leave create_graph out, or call zero_grad() after each step."
    )


def _about_optimizers(holder: NamedTensors, part: Keeper, failure: CellFailure) -> str:
    return (
        f"{holder.name} keeps states of optimizers, {show_bytes(_bytes(holder, failure))}"
        f"{_added_at(part)}: keep only the optimizer that still trains."
    )


def _about_sum(holder: NamedTensors, part: Keeper, failure: CellFailure) -> str:
    """A tensor that is computed from its own previous value, and keeps the graph of every step."""
    size = show_bytes(_graph_bytes(holder, failure))
    most = _most_in_graphs(holder, failure)
    if most:
        size = f"up to {show_bytes(most)}"
    cut = f"use {part.name}.detach()"
    if part.bytes <= LARGEST_NUMBER:
        cut = "add the number alone, with .item()"
    return (
        f"{part.name} is computed from its own previous value ({said(part.lines[0])}), so it keeps "
        f"the graph of every step, {size}: at that line {cut}, unless a backward pass goes through "
        "all of them."
    )


def _added_at(part: Keeper) -> str:
    return f" (added to at {', '.join(map(said, part.lines))})" if part.lines else ""


def _step_of_kept(holder: NamedTensors, failure: CellFailure) -> str:
    """What to do about what does not look as if it kept tensors; empty where it is none of that."""
    size = show_bytes(_bytes(holder, failure))
    if holder.is_exception:
        return (
            f"{holder.name} is a kept exception, and keeps the variables of the functions that it "
            f"came through, {size}: keep str({holder.name}) instead. %vram free {holder.name} "
            "deletes it."
        )
    if holder.lacks_model:
        return (
            f"{holder.name} keeps {size} for parameters that no model has. If their model was "
            f"deleted or made anew, %vram free {holder.name} lets go of them."
        )
    if holder.kind == "thread":
        part = holder.parts[0]
        return (
            f"A function that runs in {holder.name} keeps {size} ({part.name} in "
            f"{said(part.where)}): end it, or have it let go of these tensors."
        )
    if holder.kind == "widgets":
        return (
            f"Widgets that were not closed keep {size} in their callbacks: call close() on each "
            "that you replace. ipywidgets.Widget.close_all() closes all."
        )
    return ""


def how_to_empty(holder: NamedTensors) -> str:
    """A statement that lets go of what a name of a module holds."""
    module = holder.name.rpartition(".")[0]
    end = ".clear()" if holder.is_mutable else " = None"
    return f"import {module}; {holder.name}{end}"


def _step_of_graphs(failure: CellFailure, besides: Collection[str]) -> Iterator[str]:
    """A forward pass that is too large for the card, ``besides`` names that have a step."""
    size = 0 if besides else _of_no_name(failure)
    for holder in failure.holdings.holders:
        if holder.name not in besides:
            size += _graph_bytes(holder, failure)
    if size <= max(LARGE * (failure.allocated or 0), WORTH * (failure.requested or 0)):
        return
    yield (
        f"{show_bytes(size)} is kept for a backward pass, and grows with the batch: make the batch "
        "smaller and accumulate gradients, use activation checkpointing "
        "(torch.utils.checkpoint), or torch.no_grad() where nothing is trained."
    )


def _steps_of_others(failure: CellFailure) -> Iterator[str]:
    for process in failure.others:
        size = process.bytes or 0
        if size > WORTH * (failure.requested or 0):
            yield (
                f"Process {process.pid} ({process.name}) has {show_bytes(size)} of the card: "
                "end it if it is yours, or use another card."
            )


def _step_of_pieces(failure: CellFailure) -> Iterator[str]:
    in_pieces = failure.in_pieces or 0
    if failure.requested and in_pieces >= failure.requested:
        yield (
            f"torch had {show_bytes(in_pieces)} in pieces, none of them large enough. Restart the "
            "kernel with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True set before torch uses "
            "the GPU."
        )


def _step_of_names(failure: CellFailure, besides: Collection[str]) -> Iterator[str]:
    """The largest variables, ``besides`` those that have a step."""
    variables = failure.holdings.of_kind("variable")
    largest = max((_bytes(holder, failure) for holder in variables), default=0)
    least = WORTH * max(largest, failure.requested or 0)
    others = [holder for holder in variables if holder.name not in besides]
    named = [
        _named(holder, failure)
        for holder in others[:3]
        if _bytes(holder, failure) > least
    ]
    smaller = "make the batch or the model smaller"
    if not named and not besides:
        yield (
            "No variable holds much, compared with what was asked for. If the cell itself needs "
            f"more than there is, {smaller}."
        )
    if not named:
        return
    are = "variables are" if len(named) > 1 else "variable is"
    which = "next largest" if besides else "largest"
    yield (
        f"The {which} {are} {', '.join(named)}. %vram free NAME deletes one that you no longer "
        f"need; if you need them all, {smaller}."
    )


def _named(holder: NamedTensors, failure: CellFailure) -> str:
    """A variable with its size, who else reaches it, and since when no cell has named it."""
    words = [show_bytes(_bytes(holder, failure))]
    if holder.other_variables:
        words.append(f"also reached from {' and '.join(holder.other_variables)}")
    last = failure.last_named.get(holder.name, 0)
    if last:
        words.append(f"no cell after cell {last} names it")
    return f"{holder.name} ({', '.join(words)})"


def _bytes(holder: NamedTensors, failure: CellFailure) -> int:
    """What a holder has on the device that ran out; on any where that is not known."""
    return _on_device(holder.bytes, failure)


def _graph_bytes(holder: NamedTensors, failure: CellFailure) -> int:
    return _on_device(holder.graph_bytes, failure)


def _most_in_graphs(holder: NamedTensors, failure: CellFailure) -> int:
    """What its graphs may keep where this torch does not show whose graph keeps what. A failed
    call has several variables, and nobody knows whose graph it is.
    """
    if holder.kind == "error":
        return _graph_bytes(holder, failure)
    return _of_no_name(failure) if holder.has_graph and not holder.graph_bytes else 0


def _of_no_name(failure: CellFailure) -> int:
    return sum(_bytes(holder, failure) for holder in failure.holdings.of_kind("graph"))


def _on_device(sizes: dict[str, int], failure: CellFailure) -> int:
    return sizes.get(failure.device, 0) if failure.device else sum(sizes.values())
