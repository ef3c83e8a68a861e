"""What a replay gives: totals, one row of figures an operation, what the card was asked, and
the blocks at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.allocator.blocks import COUNTERS, NAMES, POOLS

COLUMNS = (
    "out kind ordinal offset size address allocated reserved active requested inactive_split allocations actives "
    "segments inactive_splits " + " ".join(COUNTERS)
).split()
"""Of a row of the timeline. kind is 0 for a cudaMalloc segment, 1 for an expandable one, -1
where nothing was handed out; size is that of the block; figures in bytes or counts as they
stand after the operation.
"""

CALL_COLUMNS = ("event", "call", "ordinal", "address", "size")
"""Of a row of the driver log: the operation during which, an index into CALLS, and what that
call has of the rest: address is an offset for map and unmap; create_fail has the pages made
before it as ordinal; -1 where a call has none.
"""

BLOCK_COLUMNS = (
    "kind ordinal base offset size requested state stream small pool mapped".split()
)
"""Of a row of the block table: base is the address of the segment, offset that of the block in
it, state an index into STATES (free, allocated, awaiting events). Rows are in order of kind,
ordinal and offset.
"""


def block_column(blocks: np.ndarray, name: str) -> np.ndarray:
    """A column of a block table."""
    return blocks[:, BLOCK_COLUMNS.index(name)]


def segments_of(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each block of a table the number of its segment, and how many blocks each segment has."""
    key = 2 * block_column(blocks, "ordinal") + block_column(blocks, "kind")
    _, number, count = np.unique(key, return_inverse=True, return_counts=True)
    return number, count


TORN = (
    "a part of a segment would be given back, as max_split_size_mb became smaller on the way or an old release mixes it "
    "with expandable segments: torch itself fails there; leave that setting out"
)


class ReplayError(ValueError):
    """The trace cannot be carried further under these settings; one line that says why."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One trace under one setting, version and card.

    first_oom is the index of the first request that failed and first_oom_bytes its rounded
    size; the replay goes on after it as a program would that catches the error. timeline and
    calls are there when asked for.
    """

    events: int
    ooms: int
    first_oom: int | None
    first_oom_bytes: int
    figures: np.ndarray  # [NAMES, POOLS, (current, peak, allocated, freed)]
    oversize: np.ndarray  # [(allocations, segments), (current, peak, allocated, freed)]
    counters: np.ndarray  # COUNTERS
    blocks: np.ndarray  # [blocks, BLOCK_COLUMNS]
    timeline: np.ndarray | None = None  # [events, COLUMNS]
    calls: np.ndarray | None = None  # [calls, CALL_COLUMNS]
    errors: tuple[
        tuple[int, str], ...
    ] = ()  # settings refused on the way: (operation, why)
    engine: str = "plain"

    def figure(self, name: str, which: str = "current") -> int:
        """One statistic of all pools in bytes or a count; which is current, peak, allocated or
        freed.
        """
        column = ("current", "peak", "allocated", "freed").index(which)
        return int(self.figures[NAMES.index(name), POOLS.index("all"), column])

    def counter(self, name: str) -> int:
        return int(self.counters[COUNTERS.index(name)])

    @property
    def peak_reserved_bytes(self) -> int:
        return self.figure("reserved_bytes", "peak")

    @property
    def peak_allocated_bytes(self) -> int:
        return self.figure("allocated_bytes", "peak")

    @property
    def slow_calls(self) -> int:
        """Calls that made the device allocate or free: each of them waits for the card."""
        return self.counter("num_device_alloc") + self.counter("num_device_free")

    def column(self, name: str) -> np.ndarray:
        assert self.timeline is not None, "replay with timeline=True"
        return self.timeline[:, COLUMNS.index(name)]
