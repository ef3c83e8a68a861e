"""A replay as the oracle (tests/oracle/worker.py) writes its results: one JSON line an operation,
then the final figures and layout. So a replay and torch's own allocator are compared line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from helpers.allocator import driver
from helpers.allocator.blocks import COUNTERS, NAMES, POOLS, STATES
from helpers.allocator.operations import ERROR, OUTCOMES
from helpers.allocator.outcome import COLUMNS, CUDA_MALLOC, Outcome, block_column
from helpers.allocator.trace import STREAM_STEP

_BASES = {
    driver.MALLOC: driver.MALLOC_BASE,
    driver.RESERVE: driver.RESERVE_BASE,
    driver.MAP: 0,
    driver.UNMAP: 0,
}
"""The calls whose addresses the oracle tells, each with the address that it counts from."""


def _call(call: int, ordinal: int, address: int, size: int) -> list[str | int]:
    """A call of the driver log as a result line has it: its name, and of its ordinal, address and
    size those that the oracle tells, too. Addresses count from the begin of their arena, since a
    driver puts that where it likes.
    """
    name = driver.CALLS[call]
    if call in _BASES:
        return [name, ordinal, address - _BASES[call], size]
    if call == driver.CREATE_FAIL:
        return [name, ordinal, size]
    if call == driver.MALLOC_FAIL:
        return [name, size]
    return [name, ordinal]


def _segment(kind: int, ordinal: int) -> str:
    """A segment's name: m3 is the fourth of cudaMalloc, x1 the second reserved range."""
    if kind == CUDA_MALLOC:
        return f"m{ordinal}"
    return f"x{ordinal}"


def layout(blocks: np.ndarray) -> list[dict[str, Any]]:
    """The block table in the oracle's words: one entry for each segment, or for each contiguous
    mapped range of an expandable segment.

    An entry has the segment's name, offset (of a range in its segment), size in bytes, stream and
    pool, and ``blocks``: for each block its offset in the entry, size, requested size and state.
    """
    entries: list[dict[str, Any]] = []
    last_end: tuple[int, int, int] | None = None
    is_mapped = block_column(blocks, "mapped") == 1
    for row in blocks[is_mapped].tolist():
        kind, ordinal, _, offset, size, requested, state, stream, small, *_ = row
        # A block that does not begin where the last one ends begins an entry of its own.
        if last_end != (kind, ordinal, offset):
            entry = {
                "seg": _segment(kind, ordinal),
                "off": offset,
                "size": 0,
                "stream": stream // STREAM_STEP,
                "pool": "large",
                "blocks": [],
            }
            if small:
                entry["pool"] = "small"
            entries.append(entry)
        entry = entries[-1]
        entry["blocks"].append([offset - entry["off"], size, requested, STATES[state]])
        entry["size"] += size
        last_end = (kind, ordinal, offset + size)
    return entries


_FIGURES = {
    "alloc": "allocated",
    "res": "reserved",
    "act": "active",
    "req": "requested",
    "isplit": "inactive_split",
}
"""The figures of a result line, each with its name in outcome.COLUMNS."""


def lines(ops: Iterable[dict[str, Any]], outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The oracle's result lines of a replay with a timeline: one for each operation, then one with
    the final figures and layout.

    ``ops``: the operation lines (oracle_lines.op_lines), which the result lines repeat. A result
    line adds ``i``, the operation's number; ``out``, what came of it; ``seg``, ``off`` and
    ``bsize``, the block that it handed out; the figures after it; ``n``, counts of blocks and
    segments; ``c``, counters; and ``drv``, the calls of the driver that it made.
    """
    assert outcome.timeline is not None and outcome.calls is not None, (
        "replay with timeline=True"
    )
    errors = dict(outcome.errors)
    called: dict[int, list[list[str | int]]] = {}
    for event, *call in outcome.calls.tolist():
        called.setdefault(event, []).append(_call(*call))
    first_count = COLUMNS.index("allocations")
    first_counter = COLUMNS.index(COUNTERS[0])
    for index, (op, row) in enumerate(zip(ops, outcome.timeline.tolist(), strict=True)):
        columns = dict(zip(COLUMNS, row, strict=True))
        out = OUTCOMES[columns["out"]]
        if columns["out"] == ERROR:
            out = f"error: {errors[index]}"
        line = {**op, "i": index, "out": out}
        if "n" in op:
            line["count"] = op["n"]  # of fail_next: a result's own "n" is below
        if columns["kind"] >= 0:  # a block was handed out
            segment = _segment(columns["kind"], columns["ordinal"])
            line.update(seg=segment, off=columns["offset"], bsize=columns["size"])
        line |= {word: columns[name] for word, name in _FIGURES.items()}
        line["n"] = row[first_count:first_counter]
        line["c"] = row[first_counter:]
        if index in called:
            line["drv"] = called[index]
        yield line
    yield {"final": final(outcome), "layout": layout(outcome.blocks)}


def final(outcome: Outcome) -> dict[str, Any]:
    """Every counter and statistic at the end, by the names of torch.cuda.memory_stats. A counter is
    a number; a figure has for each of POOLS a list of outcome.STATISTICS; the oversize statistics,
    which torch does not divide by pools, have one such list.
    """
    figures = [dict(zip(POOLS, rows, strict=True)) for rows in outcome.figures.tolist()]
    words = (*COUNTERS, *NAMES, "oversize_allocations", "oversize_segments")
    values = [*outcome.counters.tolist(), *figures, *outcome.oversize.tolist()]
    return dict(zip(words, values, strict=True))
