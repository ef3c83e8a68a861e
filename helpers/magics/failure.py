"""An out-of-memory in a cell: which line asked for how much, and who holds the card."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from ..allocator.under_torch.cells import place
from ..allocator.under_torch.own_files import is_own
from ..ground.units import parse_size
from .devices import (
    DeviceUse,
    OtherProcess,
    devices_in_use,
    other_processes,
    question_of_others,
)
from .holder import Holdings
from .holdings import add_lines, find_holdings
from .names import last_cell_naming
from .roots import linked_errors
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
LARGE_SHARE = 0.25
"""Of what all tensors took when it failed."""
SHARE_WORTH_A_STEP = 0.05
"""Of what was asked for; less than that is not worth a step."""


@dataclass
class CellFailure:
    """An out-of-memory in a cell.

    ``place`` and ``code``: the line of the notebook that asked. ``device``: "cuda:0", "cpu", or
    empty where it is not known. By the error, in bytes, 0 where it does not say: ``requested``, and
    when it failed ``allocated`` (tensors) and ``in_pieces`` (what torch kept for later); by now the
    failed line has let go of its own. ``last_named``: the last cell with the name of each variable
    that this cell does not name.
    """

    place: str
    code: str
    requested: int
    device: str
    holdings: Holdings
    allocated: int = 0
    in_pieces: int = 0
    use: DeviceUse | None = None
    others: list[OtherProcess] = field(default_factory=list)
    growth: CellGrowth = NO_GROWTH
    last_named: dict[str, int] = field(default_factory=dict)

    def on_device(self, sizes: Mapping[str, int]) -> int:
        """The bytes on the device that ran out, of sizes by device; on all where it is not known."""
        if not self.device:
            return sum(sizes.values())
        return sizes.get(self.device, 0)

    def is_worth_a_step(self, size: int) -> bool:
        """Whether it is enough, beside what was asked for, for a step of its own."""
        return size > SHARE_WORTH_A_STEP * self.requested

    def is_large(self, size: int) -> bool:
        """Whether it is much of what all tensors took."""
        return size > LARGE_SHARE * self.allocated


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory in an error or in what it came from; None where there is none."""
    for link in linked_errors(error):
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
    device = _device(text)
    is_on_gpu = device != "cpu"
    question = None
    if is_on_gpu:
        question = question_of_others()
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
        device=device,
        holdings=holdings,
        growth=runs.growth(cell),
    )
    for holder in holdings.of_kind("variable"):
        # The cell that failed is the last of In, whose number 0 is none.
        last = last_cell_naming(holder.name, shell)
        if last < len(shell.user_ns.get("In", ())) - 1:
            failure.last_named[holder.name] = last
    if is_on_gpu:
        uses = devices_in_use(torch)
        failure.use = next((use for use in uses if use.name == device), None)
        failure.others = other_processes(question)
    return failure


def _text(error: BaseException) -> str:
    """The text of an error of torch's: its first argument, no __str__ is called."""
    return next((part for part in error.args if isinstance(part, str)), "")


def _size(pattern: re.Pattern[str], text: str) -> int:
    """The bytes that a pattern finds in a text; 0 where it finds none."""
    match = pattern.search(text)
    return parse_size(match[1]) if match else 0


def _device(text: str) -> str:
    """The device that ran out, by the text of an error; empty where it does not say."""
    if "DefaultCPUAllocator" in text:
        return "cpu"
    match = DEVICE.search(text)
    return f"cuda:{match[1]}" if match else ""


def _line_of(error: BaseException) -> tuple[str, str]:
    """The innermost line of the notebook's own code that an error came through, and its text."""
    calls = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_own(frame.f_code.co_filename)
    ]
    if not calls:
        return "the cell", ""
    code, line = calls[-1]
    where = place(code.co_filename, line)
    if code.co_name != "<module>":
        where += f", in {code.co_name}()"
    return where, linecache.getline(code.co_filename, line).strip()
