"""A trace under other settings, another release, another card: what the caching allocator does
with it, carried out in plain Python or by the same code compiled to machine code.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from helpers.allocator import blocks, memory
from helpers.allocator.driver import GRANULE_BYTES, Card
from helpers.allocator.memory import Memory, table
from helpers.allocator.operations import advance
from helpers.allocator.outcome import CALL_COLUMNS, COLUMNS, TORN, Outcome, ReplayError
from helpers.allocator.starting_state import allowed_bytes, starting_state
from helpers.allocator.trace import BLOCK_OPS, Op, Trace
from helpers.settings.allocator_text import SettingsError
from helpers.settings.in_force import Settings, parse
from helpers.settings.releases import Behaviour, behaviour

COMPILED = "helpers.allocator.compiled"
ENGINES = ("auto", "compiled", "plain")
ODD_PAGES = (
    "large_segment_size_mb:{mib} with expandable_segments: CUDA maps whole 2 MiB only, so torch fails at its first request above "
    "1 MiB; use an even number"
)


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
    settings, ReplayError where the allocator's own state would be torn, OverflowError where the
    modelled addresses are used up, ValueError for columns that are no trace.
    """
    rules = behaviour(torch, build)
    settings, settings_at, errors = _settings_in_turn(trace, conf, rules)
    stop = len(trace) if stop is None else max(min(stop, len(trace)), 0)
    _check_columns(trace)
    compiled = chosen_engine(engine, stop) == "compiled"
    recorded = trace.driver if card.policy == "recorded" else ()
    uses = trace.op == Op.RECORD_STREAM
    pools = _pools(trace)
    tables, values = starting_state(
        trace,
        settings,
        card,
        rules,
        pools=pools,
        streams=np.unique(trace.stream[uses]).tolist(),
        addresses=tuple(call.address for call in recorded if call.action == "malloc"),
        room=4096 if compiled else 32,
    )
    tables["calls"] = table("calls", 4 * len(tables["blocks"]) if timeline else 1)
    first = settings[0].fraction
    config = 1.0 if first is None else first
    values |= {
        "allowed_bytes": allowed_bytes(
            first if fraction is None else fraction, card, rules
        ),
        "config_bytes": int(config * float(card.capacity_bytes)),
        "logs": int(timeline),
    }
    state = Memory(tables, values, compiled)
    rows = np.zeros((stop if timeline else 0, len(COLUMNS)), np.int64)
    _carry_out(
        state, _columns(trace, stop, pools, settings_at, card, rules), rows, stop
    )
    return replace(_outcome(state, stop, rows if timeline else None), errors=errors)


def _settings_in_turn(
    trace: Trace, conf: str, rules: Behaviour
) -> tuple[list[Settings], dict[int, int], tuple[tuple[int, str], ...]]:
    """The settings that hold in turn: all of them, which one from which operation on, and the
    refusals.

    A refusal changes settings too; its place is given as -1 - number. Raises SettingsError
    where torch refuses `conf` itself, ReplayError where it fails under what it accepts.
    """
    settings = [parse(conf, rules)]
    places = {}
    errors = []
    for at in np.flatnonzero(trace.op == Op.SET_CONF).tolist():
        try:
            settings.append(
                parse(str(trace.values[int(trace.size[at])]), rules, settings[-1])
            )
            places[at] = len(settings) - 1
        except SettingsError as error:
            settings.append(error.left or settings[-1])
            places[at] = -len(settings)
            errors.append((at, str(error)))
    for setting in settings:
        odd = setting.expandable and setting.large_segment_bytes % GRANULE_BYTES
        if odd and rules.build == "cuda":
            raise ReplayError(ODD_PAGES.format(mib=setting.large_segment_bytes >> 20))
    return settings, places, tuple(errors)


def _check_columns(trace: Trace) -> None:
    """Passes for columns that compiled code, which checks no index, can follow."""
    columns = (trace.id, trace.size, trace.stream, trace.pool)
    if {len(column) for column in columns} != {len(trace)}:
        raise ValueError(
            f"a trace of {len(trace)} operations: expected columns of one length"
        )
    if (trace.id[np.isin(trace.op, BLOCK_OPS)] < 0).any():
        raise ValueError("an operation names no block: expected ids from 0 up")


def _pools(trace: Trace) -> list[int]:
    """The numbers of the trace's pools, that of the default ones, 0, first."""
    named = trace.pool[np.isin(trace.op, (Op.ALLOC, Op.EMPTY_CACHE))]
    private = {*np.abs(named).tolist(), *(segment.pool for segment in trace.start)} - {
        0
    }
    return [0, *sorted(private)]


def _columns(
    trace: Trace,
    stop: int,
    pools: list[int],
    settings_at: dict[int, int],
    card: Card,
    rules: Behaviour,
) -> tuple[np.ndarray, ...]:
    """op, id, size, stream and pool as the allocator takes them: pools by their places, a limit
    or the place of settings as the size of what sets it.
    """
    op = trace.op[:stop]
    sizes = trace.size[:stop].copy()
    for at in np.flatnonzero(op == Op.SET_CONF).tolist():
        sizes[at] = settings_at[at]
    for at in np.flatnonzero(op == Op.SET_FRACTION).tolist():
        sizes[at] = allowed_bytes(float(trace.values[int(sizes[at])]), card, rules)
    pool = trace.pool[:stop]
    private = np.sign(pool) * (1 + np.searchsorted(pools[1:], np.abs(pool)))
    numbers = [trace.id[:stop], sizes, trace.stream[:stop], private]
    columns = [op.astype(np.int8), *(number.astype(np.int64) for number in numbers)]
    for column in columns:
        column.flags.writeable = (
            False  # one type of array, so that there is one compilation
        )
    return tuple(columns)


def _carry_out(
    state: Memory, columns: tuple[np.ndarray, ...], timeline: np.ndarray, stop: int
) -> None:
    """Every operation up to stop; where tables have no room for one, they grow."""
    proceed: Any = advance
    operations: Any = columns
    head: Any = state.head
    if state.compiled:
        proceed = importlib.import_module(COMPILED).advance
    else:
        operations = [column.tolist() for column in columns]
        head = state.a
    at = proceed(head, *operations, timeline, -1, stop)
    while at < stop and state.a.status == memory.GROW:
        state.grow()
        at = proceed(head, *operations, timeline, at, stop)
    if state.a.status == memory.EXHAUSTED:
        raise OverflowError("the modelled address space is used up")
    if state.a.status == memory.BROKEN:
        raise ReplayError(TORN)


def _outcome(state: Memory, stop: int, timeline: np.ndarray | None) -> Outcome:
    """The totals, and every block in order of kind, ordinal and offset."""
    a = state.a
    fields = (
        "used segment pool stream address size requested allocated event_count mapped"
    )
    columns = state.columns("blocks", fields)
    (
        used,
        segments,
        pools,
        stream,
        address,
        size,
        requested,
        allocated,
        events,
        mapped,
    ) = columns.T
    expandable, ordinal, base = state.columns("segments", "expandable ordinal address")[
        segments
    ].T
    small, private = state.columns("pools", "small private")[pools].T
    waits = np.where(events > 0, blocks.PENDING, blocks.INACTIVE)
    block_state = np.where(allocated > 0, blocks.LIVE, waits)
    place = (expandable, ordinal, base, address - base, size)
    rows = np.stack(
        (*place, requested, block_state, stream, small, private, mapped), axis=1
    )
    in_use = used == 1
    rows = rows[in_use]
    figures = state.columns("stats", "current peak allocated freed")
    shape = (len(blocks.NAMES), len(blocks.POOLS))
    count = shape[0] * shape[1]
    calls = state.columns("calls", " ".join(CALL_COLUMNS))[1 : int(a.call_count) + 1]
    return Outcome(
        events=stop,
        ooms=int(a.ooms),
        first_oom=int(a.first_oom) if a.ooms else None,
        first_oom_bytes=int(a.first_oom_bytes),
        figures=figures[:count].reshape(*shape, 4),
        oversize=figures[count:],
        counters=np.array([getattr(a, name) for name in blocks.COUNTERS], np.int64),
        blocks=rows[np.lexsort(rows.T[::-1])],
        timeline=timeline,
        calls=None if timeline is None else calls,
        engine="compiled" if state.compiled else "plain",
    )


PLAIN_A_SECOND = 20_000
"""Operations; compiled it is 100 times as many."""
LOAD_S = 1
COMPILE_S = 25
_plain = 0  # operations carried out in plain Python by this process so far


def chosen_engine(engine: str, operations: int) -> str:
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
