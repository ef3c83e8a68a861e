"""Replays and what-ifs in words, the verdict over one, and the progress of what takes longer
than a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from helpers.allocator.agreement import Agreement
from helpers.allocator.circumstances import AMPLE_BYTES
from helpers.allocator.driver import Card
from helpers.allocator.metrics import Metrics
from helpers.allocator.outcome import Outcome
from helpers.allocator.whatif import TOP
from helpers.ground import shapes
from helpers.ground.replays import Replay, WhatIf
from helpers.ground.shapes import Verdict, seen
from helpers.ground.units import show_bytes
from helpers.settings.releases import behaviour
from helpers.tell.shown import Column, Shown


def replay_text(
    outcome: Outcome, shape: Replay, card: Card, check: Agreement | None, notes: Sequence[str]
) -> Shown:
    """One replay."""
    end = "every request is met"
    if shape.first_oom is not None:
        end = f"{shape.ooms} requests fail, the first at operation {shape.first_oom.index}: "
        end += f"{show_bytes(shape.first_oom.size_bytes)} asked for"
    taken = outcome.counter("num_device_alloc")
    given = outcome.counter("num_device_free")
    rows = [
        ["peak reserved", show_bytes(shape.peak_reserved_bytes)],
        ["peak allocated", show_bytes(shape.peak_allocated_bytes)],
        ["retries after a flush", str(shape.retries)],
        ["calls to the card", f"{taken} to take, {given} to give back"],
        ["settings", shape.settings or "default"],
        ["torch", f"{shape.torch}, {shape.build}"],
        ["engine", outcome.engine],
    ]
    ample = card.capacity_bytes >= AMPLE_BYTES
    size = "as large as needed" if ample else show_bytes(card.capacity_bytes)
    head = f"{outcome.events} operations on a card of {size}: {end}"
    below = []
    if check is not None:
        exact = "exact" if check.exact else "not exact"
        ranges = f" ({check.by_offset} by offset in an expandable range)" * bool(check.by_offset)
        same = f"{check.same_address} of {check.allocations} addresses{ranges}, "
        same += f"{check.same_segment_calls} of {check.segment_calls} segment calls"
        held = f"{check.reserved_bytes} bytes ({check.recorded_reserved_bytes} recorded)"
        below = ["", f"Against the recording, {exact}: {same}, reserved at the end {held}"]
    left_out = [f"Not modelled: {one}" for one in shape.not_modelled]
    below += ["", f"Proof: {shape.proved_on}", *left_out, *(f"Note: {note}" for note in notes)]
    return Shown("A replay", ["figure", "value"], rows, below, before=[head, ""])


LEAKS = "which lines keep it, and the step at which it runs out: python3 -m helpers leaks TRACE"
SLOW_CALLS = "Slow calls: those to the card, which wait for it. Order: the one to use, then the fewest slow calls."


def league(answer: WhatIf, rows: int = TOP) -> Shown:
    """The settings of a what-if: the one to use, the best of the others and the default's, what
    was live, warnings.
    """
    size = show_bytes(answer.capacity_bytes)
    passing = sum(row.passes for row in answer.rows)
    use = "no setting helps"
    if not answer.needs_bytes:
        use = f"use: {answer.use or 'the default settings'}"
    if answer.grows:
        use = f"{answer.grows}: later steps run out whatever the setting. For these steps, {use}"
    tried = f"torch {answer.torch}, {answer.build}, {len(answer.rows)} settings tried"
    chosen = [row for at, row in enumerate(ranked(answer)) if at < rows or not row.settings]
    warned = [row for row in chosen if row.flags]
    below = [f"{row.settings or 'default'}: never recommended: {row.flags[0]}" for row in warned]
    if answer.groups:
        below += ["", "most was live, when it ran out, in"]
        below += [
            f"  {show_bytes(one.size_bytes)} in {one.count} allocations: {_where(one.frames)}"
            for one in answer.groups
        ]
        below += [
            f"  block {one.id} of operation {one.index}: {show_bytes(one.size_bytes)}, {_where(one.frames)}"
            for one in answer.live
        ]
    below += [LEAKS] * bool(answer.grows) + [f"note: {warning}" for warning in answer.warnings]
    head = ["settings", "runs out at", "peak reserved", "retries", "slow calls"]
    title = f"{use}. {passing} of {len(answer.rows)} settings pass on {size}"
    proved = [f"proof: {answer.proved_on}"] if answer.proved == "oracle" else []
    left_out = dict.fromkeys(one for row in chosen for one in row.not_modelled)
    proved += [f"not modelled: {one}" for one in left_out]
    before = [f"card {size}, {tried}", use, answer.why, ""]
    below = [*below, *proved, SLOW_CALLS]
    return Shown(title, head, list(map(_league_row, chosen)), below, before, widest=None)


def ranked(answer: WhatIf) -> list[Replay]:
    """The settings as they are shown: the one to use first, which is the simplest of those
    about as good as the best.
    """
    return sorted(
        answer.rows, key=lambda row: bool(answer.needs_bytes) or row.settings != answer.use
    )


def _league_row(row: Replay) -> list[Any]:
    """A setting: where it runs out, and its peak with the band that the rules for addresses leave."""
    out = f"operation {row.first_oom.index:,}" if row.first_oom else "passes"
    band = (show_bytes(row.peak_reserved_low_bytes), show_bytes(row.peak_reserved_high_bytes))
    peak = " to ".join(dict.fromkeys(band))
    return [row.settings or "default", out, peak, row.retries, row.slow_calls]


def _where(frames: tuple[str, ...]) -> str:
    return " < ".join(frames[:3]) or "no stack recorded"


def sweep_table(answers: Sequence[WhatIf]) -> Shown:
    """What-ifs over releases and cards, a line each."""
    rows = []
    for answer in answers:
        default = next((row for row in answer.rows if not row.settings), None)
        first = "not tried"
        if default is not None:
            out = default.first_oom
            first = f"fails at operation {out.index}" if out else "passes"
        use = answer.use or "the default"
        if answer.needs_bytes:
            then = answer.needs_settings or "the default"
            use = f"needs {show_bytes(answer.needs_bytes)} more, then {then}"
        rows.append([answer.torch, answer.build, answer.capacity_bytes, first, use])
    head = ["torch", "build", Column("card", "bytes"), "default settings", "use"]
    return Shown("What-ifs over releases and cards", head, rows, widest=None)


def smallest_table(sizes: dict[str, int]) -> Shown:
    """The smallest card that is enough, setting by setting."""
    ranked = sorted(sizes.items(), key=lambda item: item[1])
    rows = [[conf or "default settings", size, size] for conf, size in ranked]
    head = ["settings", Column("smallest card", "bytes"), "bytes"]
    return Shown("The smallest card that is enough", head, rows, widest=None)


def verdict(
    answer: WhatIf, now: Replay, at_failure: Metrics | None, *, recorded: bool, own: bool = False
) -> Verdict:
    """What a trace proves about its own end.

    `now` is the row of the settings in force; at_failure the block figures there.

    Fragmentation is confirmed where the request fails although allocated and asked for fit the
    card, another setting passes, and the trace was recorded on a GPU; a generated or
    CPU-recorded trace proves it of itself only, so it is likely at most. ``own``: the trace is
    of the user's program, so that it says why this box fails; an example's verdict stands
    aside.
    """
    return replace(_of_trace(answer, now, at_failure, recorded), state="" if own else "aside")


def _of_trace(answer: WhatIf, now: Replay, at_failure: Metrics | None, recorded: bool) -> Verdict:
    source = f"replay under torch {answer.torch}, {answer.build}"

    def held(name: str, value: int, item: str, says: str) -> shapes.Evidence:
        return shapes.Evidence(name, seen(value, "bytes", source, item), says)

    peak = now.peak_reserved_bytes
    most = "the most the allocator holds of the card"
    card = held("card", answer.capacity_bytes, "the card replayed on", "what there is")
    size = show_bytes(answer.capacity_bytes)
    setting = _name(now.settings)
    made = Verdict(
        cause="other",
        confidence="likely" if recorded else "weak",
        summary=f"Every request is met under {setting} on {size}.",
        evidence=[held("peak", peak, "peak reserved", most), card],
        against=[
            shapes.Evidence(f"note-{n}", seen(warning, "text", source), "a limit of this answer")
            for n, warning in enumerate(answer.warnings, 1)
        ],
        next_step=_use(answer, now),
    )
    if now.first_oom is None and answer.grows:
        later = (
            f"Every request of these steps is met under {setting} on {size}, but {answer.grows}."
        )
        keep = shapes.NextStep("Find what keeps it", "python3 -m helpers leaks TRACE")
        return replace(made, summary=later, next_step=keep)
    if now.first_oom is None:
        return made
    request = f"request at operation {now.first_oom.index}", f"fails under {setting}"
    least = "the most that is alive at once: no setting passes on less"
    evidence = [
        held("request", now.first_oom.size_bytes, *request),
        held("floor", answer.floor_bytes, f"live at operation {answer.floor_index}", least),
        card,
    ]
    if at_failure is not None:
        loose = "free, but in segments that are in use: it cannot be given back"
        stranded = at_failure.stranded_bytes
        allocated = at_failure.allocated_bytes
        evidence += [
            held("stranded", stranded, "stranded at the failure", loose),
            held("allocated", allocated, "allocated at the failure", "in use"),
        ]
    if answer.needs_bytes:
        return _too_small(replace(made, evidence=evidence), answer, recorded)
    own = "python3 -m helpers record --out trace.pickle -- python train.py"
    return replace(
        made,
        cause="allocator-fragmentation",
        confidence="confirmed" if recorded else "likely",
        summary=f"The same requests pass on this card under {_name(answer.use)}.",
        evidence=evidence,
        missing=[] if recorded else [shapes.Missing("a trace of your program on this card", own)],
    )


def _too_small(made: Verdict, answer: WhatIf, recorded: bool) -> Verdict:
    """No setting passes on the card; above what is alive at once that is beyond doubt."""
    above = answer.floor_bytes > answer.capacity_bytes
    more = answer.needs_bytes
    summary = f"No setting helps: the card needs {show_bytes(more)} more ({more:,} bytes), "
    summary += f"with {_name(answer.needs_settings)}."
    less = "Hold less: a smaller batch, accumulation or checkpointing; the allocations to look at "
    return replace(
        made,
        cause="true-capacity",
        confidence="confirmed" if recorded and above else "likely",
        summary=summary,
        alternatives=[] if above else [shapes.Alternative("allocator-fragmentation", "weak")],
        next_step=shapes.NextStep(f"{less}first are {_groups(answer)}"),
    )


def _use(answer: WhatIf, now: Replay) -> shapes.NextStep:
    if answer.use == now.settings or (now.passes and not answer.use):
        return shapes.NextStep(what="Leave the allocator's settings as they are")
    names = behaviour(answer.torch, answer.build).conf_names
    if not answer.use:
        what = "Unset the allocator's variables: the default settings pass"
        return shapes.NextStep(what, f"unset {' '.join(names)}")
    return shapes.NextStep(
        what=f"Set it before the program starts: {answer.why}",
        command=f"export {names[0]}={answer.use}",
        precondition="the program is started anew; a running one keeps what it has",
        blast_radius="programs started from this shell",
    )


def _name(settings: str) -> str:
    return settings or "the default settings"


def _groups(answer: WhatIf) -> str:
    known = [group for group in answer.groups[:3] if group.frames]
    named = [f"{group.frames[0]} ({show_bytes(group.size_bytes)})" for group in known]
    return ", ".join(named) or "those the table lists"
