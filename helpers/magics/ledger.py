"""How many bytes each line of a cell holds, while the cell runs and after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from ..allocator.under_torch.cells import place
from ..allocator.under_torch.own_files import is_own

ELSEWHERE = "a library, or a thread of its own"


class Frame(TypedDict):
    """A call in torch's memory snapshot."""

    filename: str
    line: int


class AllocatorEntry(TypedDict, total=False):
    """An event or a block of torch's memory snapshot; an event has an action, a block a state.

    ``addr`` is an address; ``size`` is in bytes; ``frames`` are the calls, the innermost first.
    """

    action: str
    state: str
    addr: int
    size: int
    frames: list[Frame]


@dataclass
class Ledger:
    """Bytes by the line that asked for them: held ``now`` and held ``at_peak``.

    ``total`` and ``peak`` are the sums of these over all lines.
    """

    now: dict[str, int] = field(default_factory=dict)
    at_peak: dict[str, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0
    _entries: dict[Hashable, tuple[str, int]] = field(default_factory=dict)

    def add(self, key: Hashable, size: int, line: str) -> None:
        """Add a tensor or a block, known by ``key``. ``note_peak`` then compares with the peak."""
        self._entries[key] = (line, size)
        self.now[line] = self.now.get(line, 0) + size
        self.total += size

    def remove(self, key: Hashable) -> None:
        """Remove a tensor or a block; nothing happens for an unknown key."""
        if key in self._entries:
            line, size = self._entries.pop(key)
            self.now[line] -= size
            self.total -= size

    def lines(self) -> list[tuple[str, int, int]]:
        """Rows of a line, its bytes at the peak and its bytes now, most bytes at the peak first."""
        rows = []
        for line, size in self.now.items():
            at_peak = self.at_peak.get(line, 0)
            if at_peak or size:
                rows.append((line, at_peak, size))
        return sorted(rows, key=lambda row: row[1], reverse=True)

    def note_peak(self) -> None:
        """Keep what is held now as the peak, if it is more than any earlier one."""
        if self.total > self.peak:
            self.peak = self.total
            self.at_peak = dict(self.now)


def own_frame(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """The first of the frames, each a file and a line, that is code of the notebook; None where
    none is. The innermost frame comes first.
    """
    for file, line in frames:
        # The snapshot may have frames of C++, too; a cell's own file begins with <ipython in
        # IPython's terminal.
        is_python = file.endswith(".py") or file.startswith("<ipython")
        if is_python and is_own(file):
            return file, line
    return None


def line_of(frames: Iterable[tuple[str, int]]) -> str:
    """The innermost line of the notebook's own code among frames, in words."""
    frame = own_frame(frames)
    if frame is None:
        return ELSEWHERE
    return place(*frame)


def frames_of(entry: AllocatorEntry) -> list[tuple[str, int]]:
    """The file and line of each frame of a block or an event."""
    return [(frame["filename"], frame["line"]) for frame in entry.get("frames", ())]
