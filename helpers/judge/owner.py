"""Whose is it?

Device memory as a message accounts for it, and the processes that hold it: the failing program
itself, another one, or nobody.

Every room that must know asks here: every view of a message's numbers reads its one account
(the sums shown, the ledger, the verdict, an issue text); the observations of a box, the refusal
to load a card that is in use and the gate between two runs ask whose a holder is. Nobody names
the failing program to the driver, so it is told by what it held; a process of two looks by its
number and when it began, since a number comes back. Which holders can be seen from here at all
is a fact: look.gpus.in_sight.

Segment sizes and the order of the allocator's last resorts are those of
c10/cuda/CUDACachingAllocator.cpp, torch 1.2 to 2.15: before the error every whole cached
segment was released, so what is still reserved and unallocated is a free part of a segment in
use, waits for an event, or belongs to another stream or a private pool. The sentences are data:
account.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable

from helpers.ground.units import GIB, MIB, Quantity, show_bytes
from helpers.judge import sentence, table
from helpers.look.message import Message

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
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
Say = Callable[..., str]
CONTEXT_BYTES = 1200 * MIB
"""The most that a CUDA or HIP context, its libraries and a small desktop take beside the
allocator (0.3 to 1 GiB).
"""
CONTEXT_SHARE = 0.3
"""The most of a small card that is taken for a context; a larger rest is somebody's. An estimate."""
UNEXPLAINED_SHARE = 0.02
UNEXPLAINED_BYTES = 512 * MIB
"""Firmware, page tables and a console's framebuffer belong to no process: below both of these
nothing is unexplained.
"""
IN_USE_BYTES = GIB
"""More that no process seen here accounts for, and a card is taken for somebody's: it is not
loaded.
"""
SLACK_BYTES = 64 * MIB
"""What the driver may count more as used after a job than before it, and what a desktop's small
clients hold.
"""


@dataclass(frozen=True)
class Account:
    """The sums of one message.

    Sizes are bytes with the precision of all that went into them; None is not known.

    ``own``: this process as the driver counts it (given, or found among the named ones:
    ``own_pid``). ``held``: what PyTorch has of the device, ``stranded`` the part of it that no
    tensor uses, ``context`` the rest of this process. ``others``: the named processes that are
    not this one. ``unaccounted``: in use, less this process, less the others; where the message
    does not give the process, ``held`` stands for it and the rest includes this process's
    context. ``outside``: the others and what is surely nobody's here. ``fragmentation`` is
    about the sole cause, from this message alone: excluded, possible, likely, or unknown where
    a number is missing; never proved here. ``beyond_limit``: allocated + requested against the
    card or against what the process is allowed. ``fits_alone``: the request would have fitted
    if nobody else held memory.
    """

    message: Message
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
    lines: tuple[str, ...] = ()
    fragmentation: str = UNKNOWN
    contradictions: tuple[str, ...] = ()

    @property
    def tolerance_bytes(self) -> int:
        """What the printed digits leave open over all the figures of the message."""
        return sum(quantity.precision_bytes for quantity in self.message.numbers)


def account(message: Message) -> Account:
    """The account of one message. Pure; every message is accepted, also one without numbers."""
    m = message
    stranded = message.reserved_unallocated
    if stranded is None and m.reserved_total and m.allocated:
        stranded = minus(m.reserved_total, m.allocated)
    by_parts = plus(m.allocated, stranded) if m.allocated and stranded else None
    held = by_parts or m.reserved_total or m.allocated
    at = None if m.process else _itself(m, held)
    own_pid = None
    if at is not None:
        own_pid = m.pids[at] if at < len(m.pids) else None
        m = replace(_without(m, at), process=m.others[at])
    elif m.process is None and held and m.non_torch:
        m = replace(m, process=plus(held, m.non_torch))
    m = _without(m, _itself(m, held) if m.process else None)
    whole = m.process
    if whole and m.capacity and above(whole, m.capacity):
        m = replace(m, process=None)  # such as NVML's "not available" printed as a size
    used = minus(m.capacity, m.free) if m.capacity and m.free else None
    mine = m.process or held
    unaccounted = None
    if used and mine and used.bytes >= -used.precision_bytes:
        unaccounted = minus(used, plus(mine, *m.others))
    pids = list(m.pids) + [None] * (len(m.others) - len(m.pids))
    outside = _outside(m, unaccounted)
    fits_alone = None
    if m.requested and m.free and outside:
        fits_alone = not above(m.requested, plus(m.free, outside))
    made = Account(
        message,
        used=used,
        own=m.process,
        held=held,
        stranded=stranded,
        context=minus(m.process, held) if m.process and held else None,
        others=tuple(zip(pids, m.others)),
        own_pid=own_pid,
        unaccounted=unaccounted,
        outside=outside,
        limit=_limit(m),
        beyond_limit=_beyond(m),
        fits_alone=fits_alone,
    )
    sizes = {**vars(m), **{key: value for key, value in vars(made).items() if key != "message"}}
    texts = {key: words(size) for key, size in sizes.items() if isinstance(size, Quantity)}
    say = partial(sentence, "account", "says", **{**dict.fromkeys(sizes, ""), **texts})
    against = tuple(_contradictions(m, made, say))
    if whole and m.process is None:
        against = (*against, say("process above capacity", whole=whole.text))
    fragmentation, why = _fragmentation(m, made, say)
    lines = (*_requested(m, say), *_shares(m, made, say), *_limits(m, made, say), *why, *against)
    return replace(made, lines=lines, fragmentation=fragmentation, contradictions=against)


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


def _itself(m: Message, held: Quantity | None) -> int | None:
    """The named process that must be this one: what it holds does not fit beside all of them.

    NVML names host numbers, so in a container torch does not know its own and lists itself
    among the others, where the driver's figure of this process is given a second time; without
    that, the smallest that can hold ``held``.
    """
    own = m.process or held
    if not (own and m.capacity and m.free and m.others):
        return None
    if not above(plus(own, *m.others), minus(m.capacity, m.free)):
        return None
    if m.process:
        return next((at for at, size in enumerate(m.others) if size.text == own.text), None)
    fits = [(size.bytes, at) for at, size in enumerate(m.others) if not above(own, size)]
    return min(fits)[1] if fits else None


def _without(m: Message, at: int | None) -> Message:
    """The message without one of the processes that it names."""
    if at is None:
        return m
    others = m.others[:at] + m.others[at + 1 :]
    pids = m.pids[:at] + m.pids[at + 1 :]
    return replace(m, others=others, pids=pids)


def _outside(m: Message, unaccounted: Quantity | None) -> Quantity | None:
    if unaccounted is None:
        return plus(*m.others) if m.others else None
    context = context_bytes(m.process is not None, m.capacity)
    rest = max(0, unaccounted.bytes - context - unaccounted.precision_bytes)
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


def _fragmentation(m: Message, a: Account, say: Say) -> tuple[str, list[str]]:
    """DESIGN rule 6, with its reason.

    A driver that refused although it reported room is no matter of split blocks.
    """
    stranded = a.stranded
    held = a.held
    if not m.requested or stranded is None:
        return UNKNOWN, []
    if above(m.requested, stranded):
        together = m.free and not above(m.requested, plus(m.free, stranded))
        more = [say("enough together")] if together else []
        return EXCLUDED, [say("stranded too small"), *more]
    if a.beyond_limit:
        without = m.private_pools and m.allocated and minus(m.allocated, m.private_pools)
        if without and _beyond(replace(m, allocated=without)) is not True:
            return POSSIBLE, [say("without pools")]
        return EXCLUDED, [say("beyond")]
    if a.beyond_limit is None or not m.allocated or not held:
        return POSSIBLE if m.allocated and a.limit else UNKNOWN, []
    capped = m.allowed is not None and not above(m.allowed, plus(held, m.requested))
    if not capped and m.free is None:
        return POSSIBLE, []
    if a.outside and above(a.outside, held):
        return POSSIBLE, [say("small share")]
    if not capped and m.free and m.free.bytes - m.requested.bytes > KEPT_BACK_BYTES:
        return POSSIBLE, [say("room was free")]
    room = m.allowed if m.allowed and capped else plus(held, m.free)
    if room.bytes - m.allocated.bytes - m.requested.bytes < NEAR_FULL * room.bytes:
        return POSSIBLE, [say("near its end", share=f"{1 - NEAR_FULL:.0%}", room=room.text)]
    return LIKELY, [say("stranded")]


def _requested(m: Message, say: Say) -> Iterator[str]:
    """What the size that was asked for tells of the tensor."""
    size = m.requested
    if not size:
        return
    near = size.precision_bytes + 1
    off = size.bytes % SMALL_SEGMENT_BYTES
    digits = show_bytes(size.precision_bytes)
    below = show_bytes(size.bytes - SMALL_SEGMENT_BYTES)
    multiple = size.bytes >= 10 * MIB - near and min(off, SMALL_SEGMENT_BYTES - off) <= near
    kind = "rounded up" if multiple else "no segment"
    if m.program != "torch" or m.event != "refused" or m.side != "device":
        kind = "asked"
    elif "cuda_malloc_async" in m.hints:
        kind = "async"
    elif abs(size.bytes - SMALL_SEGMENT_BYTES) <= near:
        kind = "small segment"
    elif abs(size.bytes - LARGE_SEGMENT_BYTES) <= near:
        kind = "large segment"
    elif near > MIB:
        kind = "printed coarsely"
    yield say(kind, digits=digits, below=below)


def _shares(m: Message, a: Account, say: Say) -> Iterator[str]:
    """Whose the memory in use is, as sums."""
    if a.used and a.used.bytes >= 0:
        yield say("in use", whose="" if m.process or a.held or m.others else say("by whom"))
    if a.held and m.allocated and a.stranded:
        yield say("torch, by reserved" if m.reserved_total else "torch, by parts")
    if m.private_pools:
        yield say("private pools")
    if a.own_pid is not None:
        yield say("own PID", own_pid=a.own_pid)
    elif m.process is None and a.held and any(not above(a.held, size) for size in m.others):
        yield say("perhaps own")
    if a.context and a.context.bytes >= 0:
        yield say("context")
    for pid, size in a.others:
        yield say("other", pid="" if pid is None else f" {pid}", size=size.text)
    if a.unaccounted and a.used and a.unaccounted.bytes >= -a.unaccounted.precision_bytes:
        others = "".join(f" - {size.text}" for _, size in a.others)
        kind = "unaccounted" if m.process else "unaccounted, process unknown"
        yield say(kind, others=others, digits=show_bytes(a.unaccounted.precision_bytes))


def _limits(m: Message, a: Account, say: Say) -> Iterator[str]:
    """What was asked for against what there is, what is allowed, and what was free."""
    need = plus(m.allocated, m.requested)
    if a.limit and m.requested and (m.allocated or a.beyond_limit):
        name = "allowed" if a.limit is m.allowed else "capacity"
        verdict = table("account")["verdicts"][str(a.beyond_limit)]
        sums = say("allocated too") if m.allocated else ""
        yield say("sum", allocated_too=sums, need=need.text, verdict=verdict, name=name)
    if m.allowed and a.held and m.requested and not above(m.allowed, plus(a.held, m.requested)):
        yield say("limit refused")
    elif m.free and m.requested and m.event == "refused" and not above(m.requested, m.free):
        spare = m.free.bytes - m.requested.bytes
        yield say("kept back" if spare <= KEPT_BACK_BYTES else "room refused")
    if a.stranded:
        yield say("most released")


def _contradictions(m: Message, a: Account, say: Say) -> Iterator[str]:
    """What in the message cannot be together."""
    held = a.held
    stranded = a.stranded
    rest = a.unaccounted
    if m.free and m.capacity and above(m.free, m.capacity):
        yield say("free above capacity")
    if m.process and held and above(held, m.process):
        yield say("torch above process")
    impossible = held and m.capacity and above(held, m.capacity)
    if impossible:
        yield say("torch above capacity")
    if stranded and stranded.bytes < -stranded.precision_bytes:
        yield say("reserved below allocated", gap=show_bytes(-stranded.bytes))
    if rest and rest.bytes < -rest.precision_bytes and not impossible:
        yield say("shares above use", gap=show_bytes(-rest.bytes))


def above(size: Quantity, other: Quantity) -> bool:
    """Whether ``size`` is the larger one whatever the digits that were not printed."""
    return size.bytes - other.bytes > size.precision_bytes + other.precision_bytes


# The failing program, by what its message says that it held.


def context_bytes(given: bool, capacity: Quantity | None) -> int:
    """The most of a rest that is taken for the failing program's own context; ``given``: the
    driver's figure counts it.
    """
    most = CONTEXT_BYTES // 4 if given else CONTEXT_BYTES
    return min(most, int(CONTEXT_SHARE * capacity.bytes)) if capacity else most


def own_range(given: Quantity | None, held: Quantity | None) -> tuple[int, int] | None:
    """What the failing program held, at least and at most, by the driver's figure of it or by
    what torch held.
    """
    size, beside = (given, CONTEXT_BYTES // 4) if given else (held, 2 * CONTEXT_BYTES)
    return (int(size.bytes * 0.98), int(size.bytes * 1.02) + beside) if size else None


def is_another(size: int, total: int, ours: Sequence[tuple[int, int]]) -> bool:
    """Whether a holder of this size is not the failing program: it holds most of the card, and
    both fit on it together.
    """
    fits = all(size > most and least + size <= total * 1.02 for least, most in ours)
    return bool(ours) and size > total // 2 and fits


def is_itself(size: int, given: Quantity) -> bool:
    """Whether a holder of this size may be the process of which a message gives the driver's
    figure.
    """
    return abs(size - given.bytes) <= given.precision_bytes + 2 * MIB


def is_unexplained(rest_bytes: int, in_use_bytes: int) -> bool:
    """Whether what no process accounts for is more than the driver keeps for itself."""
    return rest_bytes >= max(UNEXPLAINED_BYTES, UNEXPLAINED_SHARE * in_use_bytes)


def newcomers(before: Iterable[Any], after: Iterable[Any]) -> list[Any]:
    """Of the holders ``after`` (number, start, bytes, state) those that were not there before
    and matter.

    A desktop opens and closes small clients all the time; one that cannot be ended holds the
    GPU whatever its size.
    """
    known = {(held.pid, held.start_ticks) for held in before}
    matter = [h for h in after if h.bytes is None or h.bytes > SLACK_BYTES or h.state == "D"]
    return [held for held in matter if (held.pid, held.start_ticks) not in known]
