"""Answers for a recorded program that needs more memory than its cards have for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.ground.shapes import (
    LONGEST_TITLE,
    Alternative,
    Evidence,
    Missing,
    NextStep,
    Verdict,
)
from helpers.ground.units import show_bytes, told_apart
from helpers.judge.program_evidence import (
    also_grows,
    of_holding,
    of_refusal,
    of_repeat,
    size_evidence,
)
from helpers.judge.program_facts import CardFacts, ProgramFacts, Refusal
from helpers.judge.program_questions import (
    goes_on_to_need_too_much,
    needs_more_than_it_can_have,
    requests_pass,
)
from helpers.judge.program_steps import (
    allowed_in_words,
    check_by_rehearsing,
    likely_until_repeated,
    rehearse_command,
)


@dataclass(frozen=True)
class _Need:
    """How much a program is known to need at once. ``is_over``: that is more than it can have;
    ``is_least``: it may need more still.
    """

    bytes: int
    is_over: bool
    is_least: bool


def capacity(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The program needs more than the card has for it: confirmed where that was measured, likely
    where only the refused request is known, or where memory grows in the steps after it.
    """
    need = _need_of(facts, refusal)
    growth = facts.growth
    grows_later = growth is not None and bool(growth.growers) and growth.is_later
    is_certain = need.is_over and not grows_later
    title = _need_in_words(facts, refusal, need)
    summary = f"{title}."
    if not facts.reached_first_step:
        summary += " It failed before its first step ended."
    advice, side_effects = _how_to_use_less(facts, refusal, need)
    if facts.without_limit is None and not is_certain and facts.command:
        advice += ". How much it needs in all is not known"
    verdict = Verdict(
        cause="true-capacity",
        confidence="confirmed",
        title=title,
        summary=summary,
        evidence=_evidence_of_need(facts, refusal),
        next_step=NextStep(
            what=advice, check=check_by_rehearsing(facts), blast_radius=side_effects
        ),
    )
    if is_certain:
        return verdict
    verdict = likely_until_repeated(verdict, facts)
    return replace(verdict, alternatives=[Alternative("user-leak", "weak")])


def _need_of(facts: ProgramFacts, refusal: Refusal) -> _Need:
    """The most that the program is known to need: in a repeat without a limit, in the replay, or at
    the refusal.
    """
    needed_bytes = refusal.allocated_bytes + refusal.request_bytes
    repeat = facts.without_limit
    # A repeat that was stopped by a limit of its own had not reached its peak yet.
    if repeat is not None and needs_more_than_it_can_have(facts, refusal):
        most_bytes = max(needed_bytes, repeat.repeatable_peak_bytes)
        return _Need(most_bytes, is_over=True, is_least=bool(repeat.stopped))
    if refusal.fails_in_replay and facts.peak_allocated_bytes > refusal.usable_bytes:
        is_least = not facts.recording_is_whole
        return _Need(facts.peak_allocated_bytes, is_over=True, is_least=is_least)
    return _Need(needed_bytes, is_over=False, is_least=True)


def _need_in_words(facts: ProgramFacts, refusal: Refusal, need: _Need) -> str:
    """What the program needs and what it can have, with the line that asks for most of it where
    the title has room for that. In this order: more is needed at once than it can have (to the
    byte, or as a repeat showed it); it will be, as it goes on; it would fit, but in no one piece.
    """
    needed, usable = told_apart(need.bytes, refusal.usable_bytes)
    usable = allowed_in_words(facts, refusal, usable)
    if need.bytes > refusal.usable_bytes:
        if need.is_least:
            needed = f"at least {needed}"
        words = f"The program needs {needed} at once; it can use {usable}"
        with_place = words + _largest_place(facts, refusal)
        if len(with_place) <= LONGEST_TITLE:
            return with_place
        return words
    if need.is_over:  # the peak of a repeat is over; what surely repeats of it is not
        return f"The program needs more at once than the {usable} that it can use"
    request = show_bytes(refusal.request_bytes)
    if goes_on_to_need_too_much(facts, refusal):
        to_come = show_bytes(facts.more_to_come_bytes)
        return (
            f"The program needs {needed} at once and then {to_come} more, as it did at this place "
            f"before; it can use {usable}"
        )
    # Under some setting the replay finds a piece for each request.
    if requests_pass(facts):
        live = show_bytes(refusal.allocated_bytes)
        return (
            f"{live} of the {usable} that the program can use is in use, and {request} more did "
            "not fit"
        )
    return (
        f"The program needs at least {needed} at once; it can use {usable}, where no setting finds "
        f"a piece for the last {request}"
    )


def _evidence_of_need(facts: ProgramFacts, refusal: Refusal) -> list[Evidence]:
    """The refused request between the repeats that were made, and the lines that hold most."""
    evidence = [of_refusal(facts, refusal)]
    if facts.without_limit is not None:
        evidence.insert(0, of_repeat(facts.without_limit, facts))
    if facts.expandable is not None:
        evidence.append(of_repeat(facts.expandable, facts))
    elif facts.replays is not None and facts.replays.needs_bytes:
        more = facts.replays.needs_bytes
        evidence.append(
            size_evidence("needs", more, facts, "Still missing with the best setting")
        )
    return [*evidence, *of_holding(facts), *also_grows(facts)]


def _how_to_use_less(
    facts: ProgramFacts, refusal: Refusal, need: _Need
) -> tuple[str, str]:
    """What to change, and its side effects: the change that ``casebook fix`` found in the sources,
    else general advice.
    """
    less = "Use less memory at once"
    if need.bytes > refusal.usable_bytes:
        missing = show_bytes(need.bytes - refusal.usable_bytes)
        less = f"Use at least {missing} less memory at once"
    if facts.first_change is not None:
        return (
            f"{less}. First try: {facts.first_change.title}",
            facts.first_change.costs,
        )
    side_effects = "slower; a different batch size may change training results"
    return f"{less}: {_ways_to_use_less(facts, need.bytes)}", side_effects


def _ways_to_use_less(facts: ProgramFacts, needed: int) -> str:
    """What to change first, of a program that needs so many bytes. A smaller batch helps little
    where the model, with its gradients and optimizer states, is at least half of that.
    """
    weights_bytes = facts.asked_before_forward_bytes
    model_bytes = weights_bytes + facts.trained_bytes
    if 2 * model_bytes < needed:
        return "a smaller batch first, then shorter inputs, checkpointing or offload"
    if facts.trained_bytes:
        return (
            f"{show_bytes(model_bytes)} is weights, gradients and optimizer states, which have one "
            "size whatever the batch: train fewer weights (LoRA), use an 8-bit optimizer, offload "
            "or split them; a smaller batch saves only of the rest"
        )
    return (
        f"{show_bytes(weights_bytes)} was there before the first forward pass, so load the weights in "
        "fewer bits, offload or split them, or use a smaller model; a smaller batch saves little"
    )


def _largest_place(facts: ProgramFacts, refusal: Refusal) -> str:
    """The line that asks for most of the memory, as the end of a sentence; empty where none is
    known.
    """
    # One request that is larger than all that any line holds is named before such a line.
    holding = facts.holding[:1]
    is_larger = all(refusal.request_bytes > line.bytes for line in holding)
    if refusal.where and is_larger:
        return f"; {refusal.where} asks for {show_bytes(refusal.request_bytes)} in one request"
    if not holding:
        return ""
    size = show_bytes(holding[0].bytes)
    if not refusal.fails_in_replay:
        size += " when it failed"
    return f"; {holding[0].line} holds the most ({size})"


def uneven_cards(facts: ProgramFacts) -> Verdict:
    """One card of the job is full, and the others have room."""
    fullest = max(facts.cards, key=lambda card: card.bytes)
    others = [card for card in facts.cards if card is not fullest]
    most = max(card.bytes for card in others)
    if len(others) == 1 and most:
        the_others = f"the other card has {show_bytes(most)}"
    elif len(others) == 1:
        the_others = "1 more is empty"
    elif most:
        the_others = (
            f"the other {len(others)} cards have at most {show_bytes(most)} each"
        )
    else:
        the_others = f"{len(others)} more are empty"
    title = f"Card {fullest.index} is full ({show_bytes(fullest.bytes)}), while {the_others}"
    evidence = [
        size_evidence(
            f"card-{card.index}", card.bytes, facts, f"Needed on card {card.index}"
        )
        for card in facts.cards
    ]
    if facts.refusal is not None:
        evidence.insert(0, of_refusal(facts, facts.refusal))
    evidence += of_holding(facts)
    return Verdict(
        cause="multi-gpu-imbalance",
        confidence="likely",
        title=title,
        summary=f"{title}. An even share would fit on each card.",
        evidence=evidence,
        next_step=NextStep(
            what="Spread the memory over the cards: map_location and set_device to each rank's own "
            "card, DistributedDataParallel instead of DataParallel, outputs gathered on the host",
            check=check_by_rehearsing(facts),
        ),
    )


def too_much_together(facts: ProgramFacts, card: CardFacts) -> Verdict:
    """Several processes share a card that does not hold them together: for what they use
    (true-capacity), or only with what they keep cached (allocator-cache-not-returned).
    """
    usable = show_bytes(facts.usable_bytes)
    needed = show_bytes(card.bytes)
    title = f"{card.processes} processes together need {needed} on card {card.index}, which has {usable}"
    says = f"Needed on card {card.index} by all processes together"
    evidence = [size_evidence("together", card.bytes, facts, says)]
    cause = "true-capacity"
    advice = "Give each process a card of its own, or less to do"
    if card.bytes - card.unused_bytes <= facts.usable_bytes:
        cause = "allocator-cache-not-returned"
        unused = show_bytes(card.unused_bytes)
        title += f"; {unused} of that is cache that no tensor uses"
        evidence.append(
            size_evidence(
                "cached",
                card.unused_bytes,
                facts,
                "Cached by PyTorch and not used by any tensor",
            )
        )
        advice = "Call torch.cuda.empty_cache() in the process that waits, before the other starts"
    return Verdict(
        cause=cause,
        confidence="likely",
        title=title,
        summary=f"{title}.",
        evidence=evidence,
        next_step=NextStep(what=advice, command=rehearse_command(facts)),
    )


def held_by_others(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """Other processes have the rest of the card; which ones, the recording cannot show."""
    others_bytes = facts.capacity_bytes - refusal.room_bytes
    title = f"{show_bytes(others_bytes)} of the card is in use, but not by this program"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}. Without that, the request would have succeeded.",
        alternatives=[Alternative("external-holder", "weak")],
        evidence=[
            of_refusal(facts, refusal),
            size_evidence(
                "others",
                others_bytes,
                facts,
                "In use on the card, but not by this process",
            ),
        ],
        missing=[Missing("who uses the card", "casebook diagnose live --wide")],
        next_step=NextStep(
            what="See who uses the card while the program runs",
            command="casebook diagnose live --wide",
        ),
    )
