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
"""Of a row of the timeline, one for each operation. ``out``: what came of it, an index into
operations.OUTCOMES. ``kind`` and ``ordinal``: of the segment of the block that was handed out;
``offset`` (in the segment), ``size`` and ``address``: of that block; all -1 where none was. The
others are figures (in bytes, from ``allocations`` on counts) and counters after the operation.
"""
CUDA_MALLOC, EXPANDABLE = range(2)
"""The kind of a segment."""

CALL_COLUMNS = ("event", "call", "ordinal", "address", "size")
"""Of a row of the driver log. ``event``: the operation during which the call was made. ``call``: an
index into driver.CALLS. ``ordinal``: of the segment; for create_fail the number of pages that were
made before it. ``address``: for map and unmap the offset in the range. ``size``: in bytes. -1
stands for what a call does not have.
"""

BLOCK_COLUMNS = (
    "kind ordinal base offset size requested state stream small pool mapped".split()
)
"""Of a row of the block table: base is the address of the segment, offset that of the block in
it, state an index into STATES (free, allocated, awaiting events). Rows are in order of kind,
ordinal and offset.
"""


STATISTICS = ("current", "peak", "allocated", "freed")
"""What torch.cuda.memory_stats says of each figure."""


def block_column(blocks: np.ndarray, name: str) -> np.ndarray:
    """A column of a block table."""
    return blocks[:, BLOCK_COLUMNS.index(name)]


def segments_of(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each block of a table the number of its segment, counted from 0; and for each segment, by
    that number, how many blocks it has.
    """
    # An ordinal counts the segments of its kind, of which there are two.
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
    """What the replay of one trace gave, under one setting, on one release and card.

    ``events``: how many operations were carried out. ``ooms``: how many requests failed; the replay
    goes on after each, like a program that catches the error. ``first_oom``: the index of the first
    request that failed, None for none; ``first_oom_bytes``: its rounded size. ``timeline`` and
    ``calls``, the driver log, are there when asked for. ``engine``: "plain" or "compiled".
    """

    events: int
    ooms: int
    first_oom: int | None
    first_oom_bytes: int
    figures: np.ndarray  # [NAMES, POOLS, STATISTICS]
    oversize: np.ndarray  # [(allocations, segments), STATISTICS]
    counters: np.ndarray  # COUNTERS
    blocks: np.ndarray  # [blocks, BLOCK_COLUMNS]
    timeline: np.ndarray | None = None  # [events, COLUMNS]
    calls: np.ndarray | None = None  # [calls, CALL_COLUMNS]
    # Settings that torch refused on the way: the operation, and why.
    errors: tuple[tuple[int, str], ...] = ()
    engine: str = "plain"

    def figure(self, name: str, which: str = "current") -> int:
        """A figure of blocks.NAMES for all pools together, in bytes or a count; ``which``: one of
        STATISTICS.
        """
        statistic = STATISTICS.index(which)
        return int(self.figures[NAMES.index(name), POOLS.index("all"), statistic])

    def counter(self, name: str) -> int:
        """One of blocks.COUNTERS."""
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
        """One of COLUMNS, an entry for each operation; of a replay with a timeline only."""
        assert self.timeline is not None, "replay with timeline=True"
        return self.timeline[:, COLUMNS.index(name)]
