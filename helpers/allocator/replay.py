"""Replays a trace under other settings, another version, another card: exactly what the caching allocator would do."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

from helpers.allocator.driver import GRANULE_BYTES, Card
from helpers.allocator.engine import run
from helpers.allocator.outcome import Outcome, ReplayError
from helpers.allocator.trace import Op, Trace
from helpers.settings.table import Behaviour, behaviour
from helpers.settings.text import Settings, SettingsError, parse

COMPILED = "helpers.allocator.compiled"
ENGINES = ("auto", "compiled", "plain")
ODD_PAGES = (
    "large_segment_size_mb:{mib} with expandable_segments: CUDA maps whole 2 MiB only, so torch fails at its first request above "
    "1 MiB; use an even number"
)


def resolve(
    trace: Trace, conf: str, rules: Behaviour
) -> tuple[list[Settings], dict[int, int], tuple[tuple[int, str], ...]]:
    """The settings that hold in turn: all of them, which one from which operation on, and the refusals.

    A refusal changes settings too; its place is given as -1 - number. Raises SettingsError where torch refuses `conf` itself.
    """
    settings, at, errors = [parse(conf, rules)], {}, []
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
    """What the allocator of that torch does with the trace under `conf` (a PYTORCH_CUDA_ALLOC_CONF string) on that card.

    fraction is set_per_process_memory_fraction; stop ends after so many operations; timeline keeps a row an operation. engine
    "compiled" is the allocator as machine code, "plain" the same in Python, "auto" what is quicker. Raises SettingsError where
    torch would refuse the settings, ReplayError where the allocator's own state would be torn.
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
LOAD_S, COMPILE_S = 1, 25
_plain = 0  # operations carried out in plain Python by this process so far


def choose(engine: str, operations: int) -> str:
    """The engine, "compiled" or "plain", for so many operations. "auto" compiles once that takes less time than plain Python
    has taken and would take, and says so first; machine code kept from another time is loaded sooner."""
    global _plain
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    if engine == "plain":
        return engine
    must, plain_s = engine == "compiled", (_plain + operations) / PLAIN_A_SECOND
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
