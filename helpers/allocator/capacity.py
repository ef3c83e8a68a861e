"""The requests of a recording, changed so that they can be replayed on another card or under other
settings, and the smallest card on which they pass, under one setting or the best of many.

A trace passes on a card if its replay there never runs out of memory, else it fails. A granule is
the 2 MiB in which a card gives memory (driver.GRANULE_BYTES); cards that are tried differ by whole
granules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from helpers.allocator.call_sites import requests_of
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import chosen_engine, replay
from helpers.allocator.trace import Op, StartSegment, Trace, rearranged, start_bytes
from helpers.ground.units import halved
from helpers.settings.in_force import LARGE_STEP_BYTES, Settings
from helpers.settings.releases import behaviour


def clashes(settings: Settings, start: tuple[StartSegment, ...]) -> bool:
    """Whether the start of a trace cannot have come about under these settings: it has a segment
    above max_split_size_mb that is divided into several blocks, which that option forbids.
    """
    # A segment may be a little above the limit and be divided all the same: a request just below
    # the limit is split, and its segment is its size rounded up to this step.
    above = settings.max_split_bytes + LARGE_STEP_BYTES
    return any(
        len(segment.blocks) > 1 and not segment.expandable and segment.size >= above
        for segment in start
    )


def asked_again(trace: Trace) -> tuple[Trace, np.ndarray, int]:
    """A trace without the recorded addresses and calls of the driver, in which the program frees
    at once what it gets for a request that the card refused in the recording.

    Returns the new trace; for each of its operations the recorded operation that it stands for; and
    for how many refused requests it has such a free.
    """
    origin = np.arange(len(trace))
    refused = np.unique(np.array(trace.refused, np.int64))
    frees = trace.id[np.isin(trace.op, (Op.FREE, Op.FREE_REQUESTED))]
    is_freed = np.isin(trace.id[refused], frees)
    is_request = trace.op[refused] == Op.ALLOC
    # Those that the trace frees already are left as they are.
    refused = refused[is_request & ~is_freed]
    # Behind each of them a free, which stands for the same operation of the recording.
    origin = np.insert(origin, refused + 1, refused)
    op = np.insert(trace.op, refused + 1, int(Op.FREE))
    trace = rearranged(trace, origin, op=op)
    return trace, origin, len(refused)


def prepared(
    trace: Trace, card: Card, anew: bool = False
) -> tuple[Trace, np.ndarray, list[str]]:
    """A trace made ready to be replayed on a card.

    Returns the new trace; for each of its operations the recorded operation that it stands for
    (-1: none); and what was changed, a sentence each.

    A recorded request that ran out of memory is asked again, and given back at once, because the
    recording does not say how long it would have been used. ``anew``: allocate what was live at
    the start anew, even if the start fits the card (``_with_start_for``). Raises ValueError
    where the card is smaller than what was live.
    """
    trace, origin, refused = asked_again(trace)
    notes = []
    if refused:
        requests = f"{refused} requests"
        if refused == 1:
            requests = "1 request"
        notes.append(
            f"{requests} failed in the recording; the replay asks again and frees at once what it gets"
        )
    if (trace.op == Op.SET_CONF).any():
        notes.append(
            "the program changes allocator settings while it runs; the replay adds those to each setting it tries"
        )
    if trace.start:
        trace, added, note = _with_start_for(card, trace, anew)
        origin = np.append(np.full(added, -1), origin)
        notes.append(note)
    return trace, origin, notes


def _with_start_for(card: Card, trace: Trace, anew: bool) -> tuple[Trace, int, str]:
    """A trace whose start fits a card. The first of these that fits is taken, with ``anew`` the
    last: the recorded start; the recorded start without the segments that have no live block,
    which the allocator would have given back on a smaller card; an empty start, with requests for
    what was live put in front of the operations.

    Returns the trace, how many operations were put in front of it, and a sentence about what was
    done. Raises ValueError where the card is smaller than what was live.
    """
    reserved_bytes = start_bytes(trace.start)
    room = card.capacity_bytes - card.held_bytes
    before = f"{reserved_bytes:,} bytes were reserved before the first operation"
    if reserved_bytes <= room and not anew:
        return trace, 0, f"{before}; every replay begins with them as recorded"
    live_bytes = sum(block.size for _, block in trace.live_at_start)
    before += f", {live_bytes:,} of them live; "
    if live_bytes > room:
        size = f"{card.capacity_bytes:,} bytes, {card.held_bytes:,} held by others"
        least_bytes, _ = least_capacity(trace, card)
        raise ValueError(
            f"capacity of {size}: {before}the peak of live bytes needs "
            f"{least_bytes:,}; give at least that"
        )
    used = tuple(
        segment
        for segment in trace.start
        if any(block.id >= 0 for block in segment.blocks)
    )
    if start_bytes(used) <= room and not anew:
        note = (
            f"{before}segments without a live block are left out, the others lie as "
            "recorded under every setting"
        )
        return replace(trace, start=used), 0, note
    note = (
        f"{before}the live blocks are allocated anew, in the order of their addresses"
    )
    trace, added = _allocated_anew(trace)
    return trace, added, note


def _allocated_anew(trace: Trace) -> tuple[Trace, int]:
    """The trace from an empty start, with requests for what was live, and how many operations were
    put in front of it for that.
    """
    rows = []  # op, id, size, stream, pool
    for segment, block in trace.live_at_start:
        size = block.requested or block.size  # 0: the request is not recorded
        rows.append((Op.ALLOC, block.id, size, segment.stream, segment.pool))
    for _, block in trace.live_at_start:
        if block.state == "P":  # freed, and awaiting events
            rows.append((Op.FREE_REQUESTED, block.id, 0, 0, 0))
    op, ids, sizes, streams, pools = np.array(rows, np.int64).reshape(-1, 5).T
    frame = trace.frame
    if frame is not None:  # the new requests have no stack
        frame = np.append(np.full(len(rows), -1, frame.dtype), frame)
    anew = replace(
        trace,
        start=(),
        op=np.append(op.astype(np.int8), trace.op),
        id=np.append(ids, trace.id),
        size=np.append(sizes, trace.size),
        stream=np.append(streams, trace.stream),
        pool=np.append(pools.astype(trace.pool.dtype), trace.pool),
        frame=frame,
    )
    return anew, len(rows)


Progress = Callable[[int, int], None]
Result = TypeVar("Result")
RULES_FOR_ADDRESSES = ("firstfit", "topdown", "monotonic")
"""Policies of driver.Card. Where the driver puts a segment is its own choice. On a release on which
the addresses decide which block is taken, a trace is replayed under each of these rules.
"""
NEIGHBOURS = 4
"""So many cards smaller than the smallest one that a bisection finds are tried as well: a trace may
fail on a card and pass on a smaller one.
"""
DOUBLINGS = 10
"""How often the room of a replay is doubled before it is said to fail for another reason."""


LEAST_ROOM_BYTES = 256 << 20
"""Room beyond half of what must fit, with which a replay hardly ever runs out of memory."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Replays of one trace on cards that differ from ``card`` in their size alone.

    Releases through 2.11 choose between equal blocks by their addresses. For them a trace is
    replayed under each of RULES_FOR_ADDRESSES, for later releases under the first one alone.
    ``others``: for some settings, by their text, another form of the trace, which is replayed
    under them in place of ``trace``. ``fraction``, ``engine``: as in replay.
    """

    trace: Trace
    card: Card
    torch: str = "2.14.1"
    build: str = "cuda"
    fraction: float | None = None
    engine: str = "auto"
    others: dict[str, Trace] = field(default_factory=dict)

    def of(self, conf: str) -> Trace:
        """The trace in the form in which it is replayed under a setting."""
        return self.others.get(conf, self.trace)

    @property
    def policies(self) -> tuple[str, ...]:
        """The rules for addresses that matter on this release."""
        if behaviour(self.torch, self.build).order == "address":
            return RULES_FOR_ADDRESSES
        return RULES_FOR_ADDRESSES[:1]

    def replays(self, conf: str, capacity_bytes: int) -> Iterator[Outcome]:
        """One replay for each rule for addresses that matters on this release."""
        for policy in self.policies:
            yield replay(
                self.of(conf),
                conf,
                replace(self.card, capacity_bytes=capacity_bytes, policy=policy),
                torch=self.torch,
                build=self.build,
                fraction=self.fraction,
                engine=self.engine,
            )

    def passes(self, conf: str, capacity_bytes: int) -> bool:
        """Whether the trace passes on a card of that size, under every rule for addresses that
        matters.
        """
        # What is reserved at the start has to fit first; no replay is needed to tell.
        if capacity_bytes < self.card.held_bytes + start_bytes(self.of(conf).start):
            return False
        return not any(outcome.ooms for outcome in self.replays(conf, capacity_bytes))

    def map(
        self,
        work: Callable[[Runs, str], Result],
        confs: Sequence[str],
        progress: Progress | None = None,
    ) -> list[Result]:
        """The results of ``work(runs, conf)`` for each of several settings, in their order. Replays
        as machine code run on all cores, those in plain Python one after the other. Calls
        ``progress`` after each with how many are done, and of how many.
        """
        results = []
        operations = len(self.trace) * len(confs) * len(self.policies)
        runs = replace(self, engine=chosen_engine(self.engine, operations))
        threads: int | None = 1
        if runs.engine == "compiled":  # which lets other threads run meanwhile
            threads = os.cpu_count()
        pool = ThreadPoolExecutor(threads)
        try:
            for result in pool.map(partial(work, runs), confs):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(confs))
            return results
        finally:  # after an error or Ctrl-C the settings that are still to come are left out
            pool.shutdown(cancel_futures=True)


def least_capacity(trace: Trace, card: Card) -> tuple[int, int]:
    """The bytes of a card below which no setting can pass, and the operation that needs them. It is
    arithmetic, without a replay: what is live after an operation, in whole granules, and what
    others hold of the card at that time; the most over all operations.
    """
    # Op.FOREIGN changes what others hold; for each operation, how many changes came until then.
    foreign = np.flatnonzero(trace.op == Op.FOREIGN)
    changes_before = np.searchsorted(foreign, np.arange(len(trace)), side="right")
    held_in_turn = np.concatenate(([card.held_bytes], trace.size[foreign]))
    live = requests_of(trace).live
    needed = round_up(live, GRANULE_BYTES) + held_in_turn[changes_before]
    # Of the operations that need as much, the one with most live bytes.
    worst = int(np.where(needed == needed.max(), live, -1).argmax())
    return int(needed[worst]), worst


def smallest(runs: Runs, conf: str, *, above: int = 0, below: int | None = None) -> int:
    """The smallest card in bytes, to 2 MiB, on which the trace passes under one setting; on a card
    one granule smaller it fails.

    It is found by bisection. Then the NEIGHBOURS next smaller cards are tried, too, because garbage
    collection and memory fractions can make a trace pass on a smaller card than one on which it
    fails; a pass still further below is not excluded. ``above``: a capacity known to fail, so that
    only larger ones are looked at. ``below``: one known to pass, with which the bisection begins;
    without it ``_enough`` finds one. Raises ValueError where no capacity passes.
    """
    held_bytes = runs.card.held_bytes
    trace = runs.of(conf)
    needed_bytes, _ = least_capacity(trace, runs.card)
    floor = max(needed_bytes, held_bytes + start_bytes(trace.start), above + 1)
    if below is None:
        below = _enough(runs, conf, floor)
    # The cards that are tried have whole granules beside what others hold. The largest of them
    # that is smaller than the floor is taken to fail, and the bisection begins there.
    fails = held_bytes + round_up(floor - held_bytes, GRANULE_BYTES) - GRANULE_BYTES
    smaller: int | None = held_bytes + round_up(below - held_bytes, GRANULE_BYTES)
    while smaller is not None:  # each smaller card that passes begins another bisection
        passes = partial(runs.passes, conf)
        size, _ = halved(passes, smaller, fails, GRANULE_BYTES)
        smaller = _passing_neighbour(runs, conf, size, floor)
    return size


def _passing_neighbour(runs: Runs, conf: str, size: int, floor: int) -> int | None:
    """The largest of the NEIGHBOURS cards below ``size``, but not below ``floor``, on which the
    trace passes; None where it passes on none.
    """
    # The bisection has shown that one granule below ``size`` it fails.
    for granules in range(2, NEIGHBOURS + 2):
        smaller = size - granules * GRANULE_BYTES
        if smaller >= floor and runs.passes(conf, smaller):
            return smaller
    return None


def _enough(runs: Runs, conf: str, floor: int) -> int:
    """A capacity of at least ``floor`` bytes with which the trace passes.

    The trace is replayed with room to spare, which is doubled until it passes. The answer is what
    that replay reserved at its peak, if the trace passes with so much, else the room itself. Raises
    ValueError where it fails after DOUBLINGS, too.
    """
    room = floor + floor // 2 + LEAST_ROOM_BYTES
    for _ in range(DOUBLINGS):
        outcomes = list(runs.replays(conf, room))
        if not any(outcome.ooms for outcome in outcomes):
            peak = max(outcome.peak_reserved_bytes for outcome in outcomes)
            enough = peak + runs.card.held_bytes
            if floor <= enough < room and runs.passes(conf, enough):
                return enough
            return room
        room *= 2
    name = "the default settings"
    if conf:
        name = conf
    raise ValueError(
        f"under {name!r} the trace fails on a card of "
        f"{room // 2:,} bytes still: it fails for another reason than capacity (a call "
        "made to fail, or a fraction near 0)"
    )


def smallest_of(runs: Runs, confs: Sequence[str], above: int = 0) -> tuple[str, int]:
    """The setting of several with which the trace passes on the smallest card, and that card's
    bytes; with each of the other settings it fails on a card one granule smaller.

    The smallest card is searched for one setting. All others are then tried one granule below it;
    of those that pass, the first becomes the best one, and the rest are tried below its card.
    ``above``: a capacity with which all of them fail.
    """
    best, *others = confs
    size = smallest(runs, best, above=above)
    while others and size - GRANULE_BYTES > above:
        smaller = size - GRANULE_BYTES
        passed = runs.map(partial(Runs.passes, capacity_bytes=smaller), others)
        others = [conf for conf, ok in zip(others, passed, strict=True) if ok]
        if others:
            best = others.pop(0)
            size = smallest(runs, best, above=above, below=smaller)
    return best, size
