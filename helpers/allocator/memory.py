"""The allocator's state as records in tables, which plain Python and compiled code read alike:
``block_at(a, 7).size``.

``a`` is the allocator's own record. A record names another by its place in that one's table.
The record at place 0 stands for none and can be read all the same: it has no bytes, is never
free, and sorts behind all others. Plain, a table is a list of objects; compiled, an array whose
address ``a`` holds (compiled.py).
"""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import cache
from typing import Any

import numpy as np

NONE = 0
GONE = -1
NO_LIMIT = (1 << 63) - 1
LEVELS = 8  # of the sorted sets in blocks.py
FINE, GROW, EXHAUSTED, BROKEN = range(4)
"""Status: may go on, needs larger tables, has no addresses left, is torn."""
BY_ADDRESS, BY_BLOCK, BY_SEGMENT = range(3)
"""Order of free blocks, as settings.releases.Behaviour tells it."""
MEMORY = 1
RESERVED = 2
"""Places of RANGE: in front of the free addresses for cudaMalloc, and for reserved ranges."""


def record(names: str, *more: tuple[Any, ...]) -> np.dtype:
    """Whole numbers of these names, and what else a record has."""
    return np.dtype(
        [(name, np.int64) for name in names.split()] + list(more), align=True
    )


# ``at``: a record's own place. ``spare``: the next record that is not in use; that of place 0
# is the first one.
BLOCK = record(
    "at spare used segment pool stream address size requested prev next allocated mapped event_count uses number "
    "gc_base listed",
    ("forward", np.int64, (LEVELS,)),
)
"""Block in C++.

``uses``: the first USE of another stream; ``number``: what tells equal blocks apart before
their addresses do; ``forward``: the next block of its set, on each level; ``listed``: the block
that the list in progress has at this place.
"""
SEGMENT = record("at spare address size expandable ordinal number page_bytes")
"""What one cudaMalloc gave, or one range reserved for expandable segments; ``ordinal`` counts
each of the two kinds.
"""
POOL = record("private small get_calls free unmapped")
"""BlockPool in C++.

``free`` and ``unmapped``: the places of the blocks that stand in front of its two sets.
"""
STAT = record("current peak allocated freed")
SETTING = record(
    "max_split_bytes non_split_rounding_bytes expandable large_segment_bytes throw_on_oom fraction_bytes range_bytes",
    ("gc_threshold", np.float64),
    ("roundup_divisions", np.int64, (16,)),
)
"""settings.in_force.Settings.

``fraction_bytes``: what a named fraction allows, else NO_LIMIT; ``range_bytes``:
its addresses as an expandable segment.
"""
USE = record("at spare stream event block next")
"""A stream that uses a block; once the block is freed, an event that it waits for, in the
stream's queue.
"""
QUEUE = record("stream turn first last use")
"""The events of one stream; ``turn`` places it in a map of streams (driver.py), ``use`` is that
of the block at hand.
"""
MAP = record("first bits count")
SLOT = record("queue far")
"""A map of streams: 2 ** bits slots from the first on and a few more, and the queue in each, 1
more than its distance away from where it belongs (0: empty).
"""
IDENT = record("block pending before after")
"""What an id of the trace stands for, at the place id + 1: its ``block`` (GONE: none), and the
block whose free the recording has not yet completed (``pending``); these lie in a ring
through place 0.
"""
RANGE = record("at spare low high next")
CALL = record("event call ordinal address size")
"""outcome.CALL_COLUMNS."""
PART = record(
    "begins pool stream base span expandable page_bytes whole offset size requested state mapped ident"
)
"""A block of the starting state; the one that ``begins`` a segment stands first.

``whole``: it is all of its segment.
"""
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
    "maps": MAP,
    "slots": SLOT,
}
ALLOCATOR = record(
    "num_alloc_retries num_ooms num_device_alloc num_device_free num_sync_all_streams num_oom_rejections "
    # The present setting, limits in bytes (NO_LIMIT: none), mapped bytes, how the release behaves.
    "setting allowed_bytes config_bytes mapped_bytes rejected order pools_flush checks_range numbers "
    # The card.
    "capacity held used granule topdown reuses fail_next mallocs reserves next_recorded events events_done events_held "
    # The replay: records in use, room, where it is, what failed; how high the sorted sets are.
    "block_count segment_last use_count recorded_count part_count call_count block_room use_room call_room logs "
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


block_at, segment_at, pool_at, stat_at, setting_at, use_at = map(
    accessor, list(TABLES)[:6]
)
queue_at, ident_at, range_at, call_at, part_at, recorded_at = map(
    accessor, list(TABLES)[6:12]
)
map_at, slot_at = map(accessor, list(TABLES)[12:])


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


# What keeps the tables of one replay: enlarged on the way, and read at the end.
BY_BLOCKS = ("blocks", "segments", "ranges")
"""As long as the table of blocks, which is enough: there are no more segments, or free ranges
between them, than blocks.
"""
TO_SPARE = 8  # records of them for what is no block: place 0, the two arenas, an edge


@cache
def _kind(names: tuple[str, ...]) -> type[Any]:
    """A record of a plain table."""
    return make_dataclass("Row", names, slots=True)


def rows(array: np.ndarray) -> list[Any]:
    """The records of an array as objects."""
    names = array.dtype.names or ()
    kind = _kind(names)
    records = [kind(*values) for values in array.tolist()]
    for name in names:
        if array.dtype[name].shape:
            for row in records:
                setattr(row, name, getattr(row, name).tolist())
    return records


def table(name: str, count: int, **columns: Any) -> np.ndarray:
    """A table with so many records; what is not given is 0."""
    records = np.zeros(count, TABLES[name])
    for column, values in columns.items():
        records[column] = values
    return records


def unused(name: str, count: int, first: int = 0, next_spare: int = NONE) -> np.ndarray:
    """Records numbered from first on, none of them in use; behind the last one of them the record
    at ``next_spare`` is taken.
    """
    records = table(name, count)
    if "spare" in (records.dtype.names or ()):
        records["at"] = np.arange(first, first + count)
        records["spare"] = np.append(records["at"][1:], next_spare)
    return records


class Memory:
    """The allocator's record, ``a``, and its tables: lists of objects, or arrays whose
    addresses ``a`` has.
    """

    def __init__(
        self, tables: dict[str, np.ndarray], values: dict[str, int], compiled: bool
    ):
        self.compiled = compiled
        self.tables: dict[str, Any] = {
            name: self._stored(records) for name, records in tables.items()
        }
        self.head = self._stored(np.zeros(1, ALLOCATOR))
        self.a = self.head[0]
        for name, value in values.items():
            setattr(self.a, name, value)
        self._place()

    def _stored(self, records: np.ndarray) -> Any:
        """The records in the form in which they are worked on."""
        return records.view(np.recarray) if self.compiled else rows(records)

    def _place(self) -> None:
        """Tell the allocator where its tables lie, and for how much they have room."""
        for name, stored in self.tables.items():
            setattr(self.a, name, stored.ctypes.data if self.compiled else stored)
        room = {name: len(stored) for name, stored in self.tables.items()}
        self.a.block_room = room["blocks"] - TO_SPARE - 2 * room["pools"]
        self.a.use_room = room["uses"] - 1
        self.a.call_room = room["calls"] - 1

    def grow(self) -> None:
        """Make each table that may be too short for an operation twice as long."""
        for name in (*BY_BLOCKS, "uses", "calls"):
            stored = self.tables[name]
            count = len(stored)
            first_spare = getattr(stored[NONE], "spare", None)
            more = self._stored(unused(name, count, count, first_spare or NONE))
            if first_spare is not None:
                stored[NONE].spare = count
            if self.compiled:
                self.tables[name] = np.concatenate((stored, more)).view(np.recarray)
            else:
                self.tables[name] = stored + more
        self._place()

    def columns(self, name: str, words: str) -> np.ndarray:
        """These fields of each record, a row each."""
        stored = self.tables[name]
        fields = words.split()
        if self.compiled:
            return np.stack([stored[field] for field in fields], axis=1)
        values = [[getattr(row, field) for field in fields] for row in stored]
        return np.array(values, np.int64).reshape(-1, len(fields))
