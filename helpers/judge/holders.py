"""Whose is a process that holds GPU memory: the failing program itself, another one, or nobody.

The observations of a box, the refusal to load a card that is in use and the gate between two
runs ask here. Nobody names the failing program to the driver, so it is recognised by what it
held; a process of two looks by its number and when it began, since a number comes back. Which
holders can be seen from here at all is a fact: look.holders.in_sight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from helpers.ground.units import GIB, MIB, Quantity

CONTEXT_BYTES = 1200 * MIB
"""The most that a CUDA or HIP context, its libraries and a small desktop take beside the
allocator (0.3 to 1 GiB).
"""
COUNTED_CONTEXT_BYTES = CONTEXT_BYTES // 4
"""The most of it that may still lie outside where the driver's figure of a process includes its
context: an estimate.
"""
DRIVER_BLOCK_BYTES = 2 * MIB
"""Drivers give memory in blocks of this size, so two counts of the same memory may differ by one.
"""
SAME_SIZE = 0.02
"""Two counts of one process, at two moments, differ by less than this share: an estimate."""
CONTEXT_SHARE = 0.3
"""The most of a small card that is taken for a context: an estimate."""
UNEXPLAINED_SHARE = 0.02
UNEXPLAINED_BYTES = 512 * MIB
"""Firmware, page tables and a console's framebuffer belong to no process: below both of these
nothing is unexplained.
"""
FULL_WINDOW_SHARE = 0.9
"""Of a window of 256 MiB, more than the driver's own mappings (2 to 30 MiB) and a buffer or two."""
NAMED_SHARE = 0.8
"""Listed processes that hold this share of what is outside the failing program hold it."""
IN_USE_BYTES = GIB
"""More that no process seen here accounts for, and a card is taken for somebody's: it is not
loaded.
"""
SLACK_BYTES = 64 * MIB
"""What the driver may count more as used after a job than before it, and what a desktop's small
clients hold.
"""


def context_bytes(counted: bool, capacity: Quantity | None) -> int:
    """How many bytes that nobody accounts for may be the failing program's own context.

    ``counted``: the driver's figure of the program includes the context already. ``capacity`` is
    the card's.
    """
    most = CONTEXT_BYTES
    if counted:
        most = COUNTED_CONTEXT_BYTES
    if capacity is None:
        return most
    return min(most, int(CONTEXT_SHARE * capacity.bytes))


def expected_range(
    process: Quantity | None, reserved: Quantity | None
) -> tuple[int, int] | None:
    """The least and the most bytes that the failing program held; None where nothing is known.

    ``process`` is the driver's figure of it, ``reserved`` what torch had reserved. Beside the
    latter lie a context and perhaps the memory of another library, as much again.
    """
    if process:
        size = process.bytes
        beside = COUNTED_CONTEXT_BYTES
    elif reserved:
        size = reserved.bytes
        beside = 2 * CONTEXT_BYTES
    else:
        return None
    return int(size * (1 - SAME_SIZE)), int(size * (1 + SAME_SIZE)) + beside


def is_another(size: int, total: int, failing: Sequence[tuple[int, int]]) -> bool:
    """Whether a holder of ``size`` bytes is surely not the failing program: it holds most of the
    card of ``total`` bytes, more than the program can have held, and both fit on it together.

    ``failing``: what the program held by each of its messages, as of ``expected_range``.
    """
    if not failing or size <= total // 2:
        return False
    room = total * (1 + SAME_SIZE)
    return all(size > most and least + size <= room for least, most in failing)


def is_within(size: int, failing: Sequence[tuple[int, int]]) -> bool:
    """Whether a holder of ``size`` bytes may be the failing program, by the ranges of
    ``expected_range``.
    """
    return any(least <= size <= most for least, most in failing)


def is_itself(size: int, process: Quantity) -> bool:
    """Whether a holder of ``size`` bytes may be the process of which a message gives the driver's
    figure.
    """
    margin = process.precision_bytes + DRIVER_BLOCK_BYTES
    return abs(size - process.bytes) <= margin


def window_state(total: int, used: int, memory: int) -> str:
    """The observation about a window (BAR1) of ``total`` bytes, ``used`` of them, to a card's
    memory: bar1-full, bar1-room where less than half is used, or empty between the two.

    A window about as large as the memory (Resizable BAR) is mapped whole once, so it always has
    room.
    """
    if total > memory // 2 or used < total // 2:
        return "bar1-room"
    if used >= FULL_WINDOW_SHARE * total:
        return "bar1-full"
    return ""


def is_left_by(size: Quantity, kept: Quantity) -> bool:
    """Whether a holder of this size may be the vLLM engine that fell asleep.

    ``kept`` is what the engine, as it fell asleep, printed to be in use on the whole card. Taken
    for the engine is a holder of at least half of that, and at most of a context more.
    """
    return kept.bytes // 2 <= size.bytes <= kept.bytes + CONTEXT_BYTES


def is_unexplained(rest_bytes: int, in_use_bytes: int) -> bool:
    """Whether what no process accounts for is more than the driver keeps for itself."""
    return rest_bytes >= max(UNEXPLAINED_BYTES, UNEXPLAINED_SHARE * in_use_bytes)


def newcomers(before: Iterable[Any], after: Iterable[Any]) -> list[Any]:
    """The holders ``after`` (with pid, start_ticks, bytes and state) that were not there before
    and matter.

    A desktop opens and closes small clients all the time, so a small one does not matter. One
    whose memory was not measured does, and so does one that waits in the kernel (state D): it
    cannot be ended, and holds the GPU whatever its size.
    """
    earlier = {(holder.pid, holder.start_ticks) for holder in before}
    new = [
        holder for holder in after if (holder.pid, holder.start_ticks) not in earlier
    ]
    return [
        holder
        for holder in new
        if holder.bytes is None or holder.bytes > SLACK_BYTES or holder.state == "D"
    ]
