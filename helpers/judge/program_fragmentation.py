"""Answers for a recorded program whose free memory is in pieces that are too small."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.shapes import Alternative, Evidence, NextStep, Verdict
from helpers.ground.shell import word
from helpers.ground.units import show_bytes, told_apart
from helpers.judge.program_evidence import (
    EXPANDABLE,
    also_grows,
    keeps,
    of_holding,
    of_refusal,
    of_repeat,
    size_evidence,
)
from helpers.judge.program_facts import ProgramFacts, Refusal
from helpers.judge.program_questions import all_but_fills_the_card, is_large
from helpers.judge.program_steps import (
    allowed_in_words,
    check_by_rehearsing,
    gets_past,
    likely_until_repeated,
    start_anew,
)


def fragmentation(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The program passes under another setting: its free memory was in pieces too small.

    It is confirmed where the whole program passed, and neither what it keeps nor its peak would
    fill the card all the same.
    """
    # A repeat is made with expandable segments; the replay tries other settings, too. The empty
    # one is the default: then the setting that the program has is the trouble.
    setting: str | None = EXPANDABLE
    if facts.expandable is None and facts.replays is not None:
        setting = facts.replays.passes_with
    named_setting = "the default settings"
    command = f"unset {facts.conf_variable}"
    if setting:
        named_setting = setting
        command = f"export {word(f'{facts.conf_variable}={setting}')}"
    title = _pieces_in_words(facts, refusal, named_setting)
    summary = f"{title}."
    if refusal.is_limited:
        summary += f" The program limits itself to {allowed_in_words(facts, refusal)}."
    growth = facts.growth
    more_evidence: list[Evidence] = []
    alternatives = []
    if growth is not None and is_large(growth, refusal):
        summary += f" It also {keeps(growth.growers[0], growth)}; a longer run will fail because of that."
        more_evidence += also_grows(facts)
        alternatives.append(Alternative("user-leak", "weak"))
    repeat = facts.expandable
    if repeat is not None and all_but_fills_the_card(repeat, refusal):
        spare = show_bytes(refusal.usable_bytes - repeat.peak_allocated_bytes)
        summary += f" Even so, its tensors leave only {spare} of the card; a context may need more."
        alternatives.append(Alternative("true-capacity", "weak"))
    is_whole = refusal.fails_in_replay and facts.recording_is_whole
    whole_program_passed = facts.expandable is not None or is_whole
    verdict = Verdict(
        cause="allocator-fragmentation",
        confidence="confirmed",
        title=title,
        summary=summary,
        alternatives=alternatives,
        evidence=_evidence_of_pieces(facts, refusal, named_setting, more_evidence),
        next_step=start_anew(
            advice="Set this before you start the program; a running program does not see it",
            command=command,
            check=check_by_rehearsing(facts),
        ),
    )
    if whole_program_passed and not alternatives:
        return verdict
    return likely_until_repeated(verdict, facts)


def _pieces_in_words(facts: ProgramFacts, refusal: Refusal, setting: str) -> str:
    """That no free piece was large enough, and what the program does with a setting: it finishes,
    goes on, or gets past the request at which the recording ends.
    """
    request = show_bytes(refusal.request_bytes)
    piece = "no free piece"
    if refusal.is_limited:
        piece += f" in {show_bytes(refusal.usable_bytes)}"
    words = f"Fragmentation: {piece} was large enough for {request}"
    if facts.expandable is not None and facts.expandable.finishes:
        return f"{words}; the same program finishes with {setting}"
    if facts.expandable is None and not refusal.fails_in_replay:
        return f"{words}; {gets_past(setting)}"
    return f"{words}; the same program goes on with {setting}"


def _evidence_of_pieces(
    facts: ProgramFacts, refusal: Refusal, setting: str, more: Sequence[Evidence]
) -> list[Evidence]:
    """The refused request, the unused pieces, and what a repeat or the replay with a setting
    showed; ``more`` comes before the replay.
    """
    pieces = "Cached by PyTorch in pieces without a tensor"
    evidence = [
        of_refusal(facts, refusal),
        size_evidence("unused", refusal.unused_bytes, facts, pieces),
    ]
    if facts.expandable is not None:
        return [of_repeat(facts.expandable, facts), *evidence, *more]
    if facts.most_live_before_bytes:
        says = "Allocated at once earlier in the same run, on the same card"
        evidence.append(
            size_evidence("live-before", facts.most_live_before_bytes, facts, says)
        )
    evidence += more
    if facts.replays is not None and facts.replays.peak_bytes:
        says = f"Peak reserved when the recording is replayed with {setting}"
        evidence.append(
            size_evidence("replayed", facts.replays.peak_bytes, facts, says)
        )
    return evidence


def fragmentation_for_good(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """Fragmentation that no setting removes: by the repeat without a limit all that the program
    needs would fit, and the repeat with expandable segments failed as well.
    """
    limitless = facts.without_limit
    expandable = facts.expandable
    assert limitless is not None and expandable is not None, "asked only where both ran"
    peak, usable = told_apart(limitless.peak_allocated_bytes, refusal.usable_bytes)
    request = show_bytes(refusal.request_bytes)
    title = (
        f"Fragmentation: no piece was free for {request}, even with expandable segments; the program "
        f"needs only {peak} of {usable} at once"
    )
    return Verdict(
        cause="allocator-fragmentation",
        confidence="likely",
        title=title,
        summary=f"{title}.",
        alternatives=[Alternative("true-capacity", "weak")],
        evidence=[
            of_repeat(limitless, facts),
            of_refusal(facts, refusal),
            of_repeat(expandable, facts),
            *of_holding(facts),
        ],
        next_step=NextStep(
            what="Make what stays on the card before the large tensors that come and go, or keep it "
            "on the CPU until they are gone, so that it does not lie between them",
            check=check_by_rehearsing(facts),
        ),
    )
