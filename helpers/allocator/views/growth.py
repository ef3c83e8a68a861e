"""What grows from step to step, by the program's own lines, and in which step it runs out."""

from __future__ import annotations

from typing import Any

from helpers.allocator.call_sites import LinesError, requests_of
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.exhaustion import Exhaustion, exhaustion
from helpers.allocator.growth import KEPT, Growth, growth_of
from helpers.allocator.study import Study
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import Column

NEVER_STEPS = 10_000_000
"""A later end is said to be as good as never: a step a millisecond for three hours."""


def growing(study: Study) -> Shown:
    """What grows in a study's trace, and the step in which it runs out on its card; where that
    cannot be said, why.
    """
    try:
        return growth_table(*growth_of_study(study))
    except LinesError as error:
        return Shown("What grows from step to step", ["call site"], [], none=f"Not told: {error}.")


def growth_of_study(study: Study) -> tuple[Growth, Exhaustion | None, int]:
    """What grows in a study's trace, where it runs out, and on how many bytes; 0 where no card
    was named.

    Raises LinesError.
    """
    requests = requests_of(study.trace)
    growth = growth_of(requests)
    if study.card.capacity_bytes >= AMPLE_BYTES:
        return growth, None, 0
    return growth, exhaustion(requests, growth, study), study.card.capacity_bytes


def growth_table(growth: Growth, runs_out: Exhaustion | None, capacity_bytes: int) -> Shown:
    """What grows, a call site a line.

    ``capacity_bytes``: of the card that ``runs_out`` speaks of; 0 where none was named.
    """
    steps = len(growth.steps)
    result = _result(growth)
    counted = f"{steps} steps, counted from the first of the trace"
    counted += f"; each begins at {growth.steps.line}"
    if growth.growers:
        first, last = growth.window
        counted += f"; growth from step {first + 2} to step {last + 1}"
    lines = [result, counted]
    if growth.inputs_grow:
        lines.append(
            "the steps ask for more from one to the next: what they are given becomes larger; "
            "that is not kept, but their peak rises with it"
        )
    if capacity_bytes:
        lines.append(_end(runs_out, show_bytes(capacity_bytes), bool(growth.growers)))
    elif growth.growers:
        lines.append("at which step it runs out: name the card with --capacity or --gpu")
    rows = [
        [
            grower.site.name,
            round(grower.bytes_per_step),
            round(grower.count, 2) or None,
            grower.how,
        ]
        for grower in growth.growers
    ]
    columns = ["call site", Column("a step", "bytes"), "blocks a step", "how"]
    none = "No call site keeps more from step to step."
    return Shown(
        result, columns, rows, _notes(growth), [*lines, ""], none, widest=80, result=result
    )


def _result(growth: Growth) -> str:
    if growth.growers:
        size = show_bytes(round(growth.bytes_per_step))
        return f"grows by {size} a step, most at {growth.growers[0].site.name}"
    often = "in every step"
    if growth.seen_every > 1:
        often = f"once in {growth.seen_every} steps"
    seen = f"{show_bytes(growth.seen_bytes)} a step, or more {often}, would have been seen"
    return f"no growth in {len(growth.steps)} steps; {seen}"


def _notes(growth: Growth) -> list[str]:
    notes = []
    together = [grower for grower in growth.growers if grower.how == KEPT and grower.site.own]
    last = next((grower for grower in together if grower.last), None)
    if last and len(together) > 2:
        notes.append(
            f"{len(together)} lines keep something in the same steps, the last of them "
            f"{last.site.name}: look there for what holds all of it, such as a loss that is kept with its graph"
        )
    steps = len(growth.live)
    live = [show_bytes(growth.live[at]) for at in sorted({0, 1, steps // 2, steps - 1})]
    when = "at the beginning of the first, the second, a middle and the last step"
    notes.append(f"live {when}: {', '.join(live)}")
    return notes


def _end(runs_out: Exhaustion | None, card: str, grows: bool) -> str:
    if runs_out is None:
        passes = f"on {card} the recorded steps pass"
        return f"{passes}; no step was found at which it does" if grows else passes
    if runs_out.recorded:
        return f"on {card} it runs out in step {runs_out.step:,}, which is in the recording"
    if runs_out.step > NEVER_STEPS:
        return f"on {card} it would last more than {NEVER_STEPS:,} steps: as good as never"
    how = "extrapolated from a shorter replay"
    if runs_out.replayed:
        how = "replayed step by step"
    return f"on {card} it runs out in step {runs_out.step:,} ({how})"


def growth_json(growth: Growth, runs_out: Exhaustion | None, capacity_bytes: int) -> dict[str, Any]:
    """The same as data."""
    return {
        "schema_version": 1,
        "steps": len(growth.steps),
        "begins": growth.steps.line,
        "grows": bool(growth.growers),
        "bytes_per_step": round(growth.bytes_per_step),
        "growers": [
            {
                "where": grower.site.name,
                "own": grower.site.own,
                "bytes_per_step": round(grower.bytes_per_step),
                "blocks_per_step": round(grower.count, 4),
                "how": grower.how,
                "last_of_step": grower.last,
            }
            for grower in growth.growers
        ],
        "window": growth.window,
        "live_bytes": growth.live,
        "inputs_grow": growth.inputs_grow,
        "seen_bytes": growth.seen_bytes,
        "seen_every_steps": growth.seen_every,
        "capacity_bytes": capacity_bytes or None,
        "runs_out": None if runs_out is None else runs_out._asdict(),
    }
