"""Answers for a recorded program that failed by a setting, its own limit or idle checkpointing."""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import Alternative, Confidence, NextStep, Verdict
from helpers.ground.shell import word
from helpers.ground.units import show_bytes
from helpers.judge import capitalised
from helpers.judge.program_evidence import (
    of_holding,
    of_refusal,
    of_repeat,
    size_evidence,
    text_evidence,
)
from helpers.judge.program_facts import IdleCheckpointing, ProgramFacts, Refusal
from helpers.judge.program_questions import needed_bytes
from helpers.judge.program_steps import (
    allowed_in_words,
    check_by_rehearsing,
    likely_until_repeated,
    start_anew,
)


def ineffective_setting(facts: ProgramFacts) -> Verdict:
    """The setting of the allocator that was meant is not in force, or torch refused it: confirmed
    where torch refused it, or where a repeat was made with the setting.
    """
    trouble = facts.settings
    assert trouble is not None, "asked only where there is one"
    evidence = [
        text_evidence(
            "setting", f"{trouble.variable}={trouble.value}", facts, trouble.why
        )
    ]
    if facts.refusal is not None:
        evidence.append(of_refusal(facts, facts.refusal))
    if facts.expandable is not None:
        evidence.append(of_repeat(facts.expandable, facts))
    confidence: Confidence = "likely"
    if trouble.fatal or facts.expandable is not None:
        confidence = "confirmed"
    # Where the program itself sets another value later, exporting this one changes nothing.
    command = ""
    if trouble.instead and not trouble.overwritten_in:
        command = f"export {word(trouble.instead)}"
    return Verdict(
        cause="config-ineffective",
        confidence=confidence,
        title=trouble.says,
        summary=f"{trouble.says}.",
        evidence=evidence,
        next_step=start_anew(capitalised(trouble.advice), command),
    )


def limited_by_itself(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The program's own limit refused the request, for which the card has room. How much it needs
    in all is known only from a repeat without a limit that finished; else it is a lower bound.
    """
    repeat = facts.without_limit
    is_measured = repeat is not None and repeat.finishes
    needed = show_bytes(needed_bytes(facts, refusal))
    if not is_measured:
        needed = f"at least {needed}"
    title = f"The program needs {needed} but limits itself to {allowed_in_words(facts, refusal)}; "
    title += f"the card has {show_bytes(refusal.room_bytes)}"
    evidence = [
        of_refusal(facts, refusal),
        size_evidence(
            "allowed",
            refusal.allowed_bytes,
            facts,
            "The limit that this process sets for itself",
        ),
    ]
    if repeat is not None:
        evidence.append(of_repeat(repeat, facts))
    evidence += of_holding(facts)
    verdict = Verdict(
        cause="config-ineffective",
        confidence="likely",
        title=title,
        summary=f"{title}.",
        evidence=evidence,
        next_step=NextStep(
            what="Raise or drop the share in set_per_process_memory_fraction, or in the allocator's "
            "per_process_memory_fraction",
            check=check_by_rehearsing(facts),
            blast_radius="other programs on the card get less memory",
        ),
    )
    if is_measured:
        return verdict
    verdict = likely_until_repeated(verdict, facts)
    return replace(verdict, alternatives=[Alternative("true-capacity", "weak")])


def idle_checkpointing(
    facts: ProgramFacts, checkpointing: IdleCheckpointing, refusal: Refusal
) -> Verdict:
    """Gradient checkpointing is on without effect; how much the program needs with it, nobody has
    measured.
    """
    title = (
        "Gradient checkpointing is on but has no effect: "
        f"{checkpointing.model} is in evaluation mode"
    )
    if checkpointing.where:
        title += f" ({checkpointing.where})"
    mode = (
        "The model was in evaluation mode when the memory ran out; transformers applies "
        "checkpointing only in training mode"
    )
    evidence = [
        text_evidence("checkpointing-in-eval", "training=False", facts, mode),
        of_refusal(facts, refusal),
    ]
    if facts.without_limit is not None:
        evidence.append(of_repeat(facts.without_limit, facts))
    return Verdict(
        cause="config-ineffective",
        confidence="likely",
        title=title,
        summary=f"{title}. Each layer's activations are kept for the backward pass.",
        alternatives=[Alternative("true-capacity", "weak")],
        evidence=evidence,
        next_step=NextStep(
            what="Call model.train() before each training step; if this pass is an evaluation, "
            "run it under torch.no_grad()",
            check=check_by_rehearsing(facts),
            blast_radius="dropout and batch statistics are on in training mode",
        ),
    )
