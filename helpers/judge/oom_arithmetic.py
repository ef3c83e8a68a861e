"""What do the numbers of one out-of-memory message add up to, and what do they say about fragmentation?

Segment sizes and the order of the allocator's last resorts are those of c10/cuda/CUDACachingAllocator.cpp, torch 1.2 to 2.15:
before the error every whole cached segment was released, so what is still reserved and unallocated is a free part of a segment
in use, waits for an event, or belongs to another stream or a private pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.judge.oom_fields import OomMessage, Quantity
from helpers.look.reading import MIB, show_bytes

EXCLUDED, POSSIBLE, LIKELY, UNKNOWN = "excluded", "possible", "likely", "unknown"
KEPT_BACK_BYTES = 64 * MIB
"""Free memory that a driver near its end reports and still does not give (page tables, granules): an estimate."""
NEAR_FULL = 0.1
"""Share of what PyTorch may have that any busy program strands (remainders up to 1 MiB, half-used segments): an estimate."""
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB


@dataclass(frozen=True)
class Arithmetic:
    """The sums of one message. Sizes are bytes with the precision of all that went into them.

    ``unaccounted``: capacity - free - this process - other named processes; where the message does not give the process, what
    PyTorch holds stands for it, and the rest then includes this process's context. Negative where the numbers contradict each
    other. ``releasable``: the most that the allocator could still have given back, if all of it had been whole segments.
    ``fragmentation`` is about the sole cause, from this message alone: excluded, possible, likely, or unknown where a number is
    missing; never proved here. ``likely`` also wants the driver near its end and NEAR_FULL of the room stranded.
    ``beyond_capacity``: allocated + requested against capacity, or against what the process is allowed; None where a number is
    missing or the printed digits do not decide. ``held``: what PyTorch has of the device. ``context``: the rest of the
    process. ``own_pid``: the named process that must be this one (NVML gives host numbers).
    """

    lines: tuple[str, ...]
    unaccounted: Quantity | None
    releasable: Quantity | None
    fragmentation: str
    beyond_capacity: bool | None
    contradictions: tuple[str, ...] = ()
    held: Quantity | None = None
    context: Quantity | None = None
    own_pid: int | None = None


def arithmetic(m: OomMessage) -> Arithmetic:
    """The sums shown line by line, and what they decide. Pure; every message is accepted, also one without numbers."""
    own_pid = None
    stranded = m.reserved_unallocated
    if stranded is None and m.reserved_total and m.allocated:
        stranded = _minus(m.reserved_total, m.allocated)
    held = _plus(m.allocated, stranded) if m.allocated and stranded else m.reserved_total or m.allocated
    if m.process is None and (own := _own(m, held)) is not None:
        own_pid = m.pids[own] if own < len(m.pids) else None
        m = replace(m, process=m.others[own], others=m.others[:own] + m.others[own + 1:], pids=m.pids[:own] + m.pids[own + 1:])
    mine = m.process or held
    context = _minus(m.process, held) if m.process and held else None
    used = _minus(m.capacity, m.free) if m.capacity and m.free else None
    unaccounted = None
    if used and mine and used.bytes >= -used.precision_bytes:
        unaccounted = _minus(used, _plus(mine, *m.others))
    beyond = _beyond(m)
    contradictions = _contradictions(m, held, stranded, unaccounted)
    fragmentation, why = _fragmentation(m, stranded, beyond)
    lines = [*_requested(m), *_shares(m, used, held, stranded, context, unaccounted, own_pid), *_limits(m, held, stranded,
        beyond),
             *why, *contradictions]
    return Arithmetic(tuple(lines), unaccounted, stranded, fragmentation, beyond, contradictions, held, context, own_pid)


def _plus(*sizes: Quantity | None) -> Quantity:
    known = [size for size in sizes if size]
    total = sum(size.bytes for size in known)
    return Quantity(total, sum(size.precision_bytes for size in known), show_bytes(total))


def _minus(size: Quantity, other: Quantity) -> Quantity:
    rest = size.bytes - other.bytes
    return Quantity(rest, size.precision_bytes + other.precision_bytes, show_bytes(rest))


def _above(size: Quantity, other: Quantity) -> bool:
    """Whether ``size`` is the larger one whatever the digits that were not printed."""
    return size.bytes - other.bytes > size.precision_bytes + other.precision_bytes


def _own(m: OomMessage, held: Quantity | None) -> int | None:
    """The named process that must be this one: what PyTorch holds does not fit beside all of them."""
    if not (held and m.capacity and m.free and m.others):
        return None
    if not _above(_plus(held, *m.others), _minus(m.capacity, m.free)):
        return None
    fits = [(size.bytes, at) for at, size in enumerate(m.others) if not _above(held, size)]
    return min(fits)[1] if fits else None


def _limit(m: OomMessage) -> Quantity | None:
    limits = [size for size in (m.allowed, m.capacity) if size]
    return min(limits, key=lambda size: size.bytes) if limits else None


def _beyond(m: OomMessage) -> bool | None:
    limit = _limit(m)
    if not limit or not m.requested:
        return None
    need = _plus(m.allocated, m.requested)
    if _above(need, limit):
        return True
    return False if m.allocated and _above(limit, need) else None


def _fragmentation(m: OomMessage, stranded: Quantity | None, beyond: bool | None) -> tuple[str, list[str]]:
    """DESIGN rule 6, with its reason. A driver that refused although it reported room is no matter of split blocks."""
    if not m.requested or stranded is None:
        return UNKNOWN, []
    if _above(m.requested, stranded):
        says = [f"reserved but unallocated {stranded.text} is less than the {m.requested.text} asked for: no arrangement of it "
                "would have held the request, so fragmentation is not the sole cause"]
        if m.free and not _above(m.requested, _plus(m.free, stranded)):
            says.append(f"free {m.free.text} and unallocated {stranded.text} together would have been enough")
        return EXCLUDED, says
    if beyond:
        if m.private_pools and m.allocated and _beyond(replace(m, allocated=_minus(m.allocated, m.private_pools))) is not True:
            return POSSIBLE, [f"without the {m.private_pools.text} idle in private pools the request would fit"]
        return EXCLUDED, ["even without any fragmentation allocated + requested is more than there is"]
    if beyond is None or not m.allocated:
        return UNKNOWN if not (m.allocated and _limit(m)) else POSSIBLE, []
    held = _plus(m.allocated, stranded)
    capped = m.allowed is not None and not _above(m.allowed, _plus(held, m.requested))
    if not capped and m.free is None:
        return POSSIBLE, []
    if not capped and m.free and m.free.bytes - m.requested.bytes > KEPT_BACK_BYTES:
        return POSSIBLE, [f"{m.free.text} was free, enough for {m.requested.text}: split blocks do not explain why the driver "
                          "refused a new segment"]
    room = m.allowed if capped and m.allowed else _plus(held, m.free)
    if room.bytes - m.allocated.bytes - m.requested.bytes < NEAR_FULL * room.bytes:
        return POSSIBLE, [f"unallocated {stranded.text} is at least the {m.requested.text} asked for and was not released; yet "
                          f"even with all of it, allocated + requested takes over {1 - NEAR_FULL:.0%} of the "
                          f"{room.text} that this process can have: near its end and "
                          "stranded at once; a memory snapshot would decide"]
    return LIKELY, [f"unallocated {stranded.text} is at least the {m.requested.text} asked for and was not released, so it "
                    "was split, pending, or another stream's or pool's; only a memory snapshot proves which"]


def _requested(m: OomMessage) -> list[str]:
    size = m.requested
    if not size or m.framework != "torch" or m.kind != "oom":
        return [f"asked for {size.text}"] if size else []
    if "cuda_malloc_async" in m.hints:
        return [f"asked for {size.text}: cudaMallocAsync has no segments, this is the request itself"]
    start = f"asked for {size.text}, a segment, not the tensor: "
    near = size.precision_bytes + 1
    if abs(size.bytes - SMALL_SEGMENT_BYTES) <= near:
        return [start + "requests of up to 1 MiB ask for 2 MiB"]
    if abs(size.bytes - LARGE_SEGMENT_BYTES) <= near:
        return [start + "requests over 1 MiB and under 10 MiB ask for 20 MiB, those of 18 to 20 MiB are rounded up to it"]
    if near > MIB:
        return [start + "10 MiB and more are rounded up to 2 MiB, so the tensor is up to 2 MiB smaller than what was asked, "
                        f"within the {show_bytes(size.precision_bytes)} of the printed digits"]
    off = size.bytes % SMALL_SEGMENT_BYTES
    if size.bytes >= 10 * MIB - near and min(off, SMALL_SEGMENT_BYTES - off) <= near:
        below = show_bytes(size.bytes - SMALL_SEGMENT_BYTES)
        return [start + f"10 MiB and more are rounded up to 2 MiB, so the tensor is over {below} and at most {size.text}"]
    return [f"asked for {size.text}: not a segment size of torch 1.2 to 2.15 (2 MiB, 20 MiB, multiples of 2 MiB from 10), so "
            "an older torch, another segment setting, no caching, or a retyped number"]


def _shares(m: OomMessage, used: Quantity | None, held: Quantity | None, stranded: Quantity | None, context: Quantity | None,
            unaccounted: Quantity | None, own_pid: int | None) -> list[str]:
    lines = []
    if used and m.capacity and m.free and used.bytes >= 0:
        whose = "" if m.process or held or m.others else ": the message does not say by whom"
        lines.append(f"capacity {m.capacity.text} - free {m.free.text} = {used.text} in use on the device{whose}")
    if held and m.allocated and stranded:
        lines.append(f"PyTorch: allocated {m.allocated.text} + reserved but unallocated {stranded.text} = {held.text}"
                     if not m.reserved_total else
                     f"PyTorch: reserved {m.reserved_total.text} - allocated {m.allocated.text} = {stranded.text} unallocated")
    if m.private_pools:
        lines.append(f"of the allocated, {m.private_pools.text} is idle in private pools (CUDA or HIP graphs); PyTorch prints "
                     "it as allocated, and only those pools can use it")
    if own_pid is not None and m.process and held:
        lines.append(f"process {own_pid} with {m.process.text} is this process: {held.text} of PyTorch does not fit beside it "
                     "(in a container the driver names host numbers)")
    elif m.process is None and m.others and held and not all(_above(held, size) for size in m.others):
        lines.append("one of the named processes may be this one: in a container the driver names host numbers")
    if context and m.process and held and context.bytes >= 0:
        lines.append(f"this process {m.process.text} - PyTorch {held.text} = {context.text} of context, libraries and raw "
                     f"allocations")
    for at, size in enumerate(m.others):
        pid = f" {m.pids[at]}" if at < len(m.pids) else ""
        lines.append(f"process{pid} has {size.text}")
    if unaccounted and used and unaccounted.bytes >= -unaccounted.precision_bytes:
        mine = f"this process {m.process.text}" if m.process else f"PyTorch {held.text if held else '?'}"
        others = "".join(f" - {size.text}" for size in m.others)
        rest = "other processes, the driver, the display" if m.process else (
            "this process's context, other processes, the driver")
        lines.append(f"in use {used.text} - {mine}{others} = {unaccounted.text} not accounted for "
                     f"(+- {show_bytes(unaccounted.precision_bytes)}): {rest}")
    return lines


def _limits(m: OomMessage, held: Quantity | None, stranded: Quantity | None, beyond: bool | None) -> list[str]:
    lines = []
    limit, need = _limit(m), _plus(m.allocated, m.requested)
    if limit and m.requested and (m.allocated or beyond):
        name = "allowed" if limit is m.allowed else "capacity"
        verdict = {True: "more than", False: "within", None: "as much, to the printed digits, as"}[beyond]
        sums = f"allocated {m.allocated.text} + " if m.allocated else ""
        lines.append(f"{sums}requested {m.requested.text} = {need.text}: {verdict} {name} {limit.text}")
    if m.allowed and held and m.requested and not _above(m.allowed, _plus(held, m.requested)):
        lines.append(f"held {held.text} + requested {m.requested.text} reaches the {m.allowed.text} allowed to this process: "
                     "the limit refused it, not the device")
    elif m.free and m.requested and m.kind == "oom" and not _above(m.requested, m.free):
        spare = m.free.bytes - m.requested.bytes
        lines.append(f"free {m.free.text} looks enough for {m.requested.text}: " +
                     ("drivers keep some back, so near the end this says little" if spare <= KEPT_BACK_BYTES else
                      "the driver refused although it reports room, or what it reports is not what it can give"))
    if stranded:
        lines.append(f"the most that the allocator could still have released is {stranded.text}; whole cached segments had "
                     "been released before the error")
    return lines


def _contradictions(m: OomMessage, held: Quantity | None, stranded: Quantity | None,
                    unaccounted: Quantity | None) -> tuple[str, ...]:
    says = []
    if m.free and m.capacity and _above(m.free, m.capacity):
        says.append(f"contradiction: free {m.free.text} is above capacity {m.capacity.text}: two layers gave them")
    if m.process and held and _above(held, m.process):
        says.append(f"contradiction: PyTorch holds {held.text}, above the {m.process.text} that the driver gives this process")
    if held and m.capacity and _above(held, m.capacity):
        says.append(f"contradiction: PyTorch holds {held.text}, above capacity {m.capacity.text}: part of it is not in this "
                    "memory, or capacity is not what the process can have")
    if stranded and stranded.bytes < -stranded.precision_bytes:
        says.append(f"contradiction: reserved is below allocated by {show_bytes(-stranded.bytes)}")
    impossible = held and m.capacity and _above(held, m.capacity)
    if unaccounted and unaccounted.bytes < -unaccounted.precision_bytes and not impossible:
        says.append(f"contradiction: the shares are {show_bytes(-unaccounted.bytes)} more than is in use")
    return tuple(says)
