"""How many trials fit on a card at once, in one process or in several, and is a failed trial's worker still of use?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from helpers.look.messages import of_device, of_host, read_message
from helpers.look.reading import show_bytes

MARGIN = 0.10


@dataclass(frozen=True)
class ParallelPlan:
    """``parallel`` trials need ``needed_bytes`` and leave ``left_bytes`` of the card, of which ``margin_bytes`` were demanded;
    one more would need ``next_bytes``."""

    parallel: int
    needed_bytes: int
    left_bytes: int
    margin_bytes: int
    next_bytes: int
    says: str


def plan_parallel(capacity_bytes: int, peak_bytes: int, context_bytes: int, by: str = "processes",
                  margin: float = MARGIN) -> ParallelPlan:
    """Plan from the highest measured peak of one trial (what the allocator reserved, not what tensors held).

    ``by``: ``threads`` of one process share one context and one allocator; ``processes`` pay a context each. ``margin`` is the
    share of the card that stays free for fragmentation and other clients. Raises ValueError for what is no size.
    """
    sizes_fit = peak_bytes > 0 and context_bytes >= 0 and capacity_bytes > 0 and 0 <= margin < 1
    if by not in ("threads", "processes") or not sizes_fit:
        raise ValueError(f"by {by!r}, sizes {capacity_bytes}, {peak_bytes}, {context_bytes}, margin {margin}: expected "
                         "threads or processes, sizes above 0, a margin from 0 to below 1")

    def needed(count: int) -> int:
        return count * peak_bytes + context_bytes * (count if by == "processes" else min(count, 1))

    spare = int(capacity_bytes * margin)
    parallel = 0
    while needed(parallel + 1) <= capacity_bytes - spare:
        parallel += 1
    more = needed(parallel + 1)
    says = (f"{parallel} {by} x {show_bytes(peak_bytes)} need {show_bytes(needed(parallel))} with contexts and leave "
            f"{show_bytes(capacity_bytes - needed(parallel))} of {show_bytes(capacity_bytes)}; {parallel + 1} would need "
            f"{show_bytes(more)}, above the {show_bytes(capacity_bytes - spare)} that a margin of {margin:.0%} allows")
    return ParallelPlan(parallel, needed(parallel), capacity_bytes - needed(parallel), spare, more, says)


def outcome_of(told: Mapping[str, Any]) -> str:
    """What a worker's answer means: ok, oom, host_oom, device_assert (its context is poisoned: replace the worker) or error.

    A context that was used after the failure, and lived or did not, decides before any words do.
    """
    if "value" in told:
        return "ok" if told.get("context") != "dead" else "device_assert"
    read = read_message(str(told.get("message", ""))).messages
    faulty = any(one.event in ("assert", "fault") for one in read)
    context = told.get("context")
    if context == "dead" or (context != "alive" and faulty):
        return "device_assert"
    return "oom" if any(map(of_device, read)) else "host_oom" if any(map(of_host, read)) else "error"
