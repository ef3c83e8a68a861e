"""One trace under one setting, release and card, carried out by the allocator: plain, or
compiled to machine code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from helpers.allocator import blocks, driver, records
from helpers.allocator.allocator import advance, page_bytes
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up, stream_turn
from helpers.allocator.outcome import CALL_COLUMNS, COLUMNS, TORN, Outcome, ReplayError
from helpers.allocator.records import NO_LIMIT, NONE, Memory, table, unused
from helpers.allocator.trace import Op, StartBlock, StartSegment, Trace
from helpers.settings.allocator_text import SettingsError
from helpers.settings.releases import Behaviour, behaviour
from helpers.settings.text import Settings, parse

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
    """Carry out the first `stop` operations. settings[0] holds from the start,
    settings[settings_at[i]] from operation i on; -1 - number for what torch refuses there
    and what then holds.

    Raises OverflowError where the modelled addresses are used up, ReplayError where the
    allocator's own state is torn, ValueError for columns of unequal length.
    """
    stop = max(len(trace) if stop is None else stop, 0)
    columns = (trace.id, trace.size, trace.stream, trace.pool)
    if {len(column) for column in columns} != {len(trace)} or stop > len(trace):
        expected = "expected columns of one length, no more"
        raise ValueError(f"{stop} operations of a trace with {len(trace)}: {expected}")
    start = whole(trace.start, settings[0], card)
    shift = max(0, -int(trace.id.min(initial=0)))
    op = trace.op[:stop]
    named = trace.pool[:stop][(op == Op.ALLOC) | (op == Op.EMPTY_CACHE)]
    pools = [0, *sorted({*map(abs, named.tolist()), *(segment.pool for segment in start)} - {0})]
    streams = sorted(set(trace.stream[:stop][op == Op.RECORD_STREAM].tolist()))
    turns = [stream_turn(one, rules.device_type) for one in streams]
    slots = 64 << len(streams).bit_length()
    parts = parts_of(start, pools, settings[0], shift)
    room = 3 * len(parts) + (4096 if compiled else 32)
    low = above(trace, card, addresses)
    tables, values = at_rest(pools, room, card, rules, low)
    tables |= {
        "settings": settings_table(settings, card),
        "parts": parts if len(parts) else table("parts", 1),
        "queues": table("queues", len(streams) + 1, stream=[-1, *streams], turn=[0, *turns]),
        "maps": table("maps", 3, first=[0, slots, 2 * slots]),
        "slots": table("slots", 3 * slots),
        "idents": table("idents", trace.ids + shift + 1, block=records.GONE),
        "recorded": table("recorded", len(addresses) or 1, value=addresses or 0),
        "calls": table("calls", 4 * len(tables["blocks"]) if timeline else 1),
    }
    first = settings[0].fraction
    config = 1.0 if first is None else first
    values |= {
        "allowed_bytes": limit(first if fraction is None else fraction, card, rules),
        "config_bytes": int(config * float(card.capacity_bytes)),
        "logs": int(timeline),
        "part_count": len(parts),
        "recorded_count": len(addresses),
    }
    memory = Memory(tables, values, compiled)
    rows = np.zeros((stop if timeline else 0, len(COLUMNS)), np.int64)
    operations: Any = columns_of(trace, stop, pools, shift, settings_at, card, rules)
    proceed: Any = advance
    if compiled:
        from helpers.allocator import compiled as machine_code

        proceed = machine_code.advance
    else:
        operations = tuple(column.tolist() for column in operations)
    at = -1
    head = memory.head if compiled else memory.a
    while (at := proceed(head, *operations, rows, at, stop)) < stop:
        if memory.a.status != records.GROW:
            break
        memory.grow()
    if memory.a.status == records.EXHAUSTED:
        raise OverflowError("the modelled address space is used up")
    if memory.a.status == records.BROKEN:
        raise ReplayError(TORN)
    return outcome_of(memory, stop, rows if timeline else None)


def limit(fraction: float | None, card: Card, rules: Behaviour) -> int:
    """What torch.cuda.set_per_process_memory_fraction allows: from 2.x on exactly 1.0 lifts the
    limit (settings/torch.json).
    """
    if fraction is None or (fraction >= 1.0 and rules.fraction_one_is_unlimited):
        return NO_LIMIT
    allowed = fraction * float(card.capacity_bytes) + 0.5 * rules.fraction_rounds
    return max(-LARGEST, min(int(allowed), LARGEST))


def columns_of(
    trace: Trace,
    stop: int,
    pools: list[int],
    shift: int,
    settings_at: dict[int, int],
    card: Card,
    rules: Behaviour,
) -> tuple[np.ndarray, ...]:
    """op, id, size, stream and pool as the allocator takes them: ids from 0, pools by their
    places, a limit or the place of settings as the size of what sets it.
    """
    op = trace.op[:stop]
    sizes = trace.size[:stop].copy()
    for at in np.flatnonzero(op == Op.SET_CONF).tolist():
        sizes[at] = settings_at[at]
    for at in np.flatnonzero(op == Op.SET_FRACTION).tolist():
        sizes[at] = limit(float(trace.values[int(sizes[at])]), card, rules)
    private = np.sign(trace.pool) * (1 + np.searchsorted(pools[1:], np.abs(trace.pool)))
    numbers = [one[:stop] for one in (trace.id + shift, sizes, trace.stream, private)]
    kinds = (np.int8, *[np.int64] * len(numbers))
    fixed = tuple(
        np.require(one, kind, ("C", "A")).view()
        for one, kind in zip((op, *numbers), kinds, strict=True)
    )
    for column in fixed:
        column.flags.writeable = False  # one type of array, so that there is one compilation
    return fixed


def above(trace: Trace, card: Card, addresses: tuple[int, ...]) -> int:
    """The address above all that the recording has: its start, reserved ranges included, and,
    no segment being larger than the card, all that it hands out.
    """
    span = card.capacity_bytes + card.capacity_bytes // 8 + (1 << 30)
    start = (one.address + (span if one.expandable else one.size) for one in trace.start)
    given = (address + card.capacity_bytes for address in addresses)
    return max([driver.MALLOC_BASE, *start, *given])


def at_rest(
    pools: list[int], room: int, card: Card, rules: Behaviour, low: int
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The tables and figures of an allocator that has nothing yet, with room for so many
    blocks; addresses begin at low.
    """
    # In front of free blocks; the next one is in front of unmapped ones.
    heads = 1 + 2 * np.arange(2 * len(pools))
    places = unused("blocks", room + 4 * len(pools) + records.TO_SPARE)
    places["spare"][NONE] = 1 + 4 * len(pools)
    places["stream"][NONE] = NO_LIMIT
    places["allocated"][NONE] = 1
    places["mapped"][NONE] = 1
    base = round_up(low, card.granule_bytes)
    reserved = max(base + driver.MALLOC_SPAN, driver.RESERVE_BASE)
    ranges = unused("ranges", len(places))
    ranges["next"][[records.MEMORY, records.RESERVED]] = (3, 4)
    ranges["spare"][NONE] = 5
    ranges["low"][3:5] = base, reserved
    ranges["high"][3:5] = base + driver.MALLOC_SPAN, reserved + driver.RESERVE_SPAN
    kinds = {"private": np.repeat(pools, 2), "small": [0, 1] * len(pools)}
    tables = {
        "blocks": places,
        "segments": unused("segments", len(places)),
        "ranges": ranges,
        "uses": unused("uses", 16),
        "stats": table("stats", blocks.OVERSIZE_SEGMENTS + 1),
        "pools": table("pools", len(heads), free=heads, unmapped=heads + 1, **kinds),
    }
    return tables, {
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


def settings_table(settings: Sequence[Settings], card: Card) -> np.ndarray:
    made = table("settings", len(settings), fraction_bytes=NO_LIMIT)
    for row, one in zip(made, settings, strict=True):
        for name in {*(records.SETTING.names or ())} - {"fraction_bytes", "range_bytes"}:
            row[name] = getattr(one, name)
        if one.fraction is not None:
            row["fraction_bytes"] = int(one.fraction * float(card.capacity_bytes))
        row["range_bytes"] = range_bytes(one, card)
    return made


def range_bytes(settings: Settings, card: Card) -> int:
    """The addresses of an expandable segment, before they are rounded to whole pages."""
    full = card.capacity_bytes * 9 // 8
    (of_card, number) = settings.reserve or (True, 2.0)
    return int(min(number * (card.capacity_bytes if of_card else 1 << 30), full))


def whole(start: Sequence[StartSegment], settings: Settings, card: Card) -> list[StartSegment]:
    """The starting state with its expandable segments whole.

    A recording shows their mapped ranges: those of one stream and pool are taken to lie in one
    segment as far as it reaches.
    """
    found: list[StartSegment] = []
    ranges: dict[tuple[int, int, bool], list[int]] = {}  # of a stream and pool: places in found
    for known in start:
        if not known.expandable or any(block.state == UNMAPPED for block in known.blocks):
            if known.expandable:
                ranges.setdefault(home_of(known), []).append(len(found))
            found.append(known)
            continue
        mine = ranges.setdefault(home_of(known), [])
        holds = (at for at in mine if 0 <= known.address - found[at].address < found[at].size)
        at = next(holds, len(found))
        if at == len(found):
            span = round_up(range_bytes(settings, card), page_bytes(settings, known.small))
            found.append(replace(known, size=span, blocks=(StartBlock(0, span, 0, UNMAPPED, -1),)))
            mine.append(at)
        *pieces, tail = found[at].blocks
        offset = known.address - found[at].address
        if offset > tail.offset:
            pieces.append(replace(tail, size=offset - tail.offset))
        pieces += [replace(block, offset=offset + block.offset) for block in known.blocks]
        end = offset + known.size
        pieces.append(replace(tail, offset=end, size=tail.offset + tail.size - end))
        found[at] = replace(found[at], blocks=tuple(pieces))
    return found


def home_of(segment: StartSegment) -> tuple[int, int, bool]:
    return segment.stream, segment.pool, segment.small


def parts_of(
    start: Sequence[StartSegment], pools: list[int], settings: Settings, shift: int
) -> np.ndarray:
    """The blocks of the starting state."""
    rows = []
    for one in start:
        pool = 2 * pools.index(one.pool) + one.small
        page = page_bytes(settings, one.small)
        whole = len(one.blocks) == 1
        home = (pool, one.stream, one.address, one.size, one.expandable, page, whole)
        for at, block in enumerate(one.blocks):
            mapped = block.state != UNMAPPED
            state = blocks.STATES.index(block.state) if mapped else blocks.INACTIVE
            place = (block.offset, block.size, block.requested)
            rows.append((at == 0, *home, *place, state, mapped, block.id + shift))
    return np.array(rows, records.PART)


def outcome_of(memory: Memory, stop: int, timeline: np.ndarray | None) -> Outcome:
    """The totals, and every block in order of kind, ordinal and offset."""
    a = memory.a
    fields = "used segment pool stream address size requested allocated event_count mapped"
    columns = memory.columns("blocks", fields)
    used, segments, pools, stream, address, size, requested, allocated, events, mapped = columns.T
    expandable, ordinal, base = memory.columns("segments", "expandable ordinal address")[segments].T
    small, private = memory.columns("pools", "small private")[pools].T
    waits = np.where(events > 0, blocks.PENDING, blocks.INACTIVE)
    state = np.where(allocated > 0, blocks.LIVE, waits)
    place = (expandable, ordinal, base, address - base, size)
    found = np.stack((*place, requested, state, stream, small, private, mapped), axis=1)[used == 1]
    figures = memory.columns("stats", "current peak allocated freed")
    shape = (len(blocks.NAMES), len(blocks.POOLS))
    rows = shape[0] * shape[1]
    calls = memory.columns("calls", " ".join(CALL_COLUMNS))[1 : int(a.call_count) + 1]
    return Outcome(
        events=stop,
        ooms=int(a.ooms),
        first_oom=int(a.first_oom) if a.ooms else None,
        first_oom_bytes=int(a.first_oom_bytes),
        figures=figures[:rows].reshape(*shape, 4),
        oversize=figures[rows:],
        counters=np.array([getattr(a, name) for name in blocks.COUNTERS], np.int64),
        blocks=found[np.lexsort(found.T[::-1])],
        timeline=timeline,
        calls=None if timeline is None else calls,
        engine="compiled" if memory.compiled else "plain",
    )


# Replays a trace under other settings, another version, another card: exactly what the caching
# allocator would do.

COMPILED = "helpers.allocator.compiled"
ENGINES = ("auto", "compiled", "plain")
ODD_PAGES = (
    "large_segment_size_mb:{mib} with expandable_segments: CUDA maps whole 2 MiB only, so torch fails at its first request above "
    "1 MiB; use an even number"
)


def resolve(
    trace: Trace, conf: str, rules: Behaviour
) -> tuple[list[Settings], dict[int, int], tuple[tuple[int, str], ...]]:
    """The settings that hold in turn: all of them, which one from which operation on, and the
    refusals.

    A refusal changes settings too; its place is given as -1 - number. Raises SettingsError
    where torch refuses `conf` itself.
    """
    settings = [parse(conf, rules)]
    at = {}
    errors = []
    for index in (trace.op == Op.SET_CONF).nonzero()[0].tolist():
        try:
            settings.append(parse(str(trace.values[int(trace.size[index])]), rules, settings[-1]))
            at[index] = len(settings) - 1
        except SettingsError as error:
            settings.append(error.left or settings[-1])
            at[index] = -len(settings)
            errors.append((index, str(error)))
    return settings, at, tuple(errors)


def replay(
    trace: Trace,
    conf: str,
    card: Card,
    *,
    torch: str = "2.14.1",
    build: str = "cuda",
    fraction: float | None = None,
    stop: int | None = None,
    timeline: bool = False,
    engine: str = "auto",
) -> Outcome:
    """What the allocator of that torch does with the trace under `conf` (a
    PYTORCH_CUDA_ALLOC_CONF string) on that card.

    fraction is set_per_process_memory_fraction; stop ends after so many operations; timeline
    keeps a row an operation. engine "compiled" is the allocator as machine code, "plain" the
    same in Python, "auto" what is quicker. Raises SettingsError where torch would refuse the
    settings, ReplayError where the allocator's own state would be torn.
    """
    rules = behaviour(torch, build)
    settings, at, errors = resolve(trace, conf, rules)
    for one in settings:
        odd = one.expandable and one.large_segment_bytes % GRANULE_BYTES
        if odd and rules.build == "cuda":
            raise ReplayError(ODD_PAGES.format(mib=one.large_segment_bytes >> 20))
    recorded = trace.driver if card.policy == "recorded" else ()
    addresses = tuple(call.address for call in recorded if call.action == "malloc")
    stop = len(trace) if stop is None else min(stop, len(trace))
    how: dict[str, Any] = {"fraction": fraction, "stop": stop, "timeline": timeline}
    compiled = choose(engine, stop) == "compiled"
    outcome = run(trace, settings, at, rules, card, addresses=addresses, compiled=compiled, **how)
    return replace(outcome, errors=errors)


PLAIN_A_SECOND = 20_000
"""Operations; compiled it is 100 times as many."""
LOAD_S = 1
COMPILE_S = 25
_plain = 0  # operations carried out in plain Python by this process so far


def choose(engine: str, operations: int) -> str:
    """The engine, "compiled" or "plain", for so many operations.

    "auto" compiles once that takes less time than plain Python has taken and would take, and
    says so first; machine code kept from another time is loaded sooner.
    """
    global _plain
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    if engine == "plain":
        return engine
    must = engine == "compiled"
    plain_s = (_plain + operations) / PLAIN_A_SECOND
    compiled = None
    # While another thread imports it, it stands there half made: importing waits for the whole.
    if must or plain_s > LOAD_S or COMPILED in sys.modules:
        try:
            compiled = importlib.import_module(COMPILED)
        except ImportError:
            if must:
                raise
    if compiled is not None and (must or plain_s > COMPILE_S or compiled.ready()):
        if not compiled.ready():
            how_long = f"about {COMPILE_S} s on an idle machine"
            print(f"Compiling the allocator, once: {how_long}", file=sys.stderr)
            compiled.make()
        return "compiled"
    _plain += operations
    return "plain"
