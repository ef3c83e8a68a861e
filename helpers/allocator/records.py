"""What the allocator's state consists of: a record for each block, segment, pool and so on, which
plain Python and compiled code reach alike: ``block_at(a, 7).size``.

``a`` is the allocator's own record. A record names another by its place in that one's table.
The record at place 0 stands for none and can be read all the same: it has no bytes, is never
free, and sorts behind all others. Plain, a table is a list of these objects; compiled, an array
with the same fields, of 8 bytes each, whose address ``a`` holds (compiled.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from helpers.settings.allocator_text import INTERVALS

NONE = 0
GONE = -1
NO_LIMIT = (1 << 63) - 1
FINE, GROW, EXHAUSTED, BROKEN = range(4)
"""Status: may go on, needs larger tables, has no addresses left, is torn."""
BY_ADDRESS, BY_BLOCK, BY_SEGMENT = range(3)
"""Order of free blocks, as settings.releases.Behaviour tells it."""
MEMORY = 1
RESERVED = 2
"""Places of Range: in front of the free addresses for cudaMalloc, and for reserved ranges."""
LEVELS = 8  # of the sorted sets in blocks.py
LAYOUTS: dict[str, DTypeLike] = {
    "gc_threshold": np.float64,
    "roundup_divisions": (np.int64, INTERVALS),
    "forward": (np.int64, LEVELS),
    "path": (np.int64, LEVELS),
}
"""The fields that are not one whole number."""


class Record:
    """Its fields are whole numbers, but for those that a class declares."""

    __slots__: list[str] = []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...

        def __setattr__(self, name: str, value: int) -> None: ...


class Reusable(Record):
    """A record that is taken into use and given up again.

    ``at``: its own place. ``spare``: the next record that is not in use; that of place 0 is the
    first one.
    """

    __slots__ = []


class Block(Reusable):
    """Block in C++.

    ``uses``: the first Use of another stream. ``number``: what tells equal blocks apart before
    their addresses do. ``forward``: the next block of its set, on each level. ``listed``: the
    block that the list in progress has at this place.
    """

    forward: list[int]
    __slots__ = (
        "at spare used segment pool stream address size requested prev next allocated "
        "mapped event_count uses number gc_base listed forward"
    ).split()


class Segment(Reusable):
    """What one cudaMalloc gave, or one range reserved for expandable segments.

    ``ordinal`` counts each of the two kinds. ``page_bytes``: 0 for cudaMalloc.
    """

    __slots__ = "at spare address size expandable ordinal number page_bytes".split()


class Pool(Record):
    """BlockPool in C++.

    ``free`` and ``unmapped``: the blocks that stand in front of its two sets.
    """

    __slots__ = "private small get_calls free unmapped".split()


class Stat(Record):
    __slots__ = "current peak allocated".split()


class Setting(Record):
    """settings.in_force.Settings.

    ``fraction_bytes``: what a named fraction allows, else NO_LIMIT. ``range_bytes``: its
    addresses as an expandable segment.
    """

    gc_threshold: float
    roundup_divisions: list[int]
    __slots__ = (
        "max_split_bytes non_split_rounding_bytes expandable large_segment_bytes "
        "throw_on_oom fraction_bytes range_bytes gc_threshold roundup_divisions"
    ).split()


class Use(Reusable):
    """A stream that uses a block; once the block is freed, an event that it waits for, in the
    stream's queue.
    """

    __slots__ = "at spare stream event block next".split()


class Queue(Record):
    """The events of one stream.

    ``turn`` places it in a map of streams (stream_map.py). ``use``: that of the block at hand.
    """

    __slots__ = "stream turn first last use".split()


class Map(Record):
    """A map of streams: 2 ** bits slots from the first on, and a few more."""

    __slots__ = "first bits count".split()


class Slot(Record):
    """A queue in a map of streams.

    ``far``: 1 more than its distance from where it belongs; 0 where the slot is empty.
    """

    __slots__ = "queue far".split()


class Ident(Record):
    """What an id of the trace stands for; it has the place id + 1.

    ``block``: or GONE. ``pending``: the block whose free the recording has not yet completed;
    these ids lie in a ring through place 0 (``before``, ``after``).
    """

    __slots__ = "block pending before after".split()


class Range(Reusable):
    """Free addresses."""

    __slots__ = "at spare low high next".split()


class Call(Record):
    """A row of the driver log: outcome.CALL_COLUMNS."""

    __slots__ = "event call ordinal address size".split()


class Part(Record):
    """A block of the starting state; the one that ``begins`` a segment stands first.

    ``page_bytes``: 0 in a segment of cudaMalloc. ``whole``: it is all of its segment.
    """

    __slots__ = (
        "begins pool stream base span page_bytes whole offset size requested state mapped ident"
    ).split()


class Address(Record):
    __slots__ = ["value"]


class Operation(Record):
    """An operation of the trace.

    ``ident``: the place of its Ident. ``size``: of SET_FRACTION the bytes that it allows; of
    SET_CONF see operations.set_conf. ``pool``: as Trace.pool, the private ones numbered from 1.
    """

    __slots__ = "op ident size stream pool".split()


TABLES: dict[str, type[Record]] = {}
"""The record of each table of the allocator, by the table's name."""
Kind = TypeVar("Kind", bound=Record)
Reused = TypeVar("Reused", bound=Reusable)


def accessor(name: str, record: type[Kind]) -> Callable[[Allocator, int], Kind]:
    """A new table: the function that gives the record at a place of it."""

    def at(a: Allocator, place: int) -> Any:
        return getattr(a, name)[place]

    TABLES[name] = record
    at.__dict__["table"] = name
    return at


block_at = accessor("blocks", Block)
segment_at = accessor("segments", Segment)
pool_at = accessor("pools", Pool)
stat_at = accessor("stats", Stat)
setting_at = accessor("settings", Setting)
use_at = accessor("uses", Use)
queue_at = accessor("queues", Queue)
ident_at = accessor("idents", Ident)
range_at = accessor("ranges", Range)
call_at = accessor("calls", Call)
part_at = accessor("parts", Part)
recorded_at = accessor("recorded", Address)
operation_at = accessor("operations", Operation)
map_at = accessor("maps", Map)
slot_at = accessor("slots", Slot)


class Allocator(Record):
    """DeviceCachingAllocator in C++, the card under it, and the tables."""

    path: list[int]
    __slots__ = [
        *"num_alloc_retries num_ooms num_device_alloc num_device_free".split(),
        *"num_sync_all_streams num_oom_rejections".split(),
        # The present setting, limits in bytes (or NO_LIMIT), how the release behaves.
        *"setting allowed_bytes config_bytes mapped_bytes rejected order".split(),
        *"pools_flush checks_range numbers".split(),
        # The card.
        *"capacity foreign used topdown reuses fail_next mallocs reserves".split(),
        *"next_recorded events events_done events_held".split(),
        # The replay: records in use, room for more, the operation at hand, what failed.
        *"block_count segment_last use_count recorded_count part_count call_count".split(),
        *"block_room use_room call_room logs operation status".split(),
        *"ooms first_oom first_oom_bytes".split(),
        # How high the sorted sets are.
        *"chance levels path".split(),
        *TABLES,
    ]


def dtype_of(record: type[Record]) -> np.dtype[np.void]:
    """The fields of a record side by side; a table in one is its address."""
    columns = [(name, LAYOUTS.get(name, np.int64)) for name in record.__slots__]
    return np.dtype(columns, align=True)


def fresh(a: Allocator, table: Callable[[Allocator, int], Reused]) -> Reused:
    """A record of the table that is not in use."""
    first = table(a, NONE)
    entry = table(a, first.spare)
    first.spare = entry.spare
    return entry


def drop(
    a: Allocator, table: Callable[[Allocator, int], Reused], entry: Reused
) -> None:
    """The record is in use no longer."""
    first = table(a, NONE)
    entry.spare = first.spare
    first.spare = entry.at
