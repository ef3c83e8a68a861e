"""What moved at the peak from one trace to another, by the program's own lines and by kind."""

from __future__ import annotations

from helpers.allocator.peaks import Peaks
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import columns

MOST_LINES = 20


def peaks_table(peaks: Peaks, names: tuple[str, str]) -> Shown:
    """What moved at the peak, a line of the program each, then by kind; ``names``: of the two
    traces.
    """
    before, after = peaks.live
    reserved_before, reserved_after = peaks.reserved
    result = f"peak of live memory {show_bytes(before)} -> {show_bytes(after)} ({peaks.share_words})"
    first = next(
        (change for change in peaks.lines if change.by * (after - before) > 0), None
    )
    if first:
        result += f", most at {first.name}"
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
        "at the peak:line, A:number:bytes, B:number:bytes, by:size", widest=80
    )
    return Shown(result, head, rows, notes, above, result=result)


def _signed(size: int) -> str:
    if not size:
        return "0"
    sign = "-" if size < 0 else "+"
    return f"{sign}{show_bytes(abs(size))}"
