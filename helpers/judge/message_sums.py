"""The numbers of one message, added up: what is in use, what of it this process has, and what
others have.

Every size carries what the printed digits leave open, so that a comparison never decides by
digits that were not printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from helpers.ground.units import GIB, KIB, MIB, TIB, Quantity, show_bytes
from helpers.judge.holders import context_bytes
from helpers.look.message import Message

LITTLE_PART = 10
"""A program can save this part of what it has by a smaller batch: a choice."""
OWN_SHARE = 3
"""Where two processes hold memory, one that holds more than so many times what the other does is
the one to make smaller; below that, ask whose they are: a choice.
"""
UNITS = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB}
"""Units of show_bytes."""


@dataclass(frozen=True)
class MessageSums:
    """The sums of one message.

    Sizes are bytes with the precision of all that went into them; None is not known.

    ``used``: capacity less free. ``this_process``: what it has as the driver counts it: printed,
    or found among the named processes (``own_pid``). ``reserved``: what PyTorch has of the device,
    ``stranded`` the part of it that no tensor uses, ``context`` the rest of this process.
    ``others``: (pid, size) of the named processes that are not this one.

    ``unaccounted``: in use, less this process, less the others; where the message does not give
    the process, ``reserved`` counts in its place and the rest includes this process's context.
    ``outside``: the others, with what of ``unaccounted`` is too much for a context.

    ``limit``: the lower of the card and what the process is allowed; ``beyond_limit``: whether
    allocated + requested is more. ``fits_alone``: whether the request would have fitted if
    nobody else held memory. ``lacking``: how much more was requested than there was room for;
    ``lacking_with_cache``: the same if PyTorch could use all that it has cached, negative where
    that would be enough.
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
        """By how many bytes all the figures of the message together may be off, as printed."""
        return sum(quantity.precision_bytes for quantity in self.message.numbers)

    @property
    def program(self) -> Quantity | None:
        """What this process has: by the driver, else what PyTorch has reserved."""
        if self.this_process:
            return self.this_process
        return self.reserved

    @property
    def own_comes_first(self) -> bool:
        """Whether a smaller batch is the first thing to try, before others are asked to go.

        What is missing is at most half of what the program needs, so half of the batch may do;
        and this process has more than the others, or little is missing and the others do not have
        far more. False where one of these sizes is not known.
        """
        lacking = self.lacking_with_cache
        requested = self.message.requested
        if lacking is None or not (self.reserved and self.outside and requested):
            return False
        needed = plus(self.message.allocated, requested)
        if 2 * lacking.bytes > needed.bytes:
            return False
        own_bytes = plus(self.program).bytes
        outside_bytes = self.outside.bytes
        if own_bytes > outside_bytes:
            return True
        is_little = LITTLE_PART * lacking.bytes <= self.reserved.bytes
        return is_little and OWN_SHARE * own_bytes > outside_bytes


def sums_of(message: Message) -> MessageSums:
    """The sums of a message. Pure; every message is accepted, also one without numbers."""
    reserved, stranded = _of_torch(message)
    process, own_pid, others = _own_process(message, reserved)
    if process and message.capacity and above(process, message.capacity):
        process = None  # such as NVML's "not available" printed as a size
    used = None
    if message.capacity and message.free:
        used = minus(message.capacity, message.free)
    sizes = [size for _, size in others]
    unaccounted = None
    counted = process
    if process is None:
        counted = reserved
    # Free above the capacity is a contradiction: nothing can be said of the rest.
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


def _of_torch(message: Message) -> tuple[Quantity | None, Quantity | None]:
    """What PyTorch has reserved, and the part of it that no tensor uses; None where not known.

    Older releases print what is reserved, later ones what is reserved and unallocated.
    """
    allocated = message.allocated
    reserved = message.reserved_total
    stranded = message.reserved_unallocated
    if stranded is None and reserved and allocated:
        stranded = minus(reserved, allocated)
    if allocated and stranded:
        reserved = plus(allocated, stranded)
    elif not reserved:  # at least what is allocated is reserved
        reserved = allocated
    return reserved, stranded


def plus(*sizes: Quantity | None) -> Quantity:
    """The sum, with the precision of its parts; None counts as 0."""
    parts = [size for size in sizes if size]
    total = sum(size.bytes for size in parts)
    precision = sum(size.precision_bytes for size in parts)
    return Quantity(total, precision, show_bytes(total))


def minus(size: Quantity, other: Quantity) -> Quantity:
    """The difference, with the precision of both."""
    rest = size.bytes - other.bytes
    precision = size.precision_bytes + other.precision_bytes
    return Quantity(rest, precision, show_bytes(rest))


def above(size: Quantity, other: Quantity) -> bool:
    """Whether ``size`` is larger, whatever digits were not printed."""
    return size.bytes - other.bytes > size.precision_bytes + other.precision_bytes


def limit_of(message: Message) -> Quantity | None:
    """The lower of the card's capacity and what the process is allowed."""
    limits = [size for size in (message.allowed, message.capacity) if size]
    return min(limits, key=lambda size: size.bytes, default=None)


def is_beyond(
    limit: Quantity | None, allocated: Quantity | None, requested: Quantity | None
) -> bool | None:
    """Whether allocated + requested is more than the limit; None where the printed digits or a
    missing number do not tell.
    """
    if limit is None or requested is None:
        return None
    need = plus(allocated, requested)
    if above(need, limit):
        return True
    # Without what is allocated the need may be larger still.
    if allocated and above(limit, need):
        return False
    return None


def about(size: Quantity) -> str:
    """A size with no more digits than the printed ones allow: ``about 87 MiB``. A digit is shown
    where the size is known more exactly than one of its units.
    """
    amount, unit = show_bytes(size.bytes).split()
    if not size.precision_bytes or "." not in amount:
        return f"{amount} {unit}"
    hundredth = UNITS[unit] // 100
    digits = 0
    if size.precision_bytes < hundredth:
        digits = 2
    elif size.precision_bytes < 10 * hundredth:
        digits = 1
    return f"about {float(amount):.{digits}f} {unit}"


def _lacking(message: Message, reserved: Quantity | None) -> Quantity | None:
    """By how much the request is above the room for it; negative where there is more room. Room is
    the free memory, or what is left of the process's limit where that is less; None where neither
    is known.
    """
    if message.requested is None:
        return None
    rooms = []
    if message.free:
        rooms.append(message.free)
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
    """By how much the request would be above the room for it if PyTorch could use its whole cache:
    above what is free and cached, or above the limit, whichever is more; None where not known.
    """
    shortfalls = []
    if lacking:
        shortfalls.append(minus(lacking, plus(stranded)))
    if message.requested and message.allocated and limit:
        shortfalls.append(minus(plus(message.allocated, message.requested), limit))
    return max(shortfalls, key=lambda shortfall: shortfall.bytes, default=None)


def _own_process(
    message: Message, reserved: Quantity | None
) -> tuple[Quantity | None, int | None, list[tuple[int | None, Quantity]]]:
    """The driver's figure of this process, its number where the message names it among others, and
    the (pid, size) of the others.
    """
    others: list[tuple[int | None, Quantity]] = list(
        zip_longest(message.pids[: len(message.others)], message.others)
    )
    process = message.process
    own_pid = None
    # First to find the driver's figure of this process among the others, then, where that figure
    # is known, to take the process out of the others.
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
    """The place in ``others`` of the process that must be this one, since what this process holds
    does not fit beside all of them; None where it fits, or none of them can be it.

    NVML gives the host's process numbers, so in a container torch does not know its own and
    lists itself among the others. There the driver's figure of this process is printed a second
    time; without that figure it is the smallest process that can hold ``reserved``.
    """
    counted = process
    if process is None:
        counted = reserved
    if not (counted and message.capacity and message.free and others):
        return None
    sizes = [size for _, size in others]
    used = minus(message.capacity, message.free)
    if not above(plus(counted, *sizes), used):
        return None  # all have room beside each other: this process is none of them
    if process is not None:
        texts = [size.text for size in sizes]
        if process.text not in texts:
            return None
        return texts.index(process.text)
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
    """What is surely in use outside this process: the ``sizes`` of named processes, and what of the
    unaccounted memory is too much for this process's own context. None where nothing is known.
    """
    if unaccounted is None and not sizes:
        return None
    if unaccounted is None:
        return plus(*sizes)
    context = context_bytes(process is not None, message.capacity)
    rest = max(0, unaccounted.bytes - context - unaccounted.precision_bytes)
    return plus(*sizes, Quantity(rest, unaccounted.precision_bytes, show_bytes(rest)))
