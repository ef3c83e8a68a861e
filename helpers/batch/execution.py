"""One execution of a notebook: its inputs and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RunFault:
    """Why a notebook stopped before its end.

    ``state`` is failed (its own exception), died, timed_out, interrupted or stuck (not even
    SIGKILL ends it); ``cause`` is one line; ``signal`` is the name of the signal that killed the
    kernel or interrupted the batch; ``cell`` is the index of the cell in the source notebook, None
    if no cell was running; ``last_words`` is the end of what the kernel wrote to stdout and stderr.
    """

    state: str
    cause: str
    signal: str = ""
    cell: int | None = None
    last_words: str = ""


@dataclass
class Execution:
    """One execution of a notebook, which is saved as ``out`` and works in the folder of ``out``.

    A cell may run for ``cell_s`` seconds, all cells together for ``run_s``. ``mark`` is in the
    environment of the kernel and identifies its processes; with ``adopted`` the descendants of
    this process count as well (``kernel_process.sweep``). ``earlier`` is the folder of an earlier
    attempt, whose finished cells are not all executed again. ``on_cell`` is called as each cell
    begins, with its index and the number of cells.

    The result: ``fault`` says why it stopped early; ``left_behind`` names the processes of the
    kernel that had to be killed; ``notes`` say what was kept of the earlier attempt.
    """

    out: Path
    mark: str
    cell_s: float = 120
    run_s: float = 600
    adopted: bool = False
    earlier: Path | None = None
    on_cell: Callable[[int, int], None] = lambda _cell, _cells: None
    fault: RunFault | None = None
    left_behind: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the kernel works, and where what it wrote is kept."""
        return self.out.parent
