"""Memory in use after each run of a cell, and the lengths of the collections then.

This takes well under a millisecond: it reads torch's counters and the lengths of collections.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from .devices import allocated_bytes
from .names import names_of_the_person

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


COLLECTIONS = (list, tuple, set, frozenset, dict, collections.deque)
"""Types whose lengths are compared. They stand here, because the extension loads this
file first.
"""
MOST_CELLS = 500
"""Cells whose runs are kept; of others the oldest are dropped."""
MOST_RUNS = 20
"""The latest runs that are kept of a cell."""
FEWEST_RUNS = 3
"""The first run makes what later ones replace, so two differences are needed to call it growth."""


@dataclass(frozen=True)
class CellRun:
    """After a run: bytes of tensors on all GPUs, and the lengths of collections by name."""

    allocated: int
    lengths: dict[str, int]


@dataclass(frozen=True)
class CellGrowth:
    """What grew with each of the last ``runs`` runs of one cell, at the least: ``bytes_each`` (0:
    no growth), and ``entries_each`` by the name of the collection.
    """

    runs: int
    bytes_each: int
    entries_each: dict[str, int]


NO_GROWTH = CellGrowth(0, 0, {})


class CellRuns:
    """The latest runs of each cell, by the text of the cell."""

    def __init__(self) -> None:
        self._of_cell: collections.OrderedDict[str, collections.deque[CellRun]] = (
            collections.OrderedDict()
        )

    def add(self, cell: str, torch: ModuleType, shell: InteractiveShell) -> None:
        """Note memory and lengths after a run of a cell; nothing where no GPU is in use."""
        allocated = allocated_bytes(torch)
        if not allocated:
            return
        runs = self._of_cell.setdefault(cell, collections.deque(maxlen=MOST_RUNS))
        self._of_cell.move_to_end(cell)
        if len(self._of_cell) > MOST_CELLS:
            self._of_cell.popitem(last=False)
        runs.append(CellRun(sum(allocated.values()), _lengths(shell)))

    def growth(self, cell: str) -> CellGrowth:
        """What grew with each of the latest runs of a cell; NO_GROWTH for fewer than
        FEWEST_RUNS.
        """
        runs = list(self._of_cell.get(cell, ()))
        if len(runs) < FEWEST_RUNS:
            return NO_GROWTH
        entries = {}
        for name in runs[-1].lengths:
            steps = _steps([run.lengths.get(name) for run in runs])
            if steps and min(steps) > 0:
                entries[name] = min(steps)
        steps = _steps([run.allocated for run in runs])
        return CellGrowth(len(runs), max(0, min(steps)), entries)


def _steps(values: list[int | None]) -> list[int]:
    """The differences from each value to the next; empty where a value is None, as the length is of
    a collection that did not exist after one of the runs.
    """
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return []
    return [after - before for before, after in zip(present, present[1:])]


def _lengths(shell: InteractiveShell) -> dict[str, int]:
    """The length of each variable that is a collection; no __len__ of the person's is called."""
    variables = names_of_the_person(shell)
    return {
        name: type(value).__len__(value)
        for name, value in variables.items()
        if type(value) in COLLECTIONS
    }
