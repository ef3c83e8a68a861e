"""One trace under one setting, release and card, carried out by the allocator: plain, or compiled to machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from helpers.allocator import driver
from helpers.allocator.allocator import page_bytes, range_bytes
from helpers.allocator.blocks import (
    COUNTERS,
    INACTIVE,
    LIVE,
    NAMES,
    OVERSIZE_SEGMENTS,
    PENDING,
    POOLS,
    STATES,
)
from helpers.allocator.driver import Card, event_turn, round_up
from helpers.allocator.outcome import CALL_COLUMNS, COLUMNS, TORN, Outcome, ReplayError
from helpers.allocator.records import (
    BROKEN,
    EXHAUSTED,
    GONE,
    GROW,
    MEMORY,
    NO_LIMIT,
    NONE,
    PART,
    RESERVED,
    SETTING,
)
from helpers.allocator.steps import advance
from helpers.allocator.tables import TO_SPARE, Memory, table, unused
from helpers.allocator.trace import Op, StartBlock, StartSegment, Trace
from helpers.settings.releases import Behaviour
from helpers.settings.text import Settings

LARGEST = 1 << 62
ORDERS = ("address", "block", "segment")
UNMAPPED = "U"
"""State of a StartBlock: addresses without memory, in an expandable segment that is given whole."""


def run(
    trace: Trace,
    settings: Sequence[Settings],
    settings_at: dict[int, int],
    rules: Behaviour,
    card: Card,
    *,
    fraction: float | None = None,
    stop: int | None = None,
    timeline: bool = False,
    addresses: tuple[int, ...] = (),
    compiled: bool = False,
) -> Outcome:
    """Carry out the first `stop` operations. settings[0] holds from the start, settings[settings_at[i]] from operation i on;
    -1 - number for what torch refuses there and what then holds.

    Raises OverflowError where the modelled addresses are used up, ReplayError where the allocator's own state is torn,
    ValueError for columns of unequal length.
    """
    stop = max(len(trace) if stop is None else stop, 0)
    if {len(trace.id), len(trace.size), len(trace.stream), len(trace.pool)} != {
        len(trace)
    } or stop > len(trace):
        raise ValueError(
            f"{stop} operations of a trace with {len(trace)}: expected columns of one length, no more"
        )
    start, shift = whole(trace.start, settings[0], card), max(0, -int(trace.id.min(initial=0)))
    named = (trace.op[:stop] == Op.ALLOC) | (trace.op[:stop] == Op.EMPTY_CACHE)
    pools = [
        0,
        *sorted({*trace.pool[:stop][named].tolist(), *(segment.pool for segment in start)} - {0}),
    ]
    parts = parts_of(start, pools, settings[0], shift)
    tables, values = at_rest(
        pools,
        3 * len(parts) + (4096 if compiled else 32),
        card,
        rules,
        above(trace, card, addresses),
    )
    streams = sorted(
        set(trace.stream[:stop][trace.op[:stop] == Op.RECORD_STREAM].tolist()), key=event_turn
    )
    tables |= {
        "settings": settings_table(settings, card),
        "parts": parts if len(parts) else table("parts", 1),
        "queues": table("queues", len(streams) + 1, stream=[-1, *streams]),
        "idents": table("idents", trace.ids + shift + 1, block=GONE),
        "recorded": table("recorded", len(addresses) or 1, value=addresses or 0),
    }
    if timeline:
        tables["calls"] = table("calls", 4 * len(tables["blocks"]))
    first = settings[0].fraction
    memory = Memory(
        tables,
        {
            **values,
            "allowed_bytes": limit(first if fraction is None else fraction, card, rules),
            "logs": int(timeline),
            "config_bytes": int((1.0 if first is None else first) * float(card.capacity_bytes)),
            "part_count": len(parts),
            "recorded_count": len(addresses),
            "queue_count": len(streams),
        },
        compiled,
    )
    columns = columns_of(trace, stop, pools, shift, settings_at, card, rules)
    rows = np.zeros((stop if timeline else 0, len(COLUMNS)), np.int64)
    proceed: Any = advance
    if compiled:
        from helpers.allocator import compiled as machine_code

        proceed = machine_code.advance
    at, operations = -1, columns if compiled else tuple(column.tolist() for column in columns)
    while (
        at := proceed(memory.head if compiled else memory.a, *operations, rows, at, stop)
    ) < stop:
        if memory.a.status != GROW:
            break
        memory.grow()
    if memory.a.status == EXHAUSTED:
        raise OverflowError("the modelled address space is used up")
    if memory.a.status == BROKEN:
        raise ReplayError(TORN)
    return outcome_of(memory, stop, rows if timeline else None)


def limit(fraction: float | None, card: Card, rules: Behaviour) -> int:
    """What torch.cuda.set_per_process_memory_fraction allows: from 2.x on exactly 1.0 lifts the limit (settings/torch.json)."""
    if fraction is None or (fraction >= 1.0 and rules.fraction_one_is_unlimited):
        return NO_LIMIT
    allowed = fraction * float(card.capacity_bytes)
    return max(
        -LARGEST, min(int(allowed + 0.5) if rules.fraction_rounds else int(allowed), LARGEST)
    )


def columns_of(
    trace: Trace,
    stop: int,
    pools: list[int],
    shift: int,
    settings_at: dict[int, int],
    card: Card,
    rules: Behaviour,
) -> tuple[np.ndarray, ...]:
    """op, id, size, stream and pool as the allocator takes them: ids from 0, pools by their places, a limit or the place of
    settings as the size of what sets it."""
    op, sizes = trace.op[:stop], trace.size[:stop].copy()
    for at in np.flatnonzero(op == Op.SET_CONF).tolist():
        sizes[at] = settings_at[at]
    for at in np.flatnonzero(op == Op.SET_FRACTION).tolist():
        sizes[at] = limit(float(trace.values[int(sizes[at])]), card, rules)
    private = np.where(trace.pool == 0, 0, 1 + np.searchsorted(pools[1:], trace.pool))
    numbers = [
        np.require(one[:stop], np.int64, ("C", "A"))
        for one in (trace.id + shift, sizes, trace.stream, private)
    ]
    fixed = tuple(column.view() for column in (np.require(op, np.int8, ("C", "A")), *numbers))
    for column in fixed:
        column.flags.writeable = False  # one type of array, so that there is one compilation
    return fixed


def above(trace: Trace, card: Card, addresses: tuple[int, ...]) -> int:
    """The address above all that the recording has: its start, reserved ranges included, and, no segment being larger than the
    card, all that it hands out."""
    span = card.capacity_bytes + card.capacity_bytes // 8 + (1 << 30)
    return max(
        [
            driver.MALLOC_BASE,
            *(one.address + (span if one.expandable else one.size) for one in trace.start),
            *(address + card.capacity_bytes for address in addresses),
        ]
    )


def at_rest(
    pools: list[int], room: int, card: Card, rules: Behaviour, low: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The tables and figures of an allocator that has nothing yet, with room for so many blocks; addresses begin at low."""
    heads = 1 + 2 * np.arange(
        2 * len(pools)
    )  # in front of free blocks; the next one is in front of unmapped ones
    blocks = unused("blocks", room + 4 * len(pools) + TO_SPARE)
    blocks["spare"][NONE] = 1 + 4 * len(pools)
    blocks["stream"][NONE], blocks["allocated"][NONE], blocks["mapped"][NONE] = NO_LIMIT, 1, 1
    base = round_up(low, card.granule_bytes)
    reserved = max(base + driver.MALLOC_SPAN, driver.RESERVE_BASE)
    ranges = unused("ranges", len(blocks))
    ranges["next"][[MEMORY, RESERVED]], ranges["spare"][NONE] = (3, 4), 5
    ranges["low"][3:5] = base, reserved
    ranges["high"][3:5] = base + driver.MALLOC_SPAN, reserved + driver.RESERVE_SPAN
    tables = {
        "blocks": blocks,
        "segments": unused("segments", len(blocks)),
        "ranges": ranges,
        "uses": unused("uses", 16),
        "calls": table("calls", 1),
        "stats": table("stats", OVERSIZE_SEGMENTS + 1),
        "pools": table(
            "pools",
            2 * len(pools),
            private=np.repeat(pools, 2),
            small=[0, 1] * len(pools),
            free=heads,
            unmapped=heads + 1,
        ),
    }
    return tables, {
        "order": ORDERS.index(rules.order),
        "skips_expandable": int(rules.oversize_release_skips_expandable),
        "total": card.capacity_bytes,
        "capacity": card.capacity_bytes,
        "held": card.held_bytes,
        "granule": card.granule_bytes,
        "topdown": int(card.policy == "topdown"),
        "reuses": int(card.policy in ("firstfit", "topdown")),
        "chance": 1,
        "levels": 1,
        "first_oom": -1,
    }


def settings_table(settings: Sequence[Settings], card: Card) -> np.ndarray:
    made = table("settings", len(settings), fraction_bytes=NO_LIMIT)
    for row, one in zip(made, settings, strict=True):
        for name in {*(SETTING.names or ())} - {"fraction_bytes"}:
            row[name] = getattr(one, name)
        if one.fraction is not None:
            row["fraction_bytes"] = int(one.fraction * float(card.capacity_bytes))
    return made


def whole(start: Sequence[StartSegment], settings: Settings, card: Card) -> list[StartSegment]:
    """The starting state with its expandable segments whole. A recording shows their mapped ranges: those of one stream and
    pool are taken to lie in one segment as far as it reaches."""
    found: list[StartSegment] = []
    for known in start:
        if not known.expandable or any(block.state == UNMAPPED for block in known.blocks):
            found.append(known)
            continue
        mine = (True, known.stream, known.pool, known.small)
        at = next(
            (
                k
                for k, one in enumerate(found)
                if (one.expandable, one.stream, one.pool, one.small) == mine
                and one.address <= known.address < one.address + one.size
            ),
            len(found),
        )
        if at == len(found):
            span = range_bytes(card.capacity_bytes, page_bytes(settings, known.small))
            found.append(replace(known, size=span, blocks=(StartBlock(0, span, 0, UNMAPPED, -1),)))
        *blocks, tail = found[at].blocks
        offset = known.address - found[at].address
        if offset > tail.offset:
            blocks.append(replace(tail, size=offset - tail.offset))
        blocks += [replace(block, offset=offset + block.offset) for block in known.blocks]
        end = offset + known.size
        blocks.append(replace(tail, offset=end, size=tail.offset + tail.size - end))
        found[at] = replace(found[at], blocks=tuple(blocks))
    return found


def parts_of(
    start: Sequence[StartSegment], pools: list[int], settings: Settings, shift: int
) -> np.ndarray:
    """The blocks of the starting state."""
    rows = []
    for segment in start:
        pool, page = (
            2 * pools.index(segment.pool) + segment.small,
            page_bytes(settings, segment.small),
        )
        home = (
            pool,
            segment.stream,
            segment.address,
            segment.size,
            segment.expandable,
            page,
            len(segment.blocks) == 1,
        )
        for at, block in enumerate(segment.blocks):
            mapped = block.state != UNMAPPED
            state = STATES.index(block.state) if mapped else INACTIVE
            place = (block.offset, block.size, block.requested)
            rows.append((at == 0, *home, *place, state, mapped, block.id + shift))
    return np.array(rows, PART)


def outcome_of(memory: Memory, stop: int, timeline: np.ndarray | None) -> Outcome:
    """The totals, and every block in order of kind, ordinal and offset."""
    a = memory.a
    blocks = memory.columns(
        "blocks", "used segment pool stream address size requested allocated event_count mapped"
    )
    used, segments, pools, stream, address, size, requested, allocated, events, mapped = blocks.T
    expandable, ordinal, base = memory.columns("segments", "expandable ordinal address")[segments].T
    small, private = memory.columns("pools", "small private")[pools].T
    state = np.where(allocated > 0, LIVE, np.where(events > 0, PENDING, INACTIVE))
    place = (expandable, ordinal, base, address - base, size)
    found = np.stack((*place, requested, state, stream, small, private, mapped), axis=1)[used == 1]
    figures, rows = memory.columns("stats", "current peak allocated freed"), len(NAMES) * len(POOLS)
    calls = memory.columns("calls", " ".join(CALL_COLUMNS))[1 : int(a.call_count) + 1]
    return Outcome(
        events=stop,
        ooms=int(a.ooms),
        first_oom=int(a.first_oom) if a.ooms else None,
        first_oom_bytes=int(a.first_oom_bytes),
        figures=figures[:rows].reshape(len(NAMES), len(POOLS), 4),
        oversize=figures[rows:],
        counters=np.array([getattr(a, name) for name in COUNTERS], np.int64),
        blocks=found[np.lexsort(found.T[::-1])],
        timeline=timeline,
        calls=None if timeline is None else calls,
        engine="compiled" if memory.compiled else "plain",
    )
