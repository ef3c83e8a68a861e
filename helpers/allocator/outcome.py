"""What a replay gives: totals, one row of figures an operation, what the card was asked, and
the blocks at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.allocator import driver
from helpers.allocator.allocator import ERROR, OUTCOMES
from helpers.allocator.blocks import COUNTERS, NAMES, POOLS, STATES
from helpers.allocator.trace import STREAM_STEP

COLUMNS = (
    "out kind ordinal offset size address allocated reserved active requested inactive_split allocations actives "
    "segments inactive_splits " + " ".join(COUNTERS)
).split()
"""Of a row of the timeline. kind is 0 for a cudaMalloc segment, 1 for an expandable one, -1
where nothing was handed out; size is that of the block; figures in bytes or counts as they
stand after the operation.
"""

CALL_COLUMNS = ("event", "call", "ordinal", "address", "size")
"""Of a row of the driver log: the operation during which, an index into CALLS, and what that
call has of the rest: address is an offset for map and unmap; create_fail has the pages made
before it as ordinal; -1 where a call has none.
"""

BLOCK_COLUMNS = "kind ordinal base offset size requested state stream small pool mapped".split()
"""Of a row of the block table: base is the address of the segment, offset that of the block in
it, state an index into STATES (free, allocated, awaiting events). Rows are in order of kind,
ordinal and offset.
"""


TORN = (
    "a part of a segment would be given back, as max_split_size_mb became smaller on the way or an old release mixes it "
    "with expandable segments: torch itself fails there; leave that setting out"
)


class ReplayError(ValueError):
    """The trace cannot be carried further under these settings; one line that says why."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One trace under one setting, version and card.

    first_oom is the index of the first request that failed and first_oom_bytes its rounded
    size; the replay goes on after it as a program would that catches the error. timeline and
    calls are there when asked for.
    """

    events: int
    ooms: int
    first_oom: int | None
    first_oom_bytes: int
    figures: np.ndarray  # [NAMES, POOLS, (current, peak, allocated, freed)]
    oversize: np.ndarray  # [(allocations, segments), (current, peak, allocated, freed)]
    counters: np.ndarray  # COUNTERS
    blocks: np.ndarray  # [blocks, BLOCK_COLUMNS]
    timeline: np.ndarray | None = None  # [events, COLUMNS]
    calls: np.ndarray | None = None  # [calls, CALL_COLUMNS]
    errors: tuple[tuple[int, str], ...] = ()  # settings refused on the way: (operation, why)
    engine: str = "plain"

    def figure(self, name: str, which: str = "current") -> int:
        """One statistic of all pools in bytes or a count; which is current, peak, allocated or
        freed.
        """
        column = ("current", "peak", "allocated", "freed").index(which)
        return int(self.figures[NAMES.index(name), POOLS.index("all"), column])

    def counter(self, name: str) -> int:
        return int(self.counters[COUNTERS.index(name)])

    @property
    def peak_reserved_bytes(self) -> int:
        return self.figure("reserved_bytes", "peak")

    @property
    def peak_allocated_bytes(self) -> int:
        return self.figure("allocated_bytes", "peak")

    @property
    def slow_calls(self) -> int:
        """Calls that made the device allocate or free: each of them waits for the card."""
        return self.counter("num_device_alloc") + self.counter("num_device_free")

    def column(self, name: str) -> np.ndarray:
        assert self.timeline is not None, "replay with timeline=True"
        return self.timeline[:, COLUMNS.index(name)]


def _call(call: int, ordinal: int, address: int, size: int) -> list:
    """A row of the driver log in the oracle's words."""
    words = {driver.CREATE_FAIL: [ordinal, size], driver.MALLOC_FAIL: [size]}
    bases = {driver.MALLOC: driver.MALLOC_BASE, driver.RESERVE: driver.RESERVE_BASE}
    for placed in (driver.MALLOC, driver.RESERVE, driver.MAP, driver.UNMAP):
        words[placed] = [ordinal, address - bases.get(placed, 0), size]
    return [driver.CALLS[call], *words.get(call, [ordinal])]


def _segment(kind: int, ordinal: int) -> str:
    return f"{'mx'[kind]}{ordinal}"


def layout(blocks: np.ndarray) -> list[dict[str, Any]]:
    """The block table in the oracle's words: one entry per segment, or per contiguous mapped
    range of an expandable one.
    """
    entries: list[dict[str, Any]] = []
    last: tuple[int, int, int] | None = None
    for row in blocks[blocks[:, BLOCK_COLUMNS.index("mapped")] == 1].tolist():
        kind, ordinal, _, offset, size, requested, state, stream, small, *_ = row
        if last != (kind, ordinal, offset):
            home = {"stream": stream // STREAM_STEP, "pool": "small" if small else "large"}
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
    assert outcome.timeline is not None and outcome.calls is not None, "replay with timeline=True"
    errors = dict(outcome.errors)
    called: dict[int, list[list]] = {}
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
