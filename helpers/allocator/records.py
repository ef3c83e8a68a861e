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
"""The place of the record that stands for none."""
GONE = -1
"""In place of a block: the id was freed, or never allocated."""
NO_LIMIT = (1 << 63) - 1
"""The largest signed number of 64 bits."""
FINE, GROW, EXHAUSTED, BROKEN = range(4)
"""Status: may go on, needs larger tables, has no addresses left, is torn."""
BY_ADDRESS, BY_BLOCK, BY_SEGMENT = range(3)
"""Order of free blocks of one stream and size: settings.releases.Behaviour.order."""
MEMORY = 1
RESERVED = 2
"""Places of two Ranges that only begin a list: of the free addresses for cudaMalloc, and of those
for reserved ranges.
"""
LEVELS = 8
"""Of the skip lists in blocks.py: with one block in four on the next level, good for 4 ** 8 blocks.
"""
LAYOUTS: dict[str, DTypeLike] = {
    "gc_threshold": np.float64,
    "roundup_divisions": (np.int64, INTERVALS),
    "forward": (np.int64, LEVELS),
    "path": (np.int64, LEVELS),
}
"""The fields that are not one signed number of 64 bits."""


class Record:
    """A row of a table. Its fields are whole numbers, except those that a class declares."""

    __slots__: list[str] = []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...

        def __setattr__(self, name: str, value: int) -> None: ...


class Reusable(Record):
    """A record that is taken into use (``fresh``) and given up again (``drop``).

    ``at``: its own place. ``spare``: of a record that is not in use, the next such record; the
    list begins at place 0.
    """

    __slots__ = []


class Block(Reusable):
    """Block in C++.

    ``uses``: the first Use of another stream. ``number``: the age of the block or its segment,
    which orders blocks of equal size before their addresses do. ``gc_base``: get_calls of the pool
    when the block was freed, for its age at a garbage collection. ``forward``: the next block of
    its set, on each level. ``listed``: has nothing to do with this block; entry k of the list that
    allocator.py works through is kept in the record at place k.
    """

    forward: list[int]
    __slots__ = (
        "at spare used segment pool stream address size requested prev next allocated "
        "mapped event_count uses number gc_base listed forward"
    ).split()


class Segment(Reusable):
    """The memory of one cudaMalloc, or one range of addresses reserved as an expandable segment.

    ``ordinal`` counts each of the two kinds. ``number``: as of Block. ``page_bytes``: 0 for
    cudaMalloc.
    """

    __slots__ = "at spare address size expandable ordinal number page_bytes".split()


class Pool(Record):
    """BlockPool in C++.

    ``get_calls``: how often a block was looked for in it. ``free`` and ``unmapped``: the places
    of two blocks that only begin its two sets.
    """

    __slots__ = "private small get_calls free unmapped".split()


class Stat(Record):
    """Stat in C++, in bytes or a count; ``allocated`` is the sum of all increases."""

    __slots__ = "current peak allocated".split()


class Setting(Record):
    """The fields of settings.in_force.Settings that decide, and two that depend on the card.

    ``fraction_bytes``: the limit by a named fraction, else NO_LIMIT. ``range_bytes``: the
    addresses that an expandable segment reserves.
    """

    gc_threshold: float
    roundup_divisions: list[int]
    __slots__ = (
        "max_split_bytes non_split_rounding_bytes expandable large_segment_bytes "
        "throw_on_oom fraction_bytes range_bytes gc_threshold roundup_divisions"
    ).split()


class Use(Reusable):
    """Another stream that uses a block. Once the block is freed it stands for the event that the
    block waits for, numbered ``event``, in the stream's queue. ``next``: of the same block, then
    of the same queue.
    """

    __slots__ = "at spare stream event block next".split()


class Queue(Record):
    """The events of one stream.

    ``turn`` places it in a map of streams (stream_map.py). ``first`` and ``last`` Use of those
    that wait. ``use``: the Use of the block that is being freed.
    """

    __slots__ = "stream turn first last use".split()


class Map(Record):
    """A map of streams: 2 ** ``bits`` slots from place ``first`` on, and a few more
    (stream_map.map_end); ``count`` of them are filled.
    """

    __slots__ = "first bits count".split()


class Slot(Record):
    """A queue in a map of streams.

    ``far``: 1 more than its distance from the slot that its hash names; 0 for an empty slot.
    """

    __slots__ = "queue far".split()


class Ident(Record):
    """An id of the trace; it has the place id + 1.

    ``block``: the place of its block; NONE for a request of 0 bytes, or GONE. ``pending``: the
    block whose free was requested in the recording and is not yet completed; these ids form a
    ring through place 0 (``before``, ``after``).
    """

    __slots__ = "block pending before after".split()


class Range(Reusable):
    """Free addresses from ``low`` up to ``high``; lists of them are in ascending order."""

    __slots__ = "at spare low high next".split()


class Call(Record):
    """A row of the driver log: outcome.CALL_COLUMNS."""

    __slots__ = "event call ordinal address size".split()


class Part(Record):
    """A block of the starting state; ``begins``: it is the first of its segment.

    ``base`` and ``span``: address and size of the segment. ``page_bytes``: 0 in a segment of
    cudaMalloc. ``whole``: it is the only block of its segment. ``ident``: the place of its Ident.
    """

    __slots__ = (
        "begins pool stream base span page_bytes whole offset size requested state mapped ident"
    ).split()


class Address(Record):
    """An address that a recorded cudaMalloc returned."""

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
    """Adds a table to TABLES; returns the function that gives the record at a place of it."""

    def at(a: Allocator, place: int) -> Any:
        """The record at a place of the table, in plain Python."""
        return getattr(a, name)[place]

    TABLES[name] = record
    at.__dict__["table"] = (
        name  # compiled.py puts machine code in place of such a function
    )
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
    """DeviceCachingAllocator in C++, the card under it, and the tables.

    ``config_bytes``: the limit that PYTORCH_CUDA_ALLOC_CONF names, else the card; with
    ``mapped_bytes``, what is reserved, it decides throw_on_cudamalloc_oom. ``rejected``: the last
    request was refused by that. ``numbers``: the last Block.number or Segment.number given.
    ``used``: bytes of the card that this process has; ``foreign``: that others have. ``mallocs``
    and ``reserves``: how many segments of each kind were made. ``events``: the last event that was
    recorded, ``events_done``: the last one that has completed; ``events_held``: none completes by
    itself. ``logs``: a timeline and the driver's calls are kept. ``chance``: state of a random
    generator; ``path``: where blocks.lower_bound went down, on each level.
    """

    path: list[int]
    __slots__ = [
        *"num_alloc_retries num_ooms num_device_alloc num_device_free".split(),
        *"num_sync_all_streams num_oom_rejections".split(),
        # The present setting, limits in bytes (or NO_LIMIT), the behaviour of the release.
        *"setting allowed_bytes config_bytes mapped_bytes rejected order".split(),
        *"pools_flush checks_range numbers".split(),
        # The card.
        *"capacity foreign used topdown reuses fail_next mallocs reserves".split(),
        *"next_recorded events events_done events_held".split(),
        # The replay: records in use, room for more, the present operation, what failed.
        *"block_count segment_last use_count recorded_count part_count call_count".split(),
        *"block_room use_room call_room logs operation status".split(),
        *"ooms first_oom first_oom_bytes".split(),
        # The sorted sets.
        *"chance levels path".split(),
        *TABLES,
    ]


def dtype_of(record: type[Record]) -> np.dtype[np.void]:
    """The layout of a record for compiled code; a field that is a table holds its address."""
    columns = [(name, LAYOUTS.get(name, np.int64)) for name in record.__slots__]
    return np.dtype(columns, align=True)


def fresh(a: Allocator, table: Callable[[Allocator, int], Reused]) -> Reused:
    """Takes a record of the table into use: the one that was given up last, which begins the list
    of spare records. The caller makes sure that there is one (operations.has_room).
    """
    none = table(a, NONE)
    record = table(a, none.spare)
    none.spare = record.spare
    return record


def drop(
    a: Allocator, table: Callable[[Allocator, int], Reused], record: Reused
) -> None:
    """Gives a record up: it is the first of the list of spare records then."""
    none = table(a, NONE)
    record.spare = none.spare
    none.spare = record.at
