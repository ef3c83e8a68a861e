"""How much of the reserved memory is in use, wasted, can be given back to the card, or is stranded:
free, but in a segment or page of which another part is in use.

All figures are bytes, and come from the table of blocks that a replay leaves
(outcome.BLOCK_COLUMNS). A segment is what one cudaMalloc gave; a page is the unit in which memory
is mapped into an expandable segment, and can be given back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from helpers.allocator.blocks import INACTIVE, LIVE
from helpers.allocator.outcome import BLOCK_COLUMNS, CUDA_MALLOC, segments_of
from helpers.allocator.study import Study
from helpers.settings.in_force import SMALL_SEGMENT_BYTES, Settings, parse
from helpers.settings.releases import behaviour

MISLEADS = (
    "1 - allocated/reserved misleads: it is the same for cached segments, which the allocator gives back before it "
    "fails, and for holes between live blocks, which it cannot give back; stranded counts only the holes."
)


@dataclass(frozen=True)
class Metrics:
    """What the reserved memory is made of.

    ``active_bytes``: of blocks that are allocated, or freed and await events of other streams;
    ``requested_bytes``: what the program asked for in these blocks. ``releasable_bytes``: whole
    free segments of cudaMalloc, and whole free pages of expandable ones, of the default pools;
    private pools keep theirs for the graphs that use them. Tables name fields and properties
    (views.studies.metrics_table, by tell/words.json).
    """

    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    releasable_bytes: int

    @property
    def awaiting_free_bytes(self) -> int:
        """Of blocks that the program has freed, and that still await events of other streams."""
        return self.active_bytes - self.allocated_bytes

    @property
    def internal_waste_bytes(self) -> int:
        """What blocks in use have beyond their requests."""
        return self.active_bytes - self.requested_bytes

    @property
    def stranded_bytes(self) -> int:
        """What is neither in use nor releasable: fragmentation, under expandable segments too."""
        return self.reserved_bytes - self.active_bytes - self.releasable_bytes

    @property
    def misleading_ratio(self) -> float:
        """1 - allocated/reserved, for the reason in MISLEADS."""
        if not self.reserved_bytes:
            return 0.0
        return 1 - self.allocated_bytes / self.reserved_bytes


def metrics(blocks: np.ndarray, settings: Settings) -> Metrics:
    """The figures of a block table, as a replay under ``settings`` leaves it; the settings say how
    large a page of the large pool is.
    """
    column = dict(zip(BLOCK_COLUMNS, blocks.T, strict=True))
    size = column["size"]
    reserved = column["mapped"] == 1
    allocated = column["state"] == LIVE
    free = reserved & (column["state"] == INACTIVE)
    active = reserved & ~free
    of_default_pool = column["pool"] == 0
    segment, count = segments_of(blocks)
    is_alone = count[segment] == 1
    is_malloc = column["kind"] == CUDA_MALLOC
    whole_segments = free & is_malloc & of_default_pool & is_alone
    with_pages = free & ~is_malloc & of_default_pool
    # Of a free block in an expandable segment only the pages that lie in it as a whole.
    is_small = column["small"] == 1
    page = np.where(is_small, SMALL_SEGMENT_BYTES, settings.large_segment_bytes)
    begin = column["offset"]
    end = begin + size
    first_page = -(-begin // page) * page  # rounded up
    last_page = end // page * page
    in_whole_pages = np.maximum(last_page - first_page, 0)
    releasable = size[whole_segments].sum() + in_whole_pages[with_pages].sum()
    return Metrics(
        reserved_bytes=int(size[reserved].sum()),
        allocated_bytes=int(size[allocated].sum()),
        active_bytes=int(size[active].sum()),
        requested_bytes=int(column["requested"][active].sum()),
        releasable_bytes=int(releasable),
    )


def stranded_over_time(
    study: Study, conf: str, samples: int
) -> list[tuple[int, Metrics]]:
    """(operation, figures after it) at up to ``samples`` evenly spaced operations, of which the
    last one is the trace's last.

    Each point takes a replay of its own up to that operation, so on average half a replay of the
    whole trace.
    """
    stops = np.linspace(0, len(study.trace), samples + 1).astype(int)
    after_first = np.unique(stops)[1:]  # at 0 there is no operation yet
    settings = parse(conf, behaviour(study.torch, study.build))
    return [
        (stop - 1, metrics(study.replay(conf, stop=stop).blocks, settings))
        for stop in after_first.tolist()
    ]
