"""Whether a message alone makes fragmentation likely, possible or excluded.

A message never proves it: that takes a recording of the program (program_fragmentation).

*Stranded* memory is what PyTorch has reserved and no tensor uses (reserved but unallocated): its
cache. Before the error PyTorch gave every segment back that was free as a whole, so what is
stranded are free parts of segments that are in use.
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
    """Whether the torch that printed a message has expandable segments: False for another program
    or another backend than CUDA's, None for a ROCm build, whose message does not tell.

    CUDA builds have them from 2.1 on. Older releases are known by their message, which prints
    what is reserved in total.
    """
    if sums.message.program != "torch" or sums.message.reserved_total:
        return False
    if sums.message.backend == "hip":
        return None
    return sums.message.backend == "cuda"


def has_split_size(sums: MessageSums) -> bool:
    """Whether the torch that printed a message reads max_split_size_mb: a message without a
    reserved total is of a release that has it, and older ones that have it advise it in their
    message. False for another program or backend.
    """
    message = sums.message
    if message.program != "torch" or message.backend not in ("cuda", "hip"):
        return False
    return not message.reserved_total or "max_split_size_mb" in message.hints


def cache_may_help(sums: MessageSums) -> bool:
    """Whether the request would have fitted if PyTorch could use what is stranded in its cache
    together with what is free. False too where a number for that is missing.
    """
    message = sums.message
    stranded = sums.stranded
    # Allocated and requested memory alone are above the limit: no cache makes up for that.
    if sums.beyond_limit:
        return False
    if not (message.requested and stranded and stranded.bytes > 0):
        return False
    return not above(message.requested, plus(message.free, stranded))


def fragmentation_by_message(sums: MessageSums) -> tuple[str, list[str]]:
    """Whether fragmentation can be the sole cause, and why, in sentences.

    EXCLUDED: what is stranded is less than was requested, or all of it would not have been
    enough. POSSIBLE: it is enough, and another cause fits as well, or a number is missing that
    would tell them apart (then without a sentence). LIKELY: it is enough, and nothing else
    explains the failure. UNKNOWN: a number is missing without which nothing can be said.
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
    # The printed digits leave open whether allocated + requested is within the limit.
    if sums.beyond_limit is None or not sums.reserved:
        return POSSIBLE, []
    # Nothing shows that the card or the process was at its end: the driver may have refused.
    if message.free is None and not _reaches_what_is_allowed(sums):
        return POSSIBLE, []
    return _by_what_is_stranded(sums)


def _reaches_what_is_allowed(sums: MessageSums) -> bool:
    """Whether the request would have taken this process to its own limit."""
    allowed = sums.message.allowed
    needed = plus(sums.reserved, sums.message.requested)
    return allowed is not None and not above(allowed, needed)


def _by_what_is_stranded(sums: MessageSums) -> tuple[str, list[str]]:
    """LIKELY where the stranded memory, which is enough for the request, explains the failure;
    POSSIBLE where others have more than this process, where the driver refused although it
    reported room, or where the memory would be nearly full even with all that is stranded. And
    why, in one sentence.
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
    # What this process can have: its own limit where that was reached, else its share of the card.
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
        # torch counts the idle memory of private pools as allocated.
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
