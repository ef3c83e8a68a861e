"""The answer under an out-of-memory: which line asked, who holds the card, and what to do next."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from ..allocator.under_torch.cells import place
from ..allocator.under_torch.own_files import is_own
from ..ground.units import parse_size, show_bytes
from .devices import DeviceUse, OtherProcess, devices_in_use, other_processes, question_of_others
from .holdings import Holder, Holdings, add_lines, find_holdings
from .runs import Growth, Runs
from .unnamed import add_unnamed

SIGNS = re.compile(
    r"out of memory|_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
)

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

"""Texts of torch's own errors: c10/cuda/CUDACachingAllocator.cpp, aten/src/ATen/cuda/Exceptions.cpp,
c10/core/impl/alloc_cpu.cpp, and the CUDA and HIP runtimes.
"""
REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? ?\w+)")
DEVICE = re.compile(r"\bGPU (\d+) has a total capacity")
LONGEST_CHAIN = 20
WORTH = 0.05
"""A share of what was asked for; less than that is not worth a step."""


@dataclass
class Failure:
    """An out-of-memory in a cell.

    ``place`` and ``code``: the line of the notebook that
    asked. ``requested``: bytes, None where the error does not say. ``device``: "cuda:0", "cpu", or
    empty where it is not known.
    """

    place: str
    code: str
    requested: int | None
    device: str
    holdings: Holdings
    use: DeviceUse | None = None
    others: list[OtherProcess] = field(default_factory=list)
    growth: Growth | None = None
    steps: list[str] = field(default_factory=list)


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory in an error or in what it came from; None where there is none."""
    for link in _chain(error):
        is_torchs = type(link).__name__ == "OutOfMemoryError"
        if isinstance(link, RuntimeError) and (is_torchs or SIGNS.search(_text(link))):
            return link
    return None


def explained(
    error: BaseException, cell: str, torch: ModuleType, shell: InteractiveShell, runs: Runs
) -> Failure:
    """Everything about an out-of-memory that this kernel knows. Takes some two seconds at most."""
    text = _text(error)
    question = None if _device(text) == "cpu" else question_of_others()
    where, code = _line_of(error)
    holdings = find_holdings(torch, shell)
    add_lines(holdings.holders)
    add_unnamed(torch, holdings)
    failure = Failure(
        place=where,
        code=code,
        requested=_requested(text),
        device=_device(text),
        holdings=holdings,
        growth=runs.growth(cell),
    )
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


def _requested(text: str) -> int | None:
    match = REQUESTED.search(text)
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


def _steps(failure: Failure) -> Iterator[str]:
    """What to do, the surest first."""
    yield from _step_of_leftovers(failure)
    yield from _steps_of_collections(failure)
    yield from _steps_of_others(failure)
    yield from _step_of_pieces(failure)
    yield _step_of_names(failure)


def _step_of_leftovers(failure: Failure) -> Iterator[str]:
    """Nobody needs outputs and circles; what the failed call has, the next one needs again."""
    leftovers = failure.holdings.of_kind("output", "circle", "error")
    size = sum(_bytes(holder, failure) for holder in leftovers)
    if size <= WORTH * (failure.requested or 0):
        return
    names = ", ".join(holder.name for holder in leftovers if _bytes(holder, failure))
    again = "Then run the cell again."
    if any(holder.kind == "error" and _bytes(holder, failure) for holder in leftovers):
        again = "The next try starts with that memory back."
    yield f"%vram free lets go of {show_bytes(size)} that no variable holds ({names}). {again}"


def _steps_of_collections(failure: Failure) -> Iterator[str]:
    entries = failure.growth.entries_each if failure.growth else {}
    for holder in failure.holdings.of_kind("variable", "module"):
        part = holder.parts[0]
        is_kept = part.graphs > 1 and part.tensors > 1 and part.collection
        if holder.name not in entries and not is_kept:
            continue
        if _bytes(holder, failure) <= WORTH * (failure.requested or 0):
            continue
        by = f" ({', '.join(part.lines)} adds to it)" if part.lines else ""
        graph = " with their graphs" if part.graphs else ""
        yield (
            f"{part.collection or part.name} keeps {part.tensors:,} tensors{graph}, "
            f"{show_bytes(part.bytes)}{by}: keep numbers (.item()) or copies on the CPU "
            "(.detach().cpu()), or only the last ones."
        )


def _steps_of_others(failure: Failure) -> Iterator[str]:
    for process in failure.others:
        size = process.bytes or 0
        if size > WORTH * (failure.requested or 0):
            yield (
                f"Process {process.pid} ({process.name}) has {show_bytes(size)} of the card: "
                "end it if it is yours, or use another card."
            )


def _step_of_pieces(failure: Failure) -> Iterator[str]:
    use = failure.use
    if use is not None and failure.requested and use.cached >= failure.requested:
        yield (
            f"torch has {show_bytes(use.cached)} in pieces, none of them large enough. Restart the "
            "kernel with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True set before torch uses "
            "the GPU."
        )


def _step_of_names(failure: Failure) -> str:
    largest = failure.holdings.of_kind("variable", "module")[:3]
    names = ", ".join(
        f"{holder.name} ({show_bytes(_bytes(holder, failure))})"
        for holder in largest
        if _bytes(holder, failure)
    )
    smaller = "make the batch or the model smaller"
    if not names:
        return f"No variable holds much: the cell itself needs more than there is; {smaller}."
    return (
        f"The largest variables are {names}. %vram free NAME deletes one that you no longer need; "
        f"if you need them all, {smaller}."
    )


def _bytes(holder: Holder, failure: Failure) -> int:
    """What a holder has on the device that ran out; on any where that is not known."""
    if failure.device:
        return holder.bytes.get(failure.device, 0)
    return holder.total
