"""Answers for a recorded program that keeps more memory with each step."""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import (
    Alternative,
    Confidence,
    Evidence,
    Missing,
    NextStep,
    Verdict,
)
from helpers.ground.units import show_bytes
from helpers.judge.program_evidence import (
    keeps,
    of_growth,
    of_holding,
    of_refusal,
    of_repeat,
    size_evidence,
)
from helpers.judge.program_facts import GrowerFacts, GrowthFacts, ProgramFacts, Refusal
from helpers.judge.program_steps import (
    check_by_rehearsing,
    end_of_room,
    likely_until_repeated,
    rehearse_command,
    repeat_would_decide,
)

NUMBERS_BYTES = 16 * 512
"""What up to 16 numbers take, each in a block of its own, which has 512 bytes at least
(kMinBlockSize of torch's allocator).
"""


def leak(facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal) -> Verdict:
    """What the program keeps with each step fills the card: confirmed where a repeat without a
    limit showed how it goes on, and only likely where it finishes with expandable segments.
    """
    grower = growth.growers[0]
    evidence = [of_growth(facts, growth), of_refusal(facts, refusal)]
    against: list[Evidence] = []
    alternatives = []
    confidence: Confidence = "confirmed"
    if facts.without_limit is not None:
        evidence.append(of_repeat(facts.without_limit, facts))
    else:
        alternatives.append(Alternative("true-capacity", "weak"))
    if facts.expandable is not None and facts.expandable.finishes:
        against.append(of_repeat(facts.expandable, facts))
        alternatives.append(Alternative("allocator-fragmentation", "weak"))
        confidence = "likely"
    elif facts.expandable is not None:  # it failed there as well: no fragmentation
        evidence.append(of_repeat(facts.expandable, facts))
    verdict = Verdict(
        cause="user-leak",
        confidence=confidence,
        title=f"Your program {keeps(grower, growth)}",
        summary=f"Your program {keeps(grower, growth)}, until {end_of_room(facts, refusal)}.",
        alternatives=alternatives,
        evidence=evidence,
        against=against,
        next_step=_let_go(facts, grower),
    )
    if facts.without_limit is None:
        return likely_until_repeated(verdict, facts)
    return verdict


def leak_to_come(facts: ProgramFacts, growth: GrowthFacts) -> Verdict:
    """A program that was ended in its steps, and would have filled the card in a later one."""
    grower = growth.growers[0]
    title = f"Your program {keeps(grower, growth)}"
    room = show_bytes(facts.usable_bytes)
    fills = f"at this rate it fills the {room} in step {facts.runs_out_in_step:,}"
    return Verdict(
        cause="user-leak",
        confidence="weak",
        title=f"{title}; {fills}",
        summary=f"{title}; {fills}. The run ended before that step.",
        evidence=[of_growth(facts, growth), *of_holding(facts)],
        missing=[
            Missing(
                "a run to the end, to see whether the growth continues",
                rehearse_command(facts),
            )
        ],
        next_step=_let_go(facts, grower),
    )


def _let_go(facts: ProgramFacts, grower: GrowerFacts) -> NextStep:
    """The change that ``casebook fix`` tries first, where it was looked for, else advice by what
    keeps the memory.
    """
    step = NextStep(
        what=_how_to_let_go(grower),
        blast_radius=_side_effects_of_letting_go(grower),
        check=check_by_rehearsing(facts),
    )
    change = facts.first_change
    if change is None:
        return step
    return replace(step, what=change.title, blast_radius=change.costs)


def _how_to_let_go(grower: GrowerFacts) -> str:
    """What to change so that the program keeps no more memory, by what keeps it: a circle of
    objects, one graph that goes on growing, graphs of the entries of a collection, single
    numbers, or tensors alone.
    """
    if grower.in_circle:
        return (
            f"Leave Python's garbage collector on ({grower.line} switches it off), or call "
            "gc.collect() every few steps: only the collector takes away objects that refer to "
            "each other"
        )
    if grower.through_graph and grower.keeper:
        return (
            f"Cut the graph of {grower.keeper} when a step ends ({grower.line}): keep "
            f"{grower.keeper}.detach(), or .item() if it is a single number"
        )
    if grower.with_graphs:
        return (
            f"Keep the tensors in {grower.keeper} without their graphs ({grower.line}): append "
            ".detach(), or .item() to a single number; in an evaluation, torch.no_grad() makes none"
        )
    where = f"at {grower.line} from one step to the next"
    if grower.keeper:
        where = f"in {grower.keeper} ({grower.line})"
    if grower.bytes_per_step <= NUMBERS_BYTES:
        return f"Keep numbers {where} instead of GPU tensors: append .item() to a single number"
    return (
        f"Do not keep GPU tensors {where}: append .detach().cpu() to what you need of them, or "
        "delete them when the step ends"
    )


def _side_effects_of_letting_go(grower: GrowerFacts) -> str:
    """What the change that _how_to_let_go names costs; empty where it costs nothing.

    Cutting a graph and collecting circles copy nothing. Single numbers are copied to the CPU by
    .item(), for which the program waits; larger tensors take RAM there.
    """
    cuts_a_graph = grower.through_graph and grower.keeper
    if grower.in_circle or cuts_a_graph:
        return ""
    if grower.with_graphs or grower.bytes_per_step <= NUMBERS_BYTES:
        return "the program waits for the GPU at .item(), and nowhere else"
    return f"takes RAM: {show_bytes(grower.bytes_per_step)} a step"


def leak_or_one_long_step(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> Verdict:
    """Each pass of a loop keeps more memory, and nothing shows whether a backward pass frees it."""
    title = f"Your program {keeps(growth.growers[0], growth)}"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}; no backward pass was recorded that could free it.",
        alternatives=[
            Alternative("true-capacity", "weak"),
            Alternative("user-leak", "weak"),
        ],
        evidence=[of_growth(facts, growth), of_refusal(facts, refusal)],
        missing=[repeat_would_decide(facts)],
        next_step=NextStep(
            what="Shorten the loop if one backward pass follows all of it; else detach what each "
            "pass hands to the next",
            check=check_by_rehearsing(facts),
        ),
    )


def leak_or_larger_step(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> Verdict:
    """What the steps keep is a good part of the card, and the step that failed was a larger one."""
    needed = show_bytes(growth.rest_so_far_bytes)
    usual = show_bytes(growth.usual_rest_bytes)
    kept = f"your program also {keeps(growth.growers[0], growth)}"
    title = f"The step that failed needed {needed} at once, no step before it more than {usual}"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}; {kept}.",
        alternatives=[
            Alternative("true-capacity", "weak"),
            Alternative("user-leak", "weak"),
        ],
        evidence=[
            of_refusal(facts, refusal),
            size_evidence(
                "usual-step",
                growth.usual_rest_bytes,
                facts,
                "Needed at most in a step before it",
            ),
            of_growth(facts, growth),
        ],
        missing=[repeat_would_decide(facts)],
        next_step=NextStep(
            what="Rehearse the program: its run without a memory limit will decide whether the "
            "largest step alone is too large",
            command=rehearse_command(facts),
        ),
    )
