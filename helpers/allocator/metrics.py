"""How much of the reserved memory is in use, wasted, can be given back or is stranded.

All of it is read off the table of blocks that a replay leaves (outcome.BLOCK_COLUMNS), in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.allocator.blocks import INACTIVE, LIVE
from helpers.allocator.outcome import segments_of
from helpers.allocator.study import Study
from helpers.settings.in_force import SMALL_SEGMENT_BYTES, Settings, parse
from helpers.settings.releases import behaviour

MISLEADS = (
    "1 - allocated/reserved misleads: it is the same for cached segments, which the allocator gives back before it "
    "fails, and for holes between live blocks, which it cannot give back; stranded counts only the holes."
)


@dataclass(frozen=True)
class Metrics:
    """What the reserved memory is made of. active = allocated + awaiting free; requested and
    internal waste (block sizes less requests) are over active. releasable: whole free
    cudaMalloc segments and whole free pages of the default pools. stranded: free, yet
    neither; that is fragmentation, under expandable segments too.
    """

    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    releasable_bytes: int

    @property
    def awaiting_free_bytes(self) -> int:
        return self.active_bytes - self.allocated_bytes

    @property
    def internal_waste_bytes(self) -> int:
        return self.active_bytes - self.requested_bytes

    @property
    def stranded_bytes(self) -> int:
        return self.reserved_bytes - self.active_bytes - self.releasable_bytes

    @property
    def misleading_ratio(self) -> float:
        """1 - allocated/reserved, for the reason in MISLEADS."""
        if not self.reserved_bytes:
            return 0.0
        return 1 - self.allocated_bytes / self.reserved_bytes


def metrics(blocks: np.ndarray, settings: Settings) -> Metrics:
    """The figures of a block table."""
    kind, _, _, offset, size, requested, state, _, small, private, mapped = blocks.T
    reserved = mapped == 1
    allocated = state == LIVE
    free = reserved & (state == INACTIVE)
    active = reserved & ~free
    segment, count = segments_of(blocks)
    is_alone = count[segment] == 1
    whole_segments = free & (kind == 0) & (private == 0) & is_alone
    with_pages = free & (kind == 1) & (private == 0)
    page = np.where(small == 1, SMALL_SEGMENT_BYTES, settings.large_segment_bytes)
    first_page = -(-offset // page) * page
    last_page = (offset + size) // page * page
    in_whole_pages = np.maximum(last_page - first_page, 0)
    return Metrics(
        reserved_bytes=int(size[reserved].sum()),
        allocated_bytes=int(size[allocated].sum()),
        active_bytes=int(size[active].sum()),
        requested_bytes=int(requested[active].sum()),
        releasable_bytes=int(
            size[whole_segments].sum() + in_whole_pages[with_pages].sum()
        ),
    )


def stranded_over_time(
    study: Study, conf: str, samples: int
) -> list[tuple[int, Metrics]]:
    """(operation, figures after it) at evenly spaced points, the last operation among them.

    Each point is a replay of its own, so this costs half of samples replays of the whole.
    """
    points = np.unique(np.linspace(0, len(study.trace), samples + 1).astype(int))[1:]
    settings = parse(conf, behaviour(study.torch, study.build))
    return [
        (stop - 1, metrics(study.replay(conf, stop=stop).blocks, settings))
        for stop in points.tolist()
    ]
