"""The allocator's state as records in tables, which plain Python and compiled code read alike: ``block_at(a, 7).size``.

``a`` is the allocator's own record. A record names another by its place in that one's table. The record at place 0 stands for
none and can be read all the same: it has no bytes, is never free, and sorts behind all others. Plain, a table is a list of
objects; compiled, an array whose address ``a`` holds (compiled.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

NONE, GONE = 0, -1
NO_LIMIT = (1 << 63) - 1
LEVELS = 8  # of the sorted sets in blocks.py
FINE, GROW, EXHAUSTED, BROKEN = range(
    4
)  # status: may go on, needs larger tables, has no addresses left, is torn
BY_ADDRESS, BY_BLOCK, BY_SEGMENT = range(3)  # order, as settings.releases.Behaviour tells it
MEMORY, RESERVED = (
    1,
    2,
)  # places of RANGE: in front of the free addresses for cudaMalloc, and for reserved ranges


def record(names: str, *more: tuple) -> np.dtype:
    """Whole numbers of these names, and what else a record has."""
    return np.dtype([(name, np.int64) for name in names.split()] + list(more), align=True)


# ``at``: a record's own place. ``spare``: the next record that is not in use; that of place 0 is the first one.
BLOCK = record(
    "at spare used segment pool stream address size requested prev next allocated mapped event_count uses number "
    "gc_base listed",
    ("forward", np.int64, (LEVELS,)),
)
"""Block in C++. ``uses``: the first USE of another stream; ``number``: what tells equal blocks apart before their addresses do;
``forward``: the next block of its set, on each level; ``listed``: the block that the list in progress has at this place."""
SEGMENT = record("at spare address size expandable ordinal number page_bytes")
"""What one cudaMalloc gave, or one range reserved for expandable segments; ``ordinal`` counts each of the two kinds."""
POOL = record("private small get_calls free unmapped")
"""BlockPool in C++. ``free`` and ``unmapped``: the places of the blocks that stand in front of its two sets."""
STAT = record("current peak allocated freed")
SETTING = record(
    "max_split_bytes non_split_rounding_bytes expandable large_segment_bytes throw_on_oom fraction_bytes",
    ("gc_threshold", np.float64),
    ("roundup_divisions", np.int64, (16,)),
)
"""settings.text.Settings. ``fraction_bytes``: what the fraction that the string names allows, NO_LIMIT where it names none."""
USE = record("at spare stream event block next")
"""A stream that uses a block; once the block is freed, an event that it waits for, in the stream's queue."""
QUEUE = record("stream first last")
IDENT = record("block pending before after")
"""What an id of the trace stands for, at the place id + 1: its ``block`` (GONE: none), and the block whose free the recording
has not yet completed (``pending``); these lie in a ring through place 0."""
RANGE = record("at spare low high next")
CALL = record("event call ordinal address size")
"""outcome.CALL_COLUMNS."""
PART = record(
    "begins pool stream base span expandable page_bytes whole offset size requested state mapped ident"
)
"""A block of the starting state; the one that ``begins`` a segment stands first. ``whole``: it is all of its segment."""
ADDRESS = record("value")
TABLES = {
    "blocks": BLOCK,
    "segments": SEGMENT,
    "pools": POOL,
    "stats": STAT,
    "settings": SETTING,
    "uses": USE,
    "queues": QUEUE,
    "idents": IDENT,
    "ranges": RANGE,
    "calls": CALL,
    "parts": PART,
    "recorded": ADDRESS,
}
ALLOCATOR = record(
    "num_alloc_retries num_ooms num_device_alloc num_device_free num_sync_all_streams num_oom_rejections "
    # The present setting, limits in bytes (NO_LIMIT: none), total_allocated_memory, how the release behaves.
    "setting allowed_bytes config_bytes mapped_bytes rejected order skips_expandable numbers "
    # The card.
    "total capacity held used granule topdown reuses fail_next mallocs reserves next_recorded events events_done events_held "
    # The replay: records in use, room, where it is, what failed; how high the sorted sets are.
    "block_count segment_last use_count queue_count recorded_count part_count call_count block_room use_room call_room logs "
    "operation status ooms first_oom first_oom_bytes chance levels " + " ".join(TABLES),
    ("path", np.int64, (LEVELS,)),
)
"""DeviceCachingAllocator in C++, the card under it, and the tables."""


def accessor(name: str) -> Any:
    """The record at a place of this table."""

    def at(a: Any, place: int) -> Any:
        return getattr(a, name)[place]

    at.__dict__["table"] = name
    return at


block_at, segment_at, pool_at, stat_at, setting_at, use_at = map(accessor, list(TABLES)[:6])
queue_at, ident_at, range_at, call_at, part_at, recorded_at = map(accessor, list(TABLES)[6:])


def fresh(a, table):
    """A record of the table that is not in use."""
    first = table(a, NONE)
    entry = table(a, first.spare)
    first.spare = entry.spare
    return entry


def drop(a, table, entry):
    """The record is in use no longer."""
    first = table(a, NONE)
    entry.spare = first.spare
    first.spare = entry.at
