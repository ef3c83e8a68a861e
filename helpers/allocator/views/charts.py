"""Blocks of memory as charts whose reader can point at them: over a run, and in the order of their
addresses. A chart has columns of text, as ``tell.chart.Chart`` says.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.outcome import Outcome
from helpers.allocator.stack_frames import own_line
from helpers.allocator.trace import Op, Trace
from helpers.settings.in_force import SMALL_MAX_BYTES
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
"""Points of a curve: several for each pixel of a page, and some 100 KB of text."""
IN_USE, SMALL_USE, AWAITING, STRANDED, RELEASABLE = range(len(STATES))
"""The states of a mapped block, in the order of STATES."""


class _Stacks:
    """The stacks of some operations as columns of a chart, each stack and each frame once.

    ``numbers``: for each operation the place of its stack in ``texts``, -1 where it has none or the
    chart has no room for it. ``left_out``: how many operations found no room. ``texts``: for each
    stack a column of the numbers of its frames. ``frames``: by the text of each frame its number.
    ``program_frames``: for each stack the place in it of the program's innermost frame, -1 for
    none.
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
        """The place in ``texts`` of an operation's stack, which is added if it is new; -1 for no
        stack, no operation (-1), or no room. ``left_out`` counts the operations without room.
        """
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
        in_program = [place for place, frame in enumerate(frames) if own_line(frame)]
        self.program_frames.append(min(in_program, default=-1))
        return self._number_of[stack]


def timeline(
    trace: Trace,
    outcome: Outcome,
    title: str,
    capacity_bytes: int,
    stranded: tuple[np.ndarray, np.ndarray],
) -> Chart:
    """The chart of the blocks in use over a replay; of more than MOST_BLOCKS it has the largest.

    ``stranded``: two arrays, some operations and the bytes that are stranded after each of them.
    ``capacity_bytes``: of the card, AMPLE_BYTES where that is not known.
    """
    blocks, left_out = _largest(_lives(trace, outcome), by=2)
    starts, ends, sizes, events = blocks.T.tolist()
    stacks = _Stacks(trace, events)
    states = np.where(blocks[:, 2] <= SMALL_MAX_BYTES, SMALL_USE, IN_USE)
    reserved_at, reserved = _changes(outcome.column("reserved"))
    fails_at = -1  # it does not
    if outcome.first_oom is not None:
        fails_at = outcome.first_oom
    if capacity_bytes >= AMPLE_BYTES:  # not known: no line is drawn
        capacity_bytes = 0
    return Chart(
        kind="timeline",
        title=title,
        length=len(trace),
        start=column(starts),
        until=column(ends),
        size=column(sizes),
        state=column(states.tolist()),
        stack=column(stacks.numbers),
        stacks=stacks.texts,
        own=column(stacks.program_frames),
        frames=list(stacks.frames),
        reserved_at=column(reserved_at),
        reserved=column(reserved),
        stranded_at=column(stranded[0].tolist()),
        stranded=column(stranded[1].tolist()),
        capacity_bytes=capacity_bytes,
        fails_at=fails_at,
        without_stack=stacks.left_out,
        left_out=len(left_out),
        left_out_bytes=int(left_out[:, 2].sum()),
    )


def _lives(trace: Trace, outcome: Outcome) -> np.ndarray:
    """A row for each block that was in use, in order of time, with four numbers: the operation from
    which on it is in use, the operation that frees it (the number of operations for none), its
    bytes, and the operation that allocated it (-1 for a block of the start).
    """
    freed_at = trace.freed_at
    # A row of the outcome has kind -1 where no block was handed out.
    was_served = (trace.op == Op.ALLOC) & (outcome.column("kind") >= 0)
    events = np.flatnonzero(was_served)
    sizes = outcome.column("size")[events]
    lives = np.stack((events, freed_at[trace.id[events]], sizes, events), axis=1)
    before = [block for _, block in trace.live_at_start if block.state == "A"]
    at_start = [(0, int(freed_at[block.id]), block.size, -1) for block in before]
    return np.concatenate((np.array(at_start, np.int64).reshape(-1, 4), lives))


def _changes(values: np.ndarray) -> tuple[list[int], list[int]]:
    """The operations at which a figure changed, and its value from then on. Where there are more
    than MOST_CHANGES, neighbours become one change, at the first of them and with their highest
    value, so that no peak is lost.
    """
    at = np.flatnonzero(np.diff(values, prepend=-1))
    step = ceil(len(at) / MOST_CHANGES)
    if step > 1:
        places = np.arange(0, len(at), step)
        return at[places].tolist(), np.maximum.reduceat(values[at], places).tolist()
    return at.tolist(), values[at].tolist()


def strip(title: str, trace: Trace, blocks: np.ndarray) -> Chart:
    """The chart of mapped blocks in the order of their addresses; of very many it has the largest.

    ``blocks`` has a row for each: the reserved bytes before it, its size, its state (as of
    STATES), the number of its segment, and the operation that allocated it, -1 for none.
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
    """The MOST_BLOCKS largest blocks, in the order in which they are given, and the other blocks.
    ``by``: the column of their bytes.
    """
    largest = np.sort(np.argsort(-blocks[:, by], kind="stable")[:MOST_BLOCKS])
    return blocks[largest], np.delete(blocks, largest, axis=0)
