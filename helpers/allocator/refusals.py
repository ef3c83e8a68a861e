"""The request that a recorded program was refused, and what its steps needed before and behind it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from helpers.allocator.call_sites import Requests, site_of
from helpers.allocator.circumstances import circumstances
from helpers.allocator.growers import RecordedGrowth
from helpers.allocator.kinds import OPTIMIZER
from helpers.allocator.requests import prepared
from helpers.allocator.stack_frames import own_line
from helpers.allocator.study import Study
from helpers.allocator.trace import Trace, start_bytes
from helpers.judge.program_facts import Refusal

RESERVED = {"malloc": 1, "map": 1, "free": -1, "unmap": -1}
"""By how much of its size a driver's call changes what is reserved."""
MOST_CALLERS = 3


def recorded_refusal(study: Study, requests: Requests) -> tuple[Refusal | None, int]:
    """The last refusal that was recorded, and its operation; None on another card than that of
    the recording.
    """
    trace = study.trace
    recorded_bytes = circumstances(trace).capacity_bytes
    refused = [at for at, call in enumerate(trace.driver) if call.action == "oom"]
    is_another_card = recorded_bytes not in (0, study.card.capacity_bytes)
    if not refused or is_another_card:
        return None, len(trace)
    call = trace.driver[refused[-1]]
    return (
        Refusal(
            request_bytes=call.size,
            device_free_bytes=call.address,
            allocated_bytes=int(requests.live[call.event]) if len(trace) else 0,
            reserved_bytes=reserved_bytes(trace)[refused[-1]],
            where=_line_of(trace, call.event),
            callers=_callers(trace, call.event),
            of_optimizer=_is_of_optimizer(trace, call.event),
        ),
        call.event,
    )


def replayed_refusal(study: Study) -> tuple[Refusal | None, int]:
    """The first refusal in the replay on the study's card, and its operation."""
    stream, origin, _ = prepared(study.trace, study.card)
    replayed = replace(study, trace=stream)
    first = replayed.replay().first_oom
    if first is None:
        return None, len(study.trace)
    before = replayed.replay(stop=first)
    reserved = before.figure("reserved_bytes")
    operation = int(origin[first])
    return (
        Refusal(
            request_bytes=int(stream.size[first]),
            device_free_bytes=study.card.capacity_bytes
            - study.card.held_bytes
            - reserved,
            allocated_bytes=before.figure("allocated_bytes"),
            reserved_bytes=reserved,
            where=_line_of(study.trace, operation),
            callers=_callers(study.trace, operation),
            of_optimizer=_is_of_optimizer(study.trace, operation),
            fails_in_replay=True,
        ),
        max(operation, 0),
    )


def _line_of(trace: Trace, operation: int) -> str:
    """The program's own line of an operation, or the innermost line of Python that it has."""
    site = site_of(trace.stack_of(operation))
    return site.name if site.line else ""


def _callers(trace: Trace, operation: int) -> tuple[str, ...]:
    """The program's own lines that led to that of an operation, the nearest first."""
    lines = [frame for frame in trace.stack_of(operation) if own_line(frame)]
    return tuple(lines[1 : MOST_CALLERS + 1])


def _is_of_optimizer(trace: Trace, operation: int) -> bool:
    """Whether the code of one of torch's optimizers asks in an operation."""
    return any(frame.startswith(OPTIMIZER) for frame in trace.stack_of(operation))


def reserved_bytes(trace: Trace) -> list[int]:
    """What is reserved before each of the driver's calls of a recording, and after the last."""
    changes = (RESERVED.get(call.action, 0) * call.size for call in trace.driver)
    return list(accumulate(changes, initial=start_bytes(trace.start)))


def steps_as_full(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> int:
    """In how many steps before a refused request as much was live as would be with it."""
    if recorded.growth is None or recorded.is_longer or refusal is None:
        return 0
    needed = refusal.allocated_bytes + refusal.request_bytes
    begins = [
        begin for begin in recorded.growth.steps.begins.tolist() if begin < operation
    ]
    ends = [*begins[1:], operation] if begins else []  # refused before its first step
    peaks = [
        int(requests.live[begin:end].max(initial=0))
        for begin, end in zip(begins, ends, strict=True)
    ]
    return sum(peak >= needed for peak in peaks)


def more_to_come(
    recorded: RecordedGrowth,
    requests: Requests,
    operation: int,
    refusal: Refusal | None,
) -> int:
    """By how much what was freed again rose behind the same request in earlier steps, up to their
    ends; where no steps are seen, until the same stack asked anew. The least of those that asked
    for no more than the refused request; 0 where there is none.
    """
    trace = requests.trace
    if refusal is None or trace.frame is None or not 0 <= operation < len(trace):
        return 0
    stack = int(trace.frame[operation])
    earlier = requests.at[(requests.stack == stack) & (requests.at < operation)]
    if stack < 0 or not len(earlier):
        return 0
    begins = np.append(earlier, operation)
    if recorded.growth is not None and not recorded.is_longer:
        begins = recorded.growth.steps.begins
    step = np.searchsorted(begins, earlier, "right")
    running = int(np.searchsorted(begins, operation, "right"))
    place = int((step == running).sum())
    live = _freed_until(requests, operation)
    rises = []
    for number in range(1, running):
        alike = earlier[step == number][place:]
        if len(alike) and trace.size[alike[0]] <= refusal.request_bytes:
            behind = live[alike[0] : begins[number]]
            rises.append(int(behind.max() - behind[0]))
    return min(rises, default=0)


def _freed_until(requests: Requests, operation: int) -> np.ndarray:
    """The live bytes, after each operation, of what is freed until this one."""
    freed = (requests.until <= operation) & (requests.at >= 0)
    change = np.zeros(len(requests.trace) + 1, np.int64)
    np.add.at(change, requests.at[freed], requests.size[freed])
    np.add.at(change, requests.until[freed], -requests.size[freed])
    return np.cumsum(change)
