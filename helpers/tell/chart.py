"""A figure of memory blocks as data, for the script that lets its reader point at them.

Its numbers are columns of text with a number for each block, as a notebook writes each number of
a list on a line of its own. Frames of stacks come from a trace: they are text, never markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from helpers.ground.contract import Shape, as_dict
from helpers.ground.units import plain, show_bytes
from helpers.tell.figure_style import PALETTE, on_dark

FIGURE_MIME = "application/vnd.casebook.figure+json"
"""In an output beside its picture: the picture for a phone, and the chart where there is one."""
STATES = {
    "in use": "in use, blocks over 1 MiB",
    "small": "in use, small blocks",
    "awaiting": "freed, awaiting another stream",
    "stranded": "free but stranded in a segment in use",
    "free": "free, a whole segment: releasable",
}
CURVES = {
    "reserved": "reserved",
    "stranded": "stranded",
    "card": "the card; dashed upwards: the first out-of-memory",
    "picked": "picked",
}
"""What a block and a curve may be, rows of the palette, in words."""
MOST_BLOCKS = 12_000
MOST_STACKS = 2_000
MOST_FRAMES = 24
MOST_TEXTS = 3_000
"""Blocks of a chart, the largest, different stacks, frames of each, and different frames: a page of
10,000 operations stays below 2 MB.
"""
MOST_OPERATIONS = 10_000_000
"""Of a timeline: its script adds up a number for each."""
MOST_BYTES = 1 << 53
"""Of a map: no larger number is exact in a script."""
_COLUMN = re.compile(r"(?:-?\d{1,19}(?: -?\d{1,19})*)?")


@dataclass(frozen=True)
class Chart(Shape):
    """Blocks of memory over a run (``timeline``) or in the order of their addresses (``map``).

    ``length``: operations, or bytes reserved. ``start``: the operation at which each block begins,
    or the reserved bytes before it; ``size`` in bytes; ``state`` an index into STATES; ``stack`` an
    index into ``stacks``, -1 for none, each of which has indices into ``frames``, the innermost
    first; ``own`` the place in each stack of the program's own line, -1 for none. Of a timeline:
    ``until``, the operation that frees each block, ``length`` where none does;
    ``reserved_at`` and ``reserved``, the bytes reserved from an operation on, and the same of
    ``stranded``; ``fails_at``, the first operation that ran out, -1 for none. Of a map: the
    number of each block's ``segment``, and its ``operation``, -1 where it is not known.
    ``left_out`` and ``without_stack`` count what found no room.
    Raises ValueError where columns do not fit each other.
    """

    kind: Literal["timeline", "map"]
    title: str
    length: int
    start: str
    size: str
    state: str
    stack: str
    stacks: list[str]
    own: str
    frames: list[str]
    until: str = ""
    segment: str = ""
    operation: str = ""
    reserved_at: str = ""
    reserved: str = ""
    stranded_at: str = ""
    stranded: str = ""
    capacity_bytes: int = 0
    fails_at: int = -1
    left_out: int = 0
    left_out_bytes: int = 0
    without_stack: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks = len(numbers(self.start))
        per_block = [self.size, self.state, self.stack, self.until]
        if self.kind == "map":
            per_block[3:] = [self.segment, self.operation]
        lengths = {len(numbers(column)) for column in per_block}
        if lengths != {blocks}:
            raise ValueError(
                f"columns of {sorted(lengths)} numbers; expected {blocks} in each"
            )
        _expect([blocks], 0, MOST_BLOCKS + 1, "blocks")
        _expect(numbers(self.state), 0, len(STATES), "state")
        _expect(numbers(self.stack), -1, len(self.stacks), "stack")
        for stack in self.stacks:
            _expect(numbers(stack), 0, len(self.frames), "frame")
        most = MOST_OPERATIONS if self.kind == "timeline" else MOST_BYTES
        _expect([self.length], 0, most + 1, "length")
        for name in ("start", "until", "reserved_at", "stranded_at"):
            _expect(numbers(getattr(self, name)), 0, self.length + 1, name)
        for name in ("size", "reserved", "stranded"):
            _expect(numbers(getattr(self, name)), 0, MOST_BYTES, name)
        pairs = ((self.reserved_at, self.reserved), (self.stranded_at, self.stranded))
        if any(len(numbers(at)) != len(numbers(values)) for at, values in pairs):
            raise ValueError("a curve with other times than values")
        if len(numbers(self.own)) != len(self.stacks):
            raise ValueError("expected one own line for each stack")

    @property
    def note(self) -> str:
        """What is not drawn, in a sentence; empty where all is."""
        missing = []
        if self.left_out:
            size = show_bytes(self.left_out_bytes)
            missing.append(f"the {self.left_out:,} smallest blocks, {size} in all")
        if self.without_stack:
            missing.append(f"the stacks of {self.without_stack:,} blocks")
        if not missing:
            return ""
        return f"Left out to keep the page small: {', and '.join(missing)}."

    def for_script(self) -> str:
        """It with the colours and the words of its states, as JSON for templates/figure.js."""
        looks = {}
        for name, words in (CURVES | STATES).items():
            look = PALETTE[name]
            looks[name] = [look.face, on_dark(look.face), look.hatch, words]
        drawn = {**as_dict(self), "looks": looks, "states": list(STATES)}
        drawn["title"] = plain(self.title)
        drawn["frames"] = list(map(plain, self.frames))
        return json.dumps(drawn, separators=(",", ":"))


def column(values: Iterable[int]) -> str:
    """Numbers as a column of a chart."""
    return " ".join(map(str, values))


def numbers(text: str) -> list[int]:
    """The numbers of a column. Raises ValueError where it is none."""
    if not _COLUMN.fullmatch(text):
        raise ValueError(
            f"seen {text[:40]!r}; expected numbers with a space between them"
        )
    return list(map(int, text.split()))


def _expect(values: list[int], least: int, below: int, name: str) -> None:
    """Raises ValueError where one of the values is not from ``least`` on and below ``below``."""
    wrong = [value for value in values if not least <= value < below]
    if wrong:
        raise ValueError(
            f"{name} {wrong[0]}: expected a number from {least} to {below - 1}"
        )
