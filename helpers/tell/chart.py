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
# What a block and a curve can be, in words. The keys are rows of PALETTE.
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
# These four keep a page of 10,000 operations below 2 MB.
MOST_BLOCKS = 12_000
"""Blocks of a chart; of more, the largest are kept."""
MOST_STACKS = 2_000
"""Different stacks of a chart."""
MOST_FRAMES = 24
"""Frames of one stack."""
MOST_TEXTS = 3_000
"""Different frames of a chart."""
MOST_OPERATIONS = 10_000_000
"""Length of a timeline: figure.js adds up a number for each operation."""
MOST_BYTES = 1 << 53
"""Length of a map, and any size: JavaScript holds no larger whole number exactly."""
# Whole numbers with a space between them, or none. 2**63, the largest offset, has 19 digits.
_COLUMN = re.compile(r"(?:-?\d{1,19}(?: -?\d{1,19})*)?")


@dataclass(frozen=True)
class Chart(Shape):
    """Blocks of memory over a run (``timeline``) or in the order of their addresses (``map``).

    Text fields behind ``length`` are columns (see the head of this file). Time is counted in
    operations of the allocator. With a number for each block:

    - ``start``: the operation that allocated it; of a map the reserved bytes before it
    - ``size`` in bytes; ``state``, an index into STATES; ``stack``, an index into ``stacks``, -1
      for none
    - of a timeline ``until``: the operation that frees it, ``length`` where none does
    - of a map ``segment``: its segment's number, and ``operation``, -1 where it is not known

    Each of ``stacks`` is a column of indices into ``frames``, the innermost first; ``own`` has for
    each stack the place of the program's own line in it, -1 for none. ``length`` counts operations,
    of a map reserved bytes. Of a timeline, ``reserved`` bytes hold from the operation
    ``reserved_at`` on, ``stranded`` likewise, and ``fails_at`` is the first operation that ran
    out of memory, -1 for none. ``left_out`` and ``without_stack`` count the blocks that are not
    drawn, and those whose stack is not kept.
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
        self._check_lengths()
        longest = MOST_OPERATIONS
        if self.kind == "map":
            longest = MOST_BYTES
        _expect([self.length], 0, longest, "length")
        _expect(numbers(self.state), 0, len(STATES) - 1, "state")
        _expect(numbers(self.stack), -1, len(self.stacks) - 1, "stack")
        for stack in self.stacks:
            _expect(numbers(stack), 0, len(self.frames) - 1, "frame")
        for name in ("start", "until", "reserved_at", "stranded_at"):
            _expect(numbers(getattr(self, name)), 0, self.length, name)
        for name in ("size", "reserved", "stranded"):
            _expect(numbers(getattr(self, name)), 0, MOST_BYTES - 1, name)

    def _check_lengths(self) -> None:
        """Raises ValueError where columns that belong together have different numbers of entries:
        those of the blocks, the times and values of a curve, and the stacks and their own lines.
        """
        blocks = len(numbers(self.start))
        _expect([blocks], 0, MOST_BLOCKS, "blocks")
        per_block = [self.size, self.state, self.stack]
        if self.kind == "map":
            per_block += [self.segment, self.operation]
        else:
            per_block.append(self.until)
        lengths = {len(numbers(column)) for column in per_block}
        if lengths != {blocks}:
            raise ValueError(
                f"columns of {sorted(lengths)} numbers; expected {blocks} in each"
            )
        curves = ((self.reserved_at, self.reserved), (self.stranded_at, self.stranded))
        if any(len(numbers(at)) != len(numbers(values)) for at, values in curves):
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
        """The chart as JSON for templates/figure.js, with the colours and words of its states:
        ``looks`` has the colour on a light and on a dark page, the hatch and the words of each.
        """
        looks = {}
        for name, words in (CURVES | STATES).items():
            look = PALETTE[name]
            looks[name] = [look.face, on_dark(look.face), look.hatch, words]
        drawn = {**as_dict(self), "looks": looks, "states": list(STATES)}
        drawn["title"] = plain(self.title)
        drawn["frames"] = list(map(plain, self.frames))
        return json.dumps(drawn, separators=(",", ":"))


def column(values: Iterable[int]) -> str:
    """Numbers as a column of a chart: text with a space between them."""
    return " ".join(map(str, values))


def numbers(text: str) -> list[int]:
    """The numbers of a column. Raises ValueError where it is none."""
    if not _COLUMN.fullmatch(text):
        raise ValueError(
            f"seen {text[:40]!r}; expected numbers with a space between them"
        )
    return list(map(int, text.split()))


def _expect(values: list[int], least: int, most: int, name: str) -> None:
    """Raises ValueError where one of the values is not from ``least`` to ``most``."""
    for value in values:
        if not least <= value <= most:
            raise ValueError(
                f"{name} {value}: expected a number from {least} to {most}"
            )
