"""Answers for a recorded program in which nothing failed, or which went on after an error."""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import Evidence, Missing, NextStep, Verdict
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
    """A program that ended well (``healthy``), or a recording in which nothing failed: then the
    run that failed has still to be recorded.
    """
    title = _title(facts)
    summary = f"{title}."
    evidence = _evidence_of_peak(facts)
    growth = facts.growth
    if growth is not None and growth.growers:
        summary += (
            f" The program {keeps(growth.growers[0], growth)}. This is a leak only if you do not "
            "need it later."
        )
        evidence.append(of_growth(facts, growth))
        if facts.exit_code == 0:
            evidence += also_grows(facts)
    elif growth is not None:
        summary += f" Memory does not grow over its {growth.steps} steps."
    verdict = Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=title,
        summary=summary,
        evidence=evidence,
        next_step=NextStep("Nothing to do"),
    )
    if facts.exit_code == 0:
        return verdict
    how = "casebook record --out trace.pickle -- python train.py"
    return replace(
        verdict,
        state="",
        missing=[Missing("a recording of the run that failed", how)],
        next_step=NextStep(
            what="Record the run that fails. For this recording, whatif shows what another card "
            "or setting would do, and leaks shows what grows",
            command="casebook record --out failing.pickle -- python train.py\n"
            f"casebook whatif {facts.trace} --capacity 16GiB\n"
            f"casebook leaks {facts.trace}",
        ),
    )


def _title(facts: ProgramFacts) -> str:
    """How the program ended (exit code 0, another one, or None where no record says it), or that
    nothing failed in what was recorded of it; and its peak, or what it keeps with each step.
    """
    peak = show_bytes(facts.peak_allocated_bytes)
    if facts.exit_code == 0 and facts.usable_bytes:
        return (
            f"The program finished; its tensors used {peak} at the peak, of the "
            f"{show_bytes(facts.usable_bytes)} that it can have"
        )
    if facts.exit_code == 0:
        return f"The program finished; at its peak it used {peak}"
    # Without an exit code of 0 the fit proves only what was recorded.
    if not facts.recording_is_whole:
        return (
            f"The recorded part fits on this card (peak {peak}), but the recording ends where the "
            "program ran out of memory"
        )
    growth = facts.growth
    if growth is not None and growth.growers:
        keeps_more = keeps(growth.growers[0], growth)
        return f"Nothing failed in this recording; the program {keeps_more}"
    if facts.exit_code:
        return (
            f"The program ended with exit code {facts.exit_code}, but no request for GPU memory "
            f"failed; at its peak it used {peak}"
        )
    return f"Nothing failed in this recording; at its peak {peak} was allocated"


def _evidence_of_peak(facts: ProgramFacts) -> list[Evidence]:
    """What was allocated and reserved at the peak, and by which lines, and what at the end."""
    sizes = [("peak", facts.peak_allocated_bytes, "Allocated at the peak")]
    if facts.peak_reserved_bytes:
        says = "Reserved on the card at the peak; cached memory counts too, which is normal"
        sizes.append(("reserved", facts.peak_reserved_bytes, says))
    says = "Allocated at the end of the recording"
    sizes.append(("at-end", facts.allocated_at_end_bytes, says))
    evidence = [size_evidence(name, size, facts, says) for name, size, says in sizes]
    return [*evidence, *of_holding(facts)]


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
