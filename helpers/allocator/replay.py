"""Replays a trace under other settings, on another release or another card: the caching allocator
carries out its operations, in plain Python or as the same code compiled to machine code.
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
ROOM_COMPILED = 4096
ROOM_PLAIN = 32
"""Blocks that the tables have room for at first: plain Python makes an object of each record, so it
begins with few; tables that are too short grow.
"""
CALLS_A_BLOCK = 4
"""Calls to the driver for which operations.has_room asks before each operation."""


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

    fraction: of set_per_process_memory_fraction, None where the program sets none. stop: ends after
    so many operations. timeline: keeps a row for each operation and the log of driver calls.
    engine: "compiled" is the allocator as machine code, "plain" the same in Python, "auto" the
    quicker of the two. Raises SettingsError where torch would refuse the settings, ReplayError
    where the allocator's own state would be torn, OverflowError where the modelled addresses are
    used up, ValueError for columns that are no trace.
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
        room=ROOM_COMPILED if compiled else ROOM_PLAIN,
    )
    tables["operations"] = _operations(trace, stop, pools, settings_at, card, rules)
    kept_calls = 1  # tables are never empty
    kept_rows = 0
    if timeline:
        kept_calls = CALLS_A_BLOCK * len(tables["blocks"])
        kept_rows = stop
    tables["calls"] = table("calls", kept_calls)
    # A fraction that the settings name is the limit of throw_on_oom (Allocator.config_bytes) in any
    # case, and that of the process unless the program has set another one.
    named = settings[0].fraction
    if named is not None:
        values["config_bytes"] = int(named * float(card.capacity_bytes))
    if fraction is None:
        fraction = named
    values["allowed_bytes"] = allowed_bytes(fraction, card, rules)
    values["logs"] = int(timeline)
    state = Memory(tables, values, compiled)
    rows = np.zeros((kept_rows, len(COLUMNS)), np.int64)
    _carry_out(state, rows, stop)
    outcome = replace(_outcome(state, stop), errors=errors)
    if not timeline:
        return outcome
    used = state.array("calls")[1 : state.a.call_count + 1]  # place 0 stands for none
    calls = used.view(np.int64).reshape(-1, len(CALL_COLUMNS))
    return replace(outcome, timeline=rows, calls=calls)


def _settings_in_turn(
    trace: Trace, conf: str, rules: Behaviour
) -> tuple[list[Settings], dict[int, int], tuple[tuple[int, str], ...]]:
    """Returns three things: all settings that hold in turn, those of `conf` first; for each
    SET_CONF operation, by its number, the place of its settings among them; and the texts that
    torch refuses, as (operation, why).

    A text that torch refuses changes settings too, up to the option that it refuses. The place p of
    such settings is given as -1 - p, as operations.set_conf reads it. Raises SettingsError where
    torch refuses `conf` itself, ReplayError where it accepts settings and then fails under them.
    """
    settings = [parse(conf, rules)]
    places = {}
    errors = []
    for at in np.flatnonzero(trace.op == Op.SET_CONF).tolist():
        text = str(trace.values[trace.size[at]])
        before = settings[-1]
        place = len(settings)
        try:
            settings.append(parse(text, rules, before))
            places[at] = place
        except SettingsError as error:
            settings.append(error.left or before)
            places[at] = -1 - place
            errors.append((at, str(error)))
    for setting in settings:
        is_odd = setting.large_segment_bytes % GRANULE_BYTES != 0
        if setting.expandable and is_odd and rules.build == "cuda":
            raise ReplayError(ODD_PAGES.format(mib=setting.large_segment_bytes >> 20))
    return settings, places, tuple(errors)


def _check_columns(trace: Trace) -> None:
    """Raises ValueError for columns of different lengths and for ids below 0: compiled code checks
    no index, so with these it would read outside of its tables.
    """
    columns = (trace.id, trace.size, trace.stream, trace.pool)
    if {len(column) for column in columns} != {len(trace)}:
        raise ValueError(
            f"a trace of {len(trace)} operations: expected columns of one length"
        )
    if (trace.id[np.isin(trace.op, BLOCK_OPS)] < 0).any():
        raise ValueError("an operation names no block: expected ids from 0 up")


def _pools(trace: Trace) -> list[int]:
    """The numbers of the trace's pools: 0, the default ones, first, then the private ones."""
    named = trace.pool[np.isin(trace.op, (Op.ALLOC, Op.EMPTY_CACHE))]
    # Below 0: the same pool used outside of a capture (Trace.pool).
    private = {*np.abs(named).tolist(), *(segment.pool for segment in trace.start)}
    return [0, *sorted(private - {0})]


def _operations(
    trace: Trace,
    stop: int,
    pools: list[int],
    settings_at: dict[int, int],
    card: Card,
    rules: Behaviour,
) -> np.ndarray:
    """The table of the operations before ``stop``, in which indices of the trace are resolved: the
    size of a SET_CONF is the place of its settings (``settings_at``, by operation), that of a
    SET_FRACTION the bytes that it allows. Private pools are numbered from 1 in the order of
    ``pools``, and keep the sign that they have in the trace.
    """
    op = trace.op[:stop]
    sizes = trace.size[:stop].copy()
    for at in np.flatnonzero(op == Op.SET_CONF).tolist():
        sizes[at] = settings_at[at]
    for at in np.flatnonzero(op == Op.SET_FRACTION).tolist():
        sizes[at] = allowed_bytes(float(trace.values[int(sizes[at])]), card, rules)
    pool = trace.pool[:stop]
    # np.sign is 0 for the default pools, so these stay 0.
    pool_number = np.sign(pool) * (1 + np.searchsorted(pools[1:], np.abs(pool)))
    return table(
        "operations",
        stop,
        op=op,
        ident=trace.id[:stop] + 1,  # the place of its Ident; place 0 stands for none
        size=sizes,
        stream=trace.stream[:stop],
        pool=pool_number,
    )


def _carry_out(state: Memory, timeline: np.ndarray, stop: int) -> None:
    """Carries out every operation before ``stop``. ``advance`` returns early where a table is too
    short for the next operation; the tables then grow, and it goes on from there. Fills
    ``timeline``, a row for each operation, where it has any rows.
    """
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


def _outcome(state: Memory, stop: int) -> Outcome:
    """The totals after ``stop`` operations, and the table of blocks. Its ``first_oom`` is None
    where nothing ran out, while the allocator's record has -1.
    """
    a = state.a
    engine = "plain"
    if state.compiled:
        engine = "compiled"
    first_oom = None
    if a.ooms:
        first_oom = int(a.first_oom)
    stat = state.array("stats")
    freed = stat["allocated"] - stat["current"]
    figures = np.stack(
        (stat["current"], stat["peak"], stat["allocated"], freed), axis=1
    )
    # Behind the figures of each pool there are two rows of oversize blocks (blocks.py).
    count = len(NAMES) * len(POOLS)
    return Outcome(
        events=stop,
        ooms=int(a.ooms),
        first_oom=first_oom,
        first_oom_bytes=int(a.first_oom_bytes),
        figures=figures[:count].reshape(len(NAMES), len(POOLS), 4),
        oversize=figures[count:],
        counters=np.array([getattr(a, name) for name in COUNTERS], np.int64),
        blocks=_block_table(state),
        engine=engine,
    )


def _block_table(state: Memory) -> np.ndarray:
    """Every block with the columns of outcome.BLOCK_COLUMNS, in their order."""
    block = state.array("blocks")
    block = block[block["used"] == 1]
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
    in_order = np.lexsort(columns[::-1])  # its last key is the one that decides first
    return np.stack(columns, axis=1)[in_order]


# About the speed of one core. Only the choice of the engine depends on these three.
PLAIN_A_SECOND = 20_000
"""Operations in plain Python; compiled it is 100 times as many."""
LOAD_S = 1
"""To import numba and load machine code that was kept."""
COMPILE_S = 25
_plain = 0  # operations carried out in plain Python by this process so far


def chosen_engine(engine: str, operations: int) -> str:
    """The engine, "compiled" or "plain", for so many operations.

    "auto" compares the time of plain Python for all replays of this process, this one included.
    Where that is longer than loading, machine code that an earlier process kept is used; where it
    is longer than compiling, the code is compiled, which is said on stderr. Without numba it is
    "plain". Raises ImportError for "compiled" without numba, ValueError for another word.
    """
    global _plain
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    if engine == "plain":
        return engine
    must = engine == "compiled"
    plain_s = (_plain + operations) / PLAIN_A_SECOND
    compiled = None
    # Another thread may be importing it: import_module waits for that, sys.modules does not.
    if must or plain_s > LOAD_S or COMPILED in sys.modules:
        try:
            compiled = importlib.import_module(COMPILED)
        except ImportError:
            if must:
                raise
    if compiled is not None:
        is_worth_compiling = must or plain_s > COMPILE_S
        if is_worth_compiling and not compiled.ready():
            print(
                f"Compiling the allocator, once: about {COMPILE_S} s on an idle machine",
                file=sys.stderr,
            )
            compiled.make()
        if compiled.ready():
            return "compiled"
    _plain += operations
    return "plain"
