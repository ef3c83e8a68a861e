"""At which step does a growing program run out of memory?

Copies of its recorded steps are put behind the recording, and all of it is replayed. In each copy
a block that the steps replace is replaced again, and what the growing call sites keep stays. So
the answer counts fragmentation, and how the allocator packs what is kept into segments.

A call site is the program's line that asks for memory (call_sites.py). A grower is a call site
that keeps more with each step (growth.py). A request is named by its number in Requests.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from helpers.allocator.call_sites import Mask, Requests
from helpers.allocator.capacity import prepared
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.growth import LARGER, Growth
from helpers.allocator.study import Study
from helpers.allocator.trace import Op, Trace, rearranged

MOST_OPERATIONS = 500_000
"""The most operations that are put behind a recording, so that an answer takes seconds. A program
that runs out later is extrapolated from them.
"""
LEAST_REACH_BYTES = 256 << 20
"""The least growth of the reserved memory that is extrapolated. Segments come in steps of up to
20 MiB, so less says little; then what the steps keep is extrapolated.
"""


class Exhaustion(NamedTuple):
    """The step in which a program runs out of memory.

    ``step``: its number, from 1 at the first step of the trace. ``recorded``: it is a step of the
    recording. ``replayed``: all operations up to it were replayed; else it is extrapolated, as if
    memory grew by the same bytes in each step.
    """

    step: int
    recorded: bool
    replayed: bool


def exhaustion(requests: Requests, growth: Growth, study: Study) -> Exhaustion | None:
    """Where the study's program runs out of memory on its card under its settings.

    None where the recording passes and nothing grows, and where the copies of the steps pass, too.
    Raises ValueError for a card smaller than what was live on it when the trace began.
    """
    # The copies have no recorded addresses.
    card = replace(study.card, policy="firstfit")
    study = replace(study, card=card)
    failure = _out_of_memory_at(study, requests.trace)
    if failure is not None:
        # What comes before the first step counts with it.
        step = max(1, growth.steps_at(failure))
        return Exhaustion(step, recorded=True, replayed=True)
    if not growth.growers:
        return None
    period = _Period(requests, growth)
    room = card.capacity_bytes - card.held_bytes - int(requests.live.max(initial=0))
    bytes_per_copy = growth.bytes_per_step * period.steps
    # One more than the quotient is the first that cannot fit, and one more is to spare.
    copies = int(max(0, room) / bytes_per_copy) + 2
    # Two at least, since an extrapolation looks at the second half of them.
    most_copies = max(2, MOST_OPERATIONS // max(1, len(period.op)))
    if copies > most_copies:
        step = _extrapolated_step(study, growth, period, most_copies)
        return Exhaustion(step, recorded=False, replayed=False)
    failure = _out_of_memory_at(study, period.repeated(copies))
    if failure is None:
        return None
    return Exhaustion(period.step_of(failure), recorded=False, replayed=True)


def _out_of_memory_at(study: Study, trace: Trace) -> int | None:
    """The operation of a trace at which it runs out of memory on the study's card; None where it
    does not.
    """
    replayed, origin, _ = prepared(trace, study.card)
    first = replace(study, trace=replayed).replay().first_oom
    if first is None:
        return None
    return int(origin[first])


def _extrapolated_step(
    study: Study, growth: Growth, period: _Period, copies: int
) -> int:
    """The step in which the program runs out of memory, where that lies too far ahead to be
    replayed.

    ``copies`` of the steps are replayed on a card of ample size. The reserved memory is taken to
    grow on as it does over the second half of these copies: in the first half it may still fill
    segments that were half empty.
    """
    longer = period.repeated(copies)
    ample = replace(study.card, capacity_bytes=AMPLE_BYTES)
    replayed, _, _ = prepared(longer, ample)
    outcome = replace(study, trace=replayed, card=ample).replay(timeline=True)
    reserved = np.maximum.accumulate(outcome.column("reserved"))
    half = copies // 2
    grown = int(reserved[-1] - reserved[-1 - half * len(period.op)])
    bytes_per_step = grown / (half * period.steps)
    if grown < LEAST_REACH_BYTES:  # too little to measure a pace by
        bytes_per_step = growth.bytes_per_step
    left = study.card.capacity_bytes - study.card.held_bytes - int(reserved[-1])
    steps_that_fit = int(left / bytes_per_step)
    last_replayed = period.step_of(len(longer) - 1)
    return last_replayed + steps_that_fit + 1


class _Row(NamedTuple):
    """One operation of a copy.

    ``operation``: the recorded operation that it repeats. ``place``: the place of its block in
    _Period.ids, which has the blocks that one copy asks for; -1 for an operation without a block.
    ``copies_back``: 1 where the copy before asked for the block, 0 where this copy does.
    """

    op: int
    operation: int
    place: int = -1
    copies_back: int = 0


class _Period:
    """The operations of some steps, ready to be repeated behind the recording up to their end.

    The steps are those after the first of growth.window up to the last, ``steps`` in number.
    ``begins``: the operation with which each begins, and the one with which they end.
    ``first_copied_step``: the number, from 1, of the step that the first copy begins with.
    ``ids``: the blocks asked for in one copy, in order. ``op``, ``operation``, ``place`` and
    ``copies_back``: the columns of its rows. ``larger_bytes``: by how much each request grows
    with each copy.
    """

    def __init__(self, requests: Requests, growth: Growth):
        self.trace = requests.trace
        first, last = growth.window
        self.steps = last - first
        self.first_copied_step = last + 2  # behind the last, and counted from 1
        self.begins = growth.steps.begins[first + 1 : last + 2]
        self.begin = int(self.begins[0])
        self.end = int(self.begins[-1])
        inside = (requests.at >= self.begin) & (requests.at < self.end)
        self.ids = requests.id[inside]
        rows = np.array(self._rows(requests, growth, inside), np.int64)
        columns = rows.reshape(-1, len(_Row._fields)).T  # also where there are no rows
        self.op, self.operation, self.place, self.copies_back = columns
        self.larger_bytes = self._larger_bytes(requests, growth, inside)

    def _larger_bytes(
        self, requests: Requests, growth: Growth, inside: Mask
    ) -> np.ndarray:
        """For each row of a copy by how many bytes its request grows from one copy to the next: 0
        unless its call site is a grower that asks for larger blocks each step (LARGER).
        """
        more_of_site = np.zeros(len(requests.sites))
        for grower in growth.growers:
            if grower.how == LARGER:
                number = requests.sites.index(grower.site)
                more_of_site[number] = grower.bytes_per_step * self.steps
        more_of_block = more_of_site[requests.site[inside]]
        # A row without a block (place -1) finds any entry; only requests take what they find.
        return np.where(self.op == Op.ALLOC, more_of_block[self.place], 0.0)

    def _rows(self, requests: Requests, growth: Growth, inside: Mask) -> list[_Row]:
        """What one copy does with its own blocks, and with those that the copy before left, as
        operations in order.

        Operations other than requests, frees and empty_cache are left out: settings and limits
        then stay as the recorded steps leave them, and no free waits for another stream.
        """
        trace = self.trace
        place_of = {block: place for place, block in enumerate(self.ids.tolist())}
        successors, dropped = self._leftovers(requests, growth, inside)
        rows = []
        for operation in range(self.begin, self.end):
            op = int(trace.op[operation])
            block = int(trace.id[operation])
            if op == Op.FREE_REQUESTED:  # when its events complete is not repeated
                op = Op.FREE
            if op == Op.EMPTY_CACHE:
                rows.append(_Row(op, operation))
            elif op in (Op.ALLOC, Op.FREE) and block in place_of:
                rows.append(_Row(op, operation, place_of[block]))
            elif op == Op.FREE and block in successors:
                place = place_of[successors[block]]
                rows.append(_Row(op, operation, place, copies_back=1))
        at_end = self.end - 1
        rows += [_Row(Op.FREE, at_end, place_of[block]) for block in dropped]
        return rows

    def _leftovers(
        self, requests: Requests, growth: Growth, inside: Mask
    ) -> tuple[dict[int, int], list[int]]:
        """What becomes of the blocks that are live when the steps begin or end: (successors,
        dropped).

        ``successors``: for each block from before that the steps free, the block of the same stack
        that they leave in its place. The last block that came is paired with the last that stays,
        and so on backwards. ``dropped``: blocks that the steps leave without such a partner, though
        their call site is not known to grow. A copy frees these at its end, so that it does not
        grow by them.
        """
        freed_inside = (requests.until >= self.begin) & (requests.until < self.end)
        came = _by_stack(requests, freed_inside & (requests.at < self.begin))
        left = _by_stack(requests, inside & (requests.until >= self.end))
        growing = {grower.site for grower in growth.growers}
        successors = {}
        dropped = []
        for stack, leaving in left.items():
            freed = came.get(stack, [])[-len(leaving) :]
            alone = len(leaving) - len(freed)  # the first so many have no partner
            for old, new in zip(freed, leaving[alone:], strict=True):
                successors[int(requests.id[old])] = int(requests.id[new])
            for number in leaving[:alone]:
                if requests.sites[requests.site[number]] not in growing:
                    dropped.append(int(requests.id[number]))
        return successors, dropped

    def repeated(self, copies: int) -> Trace:
        """The recording up to the end of these steps, and so many copies of them behind it.

        Each copy gets new ids for its blocks, behind those of the copy before. The recorded calls
        of the driver are kept up to the end of the steps.
        """
        trace = self.trace
        copy = np.repeat(np.arange(copies), len(self.op))
        rows = np.tile(np.arange(len(self.op)), copies)
        op = self.op[rows]
        place = self.place[rows]
        operation = self.operation[rows]
        copy_of_block = copy - self.copies_back[rows]
        block = trace.ids + copy_of_block * len(self.ids) + place
        # The first copy frees blocks of the copy before: the recorded steps left those.
        is_recorded = copy_of_block < 0
        block[is_recorded] = self.ids[place[is_recorded]]
        block = np.where(place < 0, -1, block)
        larger = (self.larger_bytes[rows] * (copy + 1)).astype(np.int64)
        size = np.where(op == Op.ALLOC, trace.size[operation], 0) + larger

        recording = np.arange(self.end)
        longer = rearranged(
            trace,
            np.concatenate((recording, operation)),
            op=np.concatenate((trace.op[recording], op)),
            id=np.concatenate((trace.id[recording], block)),
            size=np.concatenate((trace.size[recording], size)),
        )
        calls = tuple(call for call in trace.driver if call.event < self.end)
        return replace(longer, driver=calls)

    def step_of(self, operation: int) -> int:
        """The number of the step in which an operation of the trace of ``repeated`` lies, counted
        from 1 at the first step of the recording.
        """
        if operation < self.end:  # in the recorded steps
            begun = int(np.searchsorted(self.begins, operation, "right"))
            return self.first_copied_step - self.steps + begun - 1
        # Behind the recorded steps each copy has len(self.op) operations.
        copy, row = divmod(operation - self.end, len(self.op))
        begun = int(np.searchsorted(self.begins, self.operation[row], "right"))
        step_in_copy = min(begun - 1, self.steps - 1)
        return self.first_copied_step + copy * self.steps + step_in_copy


def _by_stack(requests: Requests, mask: Mask) -> dict[int, list[int]]:
    """The numbers of the requests of a mask, in order, by the stack that asked for them."""
    by_stack: dict[int, list[int]] = defaultdict(list)
    for number in np.flatnonzero(mask).tolist():
        by_stack[int(requests.stack[number])].append(number)
    return by_stack
