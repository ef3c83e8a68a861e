"""Which lines hold how much, while a cell runs and after it."""

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
    """An event or a block of torch's memory snapshot; an event has an action, a block a state."""

    action: str
    state: str
    addr: int
    size: int
    frames: list[Frame]


@dataclass
class Ledger:
    """Bytes that are held now and were held at the peak, by the line that asked for them."""

    now: dict[str, int] = field(default_factory=dict)
    at_peak: dict[str, int] = field(default_factory=dict)
    total: int = 0
    peak: int = 0
    _entries: dict[Hashable, tuple[str, int]] = field(default_factory=dict)

    def add(self, key: Hashable, size: int, line: str) -> None:
        """Something is held from now on. ``note_peak`` counts it towards the peak."""
        self._entries[key] = (line, size)
        self.now[line] = self.now.get(line, 0) + size
        self.total += size

    def remove(self, key: Hashable) -> None:
        """It is held no more; nothing happens where it was not known."""
        if key in self._entries:
            line, size = self._entries.pop(key)
            self.now[line] -= size
            self.total -= size

    def lines(self) -> list[tuple[str, int, int]]:
        """Each line that has or had bytes, with those at the peak and now, most at the peak first."""
        rows = [
            (line, self.at_peak.get(line, 0), size) for line, size in self.now.items()
        ]
        rows.sort(key=lambda row: -row[1])
        return [row for row in rows if any(row[1:])]

    def note_peak(self) -> None:
        """Keep what is held now as the peak, where it is more than before."""
        if self.total > self.peak:
            self.peak = self.total
            self.at_peak = dict(self.now)


def own_frame(frames: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    """The innermost of the frames (file, line) of a call that is the notebook's own code; the
    innermost frame comes first.
    """
    for file, line in frames:
        is_python = file.endswith(".py") or file.startswith("<ipython")
        if is_python and is_own(file):
            return file, line
    return None


def line_of(frames: Iterable[tuple[str, int]]) -> str:
    """The innermost line of the notebook's own code among the frames of a call."""
    frame = own_frame(frames)
    return place(*frame) if frame else ELSEWHERE


def frames_of(entry: AllocatorEntry) -> list[tuple[str, int]]:
    """The frames of a block or an event of torch's memory snapshot."""
    return [(frame["filename"], frame["line"]) for frame in entry.get("frames", ())]
