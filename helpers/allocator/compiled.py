"""Replay by compiled code: the twin of plain.py and model.py, for long traces and many settings.

The same rules, one function for one, over arrays instead of objects. run gives what plain.run gives, number for number;
tests/test_allocator_compiled.py holds the two together. Threads may run it side by side: it holds no lock and no state.
Importing this module without numba raises ImportError. Machine code is kept where numba keeps it (NUMBA_CACHE_DIR says
otherwise); where nothing can be written it is made anew in each process.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from helpers.allocator import compiled_state as c
from helpers.allocator.compiled_arrays import calls_of, fixed, larger, limit, outcome_of, prepare, settings_row
from helpers.allocator.compiled_blocks import free
from helpers.allocator.compiled_malloc import malloc, round_size
from helpers.allocator.compiled_release import complete, release_cached_blocks, restore
from helpers.allocator.compiled_state import collect_blocks, function, make_record
from helpers.allocator.driver import Card
from helpers.allocator.model import Allocator
from helpers.allocator.outcome import COLUMNS, ERROR, OK, OOM, SKIPPED, TORN, Outcome, ReplayError
from helpers.allocator.trace import Op, Trace
from helpers.settings import text
from helpers.settings.releases import Behaviour
from helpers.settings.text import Settings

ABSENT = -2  # of an id: not allocated, or freed; -1 is a request of 0 bytes
NODE_WORDS = 3
WORDS_A_BLOCK, EDGE_CALLS = 128, 16  # the most that one operation makes: unmapping makes two blocks of one
(ALLOC, RELEASE, RELEASE_REQUESTED, RELEASE_COMPLETED, EMPTY_CACHE, SET_FRACTION, SET_CONF, RECORD_STREAM, EVENTS_HOLD,
 EVENTS_COMPLETE, SYNCHRONIZE, FOREIGN, FAIL_NEXT, RESET_PEAK, _) = (int(op) for op in Op)
# Figures in a row of the timeline.
ROW = (c.ALLOCATED_BYTES, c.RESERVED_BYTES, c.ACTIVE_BYTES, c.REQUESTED_BYTES, c.INACTIVE_SPLIT_BYTES, c.ALLOCATION, c.ACTIVE,
       c.SEGMENT_COUNT, c.INACTIVE_SPLIT)


@function
def record_stream(m, block, stream):
    """Another stream uses the block: its free waits for that stream."""
    if m[m[m[block + c.LIST] + c.PAIR] + c.STREAM] == stream:
        return
    link = block + c.USES  # where the next use is noted
    while m[link] >= 0:
        if m[m[link]] == stream:
            return
        link = m[link] + 2
    node = make_record(m, c.FREE_NODE, NODE_WORDS)
    m[node], m[node + 2] = stream, -1
    m[link] = node


@function
def circumstance(m, op, size):
    """What happens around the allocator: events, other processes, calls that fail."""
    if op == EVENTS_HOLD:
        m[c.EVENTS_HELD] = size
    elif op == FOREIGN:
        m[c.HELD] = size
    elif op == FAIL_NEXT:
        m[c.FAIL_NEXT] = size
    elif op == RESET_PEAK:
        for at in range(c.STATS, c.HEAD_WORDS, 4):
            m[at + c.PEAK] = m[at + c.CURRENT]
    if op == EVENTS_COMPLETE or op == SYNCHRONIZE or (op == EVENTS_HOLD and not size):
        m[c.EVENTS_DONE] = m[c.EVENTS]


@function
def note(m, timeline, i, out, block):
    """One row of the timeline."""
    timeline[i, 0] = out
    for k in range(1, 6):
        timeline[i, k] = -1
    if block >= 0:
        segment = m[block + c.SEGMENT]
        timeline[i, 1], timeline[i, 2] = m[block + c.EXPANDABLE], m[segment + c.ORDINAL]
        timeline[i, 3] = m[block + c.ADDRESS] - m[segment + c.BASE]
        timeline[i, 4], timeline[i, 5] = m[block + c.SIZE], m[block + c.ADDRESS]
    for k in range(len(ROW)):
        timeline[i, 6 + k] = m[c.STATS + 12 * ROW[k] + c.CURRENT]
    for k in range(c.SETTINGS, c.COUNTERS_END):
        timeline[i, 6 + len(ROW) + k - c.SETTINGS] = m[k]


@function
def set_threshold(m, thresholds):
    """The bytes from which garbage is collected, while there is a limit."""
    if m[c.COLLECTS] and m[c.ALLOWED] != c.NO_LIMIT:
        m[c.GC_BYTES] = int(thresholds[m[c.SETTING]] * float(m[c.ALLOWED]))


def _kernel(sources: int) -> Any:
    """The compiled loop. numba looks at this file alone to see whether its cache is stale; sources stands for the others."""

    def advance(m, live, trace, changes, settings, thresholds, start, parts, timeline, begin, stop):
        """Carry out operations from begin up to stop, or as far as the memory reaches; which one is next."""
        op, ident, sizes, stream, pool, shift = trace
        m[c.STATUS] = c.FINE * sources
        if begin < 0:
            set_threshold(m, thresholds)
            restore(m, live, start, parts)
        for i in range(max(begin, 0), stop):
            if (m[c.TOP] + WORDS_A_BLOCK * m[c.BLOCKS] + m[c.SPARE] > len(m)
                    or (m[c.LOGS] and m[c.CALL_COUNT] + 4 * m[c.BLOCKS] + EDGE_CALLS > m[c.CALL_ROOM])):
                m[c.STATUS] = c.GROW
                return i
            m[c.AT] = i
            kind, at, size = op[i], ident[i] + shift, sizes[i]
            out, block = OK, -1
            if kind == ALLOC:
                if size:
                    block = malloc(m, size, stream[i], pool[i])
                    if block < 0:
                        out = OOM
                        if m[c.FAILURES] == 0:
                            m[c.FIRST_OOM], m[c.FIRST_BYTES] = i, round_size(m, size)
                        m[c.FAILURES] += 1
                if out == OK:
                    live[at] = block
            elif kind == RELEASE or kind == RELEASE_REQUESTED or kind == RECORD_STREAM:
                used = live[at]
                if used == ABSENT:
                    out = SKIPPED
                elif kind == RECORD_STREAM:
                    if used >= 0:
                        record_stream(m, used, stream[i])
                else:
                    live[at] = ABSENT
                    if used >= 0:
                        free(m, used, at if kind == RELEASE_REQUESTED else -1)
            elif kind == RELEASE_COMPLETED:
                out = OK if complete(m, m[c.WAITING] + 3 * at) else SKIPPED
            elif kind == EMPTY_CACHE:
                release_cached_blocks(m, pool[i])
            elif kind == SET_FRACTION or kind == SET_CONF:
                to = changes[m[c.CHANGES]]
                m[c.CHANGES] += 1
                if kind == SET_FRACTION:
                    m[c.ALLOWED] = to
                else:
                    if to < 0:  # refused, after some of it had been taken over
                        out, to = ERROR, -1 - to
                    m[c.SETTING] = to
                    for k in range(c.SETTINGS):
                        m[k] = settings[to, k]
                    if settings[to, c.SETTINGS] != c.NO_LIMIT:
                        m[c.CONFIG_LIMIT] = settings[to, c.SETTINGS]
                set_threshold(m, thresholds)
            else:
                circumstance(m, kind, size)
            if m[c.LOGS]:
                note(m, timeline, i, out, block)
            if m[c.STATUS] != c.FINE:
                return i
        collect_blocks(m)
        return stop

    try:
        return njit(advance, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # numba finds no folder to write to
        return njit(advance, nogil=True, error_model="numpy")


_SOURCES = [*sorted(Path(__file__).parent.glob("compiled*.py")), Path(text.__file__)]
_advance = _kernel(zlib.crc32(b"".join(path.read_bytes() for path in _SOURCES)))


def run(trace: Trace, settings: Sequence[Settings], settings_at: dict[int, int], behaviour: Behaviour, card: Card, *,
        fraction: float | None, stop: int, timeline: bool, addresses: tuple[int, ...]) -> Outcome:
    """What plain.run answers, with the same arguments.

    Raises OverflowError where the modelled addresses are used up, as that does; RuntimeError where the trace brings the
    allocator into a state that the readable model stops at too; ValueError for columns of unequal length.
    """
    if not stop <= len(trace) == len(trace.id) == len(trace.size) == len(trace.stream) == len(trace.pool):
        raise ValueError(f"{stop} operations of a trace with {len(trace)}: expected columns of one length, no more")
    stop = max(stop, 0)
    reference = Allocator(settings[0], behaviour, card, fraction=fraction)
    shift = max(1, -int(trace.id.min(initial=0)))
    m, start, parts = prepare(trace, stop, settings[0], card, reference, shift, timeline, addresses)
    changes = []
    for index in np.flatnonzero((trace.op[:stop] == SET_FRACTION) | (trace.op[:stop] == SET_CONF)).tolist():
        if trace.op[index] == SET_CONF:
            changes.append(settings_at[index])
        else:
            reference.set_fraction(float(trace.values[int(trace.size[index])]))
            changes.append(limit(reference.allowed))
    live = np.full(trace.ids + shift, ABSENT, np.int64)
    rows = np.zeros((stop if timeline else 0, len(COLUMNS)), np.int64)
    rest = ((fixed(trace.op, np.int8), fixed(trace.id, np.int64), fixed(trace.size, np.int64), fixed(trace.stream, np.int64),
             fixed(trace.pool, np.int64), shift), np.array(changes, np.int64),
            np.array([settings_row(each, card) for each in settings], np.int64),
            np.array([each.gc_threshold for each in settings], np.float64), start, parts, rows)
    calls, at = [], -1
    while (at := _advance(m, live, *rest, at, stop)) < stop and m[c.STATUS] == c.GROW:
        calls.append(calls_of(m))
        m = larger(m)
    calls.append(calls_of(m))
    if m[c.STATUS] == c.EXHAUSTED:
        raise OverflowError("the modelled address space is used up")
    if m[c.STATUS] == c.BROKEN:
        raise ReplayError(TORN)
    return outcome_of(m, stop, rows if timeline else None, np.concatenate(calls) if timeline else None)
