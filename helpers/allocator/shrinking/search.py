"""Replays of candidates on one card: which of them still fail as the whole trace does."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from helpers.allocator.blocks import INACTIVE
from helpers.allocator.driver import round_up
from helpers.allocator.outcome import Outcome, ReplayError, block_column
from helpers.allocator.shrinking.failure import RefusedRequest
from helpers.allocator.starting_state import allowed_bytes
from helpers.allocator.study import Study
from helpers.allocator.trace import Op, Trace, rearranged
from helpers.settings.in_force import MIN_BLOCK_BYTES
from helpers.settings.releases import behaviour


@dataclass(eq=False)
class ReplaySearch:
    """Replays of candidates under a study's settings, until a moment; ``target``: how they are
    to fail.
    """

    study: Study
    until: float
    target: RefusedRequest | None = None
    replays: int = 0

    def outcome(
        self, trace: Trace, conf: str | None = None, stop: int | None = None
    ) -> Outcome:
        """What becomes of a candidate, under other settings than the study's where named."""
        self.replays += 1
        return replace(self.study, trace=trace).replay(conf, stop=stop)

    def failure(self, trace: Trace, outcome: Outcome) -> RefusedRequest | None:
        """The first request that is refused, None where none is."""
        index = outcome.first_oom
        if index is None:
            return None
        if index + 1 < len(trace):
            outcome = self.outcome(trace, stop=index + 1)
        size = block_column(outcome.blocks, "size")
        requested = block_column(outcome.blocks, "requested")
        is_free = block_column(outcome.blocks, "state") == INACTIVE
        mapped = block_column(outcome.blocks, "mapped") == 1
        room = self._room_bytes(trace.size[:index][trace.op[:index] == Op.FOREIGN])
        live = int(round_up(requested[~is_free], MIN_BLOCK_BYTES).sum())
        fits = live + outcome.first_oom_bytes <= room
        allocates = trace.op[: index + 1] == Op.ALLOC
        return RefusedRequest(
            index=index,
            kind="fragmentation" if fits else "capacity",
            request_bytes=int(trace.size[index]),
            rounded_bytes=outcome.first_oom_bytes,
            room_bytes=room,
            live_bytes=live,
            reserved_bytes=int(size[mapped].sum()),
            free_bytes=int(size[mapped & is_free].sum()),
            largest_bytes=int(trace.size[: index + 1][allocates].max()),
        )

    def _room_bytes(self, foreign: np.ndarray) -> int:
        """What the allocator may take of the card; ``foreign``: what others held of it in turn."""
        card = self.study.card
        held_bytes = int(foreign[-1]) if len(foreign) else card.held_bytes
        rules = behaviour(self.study.torch, self.study.build)
        allowed = allowed_bytes(self.study.fraction, card, rules)
        return int(min(card.capacity_bytes - held_bytes, allowed))

    def fails_alike(self, trace: Trace) -> bool:
        """Whether a candidate fails as the target does, with its last request."""
        target = self.target
        assert target is not None, "the search knows how candidates are to fail"
        if trace.size[-1] != target.request_bytes:
            return False
        try:
            outcome = self.outcome(trace)
            if outcome.first_oom != len(trace) - 1:
                return False
            if target.saved and self.outcome(trace, target.saved).first_oom is not None:
                return False
            failure = self.failure(trace, outcome)
        except ReplayError:
            return False
        if failure is None or failure.kind != target.kind:
            return False
        return failure.stranded or not target.stranded

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until


def without(trace: Trace, ids: list[int]) -> Trace:
    """The trace without the operations of these blocks."""
    return rearranged(trace, np.flatnonzero(~np.isin(trace.id, ids)))
