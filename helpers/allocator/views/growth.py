"""What grows from step to step, by the program's own lines, and in which step it runs out."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from helpers.allocator.call_sites import LinesError
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.exhaustion import Exhaustion, exhaustion
from helpers.allocator.growers import (
    KeptGrower,
    RecordedGrowth,
    growth_of_recording,
)
from helpers.allocator.growth import Growth
from helpers.allocator.recorded_keepers import Keeper
from helpers.allocator.steps import FEWEST_STEPS
from helpers.allocator.study import Study
from helpers.ground.units import show_bytes
from helpers.settings.in_force import MIN_BLOCK_BYTES
from helpers.tell.shown import Shown
from helpers.tell.values import columns

GROWERS = (
    "kept by:line, allocated at:line, more each step:number:bytes, tensors each step:number, "
    "how it grows:word"
)
NEVER_STEPS = 10_000_000
"""A later end is said to be as good as never: a step a millisecond for three hours."""


def growing(study: Study) -> Shown:
    """What grows in a study's trace, and the step in which it runs out on its card; where that
    cannot be said, why.
    """
    recorded = growth_of_recording(study.trace, study.path)
    try:
        return growth_table(recorded, *runs_out_on(study, recorded))
    except LinesError as error:
        return Shown(
            "What grows from step to step", ["call site"], [], none=f"Unknown: {error}."
        )


def runs_out_on(
    study: Study, recorded: RecordedGrowth
) -> tuple[Exhaustion | None, int]:
    """Where what grows runs out on the study's card, and on how many bytes; 0 where no card was
    named.
    """
    capacity = study.card.capacity_bytes
    if capacity >= AMPLE_BYTES:
        return None, 0
    if recorded.growth is None:
        return None, capacity
    longer = replace(study, trace=recorded.requests.trace)
    return exhaustion(recorded.requests, recorded.growth, longer), capacity


def growth_table(
    recorded: RecordedGrowth, runs_out: Exhaustion | None, capacity_bytes: int
) -> Shown:
    """What grows, a call site a line: who keeps it first.

    ``capacity_bytes``: of the card that ``runs_out`` speaks of; 0 where none was named. Raises
    LinesError where no request has a line of the program.
    """
    growth = recorded.growth
    if growth is None:
        if not recorded.requests.have_lines:
            raise LinesError(recorded.why_not)
        says = _too_early(recorded)
        return Shown(says, ["call site"], [], none=says, result=says)
    steps = len(growth.steps)
    result = _result(recorded, growth)
    counted = f"counted over the {steps} steps of the recording"
    if recorded.is_longer:
        counted = f"counted over {steps} steps of the repeat without a memory limit"
    counted += f"; each step begins at {growth.steps.line}"
    if growth.growers:
        first, last = growth.window
        counted += f"; the growth is measured from step {first + 2} to step {last + 1}"
    lines = [result, counted]
    if growth.inputs_grow:
        lines.append(
            "each step allocates more than the one before, because its input grows; nothing of "
            "that is kept, but the peak rises with it"
        )
    runs_out_here = runs_out is not None and runs_out.recorded
    may_run_out = recorded.is_leak or recorded.ran_out or not growth.growers
    if capacity_bytes and (may_run_out or runs_out_here):
        lines.append(_end(runs_out, show_bytes(capacity_bytes), bool(growth.growers)))
    elif recorded.is_leak:
        lines.append(
            "to see in which step it runs out, name the card with --capacity or --gpu"
        )
    rows = [
        [
            _who(row.keeper),
            row.grower.site.name,
            round(row.grower.bytes_per_step),
            round(row.grower.count, 2) or None,
            row.grower.how,
        ]
        for row in recorded.growers
    ]
    head = columns(GROWERS, widest=80)
    if not any(row.keeper for row in recorded.growers):
        head = head[1:]
        rows = [row[1:] for row in rows]
    none = "No line keeps more memory from one step to the next."
    return Shown(result, head, rows, _notes(growth), [*lines, ""], none, result=result)


def _who(keeper: Keeper | None) -> str:
    if keeper is None:
        return ""
    where = ", ".join(keeper.lines) or keeper.where
    graph = ", with its graph" if keeper.with_graph else ""
    return f"{keeper.name} ({where}){graph}"


def _too_early(recorded: RecordedGrowth) -> str:
    """What is said of a program that ended before anything could be seen to grow."""
    if not recorded.ran_out:
        return recorded.why_not
    if not recorded.reached_first_step:
        return "ran out of memory before its first step ended, so no step has kept anything"
    begun = recorded.steps_begun
    return f"ran out of memory in step {begun}: growth can be seen after {FEWEST_STEPS} steps"


def _result(recorded: RecordedGrowth, growth: Growth) -> str:
    if recorded.growers:
        size = show_bytes(round(growth.bytes_per_step))
        first = recorded.growers[0]
        if not recorded.is_leak:
            kept = f"each step keeps {size}, most at {first.line}"
            if recorded.ran_out:
                return f"{kept}; that is too little to be why the program ran out of memory"
            return f"{kept}, and the program finished: this is a leak only if you do not need it later"
        if first.keeper is not None:
            return f"grows by {size} each step: {first.words}"
        return f"grows by {size} each step, most at {first.grower.site.name}"
    often = ""
    if growth.seen_every > 1:
        often = f" at least once in {growth.seen_every} steps"
    least = f"growth of {show_bytes(MIN_BLOCK_BYTES)} or more per step{often}"
    return f"no growth in {len(growth.steps)} steps ({least} would show)"


def _notes(growth: Growth) -> list[str]:
    steps = len(growth.live)
    live = [show_bytes(growth.live[at]) for at in sorted({0, 1, steps // 2, steps - 1})]
    return [
        "allocated when the first, the second, a middle and the last step begin: "
        f"{', '.join(live)}"
    ]


def _end(runs_out: Exhaustion | None, card: str, grows: bool) -> str:
    if runs_out is None:
        words = f"on a card of {card} the recorded steps pass"
        if grows:
            words += ", and no later step was found in which it runs out"
        return words
    if runs_out.recorded:
        return f"on a card of {card} it runs out in step {runs_out.step:,} (replayed from the recorded steps)"
    if runs_out.step > NEVER_STEPS:
        return f"on a card of {card} it lasts more than {NEVER_STEPS:,} steps: practically forever"
    how = "extrapolated from a shorter replay"
    if runs_out.replayed:
        how = "replayed step by step"
    return f"on a card of {card} it runs out in step {runs_out.step:,} ({how})"


def growth_json(
    recorded: RecordedGrowth, runs_out: Exhaustion | None, capacity_bytes: int
) -> dict[str, Any]:
    """The same as data: ``growers[].where`` names the line that keeps, then the one that asked."""
    answer: dict[str, Any] = {
        "schema_version": 1,
        "steps": recorded.steps_begun,
        "begins": "",
        "grows": recorded.is_leak,
        "bytes_per_step": 0,
        "growers": [_grower_json(row) for row in recorded.growers],
        "held_bytes": recorded.held_bytes,
        "ran_out": recorded.ran_out,
        "reached_first_step": recorded.reached_first_step,
        "without_limit": recorded.is_longer,
        "capacity_bytes": capacity_bytes or None,
        "runs_out": None if runs_out is None else runs_out._asdict(),
    }
    growth = recorded.growth
    if growth is None:
        return answer
    return {
        **answer,
        "steps": len(growth.steps),
        "begins": growth.steps.line,
        "bytes_per_step": round(growth.bytes_per_step),
        "window": growth.window,
        "live_bytes": growth.live,
        "inputs_grow": growth.inputs_grow,
        "seen_bytes": MIN_BLOCK_BYTES,
        "seen_every_steps": growth.seen_every,
    }


def _grower_json(row: KeptGrower) -> dict[str, Any]:
    grower = row.grower
    return {
        "where": row.words,
        "asked_at": grower.site.name,
        "keeper": None if row.keeper is None else asdict(row.keeper),
        "own": grower.site.in_program,
        "bytes_per_step": round(grower.bytes_per_step),
        "blocks_per_step": round(grower.count, 4),
        "how": grower.how,
    }
