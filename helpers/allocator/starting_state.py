"""The allocator's tables before the first operation: empty, or with what was there when the
recording began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from helpers.allocator import blocks, driver, memory
from helpers.allocator.allocator import page_bytes
from helpers.allocator.driver import Card, round_up
from helpers.allocator.memory import NO_LIMIT, NONE, table, unused
from helpers.allocator.stream_map import stream_turn
from helpers.allocator.trace import StartBlock, StartSegment, Trace
from helpers.settings.in_force import Settings
from helpers.settings.releases import Behaviour

LARGEST = 1 << 62
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
    streams: list[int],
    addresses: tuple[int, ...],
    room: int,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The tables and figures of the allocator, with room for so many blocks beside those of the
    start.

    ``pools``: the numbers of the private pools behind 0, the default ones. ``streams``: those
    that use another stream's block. ``addresses``: where the recording's driver put segments.
    """
    parts = _parts(
        _with_whole_ranges(trace.start, settings[0], card), pools, settings[0]
    )
    room += 3 * len(parts)
    slots = 64 << len(streams).bit_length()
    turns = [stream_turn(stream, rules.device_type) for stream in streams]
    # In front of free blocks; the next one is in front of unmapped ones.
    heads = 1 + 2 * np.arange(2 * len(pools))
    places = unused("blocks", room + 4 * len(pools) + memory.TO_SPARE)
    places["spare"][NONE] = 1 + 4 * len(pools)
    places["stream"][NONE] = NO_LIMIT
    places["allocated"][NONE] = 1
    places["mapped"][NONE] = 1
    tables = {
        "blocks": places,
        "segments": unused("segments", len(places)),
        "ranges": _free_ranges(len(places), _above(trace, card, addresses), card),
        "uses": unused("uses", 16),
        "stats": table("stats", blocks.OVERSIZE_SEGMENTS + 1),
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
        "idents": table("idents", trace.ids + 1, block=memory.GONE),
        "recorded": table("recorded", len(addresses) or 1, value=addresses or 0),
    }
    return tables, {
        "part_count": len(parts),
        "recorded_count": len(addresses),
        "order": ORDERS.index(rules.order),
        "checks_range": int(rules.checks_range),
        "pools_flush": int(rules.pools_flush),
        "capacity": card.capacity_bytes,
        "held": card.held_bytes,
        "granule": card.granule_bytes,
        "topdown": int(card.policy == "topdown"),
        "reuses": int(card.policy in ("firstfit", "topdown")),
        "chance": 1,
        "levels": 1,
        "first_oom": -1,
    }


def _above(trace: Trace, card: Card, addresses: tuple[int, ...]) -> int:
    """The address above all that the recording has: its start, reserved ranges included, and,
    no segment being larger than the card, all that it hands out.
    """
    span = card.capacity_bytes + card.capacity_bytes // 8 + (1 << 30)
    ends = [
        driver.MALLOC_BASE,
        *(address + card.capacity_bytes for address in addresses),
    ]
    for segment in trace.start:
        ends.append(segment.address + (span if segment.expandable else segment.size))
    return max(ends)


def _free_ranges(count: int, low: int, card: Card) -> np.ndarray:
    """The free addresses for cudaMalloc and for reserved ranges, from low on."""
    base = round_up(low, card.granule_bytes)
    reserved = max(base + driver.MALLOC_SPAN, driver.RESERVE_BASE)
    ranges = unused("ranges", count)
    ranges["next"][[memory.MEMORY, memory.RESERVED]] = (3, 4)
    ranges["spare"][NONE] = 5
    ranges["low"][3:5] = base, reserved
    ranges["high"][3:5] = base + driver.MALLOC_SPAN, reserved + driver.RESERVE_SPAN
    return ranges


def _settings_table(settings: Sequence[Settings], card: Card) -> np.ndarray:
    rows = table("settings", len(settings), fraction_bytes=NO_LIMIT)
    for row, setting in zip(rows, settings, strict=True):
        for name in {*(memory.SETTING.names or ())} - {"fraction_bytes", "range_bytes"}:
            row[name] = getattr(setting, name)
        if setting.fraction is not None:
            row["fraction_bytes"] = int(setting.fraction * float(card.capacity_bytes))
        row["range_bytes"] = _range_bytes(setting, card)
    return rows


def _range_bytes(settings: Settings, card: Card) -> int:
    """The addresses of an expandable segment, before they are rounded to whole pages."""
    (of_card, number) = settings.reserve or (True, 2.0)
    unit_bytes = card.capacity_bytes if of_card else 1 << 30
    return int(min(number * unit_bytes, card.capacity_bytes * 9 // 8))


def _with_whole_ranges(
    start: Sequence[StartSegment], settings: Settings, card: Card
) -> list[StartSegment]:
    """The starting state with its expandable segments whole.

    A recording shows their mapped ranges: those of one stream and pool are taken to lie in one
    segment as far as it reaches.
    """
    segments: list[StartSegment] = []
    ranges: dict[
        tuple[int, int, bool], list[int]
    ] = {}  # places in segments, by stream and pool
    for mapped in start:
        if not mapped.expandable:
            segments.append(mapped)
            continue
        alike = ranges.setdefault((mapped.stream, mapped.pool, mapped.small), [])
        holds = (
            at
            for at in alike
            if 0 <= mapped.address - segments[at].address < segments[at].size
        )
        at = next(holds, len(segments))
        if at == len(segments):
            span = round_up(
                _range_bytes(settings, card), page_bytes(settings, mapped.small)
            )
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
    """The blocks of the starting state, a row of memory.PART each."""
    rows = []
    for segment in start:
        pool = 2 * pools.index(segment.pool) + segment.small
        page = page_bytes(settings, segment.small)
        is_whole = len(segment.blocks) == 1
        home = (
            pool,
            segment.stream,
            segment.address,
            segment.size,
            segment.expandable,
            page,
            is_whole,
        )
        for at, block in enumerate(segment.blocks):
            mapped = block.state != UNMAPPED
            state = blocks.STATES.index(block.state) if mapped else blocks.INACTIVE
            place = (block.offset, block.size, block.requested)
            rows.append((at == 0, *home, *place, state, mapped, block.id))
    return np.array(rows, memory.PART)
