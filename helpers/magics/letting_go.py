"""``%vram free``: lets go of memory that no variable holds, and says who holds the rest.

It lets go of what the notebook keeps by itself: the exception of the last failed cell with the
variables of its functions, outputs of cells, objects that only refer to each other, and blocks that
torch keeps for later. A variable of the person is deleted only if the command names it.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import re
import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..allocator.under_torch.storages import Storage, instances_of
from .devices import allocated_bytes, initialised
from .holder import Holdings, is_large
from .holdings import holdings_of, large_storages, looking, outputs_with_tensors
from .names import UNDERSCORES, names_of_the_person
from .roots import kept_errors
from .unnamed import add_unnamed

if TYPE_CHECKING:
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell


OF_AN_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")
"""Where Python keeps the last exception that nobody caught: attributes of sys (last_exc since
3.12).
"""
OF_THE_NOTEBOOK = re.compile(r"Out\[|_+$|the last error")
"""Names of holders that keep no tensor once the outputs and the last error are let go of."""


class NoSuchVariable(Exception):
    """The notebook has no variable of this name."""


@dataclass
class LetGo:
    """What `%vram free` achieved.

    ``tensors``: bytes of the tensors that are gone, by device. ``returned_bytes``: what torch gave
    back to the driver. ``names``: what was let go of. ``left``: who holds the rest.
    """

    tensors: dict[str, int]
    returned_bytes: int
    names: list[str]
    left: Holdings


def let_go(torch: ModuleType, shell: InteractiveShell, names: list[str]) -> LetGo:
    """Let go of what no variable holds, and of the variables named.

    Raises NoSuchVariable for a name that the notebook does not have.
    """
    variables = names_of_the_person(shell)
    for name in names:
        if name not in variables:
            raise NoSuchVariable(name)
    # A reference in this frame would keep the tensors, as would `storages` below.
    del variables
    began = time.thread_time()
    with looking(torch):
        storages = large_storages(torch)
        holdings = holdings_of(storages, torch, shell, began)
        outputs = outputs_with_tensors(storages, shell)
        followed = _followed(storages, _staying(holdings, names), torch)
    del storages
    allocated_before = allocated_bytes(torch)
    reserved_before = _reserved_bytes(torch)
    dropped = _drop(shell, names, outputs)
    gc.collect()
    _empty_caches(torch)
    gone = {
        address for address, storage in followed.items() if storage.reference.expired()
    }
    alive = frozenset(followed) - gone
    left = _left(holdings, dropped, gone, alive)
    if left is None:  # then look again, in what is left of the same time
        with looking(torch):
            left = holdings_of(large_storages(torch), torch, shell, began)
    add_unnamed(torch, left)
    tensors: collections.Counter[str] = collections.Counter()
    for address in gone:
        tensors[followed[address].device] += followed[address].bytes
    # On a GPU torch's own count is exact, and replaces the sum; that of host memory stays.
    for device, size in allocated_bytes(torch).items():
        tensors[device] = allocated_before[device] - size
    # Another thread may have reserved more meanwhile.
    returned = max(0, reserved_before - _reserved_bytes(torch))
    return LetGo(tensors, returned, dropped, left)


def _drop(shell: InteractiveShell, names: list[str], outputs: list[int]) -> list[str]:
    """Drop the last error, the variables of these names, and the outputs of these numbers, wherever
    IPython keeps them. Returns what was dropped, by the names of holders.
    """
    dropped = _drop_error(shell)
    for name in names:
        _drop_aliases(shell, shell.user_ns.pop(name))
        dropped.append(name)
    for number in outputs:
        # A variable dropped above may have been this output too.
        if number in shell.user_ns["Out"]:
            _drop_aliases(shell, shell.user_ns["Out"][number])
            dropped.append(f"Out[{number}]")
    return dropped


class Followed(NamedTuple):
    """A storage that may be freed: a weak reference to it, its device and its size."""

    reference: Any
    device: str
    bytes: int


def _staying(holdings: Holdings, names: list[str]) -> frozenset[int]:
    """The addresses of the storages that stay, because their holder is not let go of."""
    holders = holdings.of_kind("variable", "module", "thread", "widgets")
    kept = [holder.addresses for holder in holders if holder.name not in names]
    return frozenset().union(*kept)


def _followed(
    storages: dict[int, Storage], staying: frozenset[int], torch: ModuleType
) -> dict[int, Followed]:
    """The storages that may be freed, by their addresses, as weak references, which keep none."""
    reference_to = torch.multiprocessing.reductions.StorageWeakRef
    return {
        storage.address: Followed(
            reference_to(storage.tensor.untyped_storage()),
            str(storage.tensor.device),
            storage.bytes,
        )
        for storage in storages.values()
        if storage.address not in staying and is_large(storage)
    }


def _left(
    holdings: Holdings, dropped: list[str], gone: set[int], alive: frozenset[int]
) -> Holdings | None:
    """Who holds the rest: the holders of before that are whole and were not dropped. A second look,
    which takes a second, is saved so.

    None where a holder was dropped, or lost a storage, and has another storage that is still alive:
    then some other name keeps that storage, and only a new look finds the name.

    ``gone``: addresses of the storages that were freed; ``alive``: those of the storages that were
    expected to be freed and were not.
    """
    left = []
    for holder in holdings.holders:
        was_dropped = holder.kind in ("output", "error") or holder.name in dropped
        is_whole = holder.addresses.isdisjoint(gone)
        if is_whole and not was_dropped:
            holder.other_names = [
                name for name in holder.other_names if not OF_THE_NOTEBOOK.match(name)
            ]
            left.append(holder)
        elif not holder.addresses.isdisjoint(alive):
            return None
    return dataclasses.replace(holdings, holders=left)


def _empty_caches(torch: ModuleType) -> None:
    """Have torch give back to the driver what it keeps for later."""
    if not initialised(torch):
        return
    # Workspaces stay allocated otherwise: "cuBLAS workspaces" in torch's notes on CUDA.
    clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear_workspaces is not None:
        clear_workspaces()
    torch.cuda.empty_cache()


def _reserved_bytes(torch: ModuleType) -> int:
    """The bytes that torch has reserved on all GPUs."""
    if not initialised(torch):
        return 0
    indices = range(torch.cuda.device_count())
    return sum(torch.cuda.memory_reserved(index) for index in indices)


def _drop_error(shell: InteractiveShell) -> list[str]:
    """Drop the last exception wherever Python and IPython keep it. Returns its name as a holder, or
    nothing if there was none.
    """
    errors = kept_errors(shell)
    for name in OF_AN_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    result = shell.last_execution_result
    if result is not None:
        result.error_in_exec = None
    traceback_printer = shell.InteractiveTB
    traceback_printer.tb = None
    debugger = getattr(traceback_printer, "pdb", None)
    if debugger is not None:
        debugger.reset()  # %debug keeps the frames that it looked at
    for result in _results_with(errors, shell):
        result.error_in_exec = None
    if not errors:
        return []
    return ["the last error"]


def _results_with(
    errors: list[BaseException], shell: InteractiveShell
) -> list[ExecutionResult]:
    """The results of cells that keep one of these errors, except those that are a variable's value.

    Frames of IPython's own have them, and an exception in a variable may keep these frames.
    """
    if not errors:
        return []
    kept = set(map(id, errors))
    named = set(map(id, names_of_the_person(shell).values()))
    return [
        candidate
        for candidate in instances_of(type(shell.last_execution_result))
        if id(candidate.error_in_exec) in kept and id(candidate) not in named
    ]


def _drop_aliases(shell: InteractiveShell, value: object) -> None:
    """Drop a value wherever IPython keeps the outputs of cells (IPython/core/displayhook.py)."""
    outputs = shell.user_ns.get("Out", {})
    numbers = [number for number, output in outputs.items() if output is value]
    for number in numbers:
        del outputs[number]
        shell.user_ns.pop(f"_{number}", None)
        shell.user_ns_hidden.pop(f"_{number}", None)
    for name in UNDERSCORES:
        for variables in (shell.user_ns, shell.user_ns_hidden):
            if variables.get(name) is value:
                variables[name] = ""  # as at IPython's start
        if getattr(shell.displayhook, name, None) is value:
            setattr(shell.displayhook, name, "")
    result = shell.last_execution_result
    if result is not None and result.result is value:
        result.result = None
