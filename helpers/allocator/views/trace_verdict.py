"""The verdict over a what-if: what a trace proves about its own end."""

from __future__ import annotations

from dataclasses import replace

from helpers.allocator.metrics import Metrics
from helpers.ground.replays import Replay, WhatIf
from helpers.ground.shapes import (
    Alternative,
    Evidence,
    Missing,
    NextStep,
    Verdict,
    seen,
)
from helpers.ground.units import show_bytes
from helpers.settings.releases import behaviour

RECORD = "python3 -m helpers record --out trace.pickle -- python train.py"


def verdict(
    answer: WhatIf, now: Replay, at_failure: Metrics | None, *, recorded: bool, own: bool = False
) -> Verdict:
    """What a trace proves about its own end.

    ``now``: the row of the settings in force; ``at_failure``: the block figures there;
    ``recorded``: by a GPU. Fragmentation is confirmed where the request fails although allocated
    and asked for fit the card, another setting passes, and the trace was recorded on a GPU; a
    generated or CPU-recorded trace proves it of itself only, so it is likely at most. ``own``:
    the trace is of the user's program, so that it says why this box fails; an example's verdict
    stands aside.
    """
    cause = _cause(answer, now, at_failure, recorded)
    return replace(cause, state="" if own else "aside")


def _cause(answer: WhatIf, now: Replay, at_failure: Metrics | None, recorded: bool) -> Verdict:
    passes = _passing(answer, now, recorded)
    if now.first_oom is None:
        return passes
    failing = replace(passes, evidence=_failure_evidence(answer, now, at_failure))
    if answer.needs_bytes:
        return _too_small(failing, answer, recorded)
    missing = [] if recorded else [Missing("a trace of your program on this card", RECORD)]
    return replace(
        failing,
        cause="allocator-fragmentation",
        confidence="confirmed" if recorded else "likely",
        summary=f"The same requests pass on this card under {_settings_words(answer.use)}.",
        missing=missing,
    )


def _size(answer: WhatIf, name: str, value: int, item: str, says: str) -> Evidence:
    """A size that the replay gives, as evidence."""
    source = f"replay under torch {answer.torch}, {answer.build}"
    return Evidence(name, seen(value, "bytes", source, item), says)


def _card(answer: WhatIf) -> Evidence:
    return _size(answer, "card", answer.capacity_bytes, "the card replayed on", "what there is")


def _passing(answer: WhatIf, now: Replay, recorded: bool) -> Verdict:
    """The verdict where no request fails."""
    size = show_bytes(answer.capacity_bytes)
    under = f"{_settings_words(now.settings)} on {size}"
    summary = f"Every request is met under {under}."
    next_step = _use(answer, now)
    if now.first_oom is None and answer.grows:
        summary = f"Every request of these steps is met under {under}, but {answer.grows}."
        next_step = NextStep("Find what keeps it", "python3 -m helpers leaks TRACE")
    source = f"replay under torch {answer.torch}, {answer.build}"
    against = [
        Evidence(f"note-{number}", seen(warning, "text", source), "a limit of this answer")
        for number, warning in enumerate(answer.warnings, 1)
    ]
    most = "the most the allocator holds of the card"
    peak = _size(answer, "peak", now.peak_reserved_bytes, "peak reserved", most)
    return Verdict(
        cause="other",
        confidence="likely" if recorded else "weak",
        summary=summary,
        evidence=[peak, _card(answer)],
        against=against,
        next_step=next_step,
    )


def _failure_evidence(answer: WhatIf, now: Replay, at_failure: Metrics | None) -> list[Evidence]:
    """The request that fails, the least that any setting needs, the card, the blocks."""
    assert now.first_oom is not None, "asked only of a run that fails"
    at = f"request at operation {now.first_oom.index}"
    fails = f"fails under {_settings_words(now.settings)}"
    least = "the most that is alive at once: no setting passes on less"
    floor = f"live at operation {answer.floor_index}"
    evidence = [
        _size(answer, "request", now.first_oom.size_bytes, at, fails),
        _size(answer, "floor", answer.floor_bytes, floor, least),
        _card(answer),
    ]
    if at_failure is not None:
        loose = "free, but in segments that are in use: it cannot be given back"
        stranded = at_failure.stranded_bytes
        allocated = at_failure.allocated_bytes
        evidence += [
            _size(answer, "stranded", stranded, "stranded at the failure", loose),
            _size(answer, "allocated", allocated, "allocated at the failure", "in use"),
        ]
    return evidence


def _too_small(failing: Verdict, answer: WhatIf, recorded: bool) -> Verdict:
    """No setting passes on the card; above what is alive at once that is beyond doubt."""
    beyond_doubt = answer.floor_bytes > answer.capacity_bytes
    more = answer.needs_bytes
    summary = f"No setting helps: the card needs {show_bytes(more)} more ({more:,} bytes), "
    summary += f"with {_settings_words(answer.needs_settings)}."
    alternatives = []
    if not beyond_doubt:
        alternatives.append(Alternative("allocator-fragmentation", "weak"))
    less = "Hold less: a smaller batch, accumulation or checkpointing; the allocations to look at "
    return replace(
        failing,
        cause="true-capacity",
        confidence="confirmed" if recorded and beyond_doubt else "likely",
        summary=summary,
        alternatives=alternatives,
        next_step=NextStep(f"{less}first are {_largest_groups(answer)}"),
    )


def _use(answer: WhatIf, now: Replay) -> NextStep:
    if answer.use == now.settings or (now.passes and not answer.use):
        return NextStep(what="Leave the allocator's settings as they are")
    names = behaviour(answer.torch, answer.build).conf_names
    if not answer.use:
        what = "Unset the allocator's variables: the default settings pass"
        return NextStep(what, f"unset {' '.join(names)}")
    return NextStep(
        what=f"Set it before the program starts: {answer.why}",
        command=f"export {names[0]}={answer.use}",
        precondition="the program is started anew; a running one keeps what it has",
        blast_radius="programs started from this shell",
    )


def _settings_words(settings: str) -> str:
    return settings or "the default settings"


def _largest_groups(answer: WhatIf) -> str:
    named = [
        f"{group.frames[0]} ({show_bytes(group.size_bytes)})"
        for group in answer.groups[:3]
        if group.frames
    ]
    return ", ".join(named) or "those the table lists"
