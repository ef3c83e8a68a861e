"""A trace: the requests that an allocator got, in order, and its state before the first one. Every
replay reads this one shape.

The operations are columns of arrays, not objects: a million of them take a few tens of megabytes.
trace_file.py reads the files that hold a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

STREAM_STEP = 0x1000
"""Stream k of the oracle's lines (tests/oracle) has the handle k * 0x1000."""
MAX_FILE_BYTES = 1 << 30
"""Longest file, and longest text of an .xz file, that is read unless the caller allows more."""
LARGEST = 1 << 62
"""Every size and address is below this, so that a sum of two fits 64 bits."""

RECORDED_ON_GPU = "recorded on a GPU"
"""The label of a trace that was read from a snapshot."""
NO_OPERATION = "the trace has no operation: expected at least one allocation; record again from the program's start"


class TraceError(ValueError):
    """A trace that cannot be read or cannot have happened.

    The message is one line: seen, expected, what to do.
    """


class Op(IntEnum):
    """What an operation of a trace is: a request of the program, or a circumstance that replays
    need beside requests, from EVENTS_HOLD on. The numbers stand in files and in compiled code.

    FREE is done at once; FREE_REQUESTED and FREE_COMPLETED are the two ends of a free that waited
    for other streams. FOREIGN: bytes of the card that others hold from here on. FAIL_NEXT: so many
    calls of the driver fail. EVENTS_HOLD: whether events wait for EVENTS_COMPLETE. SNAPSHOT and
    RESET_PEAK: the program looked at statistics.
    """

    ALLOC = 0
    FREE = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    EMPTY_CACHE = 4
    SET_FRACTION = 5
    SET_CONF = 6
    RECORD_STREAM = 7
    EVENTS_HOLD = 8
    EVENTS_COMPLETE = 9
    SYNCHRONIZE = 10
    FOREIGN = 11
    FAIL_NEXT = 12
    RESET_PEAK = 13
    SNAPSHOT = 14


BLOCK_OPS = (Op.ALLOC, Op.FREE, Op.FREE_REQUESTED, Op.FREE_COMPLETED, Op.RECORD_STREAM)
"""The operations that name a block by its id."""


@dataclass(frozen=True)
class DriverCall:
    """A recorded call to the driver, from a segment_* event of a snapshot, or a request that it
    refused, from an oom event.

    ``event``: the operation during which it happened. ``action``: malloc, free, map, unmap, or oom.
    Of an oom ``address`` holds the free bytes of the device, and ``size`` the rounded request.
    """

    event: int
    action: str
    address: int
    size: int
    stream: int


@dataclass(frozen=True)
class StartBlock:
    """A block at the start of a trace.

    ``state``: A allocated, P freed but awaiting events, I free. ``id``: -1 for I.
    """

    offset: int
    size: int
    requested: int
    state: str
    id: int


@dataclass(frozen=True)
class StartSegment:
    """A segment, or one contiguous mapped range of an expandable one, at the start of a trace;
    its blocks tile it.
    """

    address: int
    size: int
    stream: int
    small: bool
    pool: int
    expandable: bool
    blocks: tuple[StartBlock, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """Operations in order as columns of equal length, and the state before the first one.

    ``op``: an Op. ``id``: of the block, from 0 to ids - 1; -1 for none. ``size``: of ALLOC the
    requested bytes, of FOREIGN bytes, of FAIL_NEXT a count, of EVENTS_HOLD 1 or 0, of SET_FRACTION
    and SET_CONF an index into ``values``. ``stream``: the handle; of RECORD_STREAM, of the stream
    that used the block. ``pool``: 0 for the default pools, k for the k-th private pool while a
    graph is captured, -k for the same pool at other times (use_mem_pool); of EMPTY_CACHE the pool
    that nothing will use again. ``time_ns``: None where no times were recorded. ``address``: the
    recorded address of each ALLOC, -1 for none. ``frame``: the place of the stack in ``frames``, -1
    for none. ``frames``: stacks, innermost frame first, as stack_frames.py writes them.

    ``start``: the state before the first operation. ``driver``: recorded calls to the driver.
    ``header``: the circumstances of the recording (circumstances.py). ``notes``: what was cut,
    missing or guessed. ``names``: what the file calls each id; empty where it is the id itself.
    """

    op: np.ndarray
    id: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    pool: np.ndarray
    values: tuple[float | str, ...] = ()
    time_ns: np.ndarray | None = None
    start: tuple[StartSegment, ...] = ()
    address: np.ndarray | None = None
    driver: tuple[DriverCall, ...] = ()
    frame: np.ndarray | None = None
    frames: tuple[tuple[str, ...], ...] = ()
    header: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    names: tuple[int | str, ...] = ()

    def __len__(self) -> int:
        return len(self.op)

    @property
    def recorded_by_gpu(self) -> bool:
        """Whether it was recorded on a GPU. Files of our first releases say it only by the label."""
        by_label = self.header.get("label") == RECORDED_ON_GPU
        return bool(self.header.get("recorded_by_gpu", by_label))

    @property
    def ran_out(self) -> bool:
        """Whether the program ran out of memory while it was recorded, so its rest may be missing."""
        return bool(self.refused)

    @cached_property
    def freed_at(self) -> np.ndarray:
        """For each block the operation that frees it, or that requests its free; the trace's length
        where none does.
        """
        freed_at = np.full(self.ids, len(self), np.int64)
        is_free = np.isin(self.op, (Op.FREE, Op.FREE_REQUESTED)) & (self.id >= 0)
        frees = np.flatnonzero(is_free)
        np.minimum.at(freed_at, self.id[frees], frees)  # the first, where there are two
        return freed_at

    @cached_property
    def refused(self) -> list[int]:
        """The operations whose requests the card refused while they were recorded."""
        return [call.event for call in self.driver if call.action == "oom"]

    def stack_of(self, operation: int) -> tuple[str, ...]:
        """The stack of an operation, innermost frame first; empty where none was recorded."""
        if self.frame is None or not 0 <= operation < len(self):
            return ()
        stack = int(self.frame[operation])
        return self.frames[stack] if stack >= 0 else ()

    @cached_property
    def live_at_start(self) -> list[tuple[StartSegment, StartBlock]]:
        """The blocks in use before the first operation, allocated or awaiting their free."""
        live = []
        for segment in self.start:
            live += [(segment, block) for block in segment.blocks if block.id >= 0]
        return live

    @cached_property
    def ids(self) -> int:
        """How many different blocks the trace names."""
        live = [block.id for _, block in self.live_at_start]
        return 1 + max(*live, -1, int(self.id.max(initial=-1)))


def rearranged(
    trace: Trace,
    origin: np.ndarray,
    *,
    op: np.ndarray | None = None,
    id: np.ndarray | None = None,
    size: np.ndarray | None = None,
) -> Trace:
    """A new trace of the operations of an old one that ``origin`` names, in the order of
    ``origin``; one may be named several times. Columns that are given replace those of the old
    trace, and have the length of ``origin``. Times, addresses and driver calls are left out,
    because they were recorded for the old order.
    """
    return replace(
        trace,
        op=trace.op[origin] if op is None else op.astype(trace.op.dtype),
        id=trace.id[origin] if id is None else id,
        size=trace.size[origin] if size is None else size,
        stream=trace.stream[origin],
        pool=trace.pool[origin],
        frame=None if trace.frame is None else trace.frame[origin],
        time_ns=None,
        address=None,
        driver=(),
        names=(),
    )


def trace_of_rows(
    rows: Sequence[tuple[int, ...]],
    frames: tuple[tuple[str, ...], ...],
    header: dict[str, Any],
) -> Trace:
    """A trace on the default stream and pools. ``rows``: (op, id, size, frame) of each operation."""
    op, ids, sizes, stacks = np.array(rows, np.int64).T
    zeros = np.zeros(len(op), np.int64)
    return Trace(
        op=op.astype(np.int8),
        id=ids,
        size=sizes,
        stream=zeros,
        pool=zeros.astype(np.int32),
        frame=stacks.astype(np.int32),
        frames=frames,
        header=header,
    )


def start_bytes(segments: Iterable[StartSegment]) -> int:
    """Bytes reserved in these segments."""
    return sum(segment.size for segment in segments)


def possible(trace: Trace) -> Trace:
    """Returns the same trace. Raises TraceError, which names the first operation at fault, where it
    cannot have happened.
    """
    at = np.arange(len(trace))
    is_alloc = trace.op == Op.ALLOC
    uses_block = np.isin(trace.op, BLOCK_OPS) & ~is_alloc
    has_id = trace.id >= 0
    # For each block the operation that allocates it first: -1 for one that is live at the start,
    # the trace's length for one that is never allocated.
    allocated_at = np.full(max(trace.ids, 1), len(trace), np.int64)
    allocated_at[[block.id for _, block in trace.live_at_start]] = -1
    allocs = np.flatnonzero(is_alloc & has_id)
    np.minimum.at(allocated_at, trace.id[allocs], allocs)
    # The same for the block of each operation; any for an operation without one.
    allocated = allocated_at[np.maximum(trace.id, 0)]
    sets_value = np.isin(trace.op, (Op.SET_FRACTION, Op.SET_CONF))
    has_value = trace.size < len(trace.values)
    impossible = {
        "is of an unknown kind": (trace.op < 0) | (trace.op > max(Op)),
        "has a size that is no number of bytes": (trace.size < 0)
        | (trace.size >= LARGEST),
        "names no block": (is_alloc | uses_block) & ~has_id,
        "names a block that was not allocated before": uses_block & (allocated >= at),
        "allocates a block that exists already": is_alloc & (allocated != at),
        "names a setting that the trace does not have": sets_value & ~has_value,
    }
    for why, is_wrong in impossible.items():
        if is_wrong.any():
            raise TraceError(
                f"operation {int(is_wrong.argmax())} {why}: such a trace cannot have "
                "happened; record it again"
            )
    return trace
