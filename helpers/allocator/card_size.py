"""How large the card of a snapshot was for its process: no snapshot says, but refusals tell."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.allocator.snapshot import MIB, TraceEntry
from helpers.allocator.trace import StartSegment, start_bytes

INFERRED = "the size of the recorded card is inferred: bytes reserved plus bytes free when the program ran out of memory"


def card_size(
    events: Sequence[TraceEntry], start: Sequence[StartSegment]
) -> tuple[int | None, list[str]]:
    """Bytes that the process could have of the card, the least at any out-of-memory, and notes
    of how that is known; None where no request was refused.
    """
    reserved = start_bytes(start)
    peak = reserved
    rooms = []
    limited = 0
    for event in events:
        if event.action in ("segment_alloc", "segment_map"):
            reserved += event.size
        elif event.action in ("segment_free", "segment_unmap"):
            reserved -= event.size
        elif event.action == "oom":
            free_bytes = event.address
            rooms.append(reserved + free_bytes)
            limited += free_bytes > max(2 * event.size, 64 * MIB)
        peak = max(peak, reserved)
    if not rooms:
        return None, []
    notes = [INFERRED]
    if limited:
        notes.append(
            f"{limited} out-of-memory errors came while the driver had room: a memory fraction or another limit "
            "of the process refused them; give it with --fraction"
        )
    return max(peak, min(rooms)), notes
