"""Answers for a recorded program in which nothing failed, or which went on after an error."""

from __future__ import annotations

from helpers.ground.shapes import Missing, NextStep, Verdict
from helpers.ground.units import show_bytes, times_in_words
from helpers.judge.program_evidence import (
    also_grows,
    keeps,
    of_growth,
    of_holding,
    of_refusal,
    size_evidence,
)
from helpers.judge.program_facts import ProgramFacts, Refusal


def nothing_refused(facts: ProgramFacts) -> Verdict:
    """A program that ended well, or a recording in which nothing failed."""
    peak = show_bytes(facts.peak_allocated_bytes)
    evidence = [
        size_evidence(
            "peak", facts.peak_allocated_bytes, facts, "Allocated at the peak"
        )
    ]
    if facts.peak_reserved_bytes:
        reserved = facts.peak_reserved_bytes
        says = "Reserved on the card at the peak; cached memory counts too, which is normal"
        evidence.append(size_evidence("reserved", reserved, facts, says))
    at_end = facts.allocated_at_end_bytes
    evidence.append(
        size_evidence("at-end", at_end, facts, "Allocated at the end of the recording")
    )
    evidence += of_holding(facts)
    ended_well = facts.exit_code == 0
    growth = facts.growth
    grower = growth.growers[0] if growth is not None and growth.growers else None
    title = f"Nothing failed in this recording; at its peak {peak} was allocated"
    if not facts.recording_is_whole:
        title = f"The recorded part fits on this card (peak {peak}), but the recording ends where "
        title += "the program ran out of memory"
    if growth is not None and grower is not None and facts.recording_is_whole:
        title = f"Nothing failed in this recording; the program {keeps(grower, growth)}"
    elif facts.exit_code and facts.recording_is_whole:
        title = (
            f"The program ended with exit code {facts.exit_code}, but no request for GPU memory "
            f"failed; at its peak it used {peak}"
        )
    if ended_well and facts.usable_bytes:
        title = (
            f"The program finished; its tensors used {peak} at the peak, of the "
            f"{show_bytes(facts.usable_bytes)} that it can have"
        )
    elif ended_well:
        title = f"The program finished; at its peak it used {peak}"
    summary = f"{title}."
    if growth is not None and grower is not None:
        summary += (
            f" The program {keeps(grower, growth)}. This is a leak only if you do not need it "
            "later."
        )
        evidence.append(of_growth(facts, growth))
        if ended_well:
            evidence += also_grows(facts)
    elif growth is not None:
        summary += f" Memory does not grow over its {growth.steps} steps."
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy" if ended_well else "",
        title=title,
        summary=summary,
        evidence=evidence,
        missing=[] if ended_well else [_the_failing_run()],
        next_step=_step_where_nothing_failed(facts, ended_well),
    )


def _step_where_nothing_failed(facts: ProgramFacts, ended_well: bool) -> NextStep:
    if ended_well:
        return NextStep("Nothing to do")
    return NextStep(
        what="Record the run that fails. For this recording, whatif shows what another card or "
        "setting would do, and leaks shows what grows",
        command="casebook record --out failing.pickle -- python train.py\n"
        f"casebook whatif {facts.trace} --capacity 16GiB\n"
        f"casebook leaks {facts.trace}",
    )


def went_on(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """A program that caught its out-of-memory and ended well."""
    times = times_in_words(facts.ooms)
    title = f"The program ran out of memory {times}, caught the error and finished"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=title,
        summary=f"{title}. It searches for what fits, or it can work without that memory.",
        evidence=[of_refusal(facts, refusal)],
        next_step=NextStep(
            what="Nothing to do, unless the program needs the memory it asked for"
        ),
    )


def _the_failing_run() -> Missing:
    how = "casebook record --out trace.pickle -- python train.py"
    return Missing("a recording of the run that failed", how)
