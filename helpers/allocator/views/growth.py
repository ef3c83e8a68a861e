"""Shows what grows from step to step, by the program's own lines, and in which step it runs out.

A *grower* is a line of the program of whose tensors more are kept with each step; its *keeper* is
the variable, list or attribute that holds them.
"""

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
"""A later end counts as never: three hours at a step a millisecond, and days at usual speeds."""
WIDEST = 80
"""Characters of a cell: a line of the program with its function."""
DECIMALS_SHOWN = 2
DECIMALS_WRITTEN = 4
"""Of the tensors that a grower keeps in each step: one in 100 steps, and one in 10,000."""


def growing(study: Study) -> Shown:
    """What grows in a study's trace, and the step in which it runs out on the study's card. Where
    the trace has no lines of the program it is a table without rows that says so.
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
    """How the growth ends on the study's card, and the bytes of that card, 0 where its size is not
    known. The first is None where that is so, where growth could not be seen, and where it does not
    run out.
    """
    capacity = study.card.capacity_bytes
    if capacity >= AMPLE_BYTES:
        return None, 0
    if recorded.growth is None:
        return None, capacity
    # The growth may be that of a longer repeat of the program (RecordedGrowth.is_longer).
    longer = replace(study, trace=recorded.requests.trace)
    return exhaustion(recorded.requests, recorded.growth, longer), capacity


def growth_table(
    recorded: RecordedGrowth, runs_out: Exhaustion | None, capacity_bytes: int
) -> Shown:
    """A row for each grower, with its keeper, and above the rows what they mean. Where growth could
    not be seen it has no rows and says why.

    ``capacity_bytes``: of the card on which ``runs_out`` was computed; 0 where none was named.
    Raises LinesError where no request has a line of the program.
    """
    growth = recorded.growth
    if growth is None:
        if not recorded.requests.have_lines:
            raise LinesError(recorded.why_not)
        says = _too_early(recorded)
        return Shown(says, ["call site"], [], none=says, result=says)
    result = _result(recorded, growth)
    lines = [result, _counted(recorded, growth)]
    if growth.inputs_grow:
        lines.append(
            "each step allocates more than the one before, because its input grows; nothing of "
            "that is kept, but the peak rises with it"
        )
    # How it ends on the card is left out for a growth that is too small to be a leak: that would
    # run out in a step so late that no program reaches it. Unless a recorded step ran out.
    says_end = recorded.is_leak or recorded.ran_out or not growth.growers
    if runs_out is not None and runs_out.recorded:
        says_end = True
    if capacity_bytes and says_end:
        lines.append(_end(runs_out, show_bytes(capacity_bytes), bool(growth.growers)))
    elif recorded.is_leak:
        lines.append(
            "to see in which step it runs out, name the card with --capacity or --gpu"
        )
    head = columns(GROWERS, widest=WIDEST)
    rows = [_grower_cells(row) for row in recorded.growers]
    if not any(row.keeper for row in recorded.growers):
        # an empty first column is left out
        head = head[1:]
        rows = [row[1:] for row in rows]
    none = "No line keeps more memory from one step to the next."
    return Shown(result, head, rows, _notes(growth), [*lines, ""], none, result=result)


def _grower_cells(row: KeptGrower) -> list[object]:
    """The cells of a grower, in the order of GROWERS."""
    grower = row.grower
    tensors = round(grower.count, DECIMALS_SHOWN)
    return [
        _keeper_words(row.keeper),
        grower.site.name,
        round(grower.bytes_per_step),
        tensors or None,
        grower.how,
    ]


def _counted(recorded: RecordedGrowth, growth: Growth) -> str:
    """Over which steps the growth was counted, and which of them it was measured over."""
    steps = len(growth.steps)
    counted = f"counted over the {steps} steps of the recording"
    if recorded.is_longer:
        counted = f"counted over {steps} steps of the repeat without a memory limit"
    counted += f"; each step begins at {growth.steps.line}"
    if growth.growers:
        # Counted is what was kept after the step ``first``; people count steps from 1.
        first, last = growth.window
        counted += f"; the growth is measured from step {first + 2} to step {last + 1}"
    return counted


def _keeper_words(keeper: Keeper | None) -> str:
    """A keeper with the lines that put into it; empty for none."""
    if keeper is None:
        return ""
    where = ", ".join(keeper.lines) or keeper.where
    words = f"{keeper.name} ({where})"
    if keeper.with_graph:
        words += ", with its graph"
    return words


def _too_early(recorded: RecordedGrowth) -> str:
    """The answer on a program that ended before growth could be seen."""
    if not recorded.ran_out:
        return recorded.why_not
    if not recorded.reached_first_step:
        return "ran out of memory before its first step ended, so no step has kept anything"
    begun = recorded.steps_begun
    return f"ran out of memory in step {begun}: growth can be seen after {FEWEST_STEPS} steps"


def _result(recorded: RecordedGrowth, growth: Growth) -> str:
    """The answer in a sentence: what grows by how much, and whether that is a leak; where nothing
    grows, the smallest growth that would have shown.
    """
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
    """A note with the live bytes at the beginning of some steps, so that a reader can check the
    growth.
    """
    steps = len(growth.live)
    shown = sorted({0, 1, steps // 2, steps - 1})
    live = [show_bytes(growth.live[step]) for step in shown]
    return [
        "allocated when the first, the second, a middle and the last step begin: "
        f"{', '.join(live)}"
    ]


def _end(runs_out: Exhaustion | None, card: str, grows: bool) -> str:
    """The step in which it runs out on a card, and how that was found. ``card``: its size in words;
    ``grows``: some line keeps more with each step.
    """
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
    """What ``growth_table`` shows, as JSON. ``growers[].where`` names the line that keeps, then the
    line that asked. Where growth could not be seen it has the fields up to ``runs_out`` alone, and
    0 bytes per step.
    """
    runs_out_json = None
    if runs_out is not None:
        runs_out_json = runs_out._asdict()
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
        "runs_out": runs_out_json,
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
    """A grower as JSON; ``own``: the line that asks is in the program's own files."""
    grower = row.grower
    keeper = None
    if row.keeper is not None:
        keeper = asdict(row.keeper)
    return {
        "where": row.words,
        "asked_at": grower.site.name,
        "keeper": keeper,
        "own": grower.site.in_program,
        "bytes_per_step": round(grower.bytes_per_step),
        "blocks_per_step": round(grower.count, DECIMALS_WRITTEN),
        "how": grower.how,
    }
