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
    """The most of a rest that is taken for the failing program's own context, in bytes.

    ``counted``: the driver's figure of the program includes it already.
    """
    most = CONTEXT_BYTES // 4 if counted else CONTEXT_BYTES
    if capacity is None:
        return most
    return min(most, int(CONTEXT_SHARE * capacity.bytes))


def expected_range(
    process: Quantity | None, reserved: Quantity | None
) -> tuple[int, int] | None:
    """What the failing program held, at least and at most, in bytes.

    ``process`` is the driver's figure of it, ``reserved`` what torch had reserved; None where
    neither is known.
    """
    if process:
        return int(process.bytes * 0.98), int(process.bytes * 1.02) + CONTEXT_BYTES // 4
    if reserved:
        return int(reserved.bytes * 0.98), int(
            reserved.bytes * 1.02
        ) + 2 * CONTEXT_BYTES
    return None


def is_another(size: int, total: int, failing: Sequence[tuple[int, int]]) -> bool:
    """Whether a holder of this size is not the failing program: it holds most of the card, and
    both fit on it together.

    ``failing``: the ranges of ``expected_range``.
    """
    if not failing or size <= total // 2:
        return False
    return all(size > most and least + size <= total * 1.02 for least, most in failing)


def is_within(size: int, failing: Sequence[tuple[int, int]]) -> bool:
    """Whether a holder of this size may be the failing program, by the ranges of
    ``expected_range``.
    """
    return any(least <= size <= most for least, most in failing)


def is_itself(size: int, process: Quantity) -> bool:
    """Whether a holder of this size may be the process of which a message gives the driver's
    figure.
    """
    return abs(size - process.bytes) <= process.precision_bytes + 2 * MIB


def window_state(total: int, used: int, memory: int) -> str:
    """What a window (BAR1) to a card's memory is, by its size, what is used of it and the memory,
    in bytes: bar1-full, bar1-room, or empty between the two.

    One as large as the memory is filled once for good, with Resizable BAR, and has room.
    """
    if total > memory // 2 or used < total // 2:
        return "bar1-room"
    return "bar1-full" if used >= FULL_WINDOW_SHARE * total else ""


def is_left_by(size: Quantity, kept: Quantity) -> bool:
    """Whether a holder of this size may be the engine that fell asleep: its message says what was
    then in use by all together.
    """
    return kept.bytes // 2 <= size.bytes <= kept.bytes + CONTEXT_BYTES


def is_unexplained(rest_bytes: int, in_use_bytes: int) -> bool:
    """Whether what no process accounts for is more than the driver keeps for itself."""
    return rest_bytes >= max(UNEXPLAINED_BYTES, UNEXPLAINED_SHARE * in_use_bytes)


def newcomers(before: Iterable[Any], after: Iterable[Any]) -> list[Any]:
    """Of the holders ``after`` (number, start, bytes, state) those that were not there before
    and matter.

    A desktop opens and closes small clients all the time; one that cannot be ended holds the
    GPU whatever its size.
    """
    earlier = {(holder.pid, holder.start_ticks) for holder in before}
    return [
        holder
        for holder in after
        if (holder.pid, holder.start_ticks) not in earlier
        and (holder.bytes is None or holder.bytes > SLACK_BYTES or holder.state == "D")
    ]
