"""Why did the recorded program fail, or did it?

One answer from all that its recording shows. Asked in this order: does a setting come too late or
does torch refuse it; do processes share a card that is too small for them; was anything refused,
and did the program go on; does the whole program pass under another setting; does it keep more
with each step; is one of several cards full; do others hold the card; does the request lie in
pieces; was checkpointing on without effect; is it too much. Only a repeat, or a recording that
goes on behind the request, confirms.
"""

from __future__ import annotations

from dataclasses import replace

from helpers.ground.shapes import Alternative, NextStep, Verdict
from helpers.ground.units import show_bytes
from helpers.judge.program_capacity import (
    capacity,
    held_by_others,
    too_much_together,
    uneven_cards,
)
from helpers.judge.program_evidence import of_growth, of_holding, of_refusal
from helpers.judge.program_facts import CardFacts, GrowthFacts, ProgramFacts, Refusal
from helpers.judge.program_fragmentation import fragmentation, fragmentation_for_good
from helpers.judge.program_healthy import nothing_refused, went_on
from helpers.judge.program_leak import (
    leak,
    leak_or_larger_step,
    leak_or_one_long_step,
    leak_to_come,
)
from helpers.judge.program_questions import (
    even_shares_fit,
    failed_in_a_larger_step,
    growth_fills_the_card,
    is_too_much,
    lies_in_pieces_whatever_the_setting,
    one_card_is_overfull,
    only_its_limit_refuses,
    only_lies_in_pieces,
    others_hold_it,
    overfull_together,
    passes_with_another_setting,
    setting_explains,
)
from helpers.judge.program_settings import (
    idle_checkpointing,
    ineffective_setting,
    limited_by_itself,
)
from helpers.judge.program_steps import gets_past, rehearse_command, repeat_would_decide


def program_verdict(facts: ProgramFacts) -> Verdict:
    """The verdict on a recorded program. What it leaves open is ``cannot-tell``: other evidence
    may decide it.
    """
    verdict = _verdict(facts)
    # A made trace proves something about itself alone, so nothing is confirmed by it.
    if facts.is_real or verdict.confidence != "confirmed":
        return verdict
    return replace(verdict, confidence="likely")


def _verdict(facts: ProgramFacts) -> Verdict:
    """The first answer that the facts give, in the order of the questions above."""
    refusal = facts.refusal
    if facts.settings is not None and setting_explains(facts):
        return ineffective_setting(facts)
    shared = overfull_together(facts)
    if shared is not None:
        return _of_shared_card(facts, shared)
    if refusal is None:
        return _without_refusal(facts)
    # The program ended well: it caught the refusal. One that only the replay has was no error.
    if facts.exit_code == 0 and not refusal.fails_in_replay:
        return went_on(facts, refusal)
    if passes_with_another_setting(facts, refusal):
        return fragmentation(facts, refusal)
    if facts.growth is not None and growth_fills_the_card(facts, facts.growth, refusal):
        return _of_growing_program(facts, facts.growth, refusal)
    return _of_steady_program(facts, refusal)


def _of_shared_card(facts: ProgramFacts, card: CardFacts) -> Verdict:
    """Several processes need more of a card than it has."""
    if even_shares_fit(facts):
        return uneven_cards(facts)
    return too_much_together(facts, card)


def _without_refusal(facts: ProgramFacts) -> Verdict:
    """No request was refused: memory may still run out in a later step."""
    if facts.growth is not None and facts.runs_out_in_step:
        return leak_to_come(facts, facts.growth)
    return nothing_refused(facts)


def _of_growing_program(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> Verdict:
    """What the steps keep fills the card; without a repeat, one large step may look like that."""
    was_repeated = facts.without_limit is not None
    if growth.may_be_one_step and not was_repeated:
        return leak_or_one_long_step(facts, growth, refusal)
    if failed_in_a_larger_step(growth, refusal) and not was_repeated:
        return leak_or_larger_step(facts, growth, refusal)
    return leak(facts, growth, refusal)


def _of_steady_program(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """Nothing that grows explains the refusal."""
    if one_card_is_overfull(facts):
        return uneven_cards(facts)
    if others_hold_it(facts, refusal):
        return held_by_others(facts, refusal)
    if only_lies_in_pieces(facts, refusal):
        return fragmentation(facts, refusal)
    if lies_in_pieces_whatever_the_setting(facts, refusal):
        return fragmentation_for_good(facts, refusal)
    if only_its_limit_refuses(facts, refusal):
        return limited_by_itself(facts, refusal)
    if facts.idle_checkpointing is not None:
        return idle_checkpointing(facts, facts.idle_checkpointing, refusal)
    if is_too_much(facts, refusal):
        return capacity(facts, refusal)
    return _undecided(facts, refusal)


def _undecided(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The verdict ``cannot-tell``: the free memory would hold the request in one piece, and the
    recording ends there, so nothing shows whether the program needs more later.
    """
    alternatives = [
        Alternative("true-capacity", "weak"),
        Alternative("allocator-fragmentation", "weak"),
    ]
    evidence = [of_refusal(facts, refusal)]
    if facts.growth is not None and facts.growth.growers:
        alternatives.append(Alternative("user-leak", "weak"))
        evidence.append(of_growth(facts, facts.growth))
    evidence += of_holding(facts)
    summary = (
        "All free memory together is large enough for the request, but no single piece is. The "
        "recording ends there, so it does not show whether the program needs even more."
    )
    title = f"No free piece was large enough for {show_bytes(refusal.request_bytes)}"
    replays = facts.replays
    if replays is not None and replays.passes_with:
        title += f"; {gets_past(replays.passes_with)}"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=summary,
        alternatives=alternatives,
        evidence=evidence,
        missing=[repeat_would_decide(facts)],
        next_step=NextStep(
            what="Rehearse the program: its run without a memory limit will decide",
            command=rehearse_command(facts),
        ),
    )
