"""What the judge asks of the facts of a recorded program, one question a function."""

from __future__ import annotations

from helpers.ground.units import GIB
from helpers.judge.program_facts import (
    CardFacts,
    GrowthFacts,
    ProgramFacts,
    Refusal,
    Repeat,
)

LEAST_KEPT = 25
"""What grows counts as a reason from a 25th of what the process can have."""
STEADY_STEPS = 3
"""A program that was as full in so many steps needs no more from step to step."""
NEARLY_FULL = 0.9
"""So much of the card live at once leaves little that could lie in pieces."""
ALL_BUT_FULL = 0.97
"""So much of the card live at once may be too much for a card that has a context on it."""
LARGER = 1.25
"""Times what a step needs, by which steps of one size do not differ."""
ANOTHERS_BYTES = GIB
"""More than this of the card, neither free nor this process's, is more than a context takes
(300 to 700 MiB, by chip and release)."""


def setting_explains(facts: ProgramFacts) -> bool:
    """Whether the setting that is not in force is why it failed: torch refused it, or the
    program passes where it is in force; without a repeat, the recorded requests do.
    """
    assert facts.settings is not None, "asked only where there is one"
    if facts.settings.fatal:
        return True
    if facts.refusal is None or "expandable_segments" not in facts.settings.instead:
        return False
    if facts.expandable is not None:
        return facts.expandable.finishes
    if facts.replays is None or facts.replays.passes_with is None:
        return False
    return "expandable_segments" in facts.replays.passes_with


def one_card_is_overfull(facts: ProgramFacts) -> bool:
    """Whether a request was refused on one of several cards in use, though each would hold an
    even share of all.
    """
    needed = [card.bytes for card in facts.cards if card.processes]
    return (
        len(needed) > 1 and max(needed) >= 1.5 * min(needed) and even_shares_fit(facts)
    )


def even_shares_fit(facts: ProgramFacts) -> bool:
    """Whether each of several cards would hold an even share of all that is needed: of those in
    use, and of those that the job leaves empty, for a process each.
    """
    needed = [card.bytes for card in facts.cards if card.processes]
    total = sum(needed)
    if facts.refusal is not None:
        total += facts.refusal.request_bytes
    processes = sum(card.processes for card in facts.cards)
    holding = max(len(needed), min(len(facts.cards), processes))
    return holding > 1 and total <= holding * facts.usable_bytes


def overfull_together(facts: ProgramFacts) -> CardFacts | None:
    """The first card that does not hold what several processes need of it together."""
    for card in facts.cards:
        if card.processes > 1 and card.bytes > facts.usable_bytes > 0:
            return card
    return None


def growth_fills_the_card(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> bool:
    """Whether what grew is a good part of what fills the card, and the program goes on growing
    beyond the card where nothing limits it; not where the step that failed needs more than the
    card without what grew.
    """
    if not is_large(growth, refusal) or growth.kept_bytes < refusal.missing_bytes:
        return False
    if growth.rest_bytes > refusal.usable_bytes:
        return False
    if (
        facts.without_limit is None
        and requests_pass(facts)
        and is_mostly_unused(refusal)
    ):
        return False
    if facts.without_limit is None or needs_more_than_it_can_have(facts, refusal):
        return True
    return _ends_nearly_full(facts, growth, refusal)


def failed_in_a_larger_step(growth: GrowthFacts, refusal: Refusal) -> bool:
    """Whether the step that failed had come to need more beside what was kept than any step before
    it, and one like those would have found room.
    """
    is_larger = growth.rest_so_far_bytes > LARGER * growth.usual_rest_bytes > 0
    usual_need_bytes = growth.kept_bytes + growth.usual_rest_bytes
    return is_larger and usual_need_bytes < NEARLY_FULL * refusal.usable_bytes


def _ends_nearly_full(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> bool:
    """Whether the card is nearly full of what grew even where the whole program passes with
    another setting: the pieces of a full card are not why it failed.
    """
    if facts.expandable is None or 2 * growth.kept_bytes < refusal.usable_bytes:
        return False
    return facts.expandable.peak_allocated_bytes >= NEARLY_FULL * refusal.usable_bytes


def is_large(growth: GrowthFacts | None, refusal: Refusal) -> bool:
    """Whether what grew is a good part of what the process can have."""
    if growth is None or not growth.growers:
        return False
    return LEAST_KEPT * growth.kept_bytes >= refusal.usable_bytes


def is_mostly_unused(refusal: Refusal) -> bool:
    """Whether more of the card lies unused in pieces than is live with the request."""
    return refusal.unused_bytes > refusal.allocated_bytes + refusal.request_bytes


def others_hold_it(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether others hold so much of the card that the request would fit without them."""
    others_bytes = facts.capacity_bytes - refusal.room_bytes
    # A replay knows of no others, and a limit of the program's own refuses without them.
    if refusal.fails_in_replay or refusal.is_limited or others_bytes < ANOTHERS_BYTES:
        return False
    return refusal.missing_bytes < others_bytes


def passes_with_another_setting(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the whole program passes with another setting alone: in a repeat, or in the replay
    of a recording that goes on behind the request.
    """
    growth = facts.growth
    if growth is not None and _ends_nearly_full(facts, growth, refusal):
        return False
    if facts.expandable is not None:
        return facts.expandable.finishes
    if facts.without_limit is not None or not requests_pass(facts):
        return False
    if goes_on_to_need_too_much(facts, refusal):
        return False
    is_whole = refusal.fails_in_replay and facts.recording_is_whole
    return is_whole or _passes_with_room(facts, refusal)


def _passes_with_room(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether a loop of the program passes under another setting with so much room to spare that
    what it keeps could be kept twice: then the pieces are why it failed here.
    """
    replays = facts.replays
    if facts.growth is None or replays is None or not replays.peak_bytes:
        return False
    room = refusal.usable_bytes - replays.peak_bytes
    return 10 * room >= refusal.usable_bytes and room >= facts.growth.kept_bytes


def all_but_fills_the_card(repeat: Repeat, refusal: Refusal) -> bool:
    """Whether the tensors of the whole program nearly fill the card: a rehearsal counts no
    context, which takes memory of its own.
    """
    return repeat.peak_allocated_bytes >= ALL_BUT_FULL * refusal.usable_bytes


def requests_pass(facts: ProgramFacts) -> bool:
    """Whether the recorded requests are all met under some setting."""
    return facts.replays is not None and facts.replays.passes_with is not None


def only_lies_in_pieces(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether another setting gets past the request, and the program had as much live before as
    it would have with it: in several steps, or where no steps are seen. Or all of it fits by
    its peak without a limit, or most of the card lies unused in pieces.
    """
    if facts.expandable is not None or needs_more_than_it_can_have(facts, refusal):
        return False
    if not requests_pass(facts) or goes_on_to_need_too_much(facts, refusal):
        return False
    if facts.without_limit is not None and facts.without_limit.finishes:
        return True
    if is_mostly_unused(refusal):
        return True
    if facts.growth is not None:
        return facts.steps_as_full >= STEADY_STEPS
    needed = refusal.allocated_bytes + refusal.request_bytes
    return facts.most_live_before_bytes >= needed


def lies_in_pieces_whatever_the_setting(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the tensors of the whole program leave room on the card, and expandable segments do
    not get it past the request.
    """
    limitless = facts.without_limit
    expandable = facts.expandable
    if limitless is None or expandable is None or expandable.fits or expandable.stopped:
        return False
    room = NEARLY_FULL * refusal.usable_bytes
    return limitless.finishes and limitless.peak_allocated_bytes < room


def is_too_much(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the program needs more than it can have, whatever the settings."""
    if needs_more_than_it_can_have(facts, refusal):
        return True
    no_setting = facts.replays is not None and facts.replays.passes_with is None
    expandable_failed = facts.expandable is not None and not facts.expandable.stopped
    if refusal.missing_bytes > 0 or no_setting or expandable_failed:
        return True
    if goes_on_to_need_too_much(facts, refusal):
        return True
    return refusal.allocated_bytes >= NEARLY_FULL * refusal.usable_bytes


def goes_on_to_need_too_much(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether a program that no repeat saw to its end needs more than it can have, if it goes on
    behind the refused request as it did before at the same place.
    """
    if facts.without_limit is not None or facts.expandable is not None:
        return False
    needed = refusal.allocated_bytes + refusal.request_bytes + facts.more_to_come_bytes
    return facts.more_to_come_bytes > 0 and needed > refusal.usable_bytes


def only_its_limit_refuses(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the program's own limit refused what the card has room for, and all that the
    program needs, as far as a repeat shows it.
    """
    return refusal.is_limited and needed_bytes(facts, refusal) <= refusal.room_bytes


def needed_bytes(facts: ProgramFacts, refusal: Refusal) -> int:
    """The most that is known to be live at once, whenever the program runs."""
    needed = refusal.allocated_bytes + refusal.request_bytes
    if facts.without_limit is not None:
        needed = max(needed, facts.without_limit.repeatable_peak_bytes)
    return needed


def needs_more_than_it_can_have(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether more was live in the repeat without a limit than the process can have."""
    repeat = facts.without_limit
    return repeat is not None and repeat.peak_allocated_bytes > refusal.usable_bytes
