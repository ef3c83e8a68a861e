"""The numbers of one message, added up: what is in use, what of it this process has, and what
others have.

Every size carries what the printed digits leave open, so that a comparison never decides by
digits that were not printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground.units import GIB, KIB, MIB, TIB, Quantity, show_bytes
from helpers.judge.holders import context_bytes
from helpers.look.message import Message

LITTLE_PART = 10
"""This part of what a program has is little to save."""
OWN_SHARE = 3
"""A process that holds over so many times what another does comes first when something must go;
below that, ask who they are.
"""
UNITS = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB}


@dataclass(frozen=True)
class MessageSums:
    """The sums of one message.

    Sizes are bytes with the precision of all that went into them; None is not known.

    ``this_process``: what it has as the driver counts it (printed, or found among the named
    processes: ``own_pid``). ``reserved``: what PyTorch has of the device, ``stranded`` the part of it that no
    tensor uses, ``context`` the rest of this process. ``others``: the named processes that are
    not this one. ``unaccounted``: in use, less this process, less the others; where the message
    does not give the process, ``reserved`` stands for it and the rest includes this process's
    context. ``outside``: the others, and what surely belongs to nobody here. ``beyond_limit``:
    allocated + requested against the card or against what the process is allowed.
    ``fits_alone``: the request would have fitted if nobody else held memory. ``lacking``: what
    the request was larger than what could be had; ``lacking_with_cache``: the same where PyTorch
    could use all that it has cached, negative where that would do.
    """

    message: Message
    used: Quantity | None
    this_process: Quantity | None
    reserved: Quantity | None
    stranded: Quantity | None
    context: Quantity | None
    others: tuple[tuple[int | None, Quantity], ...]
    own_pid: int | None
    unaccounted: Quantity | None
    outside: Quantity | None
    limit: Quantity | None
    beyond_limit: bool | None
    fits_alone: bool | None
    lacking: Quantity | None
    lacking_with_cache: Quantity | None

    @property
    def tolerance_bytes(self) -> int:
        """What the printed digits leave open over all the figures of the message."""
        return sum(quantity.precision_bytes for quantity in self.message.numbers)

    @property
    def program(self) -> Quantity | None:
        """What this process has: by the driver, else what PyTorch has reserved."""
        return self.this_process or self.reserved

    @property
    def own_comes_first(self) -> bool:
        """Whether a smaller batch is the first thing to try: this process has more than others
        do, or little is missing beside what it has and others have not far more; and half of
        its work makes up for it.
        """
        lacking = self.lacking_with_cache
        if lacking is None or not (
            self.reserved and self.outside and self.message.requested
        ):
            return False
        work = plus(self.message.allocated, self.message.requested)
        if 2 * lacking.bytes > work.bytes:
            return False
        has = plus(self.program).bytes
        is_little = LITTLE_PART * lacking.bytes <= self.reserved.bytes
        return has > self.outside.bytes or (
            is_little and OWN_SHARE * has > self.outside.bytes
        )


def sums_of(message: Message) -> MessageSums:
    """The sums of a message. Pure; every message is accepted, also one without numbers."""
    stranded = message.reserved_unallocated
    if stranded is None and message.reserved_total and message.allocated:
        stranded = minus(message.reserved_total, message.allocated)
    reserved = message.reserved_total or message.allocated
    if message.allocated and stranded:
        reserved = plus(message.allocated, stranded)
    process, own_pid, others = _own_process(message, reserved)
    if process and message.capacity and above(process, message.capacity):
        process = None  # such as NVML's "not available" printed as a size
    used = None
    if message.capacity and message.free:
        used = minus(message.capacity, message.free)
    sizes = [size for _, size in others]
    unaccounted = None
    counted = process or reserved
    if used and counted and used.bytes >= -used.precision_bytes:
        unaccounted = minus(used, plus(counted, *sizes))
    outside = _outside(message, process, sizes, unaccounted)
    fits_alone = None
    if message.requested and message.free and outside:
        fits_alone = not above(message.requested, plus(message.free, outside))
    context = None
    if process and reserved:
        context = minus(process, reserved)
    limit = limit_of(message)
    lacking = _lacking(message, reserved)
    return MessageSums(
        message=message,
        used=used,
        this_process=process,
        reserved=reserved,
        stranded=stranded,
        context=context,
        others=tuple(others),
        own_pid=own_pid,
        unaccounted=unaccounted,
        outside=outside,
        limit=limit,
        beyond_limit=is_beyond(limit, message.allocated, message.requested),
        fits_alone=fits_alone,
        lacking=lacking,
        lacking_with_cache=_lacking_with_cache(message, limit, lacking, stranded),
    )


def plus(*sizes: Quantity | None) -> Quantity:
    """The sum, with the precision of its parts; None counts nothing."""
    parts = [size for size in sizes if size]
    total = sum(size.bytes for size in parts)
    return Quantity(
        total, sum(size.precision_bytes for size in parts), show_bytes(total)
    )


def minus(size: Quantity, other: Quantity) -> Quantity:
    """The difference, with the precision of both."""
    rest = size.bytes - other.bytes
    return Quantity(
        rest, size.precision_bytes + other.precision_bytes, show_bytes(rest)
    )


def above(size: Quantity, other: Quantity) -> bool:
    """Whether ``size`` is the larger one whatever the digits that were not printed."""
    return size.bytes - other.bytes > size.precision_bytes + other.precision_bytes


def limit_of(message: Message) -> Quantity | None:
    """The lower of the card's capacity and what the process is allowed."""
    limits = [size for size in (message.allowed, message.capacity) if size]
    return min(limits, key=lambda size: size.bytes, default=None)


def is_beyond(
    limit: Quantity | None, allocated: Quantity | None, requested: Quantity | None
) -> bool | None:
    """Whether allocated + requested is more than the limit; None where the digits or a missing
    number leave it open.
    """
    if limit is None or requested is None:
        return None
    need = plus(allocated, requested)
    if above(need, limit):
        return True
    if allocated and above(limit, need):
        return False
    return None


def about(size: Quantity) -> str:
    """A size with no more digits than the printed ones allow: ``about 87 MiB``."""
    amount, unit = show_bytes(size.bytes).split()
    if not size.precision_bytes or "." not in amount:
        return f"{amount} {unit}"
    a_hundredth = UNITS[unit] // 100
    digits = sum(size.precision_bytes < a_hundredth * factor for factor in (10, 1))
    return f"about {float(amount):.{digits}f} {unit}"


def _lacking(message: Message, reserved: Quantity | None) -> Quantity | None:
    """What the request was larger than what is free, or than what the process is still allowed."""
    if message.requested is None:
        return None
    rooms = [message.free] if message.free else []
    if message.allowed and reserved:
        rooms.append(minus(message.allowed, reserved))
    if not rooms:
        return None
    return minus(message.requested, min(rooms, key=lambda room: room.bytes))


def _lacking_with_cache(
    message: Message,
    limit: Quantity | None,
    lacking: Quantity | None,
    stranded: Quantity | None,
) -> Quantity | None:
    shortfalls = []
    if lacking:
        shortfalls.append(minus(lacking, plus(stranded)))
    if message.requested and message.allocated and limit:
        shortfalls.append(minus(plus(message.allocated, message.requested), limit))
    return max(shortfalls, key=lambda shortfall: shortfall.bytes, default=None)


def _own_process(
    message: Message, reserved: Quantity | None
) -> tuple[Quantity | None, int | None, list[tuple[int | None, Quantity]]]:
    """The driver's figure of this process, its number where it was named, and the others."""
    pids = [*message.pids, *[None] * (len(message.others) - len(message.pids))]
    others: list[tuple[int | None, Quantity]] = list(zip(pids, message.others))
    process = message.process
    own_pid = None
    if process is None:
        position = _position_of_itself(message, others, None, reserved)
        if position is not None:
            own_pid, process = others.pop(position)
        elif reserved and message.non_torch:
            process = plus(reserved, message.non_torch)
    if process is not None:
        position = _position_of_itself(message, others, process, reserved)
        if position is not None:
            others.pop(position)
    return process, own_pid, others


def _position_of_itself(
    message: Message,
    others: list[tuple[int | None, Quantity]],
    process: Quantity | None,
    reserved: Quantity | None,
) -> int | None:
    """The named process that must be this one: what it holds does not fit beside all of them.

    NVML names host numbers, so in a container torch does not know its own and lists itself
    among the others, where the driver's figure of this process is printed a second time;
    without that figure it is the smallest that can hold ``reserved``.
    """
    counted = process or reserved
    if not (counted and message.capacity and message.free and others):
        return None
    sizes = [size for _, size in others]
    if not above(plus(counted, *sizes), minus(message.capacity, message.free)):
        return None
    if process:
        texts = [size.text for size in sizes]
        return texts.index(process.text) if process.text in texts else None
    fitting = [
        position for position, size in enumerate(sizes) if not above(counted, size)
    ]
    return min(fitting, key=lambda position: sizes[position].bytes, default=None)


def _outside(
    message: Message,
    process: Quantity | None,
    sizes: list[Quantity],
    unaccounted: Quantity | None,
) -> Quantity | None:
    if unaccounted is None:
        return plus(*sizes) if sizes else None
    context = context_bytes(process is not None, message.capacity)
    rest = max(0, unaccounted.bytes - context - unaccounted.precision_bytes)
    return plus(*sizes, Quantity(rest, unaccounted.precision_bytes, show_bytes(rest)))
