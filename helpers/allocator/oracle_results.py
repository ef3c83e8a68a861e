"""A replay as the oracle writes its results: one JSON line an operation, then the final figures
and layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from helpers.allocator import driver
from helpers.allocator.blocks import COUNTERS, NAMES, POOLS, STATES
from helpers.allocator.operations import ERROR, OUTCOMES
from helpers.allocator.outcome import COLUMNS, Outcome, block_column
from helpers.allocator.trace import STREAM_STEP

_BASES = {
    driver.MALLOC: driver.MALLOC_BASE,
    driver.RESERVE: driver.RESERVE_BASE,
    driver.MAP: 0,
    driver.UNMAP: 0,
}
"""The calls whose addresses the oracle tells, each with the address that it counts from."""


def _call(call: int, ordinal: int, address: int, size: int) -> list[str | int]:
    """A row of the driver log in the oracle's words."""
    name = driver.CALLS[call]
    if call in _BASES:
        return [name, ordinal, address - _BASES[call], size]
    if call == driver.CREATE_FAIL:
        return [name, ordinal, size]
    if call == driver.MALLOC_FAIL:
        return [name, size]
    return [name, ordinal]


def _segment(kind: int, ordinal: int) -> str:
    return f"{'mx'[kind]}{ordinal}"


def layout(blocks: np.ndarray) -> list[dict[str, Any]]:
    """The block table in the oracle's words: one entry per segment, or per contiguous mapped
    range of an expandable one.
    """
    entries: list[dict[str, Any]] = []
    last: tuple[int, int, int] | None = None
    is_mapped = block_column(blocks, "mapped") == 1
    for row in blocks[is_mapped].tolist():
        kind, ordinal, _, offset, size, requested, state, stream, small, *_ = row
        if last != (kind, ordinal, offset):
            home = {
                "stream": stream // STREAM_STEP,
                "pool": "small" if small else "large",
            }
            place = {"seg": _segment(kind, ordinal), "off": offset, "size": 0}
            entries.append({**place, **home, "blocks": []})
        entry = entries[-1]
        entry["blocks"].append([offset - entry["off"], size, requested, STATES[state]])
        entry["size"] += size
        last = (kind, ordinal, offset + size)
    return entries


_FIGURES = "allocated reserved active requested inactive_split".split()
_LINE = tuple(zip("alloc res act req isplit".split(), _FIGURES, strict=True))


def lines(ops: Iterable[dict[str, Any]], outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The oracle's result lines (one an operation, then the final figures and layout) of a
    replay with a timeline.
    """
    assert outcome.timeline is not None and outcome.calls is not None, (
        "replay with timeline=True"
    )
    errors = dict(outcome.errors)
    called: dict[int, list[list[str | int]]] = {}
    for event, *call in outcome.calls.tolist():
        called.setdefault(event, []).append(_call(*call))
    first = COLUMNS.index("allocations")
    counters = COLUMNS.index(COUNTERS[0])
    for index, (op, row) in enumerate(zip(ops, outcome.timeline.tolist(), strict=True)):
        of = dict(zip(COLUMNS, row, strict=True))
        out = f"error: {errors[index]}" if of["out"] == ERROR else OUTCOMES[of["out"]]
        line = {**op, "i": index, "out": out}
        if "n" in op:
            line["count"] = op["n"]  # of fail_next: a result's own "n" is below
        if of["kind"] >= 0:
            place = _segment(of["kind"], of["ordinal"])
            line.update(seg=place, off=of["offset"], bsize=of["size"])
        line |= {word: of[name] for word, name in _LINE}
        line |= {"n": row[first:counters], "c": row[counters:]}
        if index in called:
            line["drv"] = called[index]
        yield line
    yield {"final": final(outcome), "layout": layout(outcome.blocks)}


def final(outcome: Outcome) -> dict[str, Any]:
    """Every statistic in the oracle's words."""
    figures = [dict(zip(POOLS, rows, strict=True)) for rows in outcome.figures.tolist()]
    words = (*COUNTERS, *NAMES, "oversize_allocations", "oversize_segments")
    values = [*outcome.counters.tolist(), *figures, *outcome.oversize.tolist()]
    return dict(zip(words, values, strict=True))
