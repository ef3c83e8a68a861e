"""What a recording shows of the request that was refused, of what its steps need before and after
such a request, and of what grows over them, as facts for the judge.

A refusal is a request that found no memory, so that torch raised OutOfMemoryError. ``operation`` is
everywhere the place of the refused request in the trace. A grower is a call site that keeps more
with each step (growth.py). The steps may be those of a second recording of the program, one
without a memory limit (RecordedGrowth.is_longer); then the recording itself shows no steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from helpers.allocator.call_sites import Requests, site_of
from helpers.allocator.capacity import prepared
from helpers.allocator.circumstances import circumstances
from helpers.allocator.exhaustion import exhaustion
from helpers.allocator.growers import (
    MOST_STEPS,
    KeptGrower,
    RecordedGrowth,
    kept_at,
    live_requests_of,
)
from helpers.allocator.kinds import OPTIMIZER
from helpers.allocator.recorded_keepers import Keeper
from helpers.allocator.stack_frames import own_line
from helpers.allocator.study import Study
from helpers.allocator.trace import Trace, start_bytes
from helpers.judge.program_facts import GrowerFacts, GrowthFacts, Refusal
from helpers.settings.in_force import MIN_BLOCK_BYTES

CALL_SIGN = {"malloc": 1, "map": 1, "free": -1, "unmap": -1}
"""Whether a driver's call (DriverCall.action) adds its bytes to the reserved ones or takes them
away.
"""
MOST_CALLERS = 3
"""How many of the lines that led to the request are said, beside its own."""


def recorded_refusal(study: Study, requests: Requests) -> tuple[Refusal | None, int]:
    """The last refusal that was recorded, and its operation. The last, because a program may catch
    earlier ones and go on. None, and the trace's length, where there is none, or where the study
    is about another card than that of the recording.
    """
    trace = study.trace
    recorded_bytes = circumstances(trace).capacity_bytes
    refused = [at for at, call in enumerate(trace.driver) if call.action == "oom"]
    # 0: the recording does not say how large its card was.
    is_another_card = recorded_bytes not in (0, study.card.capacity_bytes)
    if not refused or is_another_card:
        return None, len(trace)
    call = trace.driver[refused[-1]]
    allocated_bytes = 0  # where the trace has a refusal and no operation
    if len(trace):
        allocated_bytes = int(requests.live[call.event])
    refusal = Refusal(
        request_bytes=call.size,
        device_free_bytes=call.address,  # which an oom event has there
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes(trace)[refused[-1]],
    )
    return _with_lines(refusal, trace.stack_of(call.event)), call.event


def replayed_refusal(study: Study) -> tuple[Refusal | None, int]:
    """The first refusal in the replay on the study's card, and its operation. None, and the
    trace's length, where all requests are served.
    """
    trace, origin, _ = prepared(study.trace, study.card)
    replayed = replace(study, trace=trace)
    first = replayed.replay().first_oom
    if first is None:
        return None, len(study.trace)
    before = replayed.replay(stop=first)  # up to right before that request
    reserved = before.figure("reserved_bytes")
    operation = int(origin[first])
    refusal = Refusal(
        request_bytes=int(trace.size[first]),
        device_free_bytes=study.card.capacity_bytes - study.card.held_bytes - reserved,
        allocated_bytes=before.figure("allocated_bytes"),
        reserved_bytes=reserved,
        fails_in_replay=True,
    )
    # ``prepared`` may have put a request in front for what was live at the start. It has no
    # operation (-1), so the first one stands for it.
    return _with_lines(refusal, study.trace.stack_of(operation)), max(operation, 0)


def _with_lines(refusal: Refusal, stack: tuple[str, ...]) -> Refusal:
    """The refusal with the program's own lines that led to it, the nearest first."""
    site = site_of(stack)
    where = ""
    if site.line:  # 0 where the call site is no line of Python
        where = site.name
    own_lines = [frame for frame in stack if own_line(frame)]
    return replace(
        refusal,
        where=where,
        callers=tuple(own_lines[1 : MOST_CALLERS + 1]),  # the first one is ``where``
        of_optimizer=any(frame.startswith(OPTIMIZER) for frame in stack),
    )


def reserved_bytes(trace: Trace) -> list[int]:
    """What is reserved before each of the driver's calls of a recording, and after the last."""
    changes = (CALL_SIGN.get(call.action, 0) * call.size for call in trace.driver)
    return list(accumulate(changes, initial=start_bytes(trace.start)))


def steps_as_full(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> int:
    """In how many steps before a refused request the peak of live bytes was at least as high as it
    would have been with that request: so often the program had passed with as much. 0 where the
    recording itself shows no steps.
    """
    if recorded.growth is None or recorded.is_longer or refusal is None:
        return 0
    needed = refusal.allocated_bytes + refusal.request_bytes
    begins = recorded.growth.steps.begins
    is_before = begins < operation
    bounds = [*begins[is_before].tolist(), operation]
    peaks = [
        int(requests.live[begin:end].max(initial=0)) for begin, end in pairwise(bounds)
    ]
    return sum(peak >= needed for peak in peaks)


def more_to_come(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> int:
    """How many more bytes a step needs after the refused request, by what earlier steps needed
    after the same request. That is the request of the same stack that has the same order: if the
    refused one is the third of its stack in the running step, the third in the earlier step.

    From that request to the end of its step, live bytes rise; only requests count that are freed
    before the refused one, since the others are what the steps keep. Where the recording itself
    shows no steps, each request of the stack counts as the beginning of one. Returns the least rise
    of all earlier steps in which the request was not larger than the refused one; 0 where there is
    no such step.
    """
    trace = requests.trace
    if refusal is None or trace.frame is None or not 0 <= operation < len(trace):
        return 0
    stack = int(trace.frame[operation])
    earlier = requests.at[(requests.stack == stack) & (requests.at < operation)]
    if stack < 0 or not len(earlier):  # it has no stack, or is the first of its stack
        return 0
    begins = np.append(earlier, operation)
    if recorded.growth is not None and not recorded.is_longer:
        begins = recorded.growth.steps.begins
    step_of_earlier = np.searchsorted(begins, earlier, "right")  # from 1 on
    running_step = int(np.searchsorted(begins, operation, "right"))
    order = int((step_of_earlier == running_step).sum())  # so many come before it
    live = _freed_until(requests, operation)
    rises = []
    for step in range(1, running_step):
        in_step = step_of_earlier == step
        same_and_later = earlier[in_step][order:]  # the same request comes first
        if not len(same_and_later):
            continue
        same = same_and_later[0]
        if trace.size[same] <= refusal.request_bytes:
            until_end = live[same : begins[step]]
            rises.append(int(until_end.max() - until_end[0]))
    return min(rises, default=0)


def _freed_until(requests: Requests, operation: int) -> np.ndarray:
    """The live bytes after each operation, counting only requests that are freed up to
    ``operation``, and nothing that was live before the trace began.
    """
    freed = (requests.until <= operation) & (requests.at >= 0)
    change = np.zeros(len(requests.trace) + 1, np.int64)
    np.add.at(change, requests.at[freed], requests.size[freed])
    np.add.at(change, requests.until[freed], -requests.size[freed])
    return np.cumsum(change)


MORE_THAN_ITSELF = 1.25
"""Graphs are said to keep memory where a collection keeps more than this times its own tensors'
bytes. It may keep a little more without them: blocks are rounded up, and the running step has a
few.
"""


def growth_facts(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> GrowthFacts | None:
    """What grows over the steps of a program; None where too few steps are seen.

    ``requests``: of the recording itself, even if the steps are those of another recording without
    a limit. What was kept is counted in ``requests`` up to ``operation``.
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
        steps = max(steps, kept_in)
        growers.append(_grower_facts(row, recorded.growers, kept_bytes))
    if not growers:  # else the steps in which they kept something
        steps = len(growth.steps)
    return GrowthFacts(
        growers=tuple(growers),
        steps=steps,
        rest_bytes=_rest_of_step(recorded, operation),
        rest_so_far_bytes=rest_so_far_bytes,
        usual_rest_bytes=usual_rest_bytes,
        may_be_one_step=recorded.may_be_one_step,
        is_later=recorded.is_later,
    )


def _grower_facts(
    row: KeptGrower, growers: Sequence[KeptGrower], kept_bytes: int
) -> GrowerFacts:
    """The facts about one of the growers of a program, and about its keeper if one is known.

    ``kept_bytes``: what the grower has kept up to the refused request.
    """
    facts = GrowerFacts(
        line=row.line,
        asked_at=row.grower.site.name,
        bytes_per_step=round(row.grower.bytes_per_step),
        kept_bytes=kept_bytes,
    )
    keeper = row.keeper
    if keeper is None:
        return facts
    with_graphs = keeps_by_graphs(keeper, growers)
    return replace(
        facts,
        keeper=keeper.name,
        through_graph=keeper.is_one_with_graph,
        with_graphs=with_graphs,
        tensors_alone=keeper.length > 0 and not with_graphs,
        in_circle=keeper.in_circle,
    )


def _rest_of_step(recorded: RecordedGrowth, operation: int) -> int:
    """The most bytes that are live in a training step from the refused request to the step's end,
    without what the growers keep.

    Only a recording without a limit goes on behind that request. 0 where there is none, where
    nothing is trained, or where the request does not lie in a step that was recorded to its end.
    """
    growth = recorded.growth
    if growth is None or not recorded.is_longer or not growth.steps.trains:
        return 0
    begun = growth.steps_at(operation)
    if not 0 < begun < len(growth.steps):  # before the first step, or in the last
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
    """The bytes that are live beside what the growers keep: at the refused request, that request
    included; and the most in all steps before the running one. Both are 0 where the recording
    itself shows no steps, or where the refused request does not lie in a second or later step.
    """
    growth = recorded.growth
    if growth is None or recorded.is_longer or refusal is None:
        return 0, 0
    begun = growth.steps_at(operation)
    if begun < 2 or operation >= len(requests.live):
        return 0, 0
    # By operation: the bytes asked for there that the growers still hold at the refused request.
    kept_since = np.zeros(len(requests.live), np.int64)
    for row in recorded.growers:
        kept = live_requests_of(row.grower, requests, operation)
        np.add.at(kept_since, requests.at[kept], requests.size[kept])
    rest = requests.live - np.cumsum(kept_since)
    first_begins = growth.steps.begins[0]
    running_begins = growth.steps.begins[begun - 1]
    with_request = int(rest[operation])
    # A request that fails only in the replay was served in the recording, so it is live there.
    if not refusal.fails_in_replay:
        with_request += refusal.request_bytes
    return with_request, int(rest[first_begins:running_begins].max(initial=0))


def runs_out_in_step(study: Study, recorded: RecordedGrowth) -> int:
    """The step in which a program that was ended while it grew would fill the study's card. 0 where
    it does not grow, where the size of the card is unknown, where the trace cannot be replayed on
    the card, or where it takes more steps than programs run (MOST_STEPS).
    """
    growth = recorded.growth
    if growth is None or not recorded.is_leak or not study.capacity_bytes:
        return 0
    try:
        runs_out = exhaustion(recorded.requests, growth, study)
    except ValueError:
        return 0  # it cannot be replayed on that card
    if runs_out is None or runs_out.step > MOST_STEPS:
        return 0
    return runs_out.step


def keeps_by_graphs(keeper: Keeper, growers: Sequence[KeptGrower]) -> bool:
    """Whether the graphs of a collection's tensors keep memory, and not the tensors alone: what the
    collection keeps is clearly more than its tensors. False for a keeper that is no collection.
    """
    if not keeper.with_graph or not keeper.length:  # length 0: a variable
        return False
    held_bytes = sum(row.held_bytes for row in growers if row.keeper == keeper)
    # The least that its tensors take on the card, a block each.
    own_bytes = max(keeper.own_bytes, MIN_BLOCK_BYTES * keeper.length)
    return held_bytes > MORE_THAN_ITSELF * own_bytes
