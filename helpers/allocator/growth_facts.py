"""What grows over the steps of a recorded program, as facts for the judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.exhaustion import exhaustion
from helpers.allocator.growers import (
    MOST_STEPS,
    Keeper,
    KeptGrower,
    RecordedGrowth,
    kept_at,
    live_requests_of,
)
from helpers.allocator.study import Study
from helpers.judge.program_facts import GrowerFacts, GrowthFacts, Refusal
from helpers.settings.in_force import MIN_BLOCK_BYTES

MORE_THAN_ITSELF = 1.25
"""Times its own bytes that a collection keeps at least where graphs keep the rest; blocks are
rounded up, and the running step has a few more.
"""


def growth_facts(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> GrowthFacts | None:
    """What grows over the steps of a program; None where too few of them are seen.

    ``requests``: of the recording itself; ``operation``: up to which it counts what was kept.
    """
    growth = recorded.growth
    if growth is None:
        return None
    rest_so_far_bytes, usual_rest_bytes = _rest_by_step(
        recorded, requests, operation, refusal
    )
    growers = []
    steps = 0
    for row in recorded.growers:
        kept_bytes, kept_in = kept_at(row.grower, growth, requests, operation)
        keeper = row.keeper
        in_collection = keeper is not None and keeper.length > 0
        with_graphs = keeper is not None and keeps_by_graphs(keeper, recorded.growers)
        steps = max(steps, kept_in)
        growers.append(
            GrowerFacts(
                line=row.line,
                asked_at=row.grower.site.name,
                bytes_per_step=round(row.grower.bytes_per_step),
                kept_bytes=kept_bytes,
                keeper=keeper.name if keeper else "",
                through_graph=keeper is not None and keeper.is_one_with_graph,
                with_graphs=with_graphs,
                tensors_alone=in_collection and not with_graphs,
                in_circle=keeper is not None and keeper.in_circle,
            )
        )
    return GrowthFacts(
        growers=tuple(growers),
        steps=steps if growers else len(growth.steps),
        rest_bytes=_rest_of_step(recorded, operation),
        rest_so_far_bytes=rest_so_far_bytes,
        usual_rest_bytes=usual_rest_bytes,
        may_be_one_step=recorded.may_be_one_step,
        is_later=recorded.is_later,
    )


def _rest_of_step(recorded: RecordedGrowth, operation: int) -> int:
    """What the training step of an operation has live at most from there on, without what the steps
    have kept; 0 where it was not recorded to its end.
    """
    growth = recorded.growth
    if growth is None or not recorded.is_longer or not growth.steps.trains:
        return 0
    begun = growth.steps_at(operation)
    if not 0 < begun < len(growth.steps):
        return 0
    requests = recorded.requests
    end = int(growth.steps.begins[begun])
    fullest = operation + int(requests.live[operation:end].argmax())
    kept = [kept_at(row.grower, growth, requests, fullest) for row in recorded.growers]
    return int(requests.live[fullest]) - sum(kept_bytes for kept_bytes, _ in kept)


def _rest_by_step(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> tuple[int, int]:
    """What was live beside what is kept: with a refused request, and at most in a step before it.
    Both 0 where no step came before it.
    """
    growth = recorded.growth
    if growth is None or recorded.is_longer or refusal is None:
        return 0, 0
    begun = growth.steps_at(operation)
    if begun < 2 or operation >= len(requests.live):
        return 0, 0
    kept_since = np.zeros(len(requests.live), np.int64)
    for row in recorded.growers:
        kept = live_requests_of(row.grower, requests, operation)
        np.add.at(kept_since, requests.at[kept], requests.size[kept])
    rest = requests.live - np.cumsum(kept_since)
    first, running = growth.steps.begins[[0, begun - 1]]
    refused_bytes = (
        0 if refusal.fails_in_replay else refusal.request_bytes
    )  # else it is recorded
    return int(rest[operation]) + refused_bytes, int(rest[first:running].max(initial=0))


def runs_out_in_step(study: Study, recorded: RecordedGrowth) -> int:
    """The step in which a program that was ended while it grew would fill the study's card; 0 where
    it does not grow, has no card, or would not fill it in as many steps as programs run.
    """
    growth = recorded.growth
    if (
        growth is None
        or not recorded.is_leak
        or study.card.capacity_bytes >= AMPLE_BYTES
    ):
        return 0
    try:
        runs_out = exhaustion(recorded.requests, growth, study)
    except ValueError:
        return 0  # it cannot be replayed on that card
    if runs_out is None or runs_out.step > MOST_STEPS:
        return 0
    return runs_out.step


def keeps_by_graphs(keeper: Keeper, growers: Sequence[KeptGrower]) -> bool:
    """Whether the graphs of a collection's tensors keep memory, and not the tensors alone."""
    if not keeper.with_graph or not keeper.length:
        return False
    held_bytes = sum(row.held_bytes for row in growers if row.keeper == keeper)
    own_bytes = max(keeper.own_bytes, MIN_BLOCK_BYTES * keeper.length)
    return held_bytes > MORE_THAN_ITSELF * own_bytes
