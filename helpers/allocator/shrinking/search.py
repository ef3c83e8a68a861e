"""Replays candidates for a smaller trace on one card: which of them still fail as the whole trace
does, and the fewest requests of a recording that do (delta debugging over allocations with their
frees). A candidate ends with the request that has to be refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from helpers.allocator.blocks import INACTIVE
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.outcome import Outcome, ReplayError, block_column
from helpers.allocator.study import Study
from helpers.allocator.tables import allowed_bytes
from helpers.allocator.trace import Op, Trace, rearranged
from helpers.settings.in_force import MIN_BLOCK_BYTES
from helpers.settings.releases import behaviour


@dataclass(frozen=True)
class RefusedRequest:
    """A request that is refused, and the memory at that moment; sizes in bytes.

    ``index``: its operation. ``kind``: "fragmentation" where the live bytes and the request fit the
    room together, else "capacity". ``room_bytes``: the most that the allocator may take of the
    card. ``live_bytes``: of requests in use, each rounded up to 512. ``free_bytes``: in held
    segments. ``largest_bytes``: of the largest request up to this one. ``saved``: settings under
    which the same requests pass, "" for none.
    """

    index: int
    kind: str
    request_bytes: int
    rounded_bytes: int
    room_bytes: int
    live_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_bytes: int
    saved: str = ""

    @property
    def stranded(self) -> bool:
        """Whether the free bytes in held segments would be enough for the request, in one piece."""
        return self.kind == "fragmentation" and self.free_bytes >= self.rounded_bytes

    @property
    def invariants(self) -> list[str]:
        """What every candidate keeps, in words."""
        fits = "are more than the card has"
        if self.kind == "fragmentation":
            fits = "fit the card: it fails for the layout alone"
        kept = [f"{self.kind}: what is live and the request together {fits}"]
        if self.stranded:
            kept.append("free bytes within held segments would be enough for it")
        if self.saved:
            kept.append(f"under {self.saved} every request is met")
        return [
            *kept,
            f"the same request of {self.request_bytes:,} bytes fails, none before it",
            f"the allocator may take {self.room_bytes:,} bytes of the card",
            f"no request is larger than the largest before it, {self.largest_bytes:,} bytes",
        ]


@dataclass(eq=False)
class ReplaySearch:
    """Replays candidates under a study's settings. ``until``: the moment of time.monotonic at which
    the search ends. ``target``: the failure that a candidate has to show. ``replays``: how many
    there were so far.
    """

    study: Study
    until: float
    target: RefusedRequest | None = None
    replays: int = 0

    def outcome(
        self, trace: Trace, conf: str | None = None, stop: int | None = None
    ) -> Outcome:
        """The replay of a candidate, under the study's settings or ``conf``."""
        self.replays += 1
        return replace(self.study, trace=trace).replay(conf, stop=stop)

    def failure(self, trace: Trace, outcome: Outcome) -> RefusedRequest | None:
        """The first request of a trace that is refused, by its replay ``outcome``; None where none
        is.
        """
        index = outcome.first_oom
        if index is None:
            return None
        if index + 1 < len(trace):  # the blocks of an outcome are those at its end
            outcome = self.outcome(trace, stop=index + 1)
        size = block_column(outcome.blocks, "size")
        requested = block_column(outcome.blocks, "requested")
        is_free = block_column(outcome.blocks, "state") == INACTIVE
        mapped = block_column(outcome.blocks, "mapped") == 1
        is_foreign = trace.op[:index] == Op.FOREIGN
        room = self._room_bytes(trace.size[:index][is_foreign])
        live = int(round_up(requested[~is_free], MIN_BLOCK_BYTES).sum())
        kind = "capacity"
        if live + outcome.first_oom_bytes <= room:
            kind = "fragmentation"
        allocates = trace.op[: index + 1] == Op.ALLOC
        return RefusedRequest(
            index=index,
            kind=kind,
            request_bytes=int(trace.size[index]),
            rounded_bytes=outcome.first_oom_bytes,
            room_bytes=room,
            live_bytes=live,
            reserved_bytes=int(size[mapped].sum()),
            free_bytes=int(size[mapped & is_free].sum()),
            largest_bytes=int(trace.size[: index + 1][allocates].max()),
        )

    def _room_bytes(self, foreign: np.ndarray) -> int:
        """The most bytes that the allocator may take of the card: what others leave of it, or a
        memory fraction allows, whichever is less. ``foreign``: the bytes of the card that others
        hold, a number for each change, the last one in force; without any it is as the study's card
        says.
        """
        card = self.study.card
        held_bytes = card.held_bytes
        if len(foreign):
            held_bytes = int(foreign[-1])
        rules = behaviour(self.study.torch, self.study.build)
        allowed = allowed_bytes(self.study.fraction, card, rules)
        return int(min(card.capacity_bytes - held_bytes, allowed))

    def fails_alike(self, trace: Trace) -> bool:
        """Whether a candidate fails as the target does, and only with its last request."""
        target = self.target
        assert target is not None, "the search knows how candidates have to fail"
        if trace.size[-1] != target.request_bytes:
            return False
        try:
            outcome = self.outcome(trace)
            if outcome.first_oom != len(trace) - 1:
                return False
            if target.saved and self.outcome(trace, target.saved).first_oom is not None:
                return False
            failure = self.failure(trace, outcome)
        except ReplayError:  # the model cannot carry it out
            return False
        if failure is None or failure.kind != target.kind:
            return False
        # If free bytes in segments were enough in one piece, they have to be in the candidate, too.
        return failure.stranded or not target.stranded

    @property
    def late(self) -> bool:
        """Whether the time of the search is over."""
        return time.monotonic() > self.until


def without(trace: Trace, ids: list[int]) -> Trace:
    """The trace without the operations of these blocks."""
    return rearranged(trace, np.flatnonzero(~np.isin(trace.id, ids)))


def fewest(search: ReplaySearch, trace: Trace) -> Trace:
    """The trace without the allocations that the failure does not need. They are tried in chunks,
    with their frees; the chunks get half as long each round, down to single allocations. Rounds of
    single ones go on until none can be left out, or the time is over: the answer is then what was
    reached.
    """
    chunk = max(len(trace) // 4, 1)  # operations: about half of the allocations
    left_out_some = True
    while not search.late and (chunk > 1 or left_out_some):
        ids = trace.id[_allocations_before_last(trace)].tolist()
        chunk = max(chunk // 2, 1)
        left_out_some = False
        at = 0
        while at < len(ids) and not search.late:
            smaller = without(trace, ids[at : at + chunk])
            if search.fails_alike(smaller):
                trace = smaller
                left_out_some = True
                del ids[at : at + chunk]
            else:
                at += chunk
    return trace


def on_smaller_card(search: ReplaySearch, trace: Trace) -> Trace:
    """The trace without the requests that only fill the card; makes the card of the search's study
    smaller by their bytes.
    """
    allocations = _allocations_before_last(trace)
    sizes = round_up(trace.size[allocations], GRANULE_BYTES).tolist()
    for ident, size in zip(trace.id[allocations].tolist(), sizes, strict=True):
        study = search.study
        if study.card.capacity_bytes <= size:  # nothing would be left of the card
            continue
        search.study = replace(study, card=Card(study.card.capacity_bytes - size))
        smaller = without(trace, [ident])
        if search.fails_alike(smaller):
            trace = smaller
        else:  # the failure needs this request: it stays, and so does the card
            search.study = study
    return trace


def _allocations_before_last(trace: Trace) -> np.ndarray:
    """The allocations except the last operation, which is the refused request."""
    return np.flatnonzero(trace.op[:-1] == Op.ALLOC)
