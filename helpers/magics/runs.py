"""What each run of a cell left behind: how much memory, and how long the collections were.

Costs well under a millisecond: torch's counters, and the lengths of the notebook's own collections.
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
"""Of these the lengths are compared; here, since the extension is loaded without the rest."""
MOST_CELLS = 500
MOST_RUNS = 20
FEWEST_RUNS = 3


@dataclass(frozen=True)
class CellRun:
    """After a run: bytes of tensors on the GPUs, and entries by name."""

    allocated: int
    lengths: dict[str, int]


@dataclass(frozen=True)
class CellGrowth:
    """What grew with every one of the last ``runs`` runs of one cell: bytes a run, and entries a
    run of each collection.
    """

    runs: int
    bytes_each: int
    entries_each: dict[str, int]


NO_GROWTH = CellGrowth(0, 0, {})


class CellRuns:
    """The last runs of each cell, by its text."""

    def __init__(self) -> None:
        self._of_cell: collections.OrderedDict[str, collections.deque[CellRun]] = (
            collections.OrderedDict()
        )

    def add(self, cell: str, torch: ModuleType, shell: InteractiveShell) -> None:
        """Keep how things are after a run of a cell."""
        allocated = allocated_bytes(torch)
        if not allocated:
            return
        runs = self._of_cell.setdefault(cell, collections.deque(maxlen=MOST_RUNS))
        self._of_cell.move_to_end(cell)
        if len(self._of_cell) > MOST_CELLS:
            self._of_cell.popitem(last=False)
        runs.append(CellRun(sum(allocated.values()), _lengths(shell)))

    def growth(self, cell: str) -> CellGrowth:
        """What grew with each of the last runs of a cell, where it ran three times."""
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
    """The differences from each value to the next; empty where one is missing."""
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return []
    return [after - before for before, after in zip(present, present[1:])]


def _lengths(shell: InteractiveShell) -> dict[str, int]:
    variables = names_of_the_person(shell)
    return {
        name: type(value).__len__(value)
        for name, value in variables.items()
        if type(value) in COLLECTIONS
    }
