"""Which stress patterns are there, and what are their traces? Seeded, and the same on every machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from helpers.allocator.trace import STREAM_STEP, Op, Trace
from helpers.load.programs import (
    GIB,
    MIB,
    Full,
    Tape,
    growing_batches,
    key_value_cache,
    mixed_survivors,
    tuning_trials,
    volume_profiles,
)


@dataclass(frozen=True)
class Pattern:
    """A program's shape. ``shows`` is one line; ``parameters`` are its defaults; ``card_bytes`` the card it is made for."""

    name: str
    shows: str
    parameters: Mapping[str, int | float]
    card_bytes: int
    write: Callable[..., None]


def _pattern(write: Callable[..., None], card_bytes: int) -> Pattern:
    defaults = {name: p.default for name, p in inspect.signature(write).parameters.items() if p.kind is p.KEYWORD_ONLY}
    return Pattern(write.__name__, (write.__doc__ or "").split("\n", 1)[0], defaults, card_bytes, write)


PATTERNS: dict[str, Pattern] = {pattern.name: pattern for pattern in (
    _pattern(volume_profiles, 1280 * MIB), _pattern(growing_batches, 20 * GIB), _pattern(tuning_trials, 2560 * MIB),
    _pattern(mixed_survivors, 8 * GIB), _pattern(key_value_cache, 3 * GIB))}


def generate(name: str, seed: int = 0, scale: float = 1.0, events: int | None = None, **parameters: int | float) -> Trace:
    """The trace of a pattern: what it asks for in order, each request with the frame "pattern:round what".

    ``scale`` multiplies every size, and with it the card that the pattern is made for (``vram`` in the header); counts stay.
    With ``events`` the trace has just so many: it is cut there, or the program ends, frees all and runs again. ``parameters``
    replace defaults of the pattern. Raises ValueError for an unknown name or parameter, and for a number that cannot be.
    """
    if name not in PATTERNS:
        raise ValueError(f"pattern {name!r}: expected one of {', '.join(PATTERNS)}")
    pattern = PATTERNS[name]
    if unknown := [key for key in parameters if key not in pattern.parameters]:
        raise ValueError(f"parameter {unknown[0]!r} of {name}: expected one of {', '.join(pattern.parameters)}")
    for key, value in {"scale": scale, "events": 1 if events is None else events, **parameters}.items():
        whole = key != "scale" and not isinstance(pattern.parameters.get(key), float)
        share = key.endswith("_share")
        if not isinstance(value, int if whole else (int, float)) or not (0 <= value <= 1 if share else 0 < value < 1 << 50):
            wanted = "from 0 to 1" if share else "above 0"
            raise ValueError(f"{key} of {name} is {value!r}: expected a {'whole ' if whole else ''}number {wanted}")
    tape = Tape(name, seed, scale, events)
    chosen = {**pattern.parameters, **parameters}
    try:
        pattern.write(tape, **chosen)
        while events is not None:
            tape.free(*list(tape.live))
            pattern.write(tape, **chosen)
    except Full:
        pass
    return tape.trace({"label": "generated", "pattern": name, "seed": seed, "scale": scale, "parameters": chosen, "conf": "",
                       "vram": int(pattern.card_bytes * scale)})


def ops(trace: Trace) -> Iterator[dict[str, Any]]:
    """The operations as the oracle's JSON lines: what a live replay and the oracle read. Stream handles become numbers again.

    Raises ValueError where the trace begins in the middle of a program: what was there first cannot be asked for again.
    """
    if trace.start:
        raise ValueError(f"the trace begins with {len(trace.start)} segments in use: only a program's whole trace can be run")
    columns = (trace.op.tolist(), trace.id.tolist(), trace.size.tolist(), trace.stream.tolist())
    for op, i, size, stream in zip(*columns, strict=True):
        if op == Op.ALLOC:
            yield {"op": "alloc", "id": i, "size": size, "stream": stream // STREAM_STEP}
        elif op in (Op.FREE, Op.FREE_REQUESTED):
            yield {"op": "free", "id": i}
        elif op == Op.RECORD_STREAM:
            yield {"op": "record_stream", "id": i, "stream": stream // STREAM_STEP}
        elif op in _VALUES:
            key = _VALUES[op]
            value = trace.values[size] if op in (Op.SET_FRACTION, Op.SET_CONF) else bool(size) if key == "on" else size
            yield {"op": Op(op).name.lower(), key: value}
        elif op != Op.FREE_COMPLETED:
            yield {"op": Op(op).name.lower()}


_VALUES = {Op.SET_FRACTION: "fraction", Op.SET_CONF: "conf", Op.EVENTS_HOLD: "on", Op.FOREIGN: "bytes", Op.FAIL_NEXT: "n"}
