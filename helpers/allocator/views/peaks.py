"""Shows what changed at the peak of live memory from one trace to another, by the program's own
lines and by kind of memory.
"""

from __future__ import annotations

from helpers.allocator.peaks import Peaks
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import columns

WIDEST = 80
"""Characters of a cell: a line of the program with its function."""
MOST_LINES = 20
"""Lines shown: with the kinds about a screenful."""


def peaks_table(peaks: Peaks, names: tuple[str, str]) -> Shown:
    """A row for each line of the program whose bytes at the peak changed, then for each kind;
    ``names``: of the two traces.
    """
    before, after = peaks.live
    reserved_before, reserved_after = peaks.reserved
    result = f"peak of live memory {show_bytes(before)} -> {show_bytes(after)} ({peaks.share_words})"
    # The line with the largest change in the direction in which the peak moved; lines are in order.
    same_way = [line for line in peaks.lines if line.by * (after - before) > 0]
    if same_way:
        result += f", most at {same_way[0].name}"
    above = [
        f"A: {names[0]}",
        f"B: {names[1]}",
        result,
        f"reserved at most {show_bytes(reserved_before)} -> {show_bytes(reserved_after)}",
        "",
    ]
    rows = []
    for change in [*peaks.lines[:MOST_LINES], *peaks.kinds]:
        name = change.name
        if change.was:
            name += f" (was {change.was})"
        rows.append([name, change.before, change.after, _signed(change.by)])
    notes = []
    left_out = len(peaks.lines) - MOST_LINES
    if left_out > 0:
        notes.append(f"{left_out} more lines moved by less")
    if peaks.changed and before != after:
        notes.append(f"changed lines behind it: {', '.join(peaks.changed)}")
    head = columns(
        "at the peak:line, A:number:bytes, B:number:bytes, by:size", widest=WIDEST
    )
    return Shown(result, head, rows, notes, above, result=result)


def _signed(size: int) -> str:
    """A change in bytes: "+1.00 GiB", "-512 B" or "0"."""
    if size > 0:
        return f"+{show_bytes(size)}"
    if size < 0:
        return f"-{show_bytes(-size)}"
    return "0"
