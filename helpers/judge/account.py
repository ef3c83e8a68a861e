"""Whose bytes are they? One out-of-memory message as an account: this process, others, free, and what was asked.

Every view of a message's numbers (the sums shown, the ledger, the verdict, an issue text) reads this one account.
Segment sizes and the order of the allocator's last resorts are those of c10/cuda/CUDACachingAllocator.cpp, torch 1.2
to 2.15: before the error every whole cached segment was released, so what is still reserved and unallocated is a free
part of a segment in use, waits for an event, or belongs to another stream or a private pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from helpers.look.messages import Message, Quantity
from helpers.look.reading import MIB, show_bytes

EXCLUDED, POSSIBLE, LIKELY, UNKNOWN = "excluded", "possible", "likely", "unknown"
KEPT_BACK_BYTES = 64 * MIB
"""Free memory that a driver near its end reports and still does not give (page tables, granules): an estimate."""
CONTEXT_BYTES = 1200 * MIB
"""The most that a CUDA or HIP context, its libraries and a small desktop take beside the allocator (0.3 to 1 GiB)."""
CONTEXT_SHARE = 0.3
"""The most of a small card that is taken for a context; a larger rest is somebody's. An estimate."""
NEAR_FULL = 0.1
"""Share of what PyTorch may have that any busy program strands (remainders up to 1 MiB, half-used segments): an estimate."""
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB


@dataclass(frozen=True)
class Account:
    """The sums of one message. Sizes are bytes with the precision of all that went into them; None is not known.

    ``own``: this process as the driver counts it (given, or found among the named ones: ``own_pid``). ``held``: what PyTorch
    has of the device, ``stranded`` the part of it that no tensor uses, ``context`` the rest of this process. ``others``: the
    named processes that are not this one. ``unaccounted``: in use, less this process, less the others; where the message does
    not give the process, ``held`` stands for it and the rest includes this process's context. ``outside``: the others and what
    is surely nobody's here. ``fragmentation`` is about the sole cause, from this message alone: excluded, possible, likely, or
    unknown where a number is missing; never proved here. ``beyond_limit``: allocated + requested against the card or against
    what the process is allowed. ``fits_alone``: the request would have fitted if nobody else held memory.
    """

    message: Message
    lines: tuple[str, ...]
    used: Quantity | None
    own: Quantity | None
    held: Quantity | None
    stranded: Quantity | None
    context: Quantity | None
    others: tuple[tuple[int | None, Quantity], ...]
    own_pid: int | None
    unaccounted: Quantity | None
    outside: Quantity | None
    limit: Quantity | None
    beyond_limit: bool | None
    fits_alone: bool | None
    fragmentation: str
    contradictions: tuple[str, ...] = ()

    @property
    def tolerance_bytes(self) -> int:
        """What the printed digits leave open over all the figures of the message."""
        return sum(quantity.precision_bytes for quantity in self.message.numbers)


def account(message: Message) -> Account:
    """The account of one message. Pure; every message is accepted, also one without numbers."""
    m, own_pid = message, None
    stranded = m.reserved_unallocated
    if stranded is None and m.reserved_total and m.allocated:
        stranded = minus(m.reserved_total, m.allocated)
    held = (
        plus(m.allocated, stranded) if m.allocated and stranded else m.reserved_total or m.allocated
    )
    if m.process is None and (at := _own(m, held)) is not None:
        own_pid = m.pids[at] if at < len(m.pids) else None
        m = replace(
            m,
            process=m.others[at],
            others=m.others[:at] + m.others[at + 1 :],
            pids=m.pids[:at] + m.pids[at + 1 :],
        )
    elif m.process is None and held and m.non_torch:
        m = replace(m, process=plus(held, m.non_torch))
    m = _once(m, held)
    absurd = bool(m.process and m.capacity and above(m.process, m.capacity))
    whole = m.process
    if absurd:  # such as NVML's "not available" printed as a size
        m = replace(m, process=None)
    context = minus(m.process, held) if m.process and held else None
    used = minus(m.capacity, m.free) if m.capacity and m.free else None
    mine, unaccounted = m.process or held, None
    if used and mine and used.bytes >= -used.precision_bytes:
        unaccounted = minus(used, plus(mine, *m.others))
    pids = list(m.pids) + [None] * (len(m.others) - len(m.pids))
    outside = _outside(m, unaccounted)
    beyond = _beyond(m)
    contradictions = tuple(_contradictions(m, held, stranded, unaccounted))
    if absurd and whole and m.capacity:
        says = f"contradiction: this process has {whole.text} on a device of {m.capacity.text}"
        contradictions = (*contradictions, says)
    fragmentation, why = _fragmentation(m, stranded, beyond, outside)
    made = Account(
        message, (), used, m.process, held, stranded, context, tuple(zip(pids, m.others)), own_pid,
        unaccounted, outside, _limit(m), beyond, _fits_alone(m, held, outside), fragmentation,
        contradictions,
    )  # fmt: skip
    lines = [*_requested(m), *_shares(m, made), *_limits(m, made), *why, *contradictions]
    return replace(made, lines=tuple(lines))


def plus(*sizes: Quantity | None) -> Quantity:
    """The sum, with the precision of its parts; None counts nothing."""
    known = [size for size in sizes if size]
    total = sum(size.bytes for size in known)
    return Quantity(total, sum(size.precision_bytes for size in known), show_bytes(total))


def minus(size: Quantity, other: Quantity) -> Quantity:
    """The difference, with the precision of both."""
    rest = size.bytes - other.bytes
    return Quantity(rest, size.precision_bytes + other.precision_bytes, show_bytes(rest))


def words(size: Quantity | None) -> str:
    """A size as it was printed; nothing where it is not known."""
    return size.text if size else ""


def above(size: Quantity, other: Quantity) -> bool:
    """Whether ``size`` is the larger one whatever the digits that were not printed."""
    return size.bytes - other.bytes > size.precision_bytes + other.precision_bytes


def _own(m: Message, held: Quantity | None) -> int | None:
    """The named process that must be this one: what PyTorch holds does not fit beside all of them.

    NVML names host numbers, so in a container torch does not know its own and lists itself among the others.
    """
    if not (held and m.capacity and m.free and m.others):
        return None
    if not above(plus(held, *m.others), minus(m.capacity, m.free)):
        return None
    fits = [(size.bytes, at) for at, size in enumerate(m.others) if not above(held, size)]
    return min(fits)[1] if fits else None


def _once(m: Message, held: Quantity | None) -> Message:
    """The message without the one named process that is this one under its host number, listed beside itself."""
    if not (m.process and m.capacity and m.free):
        return m
    if not above(plus(m.process, *m.others), minus(m.capacity, m.free)):
        return m
    at = next((at for at, size in enumerate(m.others) if size.text == m.process.text), None)
    if at is None:
        return m
    return replace(
        m, others=m.others[:at] + m.others[at + 1 :], pids=m.pids[:at] + m.pids[at + 1 :]
    )


def _outside(m: Message, unaccounted: Quantity | None) -> Quantity | None:
    if unaccounted is None:
        return plus(*m.others) if m.others else None
    allowance = CONTEXT_BYTES // 4 if m.process else CONTEXT_BYTES
    if m.capacity:
        allowance = min(allowance, int(CONTEXT_SHARE * m.capacity.bytes))
    rest = max(0, unaccounted.bytes - allowance - unaccounted.precision_bytes)
    return plus(*m.others, Quantity(rest, unaccounted.precision_bytes, show_bytes(rest)))


def _limit(m: Message) -> Quantity | None:
    limits = [size for size in (m.allowed, m.capacity) if size]
    return min(limits, key=lambda size: size.bytes) if limits else None


def _beyond(m: Message) -> bool | None:
    limit = _limit(m)
    if not limit or not m.requested:
        return None
    need = plus(m.allocated, m.requested)
    if above(need, limit):
        return True
    return False if m.allocated and above(limit, need) else None


def _fits_alone(m: Message, held: Quantity | None, outside: Quantity | None) -> bool | None:
    """Whether the request would have fitted had nobody else held memory: free + outside hold it."""
    if not (m.requested and m.free is not None and outside):
        return None
    return not above(m.requested, plus(m.free, outside))


def _fragmentation(
    m: Message, stranded: Quantity | None, beyond: bool | None, outside: Quantity | None
) -> tuple[str, list[str]]:
    """DESIGN rule 6, with its reason. A driver that refused although it reported room is no matter of split blocks."""
    if not m.requested or stranded is None:
        return UNKNOWN, []
    if above(m.requested, stranded):
        says = [
            f"reserved but unallocated {stranded.text} is less than the {m.requested.text} asked for: no "
            "arrangement of it would have held the request, so fragmentation is not the sole cause"
        ]
        if m.free and not above(m.requested, plus(m.free, stranded)):
            says.append(
                f"free {m.free.text} and unallocated {stranded.text} together would have been enough"
            )
        return EXCLUDED, says
    if beyond:
        without = m.private_pools and m.allocated and minus(m.allocated, m.private_pools)
        if without and _beyond(replace(m, allocated=without)) is not True:
            return POSSIBLE, [
                f"without the {words(m.private_pools)} idle in private pools the request would fit"
            ]
        says = ["even without any fragmentation allocated + requested is more than there is"]
        return EXCLUDED, says
    if beyond is None or not m.allocated:
        return UNKNOWN if not (m.allocated and _limit(m)) else POSSIBLE, []
    held = plus(m.allocated, stranded)
    capped = m.allowed is not None and not above(m.allowed, plus(held, m.requested))
    if not capped and m.free is None:
        return POSSIBLE, []
    if outside and above(outside, held):
        return POSSIBLE, [
            f"others have {outside.text}, more than this process's {held.text}: what is stranded in so small a "
            "share is no reason by itself"
        ]
    if not capped and m.free and m.free.bytes - m.requested.bytes > KEPT_BACK_BYTES:
        return POSSIBLE, [
            f"{m.free.text} was free, enough for {m.requested.text}: split blocks do not explain why the "
            "driver refused a new segment"
        ]
    room = m.allowed if m.allowed and capped else plus(held, m.free)
    if room.bytes - m.allocated.bytes - m.requested.bytes < NEAR_FULL * room.bytes:
        return POSSIBLE, [
            f"unallocated {stranded.text} is at least the {m.requested.text} asked for and was not released; "
            f"yet even with all of it, allocated + requested takes over {1 - NEAR_FULL:.0%} of the "
            f"{room.text} that this process can have: near its end and stranded at once; a memory snapshot "
            "would decide"
        ]
    return LIKELY, [
        f"unallocated {stranded.text} is at least the {m.requested.text} asked for and was not released, so "
        "it was split, pending, or another stream's or pool's; only a memory snapshot proves which"
    ]


def _requested(m: Message) -> list[str]:
    size = m.requested
    if not size or m.program != "torch" or m.event != "refused" or m.side != "device":
        return [f"asked for {size.text}"] if size else []
    if "cuda_malloc_async" in m.hints:
        none = "cudaMallocAsync has no segments, this is the request itself"
        return [f"asked for {size.text}: {none}"]
    start = f"asked for {size.text}, a segment, not the tensor: "
    near = size.precision_bytes + 1
    if abs(size.bytes - SMALL_SEGMENT_BYTES) <= near:
        return [start + "requests of up to 1 MiB ask for 2 MiB"]
    if abs(size.bytes - LARGE_SEGMENT_BYTES) <= near:
        says = "requests over 1 MiB and under 10 MiB ask for 20 MiB, those of 18 to 20 MiB are rounded up to it"
        return [start + says]
    if near > MIB:
        return [
            start + "10 MiB and more are rounded up to 2 MiB, so the tensor is up to 2 MiB smaller "
            f"than what was asked, within the {show_bytes(size.precision_bytes)} of the printed digits"
        ]
    off = size.bytes % SMALL_SEGMENT_BYTES
    if size.bytes >= 10 * MIB - near and min(off, SMALL_SEGMENT_BYTES - off) <= near:
        below = show_bytes(size.bytes - SMALL_SEGMENT_BYTES)
        most = f"so the tensor is over {below} and at most {size.text}"
        return [f"{start}10 MiB and more are rounded up to 2 MiB, {most}"]
    return [
        f"asked for {size.text}: not a segment size of torch 1.2 to 2.15 (2 MiB, 20 MiB, multiples of 2 MiB "
        "from 10), so an older torch, another segment setting, no caching, or a retyped number"
    ]


def _shares(m: Message, a: Account) -> Iterator[str]:
    if a.used and a.used.bytes >= 0:
        whose = "" if m.process or a.held or m.others else ": the message does not say by whom"
        yield f"capacity {words(m.capacity)} - free {words(m.free)} = {a.used.text} in use on the device{whose}"
    if a.held and m.allocated and a.stranded:
        yield (
            f"PyTorch: allocated {m.allocated.text} + reserved but unallocated {a.stranded.text} = {a.held.text}"
            if not m.reserved_total
            else f"PyTorch: reserved {m.reserved_total.text} - allocated {m.allocated.text} = {a.stranded.text} unallocated"
        )
    if m.private_pools:
        yield (
            f"of the allocated, {m.private_pools.text} is idle in private pools (CUDA or HIP graphs); PyTorch "
            "prints it as allocated, and only those pools can use it"
        )
    if a.own_pid is not None:
        yield (
            f"process {a.own_pid} with {words(m.process)} is this process: {words(a.held)} of PyTorch does not fit "
            "beside it (in a container the driver names host numbers)"
        )
    elif m.process is None and a.held and any(not above(a.held, size) for size in m.others):
        yield "one of the named processes may be this one: in a container the driver names host numbers"
    if a.context and a.context.bytes >= 0:
        yield (
            f"this process {words(m.process)} - PyTorch {words(a.held)} = {a.context.text} of context, libraries "
            "and raw allocations"
        )
    for pid, size in a.others:
        yield f"process{'' if pid is None else f' {pid}'} has {size.text}"
    if a.unaccounted and a.used and a.unaccounted.bytes >= -a.unaccounted.precision_bytes:
        mine = f"this process {m.process.text}" if m.process else f"PyTorch {words(a.held)}"
        others = "".join(f" - {size.text}" for _, size in a.others)
        rest = "other processes, the driver, the display"
        yield (
            f"in use {a.used.text} - {mine}{others} = {a.unaccounted.text} not accounted for (+- "
            f"{show_bytes(a.unaccounted.precision_bytes)}): "
            + (rest if m.process else "this process's context, other processes, the driver")
        )


def _limits(m: Message, a: Account) -> Iterator[str]:
    need = plus(m.allocated, m.requested)
    if a.limit and m.requested and (m.allocated or a.beyond_limit):
        name = "allowed" if a.limit is m.allowed else "capacity"
        verdict = {True: "more than", False: "within", None: "as much, to the printed digits, as"}
        sums = f"allocated {m.allocated.text} + " if m.allocated else ""
        yield f"{sums}requested {m.requested.text} = {need.text}: {verdict[a.beyond_limit]} {name} {a.limit.text}"
    if m.allowed and a.held and m.requested and not above(m.allowed, plus(a.held, m.requested)):
        yield (
            f"held {a.held.text} + requested {m.requested.text} reaches the {m.allowed.text} allowed to this "
            "process: the limit refused it, not the device"
        )
    elif m.free and m.requested and m.event == "refused" and not above(m.requested, m.free):
        spare = m.free.bytes - m.requested.bytes
        yield (
            f"free {m.free.text} looks enough for {m.requested.text}: "
            + (
                "drivers keep some back, so near the end this says little"
                if spare <= KEPT_BACK_BYTES
                else "the driver refused although it reports room, or what it reports is not what it can give"
            )
        )
    if a.stranded:
        yield (
            f"the most that the allocator could still have released is {a.stranded.text}; whole cached "
            "segments had been released before the error"
        )


def _contradictions(
    m: Message,
    held: Quantity | None,
    stranded: Quantity | None,
    unaccounted: Quantity | None,
) -> Iterator[str]:
    if m.free and m.capacity and above(m.free, m.capacity):
        yield f"contradiction: free {m.free.text} is above capacity {m.capacity.text}: two layers gave them"
    if m.process and held and above(held, m.process):
        yield (
            f"contradiction: PyTorch holds {held.text}, above the {m.process.text} that the driver gives this "
            "process"
        )
    impossible = bool(held and m.capacity and above(held, m.capacity))
    if impossible:
        yield (
            f"contradiction: PyTorch holds {words(held)}, above capacity {words(m.capacity)}: part of it is not in "
            "this memory, or capacity is not what the process can have"
        )
    if stranded and stranded.bytes < -stranded.precision_bytes:
        yield f"contradiction: reserved is below allocated by {show_bytes(-stranded.bytes)}"
    if unaccounted and unaccounted.bytes < -unaccounted.precision_bytes and not impossible:
        yield f"contradiction: the shares are {show_bytes(-unaccounted.bytes)} more than is in use"
