"""The questions that the judge asks about the facts of a recorded program, one in each function."""

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
"""Memory that grows counts as a reason from a 25th of what the process can have (a choice)."""
STEADY_STEPS = 3
"""A program that was as full in so many steps needs no more from step to step (a choice)."""
NEARLY_FULL = 0.9
"""Where tensors fill this share of the card, fragmentation is no reason by itself: any busy program
wastes a tenth (fragmentation.NEAR_FULL).
"""
ALL_BUT_FULL = 0.97
"""Tensors that fill this share of a card may leave too little for a context, of which a rehearsal
has none: 700 MiB are 3 % of 24 GiB.
"""
LARGER = 1.25
"""Steps of one size differ by less than so many times in what they need (a choice)."""
UNEVEN = 1.5
"""Cards are unevenly filled where the fullest needs so many times what the emptiest does (a
choice).
"""
SPARE_PART = 10
"""A setting with which a program leaves this part of the card free gives it room (a choice)."""
ANOTHERS_BYTES = GIB
"""More than this of the card, neither free nor this process's, is more than a context takes
(300 to 700 MiB, by chip and release)."""


def setting_explains(facts: ProgramFacts) -> bool:
    """Whether the program failed because a setting is not in force: torch refused it, or the
    program passes with it in a repeat or, without a repeat, in the replay.
    """
    assert facts.settings is not None, "asked only where there is one"
    if facts.settings.fatal:
        return True
    # A repeat is made for expandable segments alone, and the replay is asked for them alone.
    if facts.refusal is None or "expandable_segments" not in facts.settings.instead:
        return False
    if facts.expandable is not None:
        return facts.expandable.finishes
    if facts.replays is None or facts.replays.passes_with is None:
        return False
    return "expandable_segments" in facts.replays.passes_with


def one_card_is_overfull(facts: ProgramFacts) -> bool:
    """Whether the cards in use are filled unevenly, and each would hold an even share of all."""
    needed = [card.bytes for card in facts.cards if card.processes]
    if len(needed) < 2 or max(needed) < UNEVEN * min(needed):
        return False
    return even_shares_fit(facts)


def even_shares_fit(facts: ProgramFacts) -> bool:
    """Whether each of several cards would hold an even share of all that is needed: of those in
    use, and of those that the job leaves empty, for a process each.
    """
    needed = [card.bytes for card in facts.cards if card.processes]
    total = sum(needed)
    if facts.refusal is not None:
        total += facts.refusal.request_bytes
    processes = sum(card.processes for card in facts.cards)
    card_count = max(len(needed), min(len(facts.cards), processes))
    return card_count > 1 and total <= card_count * facts.usable_bytes


def overfull_together(facts: ProgramFacts) -> CardFacts | None:
    """The first card on which several processes together need more than it has; None for none."""
    for card in facts.cards:
        if card.processes > 1 and card.bytes > facts.usable_bytes > 0:
            return card
    return None


def growth_fills_the_card(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> bool:
    """Whether what grew is a good part of what fills the card, and more than was missing; and
    whether the program goes on beyond the card where nothing limits it or, without such a repeat,
    nothing shows that only pieces were too small. Not where the step that failed needs more than
    the card even without what grew.
    """
    if not is_large(growth, refusal) or growth.kept_bytes < refusal.missing_bytes:
        return False
    if growth.rest_bytes > refusal.usable_bytes:
        return False
    if facts.without_limit is None:
        # Another setting meets all requests, and most of the card lay unused: fragmentation.
        only_pieces = requests_pass(facts) and is_mostly_unused(refusal)
        return not only_pieces
    if needs_more_than_it_can_have(facts, refusal):
        return True
    return _ends_nearly_full(facts, growth, refusal)


def failed_in_a_larger_step(growth: GrowthFacts, refusal: Refusal) -> bool:
    """Whether the step that failed needed more, beside what was kept, than any step before it, and
    a step like those before would have fitted.
    """
    is_larger = growth.rest_so_far_bytes > LARGER * growth.usual_rest_bytes > 0
    usual_need_bytes = growth.kept_bytes + growth.usual_rest_bytes
    return is_larger and usual_need_bytes < NEARLY_FULL * refusal.usable_bytes


def _ends_nearly_full(
    facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal
) -> bool:
    """Whether what grew is at least half of the card, and the repeat with expandable segments
    nearly fills the card as well: then fragmentation is not why the program failed, even where
    that repeat passes. False without such a repeat.
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
    # A replay knows of no others, and the program's own limit needs none.
    if refusal.fails_in_replay or refusal.is_limited:
        return False
    others_bytes = facts.capacity_bytes - refusal.room_bytes
    if others_bytes < ANOTHERS_BYTES:
        return False
    return refusal.missing_bytes < others_bytes


def passes_with_another_setting(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the whole program passes with nothing but another setting: in a repeat, or in the
    replay of a recording that goes on after the request.
    """
    growth = facts.growth
    if growth is not None and _ends_nearly_full(facts, growth, refusal):
        return False
    if facts.expandable is not None:
        return facts.expandable.finishes
    # With a repeat without a limit and none with expandable segments, the replay is not asked:
    # only_lies_in_pieces comes later and takes the repeat into account.
    if facts.without_limit is not None or not requests_pass(facts):
        return False
    if goes_on_to_need_too_much(facts, refusal):
        return False
    is_whole = refusal.fails_in_replay and facts.recording_is_whole
    return is_whole or _passes_with_room(facts, refusal)


def _passes_with_room(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether a loop of the program passes under another setting with so much room left that it
    could keep twice what it keeps: then fragmentation is why it failed here.
    """
    replays = facts.replays
    if facts.growth is None or replays is None or not replays.peak_bytes:
        return False
    room_bytes = refusal.usable_bytes - replays.peak_bytes
    if SPARE_PART * room_bytes < refusal.usable_bytes:
        return False
    return room_bytes >= facts.growth.kept_bytes


def all_but_fills_the_card(repeat: Repeat, refusal: Refusal) -> bool:
    """Whether the tensors of the whole program nearly fill the card: a rehearsal counts no
    context, which takes memory of its own.
    """
    return repeat.peak_allocated_bytes >= ALL_BUT_FULL * refusal.usable_bytes


def requests_pass(facts: ProgramFacts) -> bool:
    """Whether the recorded requests are all met under some setting."""
    return facts.replays is not None and facts.replays.passes_with is not None


def only_lies_in_pieces(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether another setting gets past the request, and nothing shows that the program needs more
    memory than the card has.

    That is so where a repeat without a limit finished, where most of the card lies unused in
    pieces, or where as much was live before: in several steps, or where no steps are seen.
    """
    if facts.expandable is not None or needs_more_than_it_can_have(facts, refusal):
        return False
    if not requests_pass(facts) or goes_on_to_need_too_much(facts, refusal):
        return False
    if facts.without_limit is not None and facts.without_limit.finishes:
        return True
    if is_mostly_unused(refusal):
        return True
    # There are steps, so one that was as full may be chance.
    if facts.growth is not None:
        return facts.steps_as_full >= STEADY_STEPS
    needed = refusal.allocated_bytes + refusal.request_bytes
    return facts.most_live_before_bytes >= needed


def lies_in_pieces_whatever_the_setting(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the tensors of the whole program leave room on the card, and yet the request fails
    with expandable segments, too.
    """
    limitless = facts.without_limit
    expandable = facts.expandable
    if limitless is None or expandable is None or expandable.fits or expandable.stopped:
        return False
    room = NEARLY_FULL * refusal.usable_bytes
    return limitless.finishes and limitless.peak_allocated_bytes < room


def is_too_much(facts: ProgramFacts, refusal: Refusal) -> bool:
    """Whether the program needs more than it can have, whatever the settings: a repeat showed it,
    the request would not fit in one piece either, no setting meets the recorded requests, a
    repeat with expandable segments failed, what comes next is too much, or tensors nearly fill
    the card.
    """
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
    """Whether a program needs more than it can have if it goes on after the refused request as it
    did before at the same place. A repeat, where there is one, shows that itself.
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
