"""The tables that hold the records of one replay (records.py): their content before the first
operation, how they grow, and how they are read.

Before the first operation they are empty, or hold the state in which the recording began.
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
from helpers.allocator.stream_map import MAPS, stream_turn
from helpers.allocator.trace import LARGEST, Op, StartBlock, StartSegment, Trace
from helpers.ground.units import GIB
from helpers.settings.in_force import Settings
from helpers.settings.releases import Behaviour

TO_SPARE = 8
"""Records beside those of blocks: place 0, of ranges also the places 1 to 4 (_free_ranges)."""
GROWING = ("blocks", "segments", "ranges", "uses", "calls")
"""The tables in which an operation needs new records. Those of segments and of free ranges are as
long as that of blocks: there are no more of either than blocks.
"""
FEWEST_USES = 16
"""Uses that the table has room for at first: few programs record streams."""
SETS_OF_POOL = 2
"""Of free and of unmapped blocks: each begins with a block that is no block of the program."""


def table(name: str, count: int, **columns: ArrayLike) -> np.ndarray:
    """A table with so many records; columns that are not given are 0."""
    records = np.zeros(count, dtype_of(TABLES[name]))
    for column, values in columns.items():
        records[column] = values
    return records


def unused(name: str, count: int, first: int = 0, next_spare: int = NONE) -> np.ndarray:
    """So many records for the places from ``first`` on. All are in the list of those not in use,
    in order; ``next_spare`` follows the last one.
    """
    at = np.arange(first, first + count)
    return table(name, count, at=at, spare=np.append(at[1:], next_spare))


class Memory:
    """The allocator's record, ``a``, and its tables: plain, lists of objects; compiled, arrays
    whose addresses ``a`` holds. ``head``: ``a`` as an array, which compiled code takes.
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
        """The records in the form that the engine works on: compiled, the array itself with its
        columns as attributes; plain, a list of objects.
        """
        if self.compiled:
            return array.view(np.recarray)
        objects = [record() for _ in range(len(array))]
        for name in record.__slots__:
            for row, value in zip(objects, array[name].tolist(), strict=True):
                setattr(row, name, value)
        return objects

    def _place(self) -> None:
        """Give the allocator its tables (compiled, their addresses, which change when a table
        grows), and how many records each has room for, without those that are set apart at its
        beginning.
        """
        for name, stored in self.tables.items():
            setattr(self.a, name, stored.ctypes.data if self.compiled else stored)
        blocks_for_pools = SETS_OF_POOL * len(self.tables["pools"])
        self.a.block_room = len(self.tables["blocks"]) - TO_SPARE - blocks_for_pools
        self.a.use_room = len(self.tables["uses"]) - 1
        self.a.call_room = len(self.tables["calls"]) - 1

    def grow(self) -> None:
        """Double the tables in which an operation needs new records."""
        for name in GROWING:
            stored = self.tables[name]
            count = len(stored)
            if name == "calls":  # filled one after the other, never given up
                more = table(name, count)
            else:  # the new records come first in the list of spare ones
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
        fields_of = attrgetter(*TABLES[name].__slots__)
        return np.array([fields_of(row) for row in stored], dtype_of(TABLES[name]))


ORDERS = ("address", "block", "segment")
"""The words of Behaviour.order, in the order of records.BY_ADDRESS, BY_BLOCK, BY_SEGMENT."""
UNMAPPED = "U"
"""State of a StartBlock: addresses without memory. Only _with_whole_ranges makes such blocks."""


def allowed_bytes(fraction: float | None, card: Card, rules: Behaviour) -> int:
    """The limit that torch.cuda.set_per_process_memory_fraction sets, in bytes; NO_LIMIT without a
    fraction, and in releases where 1.0 lifts the limit (settings/torch.json).
    """
    if fraction is None or (fraction >= 1.0 and rules.fraction_one_is_unlimited):
        return NO_LIMIT
    size = fraction * float(card.capacity_bytes)
    if rules.fraction_rounds:
        size += 0.5  # int() cuts
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
    """Two dictionaries: the tables of the allocator by name, and by name the values of those of its
    own fields (records.Allocator) that are not 0 before the first operation.

    ``pools``: the numbers of the pools, 0 for the default ones first. ``room``: for so many blocks
    beside those of the start.
    """
    addresses = []  # where the recording's driver put segments
    if card.policy == "recorded":
        addresses = [call.address for call in trace.driver if call.action == "malloc"]
    recorded = table("recorded", max(1, len(addresses)))  # no table is empty
    recorded["value"][: len(addresses)] = addresses
    start = _with_whole_ranges(trace.start, settings[0], card)
    parts = _parts(start, pools, settings[0])
    part_count = len(parts)
    if not part_count:
        parts = table("parts", 1)
    pool_table = _pool_table(pools)
    heads = SETS_OF_POOL * len(pool_table)
    # operations.has_room asks for three blocks for each one that is there.
    blocks = unused("blocks", room + 3 * part_count + heads + TO_SPARE)
    blocks["spare"][NONE] = 1 + heads
    # The block that stands for none sorts behind all others and is never free.
    blocks["stream"][NONE] = NO_LIMIT
    blocks["allocated"][NONE] = 1
    blocks["mapped"][NONE] = 1
    tables = {
        "blocks": blocks,
        "segments": unused("segments", len(blocks)),
        "ranges": _free_ranges(len(blocks), _above(trace, card, addresses)),
        "uses": unused("uses", FEWEST_USES),
        "stats": table("stats", OVERSIZE_SEGMENTS + 1),
        "pools": pool_table,
        "settings": _settings_table(settings, card),
        "parts": parts,
        **_stream_tables(trace, rules),
        "idents": table("idents", trace.ids + 1, block=GONE),
        "recorded": recorded,
    }
    return tables, {
        "part_count": part_count,
        "recorded_count": len(addresses),
        "order": ORDERS.index(rules.order),
        "checks_range": int(rules.checks_range),
        "pools_flush": int(rules.pools_flush),
        "capacity": card.capacity_bytes,
        "config_bytes": card.capacity_bytes,
        "foreign": card.held_bytes,
        "topdown": int(card.policy == "topdown"),
        "reuses": int(card.policy in ("firstfit", "topdown")),
        "chance": 1,  # the seed of the skip lists, the same for every replay
        "levels": 1,  # of the skip lists, which are empty
        "first_oom": -1,  # none so far
    }


def _pool_table(pools: list[int]) -> np.ndarray:
    """For each number a large and a small pool, so that pool k has the places 2 k and 2 k + 1; the
    blocks that begin their sets have the places from 1 on.
    """
    heads = 1 + SETS_OF_POOL * np.arange(2 * len(pools))
    return table(
        "pools",
        len(heads),
        free=heads,
        unmapped=heads + 1,
        private=np.repeat(pools, 2),
        small=[0, 1] * len(pools),
    )


def _stream_tables(trace: Trace, rules: Behaviour) -> dict[str, np.ndarray]:
    """A queue for each stream that uses another stream's block, and the three maps of them."""
    uses = trace.op == Op.RECORD_STREAM
    streams = np.unique(trace.stream[uses]).tolist()
    turns = [stream_turn(stream, rules.device_type) for stream in streams]
    # A map doubles when it is half full, or when a stream lies too far from its slot
    # (stream_map.attempt): 32 times the number of streams leaves room for the second, too.
    slots = 64 << len(streams).bit_length()
    return {
        "queues": table(
            "queues", len(streams) + 1, stream=[-1, *streams], turn=[0, *turns]
        ),
        "maps": table("maps", MAPS, first=slots * np.arange(MAPS)),
        "slots": table("slots", MAPS * slots),
    }


def _above(trace: Trace, card: Card, addresses: list[int]) -> int:
    """An address above everything that was recorded: above the segments of the start, where an
    expandable segment takes its whole reserved range, and above the segments that cudaMalloc put at
    ``addresses``. Their sizes do not matter: none is larger than the card.
    """
    # A reserved range is 9/8 of the card (_range_bytes); a GiB more is above any rounding to pages.
    span = card.capacity_bytes * 9 // 8 + GIB
    ends = [address + card.capacity_bytes for address in addresses]
    ends.append(driver.MALLOC_BASE)
    for segment in trace.start:
        size = segment.size
        if segment.expandable:
            size = span
        ends.append(segment.address + size)
    return max(ends)


def _free_ranges(count: int, low: int) -> np.ndarray:
    """A table of ``count`` Ranges, two of them in use: the free addresses for cudaMalloc, from
    ``low`` on, at place 3, and behind these addresses those for reserved ranges, at place 4. Each
    is the only one in its list; the lists begin at the places MEMORY and RESERVED.
    """
    base = round_up(low, driver.GRANULE_BYTES)
    reserved = max(base + driver.MALLOC_SPAN, driver.RESERVE_BASE)
    ranges = unused("ranges", count)
    ranges["next"][[MEMORY, RESERVED]] = (3, 4)
    ranges["spare"][NONE] = 5  # the first place that is not in use
    ranges["low"][3:5] = base, reserved
    ranges["high"][3:5] = base + driver.MALLOC_SPAN, reserved + driver.RESERVE_SPAN
    return ranges


def _settings_table(settings: Sequence[Settings], card: Card) -> np.ndarray:
    """A record of Setting for each of the settings that hold in turn."""
    rows = table("settings", len(settings), fraction_bytes=NO_LIMIT)
    for row, setting in zip(rows, settings, strict=True):
        for name in {*Setting.__slots__} - {"fraction_bytes", "range_bytes"}:
            row[name] = getattr(setting, name)
        if setting.fraction is not None:
            row["fraction_bytes"] = int(setting.fraction * float(card.capacity_bytes))
        row["range_bytes"] = _range_bytes(setting, card)
    return rows


def _range_bytes(settings: Settings, card: Card) -> int:
    """The addresses that an expandable segment reserves, before they are rounded to whole pages:
    9/8 of the card, as ExpandableSegment does in CUDACachingAllocator.cpp, or fewer by a setting.
    """
    most_bytes = card.capacity_bytes * 9 // 8
    if settings.reserve is None:
        return most_bytes
    is_share, number = settings.reserve  # a share of the card, or a number of GiB
    unit_bytes = GIB
    if is_share:
        unit_bytes = card.capacity_bytes
    return int(min(number * unit_bytes, most_bytes))


def _with_whole_ranges(
    start: Sequence[StartSegment], settings: Settings, card: Card
) -> list[StartSegment]:
    """The starting state with whole expandable segments, unmapped addresses included.

    A recording shows only their mapped ranges, in address order: a range is taken to lie in the
    same segment as an earlier one of its stream and pool, if that segment reaches so far.
    """
    segments: list[StartSegment] = []
    # Places in ``segments`` of the expandable ones, by stream, pool, and whether they are small.
    places: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for mapped in start:
        if not mapped.expandable:
            segments.append(mapped)
            continue
        alike = places[mapped.stream, mapped.pool, mapped.small]
        around = [
            place
            for place in alike
            if 0 <= mapped.address - segments[place].address < segments[place].size
        ]
        if around:
            place = around[0]
        else:
            place = len(segments)
            page = page_bytes(settings, mapped.small)
            span = round_up(_range_bytes(settings, card), page)
            unmapped = StartBlock(0, span, requested=0, state=UNMAPPED, id=-1)
            segments.append(replace(mapped, size=span, blocks=(unmapped,)))
            alike.append(place)
        segments[place] = _with_mapped(segments[place], mapped)
    return segments


def _with_mapped(segment: StartSegment, mapped: StartSegment) -> StartSegment:
    """The expandable segment ``segment`` after the recorded range ``mapped`` is put into it. Ranges
    come in address order, so the range lies in the segment's last block, which is unmapped: that is
    cut into what is before the range, if anything, and what is behind it.
    """
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
    """A table of Part records, one for each block of the starting state; their pools by ``pools``."""
    rows = []
    for segment in start:
        pool = 2 * pools.index(segment.pool) + segment.small  # its place: _pool_table
        page = 0
        if segment.expandable:
            page = page_bytes(settings, segment.small)
        is_whole = len(segment.blocks) == 1
        for block in segment.blocks:
            is_mapped = block.state != UNMAPPED
            state = INACTIVE
            if is_mapped:
                state = STATES.index(block.state)
            part = (  # in the order of Part's fields
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
                state,
                is_mapped,
                block.id + 1,  # the place of its Ident; 0 for a free block
            )
            rows.append(part)
    return np.array(rows, dtype_of(Part))
