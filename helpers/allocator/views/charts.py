"""Blocks as charts that answer to a pointer: over a run, and in the order of their addresses."""

from __future__ import annotations

import numpy as np

from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.outcome import Outcome
from helpers.allocator.stack_frames import own_line
from helpers.allocator.trace import Op, Trace
from helpers.ground.units import MIB
from helpers.tell.chart import (
    MOST_BLOCKS,
    MOST_FRAMES,
    MOST_STACKS,
    MOST_TEXTS,
    STATES,
    Chart,
    column,
)

MOST_CHANGES = 6_000
"""Points of a curve of a chart."""
IN_USE, SMALL_USE, AWAITING, STRANDED, RELEASABLE = range(len(STATES))
"""What a mapped block is, in the order of STATES."""


class _Stacks:
    """The stacks of some operations as a chart has them, each stack and each frame once.

    ``numbers``: of each operation's stack, -1 where it has none or there was no room;
    ``left_out``: for how many there was none. ``program_frames``: which frame of each stack is
    the program's own innermost; -1 for none.
    """

    def __init__(self, trace: Trace, events: list[int]):
        self.trace = trace
        self.texts: list[str] = []
        self.program_frames: list[int] = []
        self.left_out = 0
        self.frames: dict[str, int] = {}
        self._number_of: dict[int, int] = {}
        self.numbers = list(map(self._number, events))

    def _number(self, event: int) -> int:
        if self.trace.frame is None or event < 0:
            return -1
        stack = int(self.trace.frame[event])
        if stack < 0 or stack in self._number_of:
            return self._number_of.get(stack, -1)
        if len(self.texts) >= MOST_STACKS or len(self.frames) >= MOST_TEXTS:
            self.left_out += 1
            return -1
        self._number_of[stack] = len(self.texts)
        frames = self.trace.frames[stack][:MOST_FRAMES]
        numbers = [self.frames.setdefault(frame, len(self.frames)) for frame in frames]
        self.texts.append(column(numbers))
        in_program = (place for place, frame in enumerate(frames) if own_line(frame))
        self.program_frames.append(next(in_program, -1))
        return self._number_of[stack]


def timeline(
    trace: Trace,
    outcome: Outcome,
    title: str,
    capacity_bytes: int,
    stranded: tuple[np.ndarray, np.ndarray],
) -> Chart:
    """The blocks that are in use at each operation of a replay.

    ``stranded``: operations, and the bytes stranded after each. Of very many blocks the largest.
    """
    blocks, left_out = _largest(_lives(trace, outcome), by=2)
    starts, ends, sizes, events = blocks.T.tolist()
    stacks = _Stacks(trace, events)
    states = (SMALL_USE if size <= MIB else IN_USE for size in sizes)
    reserved_at, reserved = _changes(outcome.column("reserved"))
    first_oom = outcome.first_oom
    if capacity_bytes >= AMPLE_BYTES:
        capacity_bytes = 0
    return Chart(
        kind="timeline",
        title=title,
        length=len(trace),
        start=column(starts),
        until=column(ends),
        size=column(sizes),
        state=column(states),
        stack=column(stacks.numbers),
        stacks=stacks.texts,
        own=column(stacks.program_frames),
        frames=list(stacks.frames),
        reserved_at=column(reserved_at),
        reserved=column(reserved),
        stranded_at=column(stranded[0].tolist()),
        stranded=column(stranded[1].tolist()),
        capacity_bytes=capacity_bytes,
        fails_at=-1 if first_oom is None else first_oom,
        without_stack=stacks.left_out,
        left_out=len(left_out),
        left_out_bytes=int(left_out[:, 2].sum()),
    )


def _lives(trace: Trace, outcome: Outcome) -> np.ndarray:
    """Of each block that was in use: the first operation at which it is, the one that frees it
    (or the number of operations), its bytes, and the operation that allocated it (-1 for what was
    there before), in order.
    """
    freed_at = trace.freed_at
    was_served = (trace.op == Op.ALLOC) & (outcome.column("kind") >= 0)
    events = np.flatnonzero(was_served)
    sizes = outcome.column("size")[events]
    lives = np.stack((events, freed_at[trace.id[events]], sizes, events), axis=1)
    before = [block for _, block in trace.live_at_start if block.state == "A"]
    at_start = [(0, int(freed_at[block.id]), block.size, -1) for block in before]
    return np.concatenate((np.array(at_start, np.int64).reshape(-1, 4), lives))


def _changes(values: np.ndarray) -> tuple[list[int], list[int]]:
    """The operations at which a figure changed, and what it was from then on; of very many the
    highest of some beside each other.
    """
    at = np.flatnonzero(np.diff(values, prepend=-1))
    step = -(-len(at) // MOST_CHANGES)
    if step > 1:
        places = np.arange(0, len(at), step)
        return at[places].tolist(), np.maximum.reduceat(values[at], places).tolist()
    return at.tolist(), values[at].tolist()


def strip(title: str, trace: Trace, blocks: np.ndarray) -> Chart:
    """Every mapped block in the order of addresses.

    ``blocks`` has a row for each: the reserved bytes before it, its size, its state (as of
    STATES), the number of its segment, and the operation that allocated it, -1 where none did.
    """
    length = int(blocks[:, 1].sum())
    blocks, left_out = _largest(blocks, by=1)
    starts, sizes, states, segments, events = blocks.T.tolist()
    stacks = _Stacks(trace, events)
    return Chart(
        kind="map",
        title=title,
        length=length,
        start=column(starts),
        size=column(sizes),
        state=column(states),
        segment=column(segments),
        operation=column(events),
        stack=column(stacks.numbers),
        stacks=stacks.texts,
        own=column(stacks.program_frames),
        frames=list(stacks.frames),
        without_stack=stacks.left_out,
        left_out=len(left_out),
        left_out_bytes=int(left_out[:, 1].sum()),
    )


def _largest(blocks: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """The blocks that a chart has room for, the largest, in their order; and the others."""
    largest = np.sort(np.argsort(-blocks[:, by], kind="stable")[:MOST_BLOCKS])
    return blocks[largest], np.delete(blocks, largest, axis=0)
