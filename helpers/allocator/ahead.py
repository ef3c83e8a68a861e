"""At which step does a growing program run out of memory?

Its steps are repeated as they were recorded, and replayed.

The steps of a whole period are put behind the recording again and again: what one of them
replaced, the next replaces; what its growing call sites kept, stays. So fragmentation and the
packing of what is kept into segments count as the allocator makes them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from helpers.allocator.capacity import Runs, prepared, smallest
from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.growth import LARGER, Growth
from helpers.allocator.lines import Requests
from helpers.allocator.trace import Op, Trace

MOST_OPERATIONS = 500_000
"""What is replayed at most; a death beyond it is extrapolated from two cards on which the
program dies sooner.
"""
LEAST_REACH_BYTES = 256 << 20
"""What must grow in so many operations for that: less is few segments, and is taken to fill the
card byte by byte.
"""


class End(NamedTuple):
    """``step``: the one in which the program runs out of memory, counted from 1 at the first of
    the trace; ``recorded``: it lies in the recording; ``replayed``: it was replayed to, else
    extrapolated along a line.
    """

    step: int
    recorded: bool
    replayed: bool


def end(found: Requests, grown: Growth, card: Card, conf: str, **how: Any) -> End | None:
    """Where the program runs out on that card under those settings; None where nothing grows
    and the recording passes. ``how`` goes to replay. Raises ValueError for a card smaller
    than what was live on it when the trace began.
    """
    # Where its own addresses were is known of the recording only.
    trace = found.trace
    card = replace(card, policy="firstfit")
    here = _out_at(trace, card, conf, how)
    begins = grown.steps.begins
    if here is not None:
        return End(max(1, int(np.searchsorted(begins, here, "right"))), True, True)
    if not grown.growers:
        return None
    period = _Period(found, grown)
    need = int(found.live.max(initial=0))
    per_copy = grown.bytes_per_step * period.steps
    room = card.capacity_bytes - card.held_bytes - need
    copies = int(max(0, room) / per_copy) + 2
    most = max(2, MOST_OPERATIONS // max(1, len(period.op)))
    if copies <= most:
        at = _out_at(period.repeated(copies), card, conf, how)
        return None if at is None else End(period.step(at), False, True)
    # Too far to replay: on smaller cards it dies sooner, and each further byte lasts as long as
    # those between them.
    stream, _, _ = prepared(trace, card)
    runs = Runs(stream, card, how["torch"], how.get("build", "cuda"), how.get("fraction"))
    enough = smallest(runs, conf)
    reach = per_copy * most
    if reach < LEAST_REACH_BYTES:
        further = (card.capacity_bytes - enough) / grown.bytes_per_step
        return End(len(begins) + int(further) + 1, False, False)
    longer = period.repeated(most)
    places = []
    for share in (0.3, 0.9):
        size = enough + int(reach * share)
        at = _out_at(longer, replace(card, capacity_bytes=size), conf, how)
        if at is None:
            return None
        places.append((size, period.step(at)))
    (small, early), (large, late) = places
    further = (card.capacity_bytes - large) * (late - early) / (large - small)
    return End(late + round(further), False, False)


def _out_at(trace: Trace, card: Card, conf: str, how: dict[str, Any]) -> int | None:
    """The operation of the trace at which it runs out of memory."""
    stream, origin, _ = prepared(trace, card)
    first = replay(stream, conf, card, **how).first_oom
    return None if first is None else int(origin[first])


class _Period:
    """The operations of some steps, ready to be repeated behind the recording up to their end."""

    def __init__(self, found: Requests, grown: Growth):
        self.trace = found.trace
        begins = grown.steps.begins
        first, last = grown.window
        self.begin = int(begins[first + 1])
        self.end = int(begins[last + 1])
        self.steps = last - first
        self.first = last + 2
        self.begins = begins[first + 1 : last + 2]
        trace = self.trace
        rows = slice(self.begin, self.end)
        op = trace.op[rows].copy()
        ident = trace.id[rows].copy()
        op[op == Op.FREE_REQUESTED] = Op.FREE
        kept = np.isin(op, (Op.ALLOC, Op.FREE, Op.EMPTY_CACHE))
        inside = (found.at >= self.begin) & (found.at < self.end)
        made = dict(zip(found.id[inside].tolist(), range(int(inside.sum())), strict=True))
        follows, dropped = self._leftovers(found, grown, inside)
        # For each operation: the place of its block among those made in one copy, and of which
        # copy it is: this or the one before.
        place = np.full(len(op), -1)
        back = np.zeros(len(op), np.int64)
        for at in np.flatnonzero(kept & (ident >= 0)).tolist():
            block = int(ident[at])
            mine = block in made
            source = block if mine else follows.get(block, -1)
            place[at] = made.get(source, -1)
            back[at] = 0 if mine else 1
        kept &= (place >= 0) | (op == Op.EMPTY_CACHE)
        more = np.array([made[block] for block in dropped], np.int64)
        self.made = len(made)
        self.ids = np.array(list(made), np.int64)
        self.op = np.append(op[kept], np.full(len(more), int(Op.FREE), op.dtype))
        self.place = np.append(place[kept], more)
        self.back = np.append(back[kept], np.zeros(len(more), np.int64))
        where = np.append(np.flatnonzero(kept) + self.begin, np.full(len(more), self.end - 1))
        self.where = where
        at_site = np.zeros(len(trace), np.int64)
        at_site[found.at[inside]] = found.site[inside]
        steps = {found.sites.index(one.site): one for one in grown.growers if one.how == LARGER}
        grows = [steps[at].bytes_per_step if at in steps else 0.0 for at in at_site[where].tolist()]
        self.larger = np.where(self.op == Op.ALLOC, grows, 0.0) * self.steps

    def _leftovers(
        self, found: Requests, grown: Growth, inside: np.ndarray
    ) -> tuple[dict[int, int], list[int]]:
        """For each block that was there before and is freed in these steps, the one that these
        steps leave in its place, by call site, the last for the last; and what they leave
        besides without being known to grow, which goes at their end.
        """
        came = (found.at < self.begin) & (found.until >= self.begin) & (found.until < self.end)
        left = inside & (found.until >= self.end)
        sides: list[dict[int, list[int]]] = [defaultdict(list), defaultdict(list)]
        for which, side in ((came, sides[0]), (left, sides[1])):
            for at in np.flatnonzero(which).tolist():
                side[int(found.stack[at])].append(at)
        growing = {one.site for one in grown.growers}
        follows = {}
        dropped = []
        for stack, places in sides[1].items():
            freed = sides[0].get(stack, [])[-len(places) :]
            for old, new in zip(freed, places[-len(freed) :] if freed else [], strict=True):
                follows[int(found.id[old])] = int(found.id[new])
            alone = places[: len(places) - len(freed)]
            dropped += [
                int(found.id[at]) for at in alone if found.sites[found.site[at]] not in growing
            ]
        return follows, dropped

    def repeated(self, copies: int) -> Trace:
        """The recording up to the end of these steps, and so many copies of them."""
        trace = self.trace
        many = len(self.op)
        number = np.repeat(np.arange(copies), many)
        place = np.tile(self.place, copies)
        back = np.tile(self.back, copies)
        block = trace.ids + (number - back) * self.made + place
        first = (number == 0) & (back == 1)
        block[first] = self.ids[place[first]]
        block[place < 0] = -1
        where = np.tile(self.where, copies)
        op = np.tile(self.op, copies)
        more = (np.tile(self.larger, copies) * (number + 1)).astype(np.int64)
        columns = {
            "op": op,
            "id": block,
            "size": np.where(op == Op.ALLOC, trace.size[where], 0) + more,
            "stream": trace.stream[where],
            "pool": trace.pool[where],
        }
        joined: dict[str, Any] = {
            name: np.concatenate((getattr(trace, name)[: self.end], rows)).astype(
                getattr(trace, name).dtype
            )
            for name, rows in columns.items()
        }
        calls = tuple(call for call in trace.driver if call.event < self.end)
        none: dict[str, Any] = dict.fromkeys(("time_ns", "address", "frame"))
        return replace(trace, **joined, **none, driver=calls, names=())

    def step(self, operation: int) -> int:
        """The step of an operation of such a trace, counted from 1 at the first of the recording."""
        if operation < self.end:
            return (
                int(np.searchsorted(self.begins, operation, "right")) + self.first - self.steps - 1
            )
        copy, at = divmod(operation - self.end, len(self.op))
        inside = int(np.searchsorted(self.begins, self.where[at], "right")) - 1
        return self.first + copy * self.steps + min(inside, self.steps - 1)
