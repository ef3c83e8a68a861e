"""Whether a message alone makes fragmentation likely, possible or excluded.

A message never proves it: that takes a recording of the program (program_fragmentation).
"""

from __future__ import annotations

from helpers.ground.units import MIB
from helpers.judge.message_sums import MessageSums, above, is_beyond, minus, plus

EXCLUDED = "excluded"
POSSIBLE = "possible"
LIKELY = "likely"
UNKNOWN = "unknown"
KEPT_BACK_BYTES = 64 * MIB
"""Free memory that a driver near its end reports and still does not give (page tables,
granules): an estimate.
"""
NEAR_FULL = 0.1
"""Share of what PyTorch may have that any busy program strands (remainders up to 1 MiB,
half-used segments): an estimate.
"""


def has_expandable(sums: MessageSums) -> bool | None:
    """Whether the torch that printed a message has expandable segments; None for a ROCm build,
    whose message does not tell.

    CUDA builds have them from 2.1 on; older ones print what is reserved in total.
    """
    if sums.message.program != "torch" or sums.message.reserved_total:
        return False
    if sums.message.backend == "hip":
        return None
    return sums.message.backend == "cuda"


def has_split_size(sums: MessageSums) -> bool:
    """Whether the torch that printed a message reads max_split_size_mb: the message advises it,
    or, without a reserved total, is of a later release.
    """
    message = sums.message
    if message.program != "torch" or message.backend not in ("cuda", "hip"):
        return False
    return not message.reserved_total or "max_split_size_mb" in message.hints


def cache_may_help(sums: MessageSums) -> bool:
    """Whether the free and the cached memory together would hold the request."""
    message = sums.message
    stranded = sums.stranded
    if sums.beyond_limit:
        return False
    if not (message.requested and stranded and stranded.bytes > 0):
        return False
    return not above(message.requested, plus(message.free, stranded))


def fragmentation_by_message(sums: MessageSums) -> tuple[str, list[str]]:
    """Whether fragmentation can be the sole cause (EXCLUDED to LIKELY, UNKNOWN where a number is
    missing), and why, in sentences.
    """
    message = sums.message
    stranded = sums.stranded
    if not message.requested or stranded is None:
        return UNKNOWN, []
    if above(message.requested, stranded):
        return EXCLUDED, _why_too_little_is_stranded(sums)
    if sums.beyond_limit:
        return _beyond_the_limit(sums)
    if not message.allocated or sums.limit is None:
        return UNKNOWN, []
    if sums.beyond_limit is None or not sums.reserved:
        return POSSIBLE, []
    if message.free is None and not _reaches_what_is_allowed(sums):
        return POSSIBLE, []
    return _by_what_is_stranded(sums)


def _reaches_what_is_allowed(sums: MessageSums) -> bool:
    """Whether the request would have taken this process to its own limit."""
    allowed = sums.message.allowed
    needed = plus(sums.reserved, sums.message.requested)
    return allowed is not None and not above(allowed, needed)


def _by_what_is_stranded(sums: MessageSums) -> tuple[str, list[str]]:
    """LIKELY where the stranded memory, which is enough for the request, explains the failure, and
    POSSIBLE where something else may; and why.

    Split blocks do not explain a driver that refused although it reported room.
    """
    message = sums.message
    requested = message.requested
    assert requested and message.allocated and sums.reserved and sums.stranded
    if sums.outside and above(sums.outside, sums.reserved):
        why = (
            f"others have {sums.outside.text}, more than this process's {sums.reserved.text}: "
            "what is stranded in so small a share is no reason by itself"
        )
        return POSSIBLE, [why]
    available = plus(sums.reserved, message.free)
    if message.allowed and _reaches_what_is_allowed(sums):
        available = message.allowed
    elif message.free and message.free.bytes - requested.bytes > KEPT_BACK_BYTES:
        why = (
            f"{message.free.text} was free, enough for {requested.text}: "
            "split blocks do not explain why the driver refused a new segment"
        )
        return POSSIBLE, [why]
    not_released = (
        f"unallocated {sums.stranded.text} is at least the {requested.text} asked for and was not "
        "released"
    )
    left = available.bytes - message.allocated.bytes - requested.bytes
    if left < NEAR_FULL * available.bytes:
        why = (
            f"{not_released}; yet even with all of it, allocated + requested takes over "
            f"{1 - NEAR_FULL:.0%} of the {available.text} that this process can have: near its end "
            "and stranded at once; a memory snapshot would decide"
        )
        return POSSIBLE, [why]
    why = (
        f"{not_released}, so it was split, pending, or another stream's or pool's; "
        "only a memory snapshot proves which"
    )
    return LIKELY, [why]


def _why_too_little_is_stranded(sums: MessageSums) -> list[str]:
    """Why fragmentation is excluded where less is stranded than was requested."""
    requested = sums.message.requested
    stranded = sums.stranded
    free = sums.message.free
    assert requested and stranded
    why = [
        f"reserved but unallocated {stranded.text} is less than the {requested.text} asked for: "
        "no arrangement would have made room, so fragmentation is not the sole cause"
    ]
    if free and not above(requested, plus(free, stranded)):
        why.append(
            f"free {free.text} and unallocated {stranded.text} together would have been enough"
        )
    return why


def _beyond_the_limit(sums: MessageSums) -> tuple[str, list[str]]:
    """EXCLUDED where allocated + requested is more than there is, POSSIBLE where it would fit
    without the memory that is idle in private pools; and why.
    """
    message = sums.message
    if message.private_pools and message.allocated:
        needed = minus(message.allocated, message.private_pools)
        if is_beyond(sums.limit, needed, message.requested) is not True:
            why = (
                f"without the {message.private_pools.text} idle in private pools the request "
                "would fit"
            )
            return POSSIBLE, [why]
    return EXCLUDED, [
        "even without any fragmentation allocated + requested is more than there is"
    ]
