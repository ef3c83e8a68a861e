"""How large the card of a snapshot was for its process: no snapshot says, but refusals tell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from helpers.allocator.snapshot import MIB, Event
from helpers.allocator.trace import DriverCall, StartSegment, start_bytes

INFERRED = "the capacity for this process is inferred"


def reserved_change(event: Event) -> int:
    """Bytes by which an event makes what is reserved larger."""
    if event.action in ("segment_alloc", "segment_map"):
        return event.size
    if event.action in ("segment_free", "segment_unmap"):
        return -event.size
    return 0


def room_at_refusals(events: Sequence[Event], start: Sequence[StartSegment]) -> int | None:
    """The least that the process had and could have had at an out-of-memory: bytes reserved
    plus bytes free.
    """
    reserved = start_bytes(start)
    rooms = []
    for event in events:
        reserved += reserved_change(event)
        if event.action == "oom":
            rooms.append(reserved + event.address)
    return min(rooms, default=None)


def card_size(
    driver: Sequence[DriverCall],
    start: Sequence[StartSegment],
    room: int | None,
    collects_garbage: bool,
) -> tuple[int | None, list[str]]:
    """Bytes that the process could have of the card, as far as refusals tell, and notes of how
    that is known.

    ``room``: as ``room_at_refusals`` gives it. Where segments were given back for a new one, the
    card is smaller than what was reserved before plus the new one, unless garbage collection may
    have been the reason.
    """
    peak = start_bytes(start)
    reserved = peak
    refused = []
    for _, group in groupby(driver, key=lambda call: call.event):
        calls = list(group)
        new = sum(call.size for call in calls if call.action in ("malloc", "map"))
        back = sum(call.size for call in calls if call.action in ("free", "unmap"))
        if new and back and calls[-1].action != "oom":
            refused.append(reserved + new - 2 * MIB)
        reserved += new - back
        peak = max(peak, reserved)
    notes = _limits(driver)
    if room is not None:
        notes.append(f"{INFERRED}: bytes reserved plus bytes free at the out-of-memory")
        return max(peak, room), notes
    if refused and not collects_garbage:
        notes.append(f"{INFERRED}: segments were given back to make room for a new one")
        return max(peak, min(refused)), notes
    return None, notes


def _limits(driver: Sequence[DriverCall]) -> list[str]:
    """A note where a limit of the process refused requests that the card had room for."""
    refusals = [call for call in driver if call.action == "oom"]
    limited = [call for call in refusals if call.address > max(2 * call.size, 64 * MIB)]
    if not limited:
        return []
    return [
        f"{len(limited)} out-of-memory errors came while the driver had room: a memory fraction or "
        "another limit of the process refused them; give it with --fraction"
    ]
