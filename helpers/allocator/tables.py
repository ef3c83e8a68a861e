"""The tables that hold the records of one replay (records.py): what they hold before the first
operation, how they grow, and how they are read.

They are empty at first, or have what was there when the recording began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from helpers.allocator import driver
from helpers.allocator.blocks import INACTIVE, OVERSIZE_SEGMENTS, STATES
from helpers.allocator.driver import Card, round_up
from helpers.allocator.expandable import page_bytes
from helpers.allocator.records import (
    GONE,
    MEMORY,
    NO_LIMIT,
    NONE,
    RESERVED,
    TABLES,
    Allocator,
    Part,
    Record,
    Setting,
    dtype_of,
)
from helpers.allocator.stream_map import stream_turn
from helpers.allocator.trace import LARGEST, Op, StartBlock, StartSegment, Trace
from helpers.settings.in_force import Settings
from helpers.settings.releases import Behaviour

TO_SPARE = 8  # records for what is no block: place 0, the two arenas, an edge
GROWING = ("blocks", "segments", "ranges", "uses", "calls")
"""The tables that an operation can make too short. Those of segments and of the free ranges
between them are as long as that of blocks: there are no more of either than blocks.
"""


def table(name: str, count: int, **columns: ArrayLike) -> np.ndarray:
    """A table with so many records; what is not given is 0."""
    records = np.zeros(count, dtype_of(TABLES[name]))
    for column, values in columns.items():
        records[column] = values
    return records


def unused(name: str, count: int, first: int = 0, next_spare: int = NONE) -> np.ndarray:
    """Records numbered from first on, none of them in use; behind the last one of them the record
    at ``next_spare`` is taken.
    """
    at = np.arange(first, first + count)
    return table(name, count, at=at, spare=np.append(at[1:], next_spare))


class Memory:
    """The allocator's record, ``a``, and its tables: lists of objects, or arrays whose
    addresses ``a`` has.
    """

    def __init__(
        self, tables: dict[str, np.ndarray], values: dict[str, int], compiled: bool
    ):
        self.compiled = compiled
        self.tables: dict[str, Any] = {
            name: self._stored(TABLES[name], records)
            for name, records in tables.items()
        }
        self.head = self._stored(Allocator, np.zeros(1, dtype_of(Allocator)))
        self.a: Allocator = self.head[0]
        for name, value in values.items():
            setattr(self.a, name, value)
        self._place()

    def _stored(self, record: type[Record], array: np.ndarray) -> Any:
        """The records in the form in which they are worked on."""
        if self.compiled:
            return array.view(np.recarray)
        objects = [record() for _ in range(len(array))]
        for name in record.__slots__:
            for row, value in zip(objects, array[name].tolist(), strict=True):
                setattr(row, name, value)
        return objects

    def _place(self) -> None:
        """Tell the allocator where its tables lie, and for how much they have room."""
        for name, stored in self.tables.items():
            setattr(self.a, name, stored.ctypes.data if self.compiled else stored)
        blocks_for_pools = 2 * len(self.tables["pools"])
        self.a.block_room = len(self.tables["blocks"]) - TO_SPARE - blocks_for_pools
        self.a.use_room = len(self.tables["uses"]) - 1
        self.a.call_room = len(self.tables["calls"]) - 1

    def grow(self) -> None:
        """Make each table that may be too short for an operation twice as long."""
        for name in GROWING:
            stored = self.tables[name]
            count = len(stored)
            if name == "calls":
                more = table(name, count)
            else:
                first_spare = int(stored[NONE].spare)
                more = unused(name, count, first=count, next_spare=first_spare)
                stored[NONE].spare = count
            if self.compiled:
                self.tables[name] = np.concatenate((stored, more)).view(np.recarray)
            else:
                stored += self._stored(TABLES[name], more)
        self._place()

    def array(self, name: str) -> np.ndarray:
        """A table as an array of records."""
        stored = self.tables[name]
        if self.compiled:
            return np.asarray(stored)
        dtype = dtype_of(TABLES[name])
        fields_of = attrgetter(*(dtype.names or ()))
        return np.array([fields_of(row) for row in stored], dtype)


ORDERS = ("address", "block", "segment")
UNMAPPED = "U"
"""State of a StartBlock: addresses without memory, in an expandable segment that is given whole."""


def allowed_bytes(fraction: float | None, card: Card, rules: Behaviour) -> int:
    """What torch.cuda.set_per_process_memory_fraction allows: from 2.x on exactly 1.0 lifts the
    allowed_bytes (settings/torch.json).
    """
    if fraction is None or (fraction >= 1.0 and rules.fraction_one_is_unlimited):
        return NO_LIMIT
    size = fraction * float(card.capacity_bytes) + 0.5 * rules.fraction_rounds
    return max(-LARGEST, min(int(size), LARGEST))


def starting_state(
    trace: Trace,
    settings: Sequence[Settings],
    card: Card,
    rules: Behaviour,
    *,
    pools: list[int],
    room: int,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The tables and figures of the allocator, with room for so many blocks beside those of the
    start.

    ``pools``: the numbers of the private pools behind 0, the default ones.
    """
    # Those that use another stream's block.
    uses = trace.op == Op.RECORD_STREAM
    streams = np.unique(trace.stream[uses]).tolist()
    addresses = []  # where the recording's driver put segments
    if card.policy == "recorded":
        addresses = [call.address for call in trace.driver if call.action == "malloc"]
    parts = _parts(
        _with_whole_ranges(trace.start, settings[0], card), pools, settings[0]
    )
    room += 3 * len(parts)
    slots = 64 << len(streams).bit_length()
    turns = [stream_turn(stream, rules.device_type) for stream in streams]
    # In front of free blocks; the next one is in front of unmapped ones.
    heads = 1 + 2 * np.arange(2 * len(pools))
    places = unused("blocks", room + 4 * len(pools) + TO_SPARE)
    places["spare"][NONE] = 1 + 4 * len(pools)
    places["stream"][NONE] = NO_LIMIT
    places["allocated"][NONE] = 1
    places["mapped"][NONE] = 1
    tables = {
        "blocks": places,
        "segments": unused("segments", len(places)),
        "ranges": _free_ranges(len(places), _above(trace, card, addresses)),
        "uses": unused("uses", 16),
        "stats": table("stats", OVERSIZE_SEGMENTS + 1),
        "pools": table(
            "pools",
            len(heads),
            free=heads,
            unmapped=heads + 1,
            private=np.repeat(pools, 2),
            small=[0, 1] * len(pools),
        ),
        "settings": _settings_table(settings, card),
        "parts": parts if len(parts) else table("parts", 1),
        "queues": table(
            "queues", len(streams) + 1, stream=[-1, *streams], turn=[0, *turns]
        ),
        "maps": table("maps", 3, first=[0, slots, 2 * slots]),
        "slots": table("slots", 3 * slots),
        "idents": table("idents", trace.ids + 1, block=GONE),
        "recorded": table("recorded", len(addresses) or 1, value=addresses or 0),
    }
    return tables, {
        "part_count": len(parts),
        "recorded_count": len(addresses),
        "order": ORDERS.index(rules.order),
        "checks_range": int(rules.checks_range),
        "pools_flush": int(rules.pools_flush),
        "capacity": card.capacity_bytes,
        "config_bytes": card.capacity_bytes,
        "foreign": card.held_bytes,
        "topdown": int(card.policy == "topdown"),
        "reuses": int(card.policy in ("firstfit", "topdown")),
        "chance": 1,
        "levels": 1,
        "first_oom": -1,
    }


def _above(trace: Trace, card: Card, addresses: list[int]) -> int:
    """The address above all that the recording has: its start, reserved ranges included, and,
    no segment being larger than the card, all that it hands out.
    """
    span = card.capacity_bytes + card.capacity_bytes // 8 + (1 << 30)
    ends = [address + card.capacity_bytes for address in addresses]
    ends.append(driver.MALLOC_BASE)
    for segment in trace.start:
        ends.append(segment.address + (span if segment.expandable else segment.size))
    return max(ends)


def _free_ranges(count: int, low: int) -> np.ndarray:
    """The free addresses for cudaMalloc and for reserved ranges, from low on."""
    base = round_up(low, driver.GRANULE_BYTES)
    reserved = max(base + driver.MALLOC_SPAN, driver.RESERVE_BASE)
    ranges = unused("ranges", count)
    ranges["next"][[MEMORY, RESERVED]] = (3, 4)
    ranges["spare"][NONE] = 5
    ranges["low"][3:5] = base, reserved
    ranges["high"][3:5] = base + driver.MALLOC_SPAN, reserved + driver.RESERVE_SPAN
    return ranges


def _settings_table(settings: Sequence[Settings], card: Card) -> np.ndarray:
    rows = table("settings", len(settings), fraction_bytes=NO_LIMIT)
    for row, setting in zip(rows, settings, strict=True):
        for name in {*Setting.__slots__} - {"fraction_bytes", "range_bytes"}:
            row[name] = getattr(setting, name)
        if setting.fraction is not None:
            row["fraction_bytes"] = int(setting.fraction * float(card.capacity_bytes))
        row["range_bytes"] = _range_bytes(setting, card)
    return rows


def _range_bytes(settings: Settings, card: Card) -> int:
    """The addresses of an expandable segment, before they are rounded to whole pages."""
    most_bytes = card.capacity_bytes * 9 // 8
    if settings.reserve is None:
        return most_bytes
    is_share, number = settings.reserve
    unit_bytes = card.capacity_bytes if is_share else 1 << 30
    return int(min(number * unit_bytes, most_bytes))


def _with_whole_ranges(
    start: Sequence[StartSegment], settings: Settings, card: Card
) -> list[StartSegment]:
    """The starting state with its expandable segments whole.

    A recording shows their mapped ranges: those of one stream and pool are taken to lie in one
    segment as far as it reaches.
    """
    segments: list[StartSegment] = []
    # Of segments, by stream and pool.
    places: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for mapped in start:
        if not mapped.expandable:
            segments.append(mapped)
            continue
        alike = places[mapped.stream, mapped.pool, mapped.small]
        around = (
            at
            for at in alike
            if 0 <= mapped.address - segments[at].address < segments[at].size
        )
        at = next(around, -1)
        if at < 0:
            at = len(segments)
            page = page_bytes(settings, mapped.small)
            span = round_up(_range_bytes(settings, card), page)
            nothing = StartBlock(0, span, 0, UNMAPPED, -1)
            segments.append(replace(mapped, size=span, blocks=(nothing,)))
            alike.append(at)
        segments[at] = _with_mapped(segments[at], mapped)
    return segments


def _with_mapped(segment: StartSegment, mapped: StartSegment) -> StartSegment:
    """The segment with a range mapped in what was its unmapped tail."""
    *pieces, tail = segment.blocks
    offset = mapped.address - segment.address
    end = offset + mapped.size
    if offset > tail.offset:
        pieces.append(replace(tail, size=offset - tail.offset))
    pieces += [replace(block, offset=offset + block.offset) for block in mapped.blocks]
    pieces.append(replace(tail, offset=end, size=tail.offset + tail.size - end))
    return replace(segment, blocks=tuple(pieces))


def _parts(
    start: Sequence[StartSegment], pools: list[int], settings: Settings
) -> np.ndarray:
    """The blocks of the starting state, a record of Part each."""
    rows = []
    for segment in start:
        pool = 2 * pools.index(segment.pool) + segment.small
        page = page_bytes(settings, segment.small) if segment.expandable else 0
        is_whole = len(segment.blocks) == 1
        for block in segment.blocks:
            is_mapped = block.state != UNMAPPED
            part = (
                block is segment.blocks[0],
                pool,
                segment.stream,
                segment.address,
                segment.size,
                page,
                is_whole,
                block.offset,
                block.size,
                block.requested,
                STATES.index(block.state) if is_mapped else INACTIVE,
                is_mapped,
                block.id + 1,  # the place of its Ident; 0 for a free block
            )
            rows.append(part)
    return np.array(rows, dtype_of(Part))
