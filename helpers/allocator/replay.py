"""Replays a trace under other settings, another version, another card: exactly what the caching allocator would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from helpers.allocator import plain
from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome, lines
from helpers.allocator.trace import Op, Trace, from_oracle
from helpers.settings.releases import Behaviour, behaviour
from helpers.settings.text import Settings, SettingsError, parse

ENGINES = ("auto", "compiled", "plain")


def resolve(trace: Trace, conf: str, rules: Behaviour) -> tuple[list[Settings], dict[int, int], tuple[tuple[int, str], ...]]:
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


def replay(trace: Trace, conf: str, card: Card, *, torch: str = "2.14.1", build: str = "cuda", fraction: float | None = None,
           stop: int | None = None, timeline: bool = False, engine: str = "auto") -> Outcome:
    """What the allocator of that torch does with the trace under `conf` (a PYTORCH_CUDA_ALLOC_CONF string) on that card.

    fraction is set_per_process_memory_fraction; stop ends after so many operations; timeline keeps a row an operation.
    engine "plain" is the readable model, "compiled" the fast twin, "auto" the compiled one where it can be had.
    Raises SettingsError where torch would refuse the settings.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
    rules = behaviour(torch, build)
    settings, at, errors = resolve(trace, conf, rules)
    addresses = tuple(call.address for call in trace.driver if call.action == "malloc") if card.policy == "recorded" else ()
    stop = len(trace) if stop is None else min(stop, len(trace))
    run: Any = plain.run
    if engine != "plain":
        run = _compiled(engine) or plain.run
    outcome: Outcome = run(trace, settings, at, rules, card, fraction=fraction, stop=stop, timeline=timeline,
                           addresses=addresses)
    if errors:
        object.__setattr__(outcome, "errors", errors)
    return outcome


def _compiled(engine: str) -> Any:
    try:
        from helpers.allocator import compiled
    except ImportError:
        if engine == "compiled":
            raise
        return None  # without numba the readable model answers; Outcome.engine says so
    return compiled.run


def rows(job: dict[str, Any], ops: Iterable[dict[str, Any]], torch: str, engine: str = "auto") -> Iterator[dict[str, Any]]:
    """The oracle's result lines of a job {conf, vram, fraction, policy, foreign} over operations, by the model."""
    yield {"job": job, "torch": torch}
    ops = list(ops)
    import json
    trace = from_oracle(json.dumps(op) for op in ops)
    card = Card(job["vram"], job.get("foreign") or 0, job.get("policy") or "firstfit")
    try:
        outcome = replay(trace, job.get("conf") or "", card, torch=torch, fraction=job.get("fraction"), timeline=True,
                         engine=engine)
    except SettingsError as error:
        yield {"config_error": str(error)}
        return
    yield from lines(ops, outcome)
