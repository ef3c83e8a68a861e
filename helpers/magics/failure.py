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
# Figures of torch's out-of-memory message, c10/cuda/CUDACachingAllocator.cpp: "Tried to allocate
# 2.00 GiB. GPU 0 has a total capacity of ... Of the allocated memory 21.00 GiB is allocated by
# PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated." The CPU's says "you tried to
# allocate 8000000 bytes" (c10/core/impl/alloc_cpu.cpp).
REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? ?\w+)")
ALLOCATED = re.compile(r"allocated memory (\d+(?:\.\d+)? ?\w+) is allocated by PyTorch")
UNALLOCATED = re.compile(
    r"and (\d+(?:\.\d+)? ?\w+) is reserved by PyTorch but unallocated"
)
DEVICE = re.compile(r"\bGPU (\d+) has a total capacity")
LARGE_SHARE = 0.25
"""A holder with this share of what all tensors took is worth changing before others."""
SHARE_WORTH_A_STEP = 0.05
"""A share of the request: letting go of less would not make it fit."""


@dataclass
class CellFailure:
    """An out-of-memory in a cell.

    ``place`` and ``code``: the line of the notebook that asked. ``device``: "cuda:0", "cpu", or
    empty where it is not known. Three figures are those of the error's text, in bytes (0: not
    said): ``requested``, ``allocated`` (by tensors) and ``in_pieces`` (free blocks that torch
    keeps). ``holdings``, ``use`` (of that device) and ``others`` were read afterwards, when the
    failed line had let go of its own tensors. ``last_named``: of each variable that this cell does
    not name, the number of the last cell that does.
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
        """Of sizes by device, the bytes on the device that ran out; the sum where it is
        not known.
        """
        if not self.device:
            return sum(sizes.values())
        return sizes.get(self.device, 0)

    def is_worth_a_step(self, size: int) -> bool:
        """Whether letting go of so many bytes would help the request: any size does, where the
        error's text does not say how much was requested.
        """
        return size > SHARE_WORTH_A_STEP * self.requested

    def is_large(self, size: int) -> bool:
        """Whether so many bytes are much of what all tensors took; any size is, where the error's
        text does not say that, as an error of host memory does not.
        """
        return size > LARGE_SHARE * self.allocated


def out_of_memory(error: BaseException | None) -> BaseException | None:
    """The out-of-memory among an error and the errors that it was raised from; None where there is
    none.
    """
    for link in linked_errors(error):
        if not isinstance(link, RuntimeError):
            continue
        # torch.cuda.OutOfMemoryError, by its name: its module differs between releases.
        if type(link).__name__ == "OutOfMemoryError" or SIGNS.search(_text(link)):
            return link
    return None


def explained(
    error: BaseException,
    cell: str,
    torch: ModuleType,
    shell: InteractiveShell,
    runs: CellRuns,
) -> CellFailure:
    """Everything about an out-of-memory that this kernel knows. Takes two seconds at most.

    ``cell``: the text of the cell that failed.
    """
    text = _text(error)
    device = _device(text)
    is_on_gpu = device != "cpu"  # also where the error does not say the device
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
    # In has the text of each cell by its number, from 1 on; the cell that failed is the last.
    failed_cell = len(shell.user_ns.get("In", ())) - 1
    for holder in holdings.of_kind("variable"):
        last = last_cell_naming(holder.name, shell)
        if last < failed_cell:
            failure.last_named[holder.name] = last
    if is_on_gpu:
        uses = devices_in_use(torch)
        failure.use = next((use for use in uses if use.name == device), None)
        failure.others = other_processes(question)
    return failure


def _text(error: BaseException) -> str:
    """The text of an error: its first argument that is a string; empty where none is. A __str__ of
    the person's is not called.
    """
    return next((part for part in error.args if isinstance(part, str)), "")


def _size(pattern: re.Pattern[str], text: str) -> int:
    """The bytes that a pattern finds in a text; 0 where it finds none."""
    match = pattern.search(text)
    if not match:
        return 0
    return parse_size(match[1])


def _device(text: str) -> str:
    """The device that ran out, by the text of an error; empty where it does not say."""
    if "DefaultCPUAllocator" in text:
        return "cpu"
    match = DEVICE.search(text)
    if not match:
        return ""
    return f"cuda:{match[1]}"


def _line_of(error: BaseException) -> tuple[str, str]:
    """The innermost line of the notebook's own code that an error came through.

    Returns its place in words, such as ``cell 3, line 2, in step()``, and its text. Where the error
    came through no such line, as one of IPython's own does, the place is the cell and the text is
    empty.
    """
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
