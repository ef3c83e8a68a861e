"""A trace under other settings, another release, another card: what the caching allocator does
with it, carried out in plain Python or by the same code compiled to machine code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from helpers.allocator import records
from helpers.allocator.blocks import COUNTERS, INACTIVE, LIVE, NAMES, PENDING, POOLS
from helpers.allocator.driver import GRANULE_BYTES, Card
from helpers.allocator.operations import advance
from helpers.allocator.outcome import CALL_COLUMNS, COLUMNS, TORN, Outcome, ReplayError
from helpers.allocator.tables import Memory, allowed_bytes, starting_state, table
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
    if stop is None:
        stop = len(trace)
    stop = max(min(stop, len(trace)), 0)
    _check_columns(trace)
    compiled = chosen_engine(engine, stop) == "compiled"
    pools = _pools(trace)
    tables, values = starting_state(
        trace,
        settings,
        card,
        rules,
        pools=pools,
        room=4096 if compiled else 32,
    )
    tables["operations"] = _operations(trace, stop, pools, settings_at, card, rules)
    tables["calls"] = table("calls", 4 * len(tables["blocks"]) if timeline else 1)
    named = settings[0].fraction
    if named is not None:
        values["config_bytes"] = int(named * float(card.capacity_bytes))
    if fraction is None:
        fraction = named
    values["allowed_bytes"] = allowed_bytes(fraction, card, rules)
    values["logs"] = int(timeline)
    state = Memory(tables, values, compiled)
    rows = np.zeros((stop if timeline else 0, len(COLUMNS)), np.int64)
    _carry_out(state, rows, stop)
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


def _operations(
    trace: Trace,
    stop: int,
    pools: list[int],
    settings_at: dict[int, int],
    card: Card,
    rules: Behaviour,
) -> np.ndarray:
    """The table of operations: pools by their places, a limit or the place of settings as the
    size of what sets it.
    """
    op = trace.op[:stop]
    sizes = trace.size[:stop].copy()
    for at in np.flatnonzero(op == Op.SET_CONF).tolist():
        sizes[at] = settings_at[at]
    for at in np.flatnonzero(op == Op.SET_FRACTION).tolist():
        sizes[at] = allowed_bytes(float(trace.values[int(sizes[at])]), card, rules)
    pool = trace.pool[:stop]
    return table(
        "operations",
        stop,
        op=op,
        ident=trace.id[:stop] + 1,
        size=sizes,
        stream=trace.stream[:stop],
        pool=np.sign(pool) * (1 + np.searchsorted(pools[1:], np.abs(pool))),
    )


def _carry_out(state: Memory, timeline: np.ndarray, stop: int) -> None:
    """Every operation up to stop; where tables have no room for one, they grow."""
    proceed: Callable[..., int] = advance
    head = state.a
    if state.compiled:
        proceed = importlib.import_module(COMPILED).advance
        head = state.head
    at = -1  # the starting state comes first
    while at < stop:
        at = proceed(head, timeline, at, stop)
        if state.a.status == records.GROW:
            state.grow()
        elif state.a.status == records.EXHAUSTED:
            raise OverflowError("the modelled address space is used up")
        elif state.a.status == records.BROKEN:
            raise ReplayError(TORN)


def _outcome(state: Memory, stop: int, timeline: np.ndarray | None) -> Outcome:
    """The totals, and every block in order of kind, ordinal and offset."""
    a = state.a
    block = state.array("blocks")
    in_use = block["used"] == 1
    block = block[in_use]
    segment = state.array("segments")[block["segment"]]
    pool = state.array("pools")[block["pool"]]
    free_or_waiting = np.where(block["event_count"] > 0, PENDING, INACTIVE)
    columns = (
        segment["expandable"],
        segment["ordinal"],
        segment["address"],
        block["address"] - segment["address"],
        block["size"],
        block["requested"],
        np.where(block["allocated"] > 0, LIVE, free_or_waiting),
        block["stream"],
        pool["small"],
        pool["private"],
        block["mapped"],
    )
    stat = state.array("stats")
    freed = stat["allocated"] - stat["current"]
    figures = np.stack(
        (stat["current"], stat["peak"], stat["allocated"], freed), axis=1
    )
    count = len(NAMES) * len(POOLS)
    calls = None
    if timeline is not None:
        used = state.array("calls")[1 : a.call_count + 1]
        calls = used.view(np.int64).reshape(-1, len(CALL_COLUMNS))
    return Outcome(
        events=stop,
        ooms=int(a.ooms),
        first_oom=int(a.first_oom) if a.ooms else None,
        first_oom_bytes=int(a.first_oom_bytes),
        figures=figures[:count].reshape(len(NAMES), len(POOLS), 4),
        oversize=figures[count:],
        counters=np.array([getattr(a, name) for name in COUNTERS], np.int64),
        blocks=np.stack(columns, axis=1)[np.lexsort(columns[::-1])],
        timeline=timeline,
        calls=calls,
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
            print(
                f"Compiling the allocator, once: about {COMPILE_S} s on an idle machine",
                file=sys.stderr,
            )
            compiled.make()
        return "compiled"
    _plain += operations
    return "plain"
