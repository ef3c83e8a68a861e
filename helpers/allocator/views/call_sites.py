"""What grows from step to step, and what moved at the peak from one trace to another, by the
program's own lines.
"""

from __future__ import annotations

from typing import Any

from helpers.allocator.ahead import End, end
from helpers.allocator.driver import Card
from helpers.allocator.growth import KEPT, Growth, growth
from helpers.allocator.lines import LinesError, requests
from helpers.allocator.peak import Peaks, compare
from helpers.allocator.recorded import AMPLE_BYTES
from helpers.allocator.trace import Trace
from helpers.ground.units import show_bytes
from helpers.tell.shown import Column, Shown

NEVER_STEPS = 10_000_000
"""A death later than this is said to be as good as never: a step a millisecond for three hours."""


def growing(trace: Trace, card: Card, conf: str = "", **how: Any) -> Shown:
    """What grows in a trace, and the step in which it runs out on that card; where that cannot
    be told, why.
    """
    try:
        return growth_table(*until(trace, card, conf, **how))
    except LinesError as error:
        return Shown("What grows from step to step", ["call site"], [], none=f"Not told: {error}.")


def until(trace: Trace, card: Card, conf: str = "", **how: Any) -> tuple[Growth, End | None, int]:
    """What grows in a trace, where it runs out, and on how many bytes; 0 where no card was named.

    Raises LinesError.
    """
    found = requests(trace)
    grown = growth(found)
    capacity = card.capacity_bytes
    if capacity >= AMPLE_BYTES:
        return grown, None, 0
    return grown, end(found, grown, card, conf, **how), capacity


def moved(before: Trace, after: Trace, names: tuple[str, str]) -> Shown:
    """What moved at the peak between two traces; where that cannot be told, why."""
    try:
        return peaks_table(compare(before, after), names)
    except LinesError as error:
        return Shown("What moved at the peak", ["line"], [], none=f"Not told: {error}.")


def growth_table(grown: Growth, ends: End | None, capacity_bytes: int) -> Shown:
    """What grows, a call site a line.

    ``capacity_bytes``: of the card that ``ends`` speaks of; 0 where none was named.
    """
    steps = len(grown.steps)
    begin = grown.steps.line
    card = show_bytes(capacity_bytes)
    where = f"{steps} steps, counted from the first of the trace; each begins at {begin}"
    if grown.growers:
        first, last = grown.window
        head = f"{show_bytes(round(grown.bytes_per_step))} a step, most at {grown.growers[0].site.name}"
        result = f"grows by {head}"
        where += f"; growth from step {first + 2} to step {last + 1}"
    else:
        least = f"{show_bytes(grown.seen_bytes)} a step"
        often = f"once in {grown.seen_every} steps" if grown.seen_every > 1 else "in every step"
        result = f"no growth in {steps} steps; {least}, or more {often}, would have been seen"
    lines = [where]
    if grown.inputs_grow:
        lines.append(
            "the steps ask for more from one to the next: what they are given becomes larger; that is not kept, but "
            "their peak rises with it"
        )
    lines += [_end(ends, card, bool(grown.growers))] * bool(capacity_bytes)
    if grown.growers and not capacity_bytes:
        lines.append("at which step it runs out: name the card with --capacity or --gpu")
    notes = []
    together = [one for one in grown.growers if one.how == KEPT and one.site.own]
    last_of = next((one for one in together if one.last), None)
    if last_of and len(together) > 2:
        notes.append(
            f"{len(together)} lines keep something in the same steps, the last of them {last_of.site.name}: look there for "
            "what holds all of it, such as a loss that is kept with its graph"
        )
    live = [show_bytes(grown.live[at]) for at in sorted({0, 1, len(grown.live) // 2, -1 % steps})]
    notes.append(
        f"live at the beginning of the first, the second, a middle and the last step: {', '.join(live)}"
    )
    rows = [
        [one.site.name, round(one.bytes_per_step), round(one.count, 2) or None, one.how]
        for one in grown.growers
    ]
    columns = ["call site", Column("a step", "bytes"), "blocks a step", "how"]
    none = "No call site keeps more from step to step."
    return Shown(result, columns, rows, notes, [result, *lines, ""], none, widest=80, result=result)


MOST_LINES = 20


def peaks_table(moved: Peaks, names: tuple[str, str]) -> Shown:
    """What moved at the peak, a line of the program each, then by kind; ``names``: of the two
    traces.
    """
    (before, after) = moved.live
    (reserved, reserved_now) = moved.reserved
    result = f"peak of live memory {show_bytes(before)} -> {show_bytes(after)} ({moved.share:+.1%})"
    first = next((one for one in moved.lines if one.by * (after - before) > 0), None)
    result += f", most at {first.what}" if first else ""
    lines = [f"A: {names[0]}", f"B: {names[1]}", result]
    lines.append(f"reserved at most {show_bytes(reserved)} -> {show_bytes(reserved_now)}")
    rows = [
        [one.what + f" (was {one.was})" * bool(one.was), one.before, one.after, _by(one.by)]
        for one in moved.lines[:MOST_LINES]
    ]
    rows += [[one.what, one.before, one.after, _by(one.by)] for one in moved.kinds]
    left = len(moved.lines) - MOST_LINES
    notes = [f"{left} more lines moved by less"] * (left > 0)
    behind = f"changed lines behind it: {', '.join(moved.changed)}"
    notes += [behind] * bool(moved.changed and before != after)
    columns = ["at the peak", Column("A", "bytes"), Column("B", "bytes"), "by"]
    return Shown(result, columns, rows, notes, [*lines, ""], widest=80, result=result)


def _by(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{show_bytes(abs(size))}" if size else "0"


def _end(ends: End | None, card: str, grows: bool) -> str:
    if ends is None:
        why = "; no step was found at which it does" * grows
        return f"on {card} the recorded steps pass" + why
    if ends.recorded:
        return f"on {card} it runs out in step {ends.step:,}, which is in the recording"
    how = "replayed step by step" if ends.replayed else "extrapolated from a shorter replay"
    if ends.step > NEVER_STEPS:
        return f"on {card} it would last more than {NEVER_STEPS:,} steps: as good as never"
    return f"on {card} it runs out in step {ends.step:,} ({how})"


def growth_json(grown: Growth, ends: End | None, capacity_bytes: int) -> dict[str, Any]:
    """The same as data."""
    return {
        "schema_version": 1,
        "steps": len(grown.steps),
        "begins": grown.steps.line,
        "grows": bool(grown.growers),
        "bytes_per_step": round(grown.bytes_per_step),
        "growers": [
            {
                "where": one.site.name,
                "own": one.site.own,
                "bytes_per_step": round(one.bytes_per_step),
                "blocks_per_step": round(one.count, 4),
                "how": one.how,
                "last_of_step": one.last,
            }
            for one in grown.growers
        ],
        "window": grown.window,
        "live_bytes": grown.live,
        "inputs_grow": grown.inputs_grow,
        "seen_bytes": grown.seen_bytes,
        "seen_every_steps": grown.seen_every,
        "capacity_bytes": capacity_bytes or None,
        "runs_out": ends and ends._asdict(),
    }
