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

from helpers.ground.shapes import (
    LONGEST_TITLE,
    Alternative,
    Evidence,
    Missing,
    NextStep,
    Verdict,
)
from helpers.ground.shell import word
from helpers.ground.units import show_bytes, told_apart
from helpers.judge.program_evidence import (
    EXPANDABLE,
    also_grows,
    keeps,
    of_growth,
    of_holding,
    of_refusal,
    of_repeat,
    size_evidence,
    text_evidence,
)
from helpers.judge.program_facts import (
    CardFacts,
    GrowerFacts,
    GrowthFacts,
    IdleCheckpointing,
    ProgramFacts,
    Refusal,
)
from helpers.judge.program_questions import (
    all_but_fills_the_card,
    even_shares_fit,
    failed_in_a_larger_step,
    goes_on_to_need_too_much,
    growth_fills_the_card,
    is_large,
    is_too_much,
    lies_in_pieces_whatever_the_setting,
    needed_bytes,
    needs_more_than_it_can_have,
    one_card_is_overfull,
    only_its_limit_refuses,
    only_lies_in_pieces,
    others_hold_it,
    overfull_together,
    passes_with_another_setting,
    requests_pass,
    setting_explains,
)

NUMBERS_BYTES = 16 * 512
"""What a few numbers take, each in a block of its own, which has 512 bytes at least."""


def program_verdict(facts: ProgramFacts) -> Verdict:
    """The verdict on a recorded program. What it leaves open is ``cannot-tell``: other evidence
    may decide it.
    """
    verdict = _verdict(facts)
    if facts.is_real or verdict.confidence != "confirmed":
        return verdict
    return replace(verdict, confidence="likely")


def _verdict(facts: ProgramFacts) -> Verdict:
    refusal = facts.refusal
    if facts.settings is not None and setting_explains(facts):
        return _setting(facts)
    shared = overfull_together(facts)
    if shared is not None:
        if even_shares_fit(facts):
            return _uneven(facts)
        return _too_much_together(facts, shared)
    if refusal is None and facts.growth is not None and facts.runs_out_in_step:
        return _leak_to_come(facts, facts.growth)
    if refusal is None:
        return _nothing_refused(facts)
    if facts.exit_code == 0 and not refusal.fails_in_replay:
        return _went_on(facts, refusal)
    if passes_with_another_setting(facts, refusal):
        return _fragmentation(facts, refusal)
    if facts.growth is not None and growth_fills_the_card(facts, facts.growth, refusal):
        if facts.growth.may_be_one_step and facts.without_limit is None:
            return _leak_or_one_long_step(facts, facts.growth, refusal)
        if facts.without_limit is None and failed_in_a_larger_step(facts.growth, refusal):
            return _leak_or_larger_step(facts, facts.growth, refusal)
        return _leak(facts, facts.growth, refusal)
    if one_card_is_overfull(facts):
        return _uneven(facts)
    if others_hold_it(facts, refusal):
        return _others(facts, refusal)
    if only_lies_in_pieces(facts, refusal):
        return _fragmentation(facts, refusal)
    if lies_in_pieces_whatever_the_setting(facts, refusal):
        return _fragmentation_for_good(facts, refusal)
    if only_its_limit_refuses(facts, refusal):
        return _limited(facts, refusal)
    if facts.idle_checkpointing is not None:
        return _without_checkpointing(facts, facts.idle_checkpointing, refusal)
    if is_too_much(facts, refusal):
        return _capacity(facts, refusal)
    return _undecided(facts, refusal)


def _setting(facts: ProgramFacts) -> Verdict:
    trouble = facts.settings
    assert trouble is not None, "asked only where there is one"
    evidence = [text_evidence("setting", f"{trouble.variable}={trouble.value}", facts, trouble.why)]
    if facts.refusal is not None:
        evidence.append(of_refusal(facts, facts.refusal))
    if facts.expandable is not None:
        evidence.append(of_repeat(facts.expandable, facts))
    is_measured = trouble.fatal or facts.expandable is not None
    is_exported = bool(trouble.instead and not trouble.overwritten_in)
    return Verdict(
        cause="config-ineffective",
        confidence="confirmed" if is_measured else "likely",
        title=trouble.says,
        summary=f"{trouble.says}.",
        evidence=evidence,
        next_step=_start_anew(
            what=trouble.advice[:1].upper() + trouble.advice[1:],
            command=f"export {word(trouble.instead)}" if is_exported else "",
        ),
    )


def _nothing_refused(facts: ProgramFacts) -> Verdict:
    """A program that ended well, or a recording in which nothing failed."""
    peak = show_bytes(facts.peak_allocated_bytes)
    evidence = [size_evidence("peak", facts.peak_allocated_bytes, facts, "Allocated at the peak")]
    if facts.peak_reserved_bytes:
        reserved = facts.peak_reserved_bytes
        says = "Reserved on the card at the peak; cached memory counts too, which is normal"
        evidence.append(size_evidence("reserved", reserved, facts, says))
    at_end = facts.allocated_at_end_bytes
    evidence.append(size_evidence("at-end", at_end, facts, "Allocated at the end of the recording"))
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


def _went_on(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """A program that caught its out-of-memory and ended well."""
    times = "once" if facts.ooms == 1 else f"{facts.ooms} times"
    title = f"The program ran out of memory {times}, caught the error and finished"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=title,
        summary=f"{title}. It searches for what fits, or it can work without that memory.",
        evidence=[of_refusal(facts, refusal)],
        next_step=NextStep(what="Nothing to do, unless the program needs the memory it asked for"),
    )


def _leak(facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal) -> Verdict:
    grower = growth.growers[0]
    evidence = [of_growth(facts, growth), of_refusal(facts, refusal)]
    against: list[Evidence] = []
    if facts.without_limit is not None:
        evidence.append(of_repeat(facts.without_limit, facts))
    if facts.expandable is not None:
        repeat = of_repeat(facts.expandable, facts)
        (against if facts.expandable.finishes else evidence).append(repeat)
    is_measured = facts.without_limit is not None
    alternatives = [] if is_measured else [Alternative("true-capacity", "weak")]
    if against:
        alternatives.append(Alternative("allocator-fragmentation", "weak"))
    return Verdict(
        cause="user-leak",
        confidence="confirmed" if is_measured and not against else "likely",
        title=f"Your program {keeps(grower, growth)}",
        summary=f"Your program {keeps(grower, growth)}, until {_end_of_room(facts, refusal)}.",
        alternatives=alternatives,
        evidence=evidence,
        against=against,
        missing=[] if is_measured else [_repeat_decides(facts)],
        next_step=NextStep(
            what=_first_change(facts) or _how_to_let_go(grower),
            blast_radius=_side_effects_of_letting_go(facts, grower),
            check=_checked_by(facts),
        ),
    )


def _leak_to_come(facts: ProgramFacts, growth: GrowthFacts) -> Verdict:
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
            Missing("a run to the end, to see whether the growth continues", _rehearse(facts))
        ],
        next_step=NextStep(
            what=_first_change(facts) or _how_to_let_go(grower),
            blast_radius=_side_effects_of_letting_go(facts, grower),
            check=_checked_by(facts),
        ),
    )


def _first_change(facts: ProgramFacts) -> str:
    """The change that ``fix`` tries first; empty where none is known."""
    return facts.first_change.title if facts.first_change else ""


def _how_to_let_go(grower: GrowerFacts) -> str:
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


def _side_effects_of_letting_go(facts: ProgramFacts, grower: GrowerFacts) -> str:
    """Those of the change that the advice names."""
    if facts.first_change is not None:
        return facts.first_change.costs
    if grower.through_graph or grower.in_circle:
        return ""
    if grower.with_graphs or grower.bytes_per_step <= NUMBERS_BYTES:
        return "the program waits for the GPU at .item(), and nowhere else"
    return f"takes RAM: {show_bytes(grower.bytes_per_step)} a step"


def _leak_or_one_long_step(facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal) -> Verdict:
    """Passes of a loop keep more and more, and nothing shows whether a backward pass frees it."""
    title = f"Your program {keeps(growth.growers[0], growth)}"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}; no backward pass was recorded that could free it.",
        alternatives=[Alternative("true-capacity", "weak"), Alternative("user-leak", "weak")],
        evidence=[of_growth(facts, growth), of_refusal(facts, refusal)],
        missing=[_repeat_decides(facts)],
        next_step=NextStep(
            what="Shorten the loop if one backward pass follows all of it; else detach what each "
            "pass hands to the next",
            check=_checked_by(facts),
        ),
    )


def _leak_or_larger_step(facts: ProgramFacts, growth: GrowthFacts, refusal: Refusal) -> Verdict:
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
        alternatives=[Alternative("true-capacity", "weak"), Alternative("user-leak", "weak")],
        evidence=[
            of_refusal(facts, refusal),
            size_evidence(
                "usual-step", growth.usual_rest_bytes, facts, "Needed at most in a step before it"
            ),
            of_growth(facts, growth),
        ],
        missing=[_repeat_decides(facts)],
        next_step=NextStep(
            what="Rehearse the program: its run without a memory limit will decide whether the "
            "largest step alone is too large",
            command=_rehearse(facts),
        ),
    )


def _uneven(facts: ProgramFacts) -> Verdict:
    """One card of the job is full, and the others have room."""
    fullest = max(facts.cards, key=lambda card: card.bytes)
    others = [card for card in facts.cards if card is not fullest]
    most = max(card.bytes for card in others)
    the_others = f"the other {len(others)} cards have at most {show_bytes(most)} each"
    if len(others) == 1:
        the_others = f"the other card has {show_bytes(most)}"
    if not most:
        the_others = f"{len(others)} more {'is' if len(others) == 1 else 'are'} empty"
    title = f"Card {fullest.index} is full ({show_bytes(fullest.bytes)}), while {the_others}"
    evidence = [
        size_evidence(f"card-{card.index}", card.bytes, facts, f"Needed on card {card.index}")
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
            check=_checked_by(facts),
        ),
    )


def _too_much_together(facts: ProgramFacts, card: CardFacts) -> Verdict:
    """Several processes share a card that does not hold them together."""
    usable = show_bytes(facts.usable_bytes)
    needed = show_bytes(card.bytes)
    title = f"{card.processes} processes together need {needed} on card {card.index}, which has {usable}"
    says = f"Needed on card {card.index} by all processes together"
    evidence = [size_evidence("together", card.bytes, facts, says)]
    cause = "true-capacity"
    what = "Give each process a card of its own, or less to do"
    if card.bytes - card.unused_bytes <= facts.usable_bytes:
        cause = "allocator-cache-not-returned"
        unused = show_bytes(card.unused_bytes)
        title += f"; {unused} of that is cache that no tensor uses"
        evidence.append(
            size_evidence(
                "cached", card.unused_bytes, facts, "Cached by PyTorch and not used by any tensor"
            )
        )
        what = "Call torch.cuda.empty_cache() in the process that waits, before the other starts"
    return Verdict(
        cause=cause,
        confidence="likely",
        title=title,
        summary=f"{title}.",
        evidence=evidence,
        next_step=NextStep(what=what, command=_rehearse(facts)),
    )


def _others(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The rest of the card belongs to somebody else: whose it is, the recording cannot say."""
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
                "others", others_bytes, facts, "In use on the card, but not by this process"
            ),
        ],
        missing=[Missing("who uses the card", "casebook diagnose live --wide")],
        next_step=NextStep(
            what="See who uses the card while the program runs",
            command="casebook diagnose live --wide",
        ),
    )


def _fragmentation(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    setting = EXPANDABLE
    if facts.expandable is None and facts.replays is not None:
        setting = facts.replays.passes_with or ""
    named_setting = setting or "the default settings"
    request = show_bytes(refusal.request_bytes)
    limit = f" in {show_bytes(refusal.usable_bytes)}" if refusal.is_limited else ""
    title = f"Fragmentation: no free piece{limit} was large enough for {request}; "
    if facts.expandable is not None and facts.expandable.finishes:
        title += f"the same program finishes with {named_setting}"
    elif facts.expandable is None and not refusal.fails_in_replay:
        title += _gets_past(named_setting)
    else:
        title += f"the same program goes on with {named_setting}"
    evidence = [
        of_refusal(facts, refusal),
        size_evidence(
            "unused",
            refusal.unused_bytes,
            facts,
            "Cached by PyTorch in pieces without a tensor",
        ),
    ]
    if facts.expandable is not None:
        evidence.insert(0, of_repeat(facts.expandable, facts))
    elif facts.most_live_before_bytes:
        says = "Allocated at once earlier in the same run, on the same card"
        evidence.append(size_evidence("live-before", facts.most_live_before_bytes, facts, says))
    command = f"export {word(f'{facts.conf_variable}={setting}')}"
    if not setting:
        command = f"unset {facts.conf_variable}"
    summary = f"{title}."
    if refusal.is_limited:
        summary += f" The program limits itself to {_allowed(facts, refusal)}."
    growth = facts.growth
    alternatives = []
    if growth is not None and is_large(growth, refusal):
        summary += (
            f" It also {keeps(growth.growers[0], growth)}; a longer run will fail because of that."
        )
        evidence += also_grows(facts)
        alternatives.append(Alternative("user-leak", "weak"))
    repeat = facts.expandable
    if repeat is not None and all_but_fills_the_card(repeat, refusal):
        spare = show_bytes(refusal.usable_bytes - repeat.peak_allocated_bytes)
        summary += f" Even so, its tensors leave only {spare} of the card; a context may need more."
        alternatives.append(Alternative("true-capacity", "weak"))
    is_whole = refusal.fails_in_replay and facts.recording_is_whole
    whole_program_passed = facts.expandable is not None or is_whole
    replays = facts.replays
    if facts.expandable is None and replays is not None and replays.peak_bytes:
        says = f"Peak reserved when the recording is replayed with {named_setting}"
        evidence.append(size_evidence("replayed", replays.peak_bytes, facts, says))
    is_certain = not alternatives and whole_program_passed
    return Verdict(
        cause="allocator-fragmentation",
        confidence="confirmed" if is_certain else "likely",
        title=title,
        summary=summary,
        alternatives=alternatives,
        evidence=evidence,
        missing=[] if is_certain else [_repeat_decides(facts)],
        next_step=_start_anew(
            what="Set this before you start the program; a running program does not see it",
            command=command,
            check=_checked_by(facts),
        ),
    )


def _fragmentation_for_good(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """All that the program needs would fit, and expandable segments do not help."""
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
            check=_checked_by(facts),
        ),
    )


def _limited(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """The program's own limit is what refused: the card has the room."""
    least = "" if facts.without_limit is not None and facts.without_limit.finishes else "at least "
    needed = show_bytes(needed_bytes(facts, refusal))
    room = show_bytes(refusal.room_bytes)
    title = f"The program needs {least}{needed} but limits itself to {_allowed(facts, refusal)}; "
    title += f"the card has {room}"
    evidence = [
        of_refusal(facts, refusal),
        size_evidence(
            "allowed", refusal.allowed_bytes, facts, "The limit that this process sets for itself"
        ),
    ]
    if facts.without_limit is not None:
        evidence.append(of_repeat(facts.without_limit, facts))
    evidence += of_holding(facts)
    return Verdict(
        cause="config-ineffective",
        confidence="likely",
        title=title,
        summary=f"{title}.",
        alternatives=[] if not least else [Alternative("true-capacity", "weak")],
        evidence=evidence,
        missing=[] if not least else [_repeat_decides(facts)],
        next_step=NextStep(
            what="Raise or drop the share in set_per_process_memory_fraction, or in the allocator's "
            "per_process_memory_fraction",
            check=_checked_by(facts),
            blast_radius="other programs on the card get less memory",
        ),
    )


def _without_checkpointing(
    facts: ProgramFacts, checkpointing: IdleCheckpointing, refusal: Refusal
) -> Verdict:
    """Nobody has measured what the program needs with its checkpointing in force."""
    place = f" ({checkpointing.where})" if checkpointing.where else ""
    title = (
        "Gradient checkpointing is on but has no effect: "
        f"{checkpointing.model} is in evaluation mode{place}"
    )
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
            check=_checked_by(facts),
            blast_radius="dropout and batch statistics are on in training mode",
        ),
    )


def _allowed(facts: ProgramFacts, refusal: Refusal, usable: str = "") -> str:
    """What the process can have, and whose limit that is; ``usable``: its words for the size."""
    usable = usable or show_bytes(refusal.usable_bytes)
    if not refusal.is_limited:
        return usable
    return f"{usable} (set_per_process_memory_fraction {facts.fraction:g})"


def _end_of_room(facts: ProgramFacts, refusal: Refusal) -> str:
    if not refusal.is_limited:
        return "the card is full"
    return f"it reaches its own limit of {_allowed(facts, refusal)}"


def _capacity(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    repeat = facts.without_limit
    is_over = needs_more_than_it_can_have(facts, refusal)
    needed = refusal.allocated_bytes + refusal.request_bytes
    least = "at least "
    if repeat is not None and is_over:
        needed = max(needed, repeat.repeatable_peak_bytes)
        least = "at least " if repeat.stopped else ""
    elif refusal.fails_in_replay and facts.peak_allocated_bytes > refusal.usable_bytes:
        needed = facts.peak_allocated_bytes
        least = "" if facts.recording_is_whole else "at least "
        is_over = True
    place = _largest_place(facts, refusal)
    needed_words, usable_words = told_apart(needed, refusal.usable_bytes)
    usable = _allowed(facts, refusal, usable_words)
    title = f"The program needs {least}{needed_words} at once; it can use {usable}"
    if len(title + place) <= LONGEST_TITLE:
        title += place
    if needed <= refusal.usable_bytes and is_over:
        title = f"The program needs more at once than the {usable} that it can use"
    elif needed <= refusal.usable_bytes:
        request = show_bytes(refusal.request_bytes)
        title = (
            f"The program needs at least {needed_words} at once; it can use {usable}, where no "
            f"setting finds a piece for the last {request}"
        )
        if goes_on_to_need_too_much(facts, refusal):
            to_come = show_bytes(facts.more_to_come_bytes)
            title = (
                f"The program needs {needed_words} at once and then {to_come} more, as it did at "
                f"this place before; it can use {usable}"
            )
        elif requests_pass(facts):
            live = show_bytes(refusal.allocated_bytes)
            title = f"{live} of the {usable} that the program can use is in use, and {request} "
            title += "more did not fit"
    evidence = [of_refusal(facts, refusal)]
    if repeat is not None:
        evidence.insert(0, of_repeat(repeat, facts))
    if facts.expandable is not None:
        evidence.append(of_repeat(facts.expandable, facts))
    elif facts.replays is not None and facts.replays.needs_bytes:
        more = facts.replays.needs_bytes
        evidence.append(size_evidence("needs", more, facts, "Still missing with the best setting"))
    evidence += of_holding(facts) + also_grows(facts)
    grows_later = facts.growth is not None and bool(facts.growth.growers) and facts.growth.is_later
    is_certain = is_over and not grows_later
    summary = f"{title}."
    if not facts.reached_first_step:
        summary += " It failed before its first step ended."
    use_less = "Use less memory at once"
    if needed > refusal.usable_bytes:
        missing = show_bytes(needed - refusal.usable_bytes)
        use_less = f"Use at least {missing} less memory at once"
    what = f"{use_less}: {_ways_to_use_less(facts, needed)}"
    side_effects = "slower; a different batch size may change training results"
    if facts.first_change is not None:
        what = f"{use_less}. First try: {facts.first_change.title}"
        side_effects = facts.first_change.costs
    if repeat is None and not is_certain and facts.command:
        what += ". How much it needs in all is not known"
    return Verdict(
        cause="true-capacity",
        confidence="confirmed" if is_certain else "likely",
        title=title,
        summary=summary,
        alternatives=[] if is_certain else [Alternative("user-leak", "weak")],
        evidence=evidence,
        missing=[] if is_certain else [_repeat_decides(facts)],
        next_step=NextStep(
            what=what,
            check=_checked_by(facts),
            blast_radius=side_effects,
        ),
    )


def _ways_to_use_less(facts: ProgramFacts, needed: int) -> str:
    """What to change first: a smaller batch helps little where the model itself, with what its
    training adds, is most of what the program needs.
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


def _undecided(facts: ProgramFacts, refusal: Refusal) -> Verdict:
    """More was never live, and it would have fitted in one piece: what comes after decides."""
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
        title += f"; {_gets_past(replays.passes_with)}"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=summary,
        alternatives=alternatives,
        evidence=evidence,
        missing=[_repeat_decides(facts)],
        next_step=NextStep(
            what="Rehearse the program: its run without a memory limit will decide",
            command=_rehearse(facts),
        ),
    )


# The words.


def _gets_past(setting: str) -> str:
    return f"{setting} gets past this request; the rest was not recorded"


def _largest_place(facts: ProgramFacts, refusal: Refusal) -> str:
    """Where the most of what the program needs is asked for, to go on with; empty where no line
    is known.
    """
    largest = facts.holding[0].bytes if facts.holding else 0
    if refusal.where and refusal.request_bytes > largest:
        return f"; {refusal.where} asks for {show_bytes(refusal.request_bytes)} in one request"
    if facts.holding:
        when = "" if refusal.fails_in_replay else " when it failed"
        return f"; {facts.holding[0].line} holds the most ({show_bytes(largest)}{when})"
    return ""


def _start_anew(what: str, command: str, check: str = "") -> NextStep:
    """A step that changes a variable of the program's environment."""
    return NextStep(
        what=what,
        command=command,
        check=check,
        blast_radius="every program that you start from this shell uses the setting, in place of "
        "the variable's earlier value",
    )


def _rehearse(facts: ProgramFacts) -> str:
    """The command that would decide, for the program that was recorded."""
    card = facts.card_options or "--gpu 4090"
    return f"casebook rehearse {card} -- {facts.command or 'python train.py'}"


def _checked_by(facts: ProgramFacts) -> str:
    return (
        f"{_rehearse(facts)}  # runs the program on simulated GPU memory of this size; needs no GPU"
    )


def _repeat_decides(facts: ProgramFacts) -> Missing:
    return Missing(
        "a run of the same program without a memory limit; only a rehearsal can do that",
        _rehearse(facts),
    )


def _the_failing_run() -> Missing:
    how = "casebook record --out trace.pickle -- python train.py"
    return Missing("a recording of the run that failed", how)
