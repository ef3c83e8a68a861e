"""``%%vram``: what one cell asks for, by line.

On a GPU torch's own memory history is read, which is on while the cell runs. In host memory each
operation's results are followed, which makes the cell slower.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from ..allocator.under_torch.history import start_history
from .devices import initialised
from .ledger import AllocatorEntry, Ledger, frames_of, line_of

MOST_EVENTS = 1_000_000
"""Entries of torch's memory history; beyond that it drops the oldest (max_entries)."""
HOST = "cpu"
"""The name of host memory among the devices, as torch has it."""


class Following:
    """Follows what a cell asks for, until ``end`` is called."""

    def __init__(self, torch: ModuleType):
        self._until_end = ExitStack()
        self._on_host = self._until_end.enter_context(_followed_on_host(torch))
        self._on_gpus = self._until_end.enter_context(_followed_on_gpus(torch))

    def end(self) -> dict[str, Ledger]:
        """Stop following. Returns what the cell held, by device."""
        self._until_end.close()
        return {HOST: self._on_host, **self._on_gpus}


class _HostStorages:
    """The storages in host memory that operations make, and which of them are alive."""

    def __init__(self, torch: ModuleType):
        self.ledger = Ledger()
        self._torch = torch
        self._alive: dict[int, Any] = {}
        """A weak reference to each storage, by the address of its StorageImpl."""

    def add_results(self, results: object) -> None:
        """Add the storages of what an operation returns: a tensor, or a nest of them."""
        for result in self._torch.utils._pytree.tree_leaves(results):
            if isinstance(result, self._torch.Tensor) and result.is_cpu:
                self._add(result.untyped_storage())

    def _add(self, storage: Any) -> None:
        """Add a storage that is not known yet, under the line of the cell that runs now.

        An address is known while its storage is alive: views and operations in place return a
        storage that was added before.
        """
        key = storage._cdata
        if key in self._alive and not self._alive[key].expired():
            return
        self.ledger.remove(key)  # an earlier storage had the same address
        reference = self._torch.multiprocessing.reductions.StorageWeakRef(storage)
        self._alive[key] = reference
        self.ledger.add(key, storage.nbytes(), line_of(_running_lines()))
        # Asking every reference is slow, so it is done only where there may be a new peak.
        if self.ledger.total > self.ledger.peak:
            self.remove_expired()
            self.ledger.note_peak()

    def remove_expired(self) -> None:
        """Take storages off the ledger that no tensor has any more."""
        for key, reference in list(self._alive.items()):
            if reference.expired():
                del self._alive[key]
                self.ledger.remove(key)


@contextmanager
def _followed_on_host(torch: ModuleType) -> Iterator[Ledger]:
    """Follow the storages in host memory that operations make."""
    storages = _HostStorages(torch)

    # torch calls it with `self` first, once for each operation (torch/utils/_python_dispatch.py).
    def dispatch(
        _mode: object,
        function: Callable[..., object],
        _types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if kwargs is None:
            kwargs = {}
        results = function(*args, **kwargs)
        storages.add_results(results)
        return results

    # The class is made here, because this module is imported before torch.
    base = torch.utils._python_dispatch.TorchDispatchMode
    host_mode = type("HostMode", (base,), {"__torch_dispatch__": dispatch})
    with host_mode():
        yield storages.ledger
    storages.remove_expired()


def _running_lines() -> Iterator[tuple[str, int]]:
    """The file and line of each running call, the innermost first."""
    for frame, line in traceback.walk_stack(sys._getframe()):
        yield frame.f_code.co_filename, line


@contextmanager
def _followed_on_gpus(torch: ModuleType) -> Iterator[dict[str, Ledger]]:
    """Have torch record its memory history while the cell runs, and read it afterwards.

    Yields the ledgers by device, which are empty until the cell has ended. A history that the
    program itself has on goes on, and only the events of the cell are read.
    """
    ledgers: dict[str, Ledger] = {}
    is_cpu_build = torch.version.cuda is None and not getattr(
        torch.version, "hip", None
    )
    if is_cpu_build:
        yield ledgers
        return
    # Events before the cell, by the index of the device. Any event shows that a history is on.
    lengths_before: dict[int, int] = {}
    if initialised(torch):
        lengths_before = dict(enumerate(map(len, _events(torch))))
    was_on = any(lengths_before.values())
    if not was_on:
        # torch calls this at the first use of a GPU, or now (_lazy_call of torch/cuda/__init__.py).
        torch.cuda._lazy_call(lambda: start_history(torch, MOST_EVENTS))
    yield ledgers
    if not initialised(torch):  # the cell used no GPU
        return
    for index, events in enumerate(_events(torch)):
        new = events[lengths_before.get(index, 0) :]
        ledgers[f"cuda:{index}"] = _read(new)
    if not was_on:
        torch.cuda.memory._record_memory_history(enabled=None)


def _events(torch: ModuleType) -> list[list[AllocatorEntry]]:
    """The events of torch's memory history, a list for each device."""
    events: list[list[AllocatorEntry]] = torch.cuda.memory._snapshot()["device_traces"]
    return events


def _read(events: list[AllocatorEntry]) -> Ledger:
    """What the events of one device add up to. A free of a block from before the cell changes
    nothing. Other actions are left out: ``free_completed`` repeats a free, and segments are no
    blocks.
    """
    ledger = Ledger()
    for event in events:
        if event["action"] == "alloc":
            ledger.add(event["addr"], event["size"], line_of(frames_of(event)))
            ledger.note_peak()
        elif event["action"] == "free_requested":
            ledger.remove(event["addr"])
    return ledger
