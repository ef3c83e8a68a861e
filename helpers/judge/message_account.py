"""The account of one message: its sums in sentences, what in it cannot be together, and whether
fragmentation is excluded by them.

Every view of a message's numbers reads this one account: the sums shown, the ledger, the
verdict, an issue text.

Segment sizes and the order of the allocator's last resorts are those of
c10/cuda/CUDACachingAllocator.cpp, torch 1.2 to 2.15: before the error every whole cached
segment was released, so what is still reserved and unallocated is a free part of a segment in
use, waits for an event, or belongs to another stream or a private pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from helpers.ground.units import MIB, Quantity, show_bytes
from helpers.judge.fragmentation import (
    KEPT_BACK_BYTES,
    UNKNOWN,
    fragmentation_by_message,
)
from helpers.judge.message_sums import MessageSums, above, plus, sums_of
from helpers.look.message import Message

SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_LARGE_BYTES = 10 * MIB
"""kSmallBuffer, kLargeBuffer and kMinLargeAlloc of torch's allocator: the sizes of its segments,
and from which size on a request has a segment of its own, rounded up to 2 MiB (kRoundLarge).
"""
COMPARED = {
    True: "more than",
    False: "within",
    None: "as much, to the printed digits, as",
}
"""How the memory that is needed compares with a limit, in words, by MessageSums.beyond_limit."""


@dataclass(frozen=True)
class Account(MessageSums):
    """The sums of a message with what follows from them.

    ``fragmentation`` says whether fragmentation alone can be the cause, from this message alone:
    excluded, possible, likely, or unknown where a number is missing; never proved here. ``lines``
    are the sums in sentences, ``contradictions`` those that contradict each other.
    """

    lines: tuple[str, ...] = ()
    fragmentation: str = UNKNOWN
    contradictions: tuple[str, ...] = ()


def account_of(message: Message) -> Account:
    """The account of one message. Pure; every message is accepted, also one without numbers.

    ``CaseEvidence.accounts`` has those of all its messages, each made once.
    """
    sums = sums_of(message)
    odd = tuple(_contradictions(sums))
    fragmentation, why = fragmentation_by_message(sums)
    return Account(
        **vars(sums),
        lines=(*_lines(sums), *why, *odd),
        fragmentation=fragmentation,
        contradictions=odd,
    )


def _lines(sums: MessageSums) -> Iterator[str]:
    """Every sum that the message allows, a sentence each."""
    if sums.message.requested:
        yield _request_line(sums.message, sums.message.requested)
    yield from _shares(sums)
    yield from _limits(sums)


def _request_line(message: Message, size: Quantity) -> str:
    """What the requested size shows of the tensor that was to be allocated. torch's message
    gives the segment that it asked the driver for, which is larger than the tensor; messages of
    other programs give the request itself.
    """
    request = f"asked for {size.text}"
    printed_by = (message.program, message.event, message.side)
    if printed_by != ("torch", "refused", "device"):
        return request
    if "cuda_malloc_async" in message.hints:
        return f"{request}: cudaMallocAsync has no segments, this is the request itself"
    margin = size.precision_bytes + 1
    if abs(size.bytes - SMALL_SEGMENT_BYTES) <= margin:
        return f"{request}: torch takes 2 MiB for any tensor of up to 1 MiB"
    if abs(size.bytes - LARGE_SEGMENT_BYTES) <= margin:
        return f"{request}: torch takes 20 MiB for a tensor of 1 to 10 MiB, and for one of 18 to 20 MiB"
    if margin > MIB:  # the printed digits hide whether it is a multiple
        digits = show_bytes(size.precision_bytes)
        return (
            f"{request}: torch rounds up to 2 MiB, so the tensor may be up to 2 MiB smaller; "
            f"+- {digits} of rounding"
        )
    remainder = size.bytes % SMALL_SEGMENT_BYTES
    is_multiple = min(remainder, SMALL_SEGMENT_BYTES - remainder) <= margin
    if is_multiple and size.bytes >= MIN_LARGE_BYTES - margin:
        below = show_bytes(size.bytes - SMALL_SEGMENT_BYTES)
        return (
            f"{request}: torch rounds up to 2 MiB, so the tensor is over {below} and at most "
            f"{size.text}"
        )
    return (
        f"{request}: not a segment size of torch 1.2 to 2.15 (2 MiB, 20 MiB, multiples of 2 MiB "
        "from 10), so an older torch, another segment setting, no caching, or a retyped number"
    )


def _contradictions(sums: MessageSums) -> Iterator[str]:
    """Sentences about numbers of the message that contradict each other."""
    message = sums.message
    capacity = message.capacity
    reserved = sums.reserved
    rest = sums.unaccounted
    if message.free and capacity and above(message.free, capacity):
        yield (
            f"contradiction: free {message.free.text} is above capacity {capacity.text}: "
            "two layers gave them"
        )
    if sums.this_process and reserved and above(reserved, sums.this_process):
        yield (
            f"contradiction: PyTorch holds {reserved.text}, above the {sums.this_process.text} "
            "that the driver gives this process"
        )
    # Then the rest below is negative as well, for the same reason.
    if reserved and capacity and above(reserved, capacity):
        yield (
            f"contradiction: PyTorch holds {reserved.text}, above capacity {capacity.text}: part of "
            "it is not in this memory, or capacity is not what the process can have"
        )
    elif rest and rest.bytes < -rest.precision_bytes:
        yield f"contradiction: the shares are {show_bytes(-rest.bytes)} more than is in use"


def _shares(sums: MessageSums) -> Iterator[str]:
    """Sums of the memory in use, a sentence each: how much, what PyTorch has of it, which process
    is this one and what it has beside PyTorch, the others, and the rest. A sum whose result is
    below zero is not said here, as _contradictions has it.
    """
    message = sums.message
    if sums.used and sums.used.bytes >= 0 and message.capacity and message.free:
        in_use = (
            f"capacity {message.capacity.text} - free {message.free.text} = {sums.used.text} in "
            "use on the device"
        )
        if not (sums.this_process or sums.reserved or sums.others):
            in_use += "; the message does not say who uses it"
        yield in_use
    if sums.reserved and message.allocated and sums.stranded:
        yield _torch_parts(sums)
    if message.private_pools:
        yield (
            f"of the allocated, {message.private_pools.text} is idle in private pools (CUDA or HIP "
            "graphs); PyTorch prints it as allocated, and only those pools can use it"
        )
    yield from _which_is_this_process(sums)
    if sums.context and sums.context.bytes >= 0 and sums.this_process and sums.reserved:
        yield (
            f"this process {sums.this_process.text} - PyTorch {sums.reserved.text} = {sums.context.text} "
            "of context, libraries and raw allocations"
        )
    for pid, size in sums.others:
        process = "process"
        if pid is not None:
            process += f" {pid}"
        yield f"{process} has {size.text}"
    if sums.unaccounted and sums.unaccounted.bytes >= -sums.unaccounted.precision_bytes:
        yield _unaccounted(sums)


def _which_is_this_process(sums: MessageSums) -> Iterator[str]:
    """Which of the processes that a message names is this one, or that one may be."""
    reserved = sums.reserved
    if reserved is None:
        return
    if sums.own_pid is not None and sums.this_process:
        yield (
            f"process {sums.own_pid} with {sums.this_process.text} is this process: "
            f"{reserved.text} of PyTorch does not fit beside it (in a container the driver names "
            "host numbers)"
        )
        return
    # Without the driver's figure of this process, one that is large enough may be it.
    could_hold_it = [size for _, size in sums.others if not above(reserved, size)]
    if sums.this_process is None and could_hold_it:
        yield (
            "one of the named processes may be this one: "
            "in a container the driver names host numbers"
        )


def _torch_parts(sums: MessageSums) -> str:
    """What PyTorch holds, as a sum of the numbers that the message prints: older releases print
    what is reserved, later ones what is reserved and unallocated.
    """
    message = sums.message
    assert message.allocated and sums.stranded and sums.reserved, "asked only with them"
    allocated = message.allocated.text
    stranded = sums.stranded.text
    if message.reserved_total:
        reserved = message.reserved_total.text
        return f"PyTorch: reserved {reserved} - allocated {allocated} = {stranded} unallocated"
    return f"PyTorch: allocated {allocated} + reserved but unallocated {stranded} = {sums.reserved.text}"


def _unaccounted(sums: MessageSums) -> str:
    """The memory that nobody accounts for, as a sum."""
    rest = sums.unaccounted
    assert rest and sums.used, "a rest is of what is in use"
    others = "".join(f" - {size.text}" for _, size in sums.others)
    result = f"{rest.text} not accounted for (+- {show_bytes(rest.precision_bytes)})"
    used = f"in use {sums.used.text}"
    if sums.this_process:
        return (
            f"{used} - this process {sums.this_process.text}{others} = {result}: other processes, the "
            "driver, the display"
        )
    assert sums.reserved, "it stands for the process that the message does not give"
    return (
        f"{used} - PyTorch {sums.reserved.text}{others} = {result}: "
        "this process's context, other processes, the driver"
    )


def _limits(sums: MessageSums) -> Iterator[str]:
    """Comparisons of the request with the card, the limit of the process, and the free memory."""
    message = sums.message
    requested = message.requested
    if requested and sums.limit and (message.allocated or sums.beyond_limit):
        yield _against_the_limit(sums)
    if requested:
        yield from _why_refused(sums)
    if sums.stranded:
        yield (
            f"the most that the allocator could still have released is {sums.stranded.text}; "
            "whole cached segments had been released before the error"
        )


def _against_the_limit(sums: MessageSums) -> str:
    """Allocated and requested memory together, compared with the limit."""
    message = sums.message
    assert message.requested and sums.limit, "asked only with both"
    need = f"requested {message.requested.text}"
    if message.allocated:
        need = f"allocated {message.allocated.text} + {need}"
    total = plus(message.allocated, message.requested).text
    limit = "capacity"
    if sums.limit is message.allowed:
        limit = "allowed"
    return f"{need} = {total}: {COMPARED[sums.beyond_limit]} {limit} {sums.limit.text}"


def _why_refused(sums: MessageSums) -> Iterator[str]:
    """Whether a limit refused the request, or a driver that reported room for it."""
    message = sums.message
    requested = message.requested
    free = message.free
    assert requested, "asked only with a request"
    if message.allowed and sums.reserved:
        needed = plus(sums.reserved, requested)
        if not above(message.allowed, needed):
            yield (
                f"held {sums.reserved.text} + requested {requested.text} reaches the "
                f"{message.allowed.text} allowed to this process: the limit refused it, not the "
                "device"
            )
            return
    # Nothing to explain where the request was larger than what was free.
    if free is None or message.event != "refused" or above(requested, free):
        return
    enough = f"free {free.text} looks enough for {requested.text}"
    if free.bytes - requested.bytes <= KEPT_BACK_BYTES:
        yield f"{enough}: drivers keep some back, so near the end this says little"
    else:
        yield (
            f"{enough}: the driver refused although it reports room, "
            "or what it reports is not what it can give"
        )
