"""``%%vram``: the peak of one cell, and what it keeps afterwards, by line.

On a GPU torch's own memory history is read, which is on while the cell runs. In host memory each
operation's results are followed, which makes the cell slower.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from ..allocator.under_torch.history import start_history
from ..ground.units import show_bytes
from .devices import initialised
from .ledger import Ledger, frames_of, line_of
from .view import Notice, Table, show

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


MOST_EVENTS = 1_000_000
MOST_LINES = 12
FROM_THE_HOST = "cpu"
LEAST_WORTH_SAYING = 4096
"""Bytes on a device, where another has more: counters of steps, and single numbers."""


MEASURED = re.compile(r"\s*%%vram\b")


def without_its_magic(lines: list[str]) -> list[str]:
    """A cell that begins with ``%%vram``, as IPython runs it: an empty line stands for it, so that
    the cell's own lines keep their numbers; none before another magic, which must come first.
    """
    if not lines or not MEASURED.match(lines[0]):
        return lines
    rest = lines[1:]
    begins = next((line for line in rest if line.strip()), "")
    return rest if begins.startswith("%%") else ["\n", *rest]


class Following:
    """What a cell asks for, from here to ``end``."""

    def __init__(self, torch: ModuleType):
        self._until_end = ExitStack()
        self._on_host = self._until_end.enter_context(_followed_on_host(torch))
        self._on_gpus = self._until_end.enter_context(_followed_on_gpus(torch))

    def end(self) -> Notice:
        """Its peak, and what it keeps, by line."""
        self._until_end.close()
        return _card({FROM_THE_HOST: self._on_host, **self._on_gpus})


def run(cell: str, torch: ModuleType, shell: InteractiveShell) -> None:
    """Run a cell inside another magic, and show its peak, and what it keeps, by line."""
    following = Following(torch)
    try:
        shell.run_cell(cell, store_history=False)
    finally:
        show(following.end())


def _card(ledgers: dict[str, Ledger]) -> Notice:
    largest = max((ledger.peak for ledger in ledgers.values()), default=0)
    least = min(largest, LEAST_WORTH_SAYING)
    used = {
        device: ledger
        for device, ledger in ledgers.items()
        if ledger.peak >= max(1, least)
    }
    if not used:
        return Notice("This cell made no tensors.")
    peaks = [
        f"{show_bytes(ledger.peak)} on {device}" for device, ledger in used.items()
    ]
    kept = [
        f"{show_bytes(ledger.total)} on {device}" for device, ledger in used.items()
    ]
    rows: list[tuple[str, ...]] = []
    for device, ledger in used.items():
        lines = sorted(
            {**ledger.at_peak, **ledger.now},
            key=lambda line: -ledger.at_peak.get(line, 0),
        )
        for line in lines[:MOST_LINES]:
            peak = ledger.at_peak.get(line, 0)
            now = ledger.now.get(line, 0)
            if peak or now:
                rows.append((device, show_bytes(peak), show_bytes(now), line))
    return Notice(
        title=f"At its peak this cell had {' and '.join(peaks)} more than before.",
        sentences=[f"Of that it keeps {' and '.join(kept)}."],
        table=Table(
            ("on", "at the peak", "kept", "line"), rows, numbers=frozenset([1, 2])
        ),
    )


@contextmanager
def _followed_on_host(torch: ModuleType) -> Iterator[Ledger]:
    """Follow the storages in host memory that operations make."""
    tree_leaves = torch.utils._pytree.tree_leaves
    reference_to = torch.multiprocessing.reductions.StorageWeakRef
    ledger = Ledger()
    alive: dict[int, Any] = {}

    def forget_the_gone() -> None:
        for key in [key for key, reference in alive.items() if reference.expired()]:
            del alive[key]
            ledger.remove(key)

    class HostMode(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            results = function(*args, **(kwargs or {}))
            for result in tree_leaves(results):
                if (
                    isinstance(result, torch.Tensor)
                    and result.device.type == FROM_THE_HOST
                ):
                    follow(result.untyped_storage())
            return results

    def follow(storage: Any) -> None:
        key = storage._cdata
        if key in alive and not alive[key].expired():
            return
        ledger.remove(key)
        alive[key] = reference_to(storage)
        ledger.add(key, storage.nbytes(), line_of(_frames_now()))
        if ledger.total > ledger.peak:
            forget_the_gone()
            ledger.note_peak()

    with HostMode():
        yield ledger
    forget_the_gone()


def _frames_now() -> Iterator[tuple[str, int]]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


@contextmanager
def _followed_on_gpus(torch: ModuleType) -> Iterator[dict[str, Ledger]]:
    """Have torch keep its memory history while the cell runs, and read it afterwards."""
    ledgers: dict[str, Ledger] = {}
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        yield ledgers
        return
    was_on = _has_history(torch)
    before = _events(torch) if was_on else []
    if not was_on:
        # Waits for the first use of a GPU, where there was none yet (torch/cuda/__init__.py).
        torch.cuda._lazy_call(lambda: start_history(torch, MOST_EVENTS))
    yield ledgers
    if not initialised(torch):
        return
    for index, events in enumerate(_events(torch)):
        earlier = len(before[index]) if index < len(before) else 0
        ledgers[f"cuda:{index}"] = _read(events[earlier:])
    if not was_on:
        torch.cuda.memory._record_memory_history(enabled=None)


def _has_history(torch: ModuleType) -> bool:
    return initialised(torch) and any(_events(torch))


def _events(torch: ModuleType) -> list[list[dict[str, Any]]]:
    traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot()["device_traces"]
    return traces


def _read(events: list[dict[str, Any]]) -> Ledger:
    """What the events of one device left behind. A free of what was there before is left out."""
    ledger = Ledger()
    for event in events:
        if event["action"] == "alloc":
            ledger.add(event["addr"], event["size"], line_of(frames_of(event)))
            ledger.note_peak()
        elif event["action"] == "free_requested":
            ledger.remove(event["addr"])
    return ledger
