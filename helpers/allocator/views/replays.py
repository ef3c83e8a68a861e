"""Replays and what-ifs in words and tables. The league is the table of the settings that a what-if
tried, the one to use first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from helpers.allocator.circumstances import AMPLE_BYTES, Agreement
from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome
from helpers.allocator.stack_frames import place_in_words
from helpers.allocator.whatif import TOP
from helpers.ground.replays import LiveBytes, Replay, WhatIf
from helpers.ground.shell import word
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import Column, columns

SLOW_CALLS = (
    "Slow calls are calls to the GPU driver that wait for the GPU. The setting to use comes first, "
    "then those with the fewest slow calls."
)
GROWS_OR_NEEDS_MORE = ("user-leak", "true-capacity")
FRAGMENTED = "allocator-fragmentation"
"""Labels of verdicts (helpers/judge/failures.json). A setting that gets past one request is no
remedy for the first two; the last one names a setting to use.
"""
_SPLIT_SIZE = re.compile(r"max_split_size_mb:\d+")
LEAGUE = "settings:value, runs out at:ends, peak reserved:size, retries:number, slow calls:number"


def replay_text(
    outcome: Outcome,
    row: Replay,
    card: Card,
    check: Agreement | None,
    notes: Sequence[str],
) -> Shown:
    """One replay in words and figures. ``check``: how it compares with the recording, None where it
    cannot be compared. ``notes``: of the study.
    """
    end = "every request succeeds"
    if row.first_oom is not None:
        size = show_bytes(row.first_oom.size_bytes)
        at = f"the first at operation {row.first_oom.index}, for {size}"
        end = f"{row.ooms} requests fail, {at}"
    size = show_bytes(card.capacity_bytes)
    if card.capacity_bytes >= AMPLE_BYTES:
        size = "as large as needed"
    head = f"{outcome.events} operations on a card of {size}: {end}"
    allocs = outcome.counter("num_device_alloc")
    frees = outcome.counter("num_device_free")
    rows = [
        ["peak reserved", show_bytes(row.peak_reserved_bytes)],
        ["peak allocated", show_bytes(row.peak_allocated_bytes)],
        ["retries after a flush", str(row.retries)],
        ["calls to the card", f"{allocs} to take, {frees} to give back"],
        ["settings", setting_name(row.settings)],
        ["torch", f"{row.torch}, {row.build}"],
        ["engine", outcome.engine],
    ]
    below = []
    if check is not None:
        below += ["", _agreement_words(check)]
    below += ["", f"Proof: {row.proved_on}"]
    below += [f"Not modelled: {setting}" for setting in row.not_modelled]
    below += [f"Note: {note}" for note in notes]
    return Shown("A replay", ["figure", "value"], rows, below, before=[head, ""])


def setting_name(settings: str) -> str:
    """Settings as PYTORCH_CUDA_ALLOC_CONF has them; "default" for none."""
    return settings or "default"


def where_it_ends(row: Replay) -> str:
    """The operation at which a replay runs out, or that it passes."""
    if row.first_oom is None:
        return "passes"
    return f"operation {row.first_oom.index:,}"


def _agreement_words(check: Agreement) -> str:
    """How the replay agrees with the recording: how many of its addresses are as recorded, and the
    bytes reserved at its end beside the recorded ones.
    """
    exact = "exact" if check.exact else "not exact"
    addresses = f"{check.same_address} of {check.allocations} addresses"
    if check.by_offset:
        addresses += f" ({check.by_offset} by offset in an expandable range)"
    reserved = (
        f"{check.reserved_bytes} bytes ({check.recorded_reserved_bytes} recorded)"
    )
    return (
        f"Against the recording, {exact}: {addresses}, reserved at the end {reserved}"
    )


def league(answer: WhatIf, rows: int = TOP, path: str = "TRACE") -> Shown:
    """The settings of a what-if: the one to use, then the others, the best first, up to ``rows``;
    the default settings are shown in any case. Below them what was live, and warnings. ``path``: of
    the trace, for commands that a reader may run.
    """
    size = show_bytes(answer.capacity_bytes)
    sentences = [_use(answer)]
    if answer.grows:
        sentences.insert(0, f"{answer.grows}, so later steps run out with any setting")
    shown = [
        row
        for place, row in enumerate(ranked(answer))
        if place < rows or not row.settings
    ]
    count = len(answer.rows)
    settings = f"{count} settings"
    if count == 1:
        settings = "1 setting"
    tried = f"torch {answer.torch}, {answer.build}, {settings} tried"
    passing = sum(row.passes for row in answer.rows)
    return Shown(
        title=f"{'; '.join(sentences)}. {passing} of {count} settings pass on {size}",
        columns=columns(LEAGUE, widest=None),
        cells=_league_cells(shown),
        notes=_league_notes(answer, shown, path),
        before=[f"card {size}, {tried}", *sentences, answer.why, ""],
        widest=None,
    )


def setting_to_use(answer: WhatIf) -> str:
    """The setting that the next command of the verdict sets, if the verdict is on fragmentation and
    that setting passes here: the page then names one setting, and not two. Else the setting that
    the what-if recommends, "" for the default settings and where none passes.
    """
    verdict = answer.verdict
    if verdict is None or verdict.label != FRAGMENTED:
        return answer.use
    command = verdict.next_step.command
    passing = [row.settings for row in answer.rows if row.passes and row.settings]
    named = [conf for conf in passing if conf in command]
    # Several may be found, as the text of one may be a part of another's: the longest is meant.
    return max(named, key=len, default=answer.use)


def _use(answer: WhatIf) -> str:
    """Which setting to use, or that none helps, in one sentence."""
    verdict = answer.verdict
    if answer.needs_bytes and len(answer.rows) > 1:
        return "no setting helps"
    if answer.needs_bytes:  # only one setting was asked about
        setting = answer.rows[0].settings or "the default"
        return f"{setting} is not enough"
    setting = answer.use or "the default settings"
    if not answer.ends_at_failure:
        return f"use: {setting}"
    past = "gets past the failure; what comes after was not recorded"
    if verdict is not None and verdict.label in GROWS_OR_NEEDS_MORE:
        return f"no setting is enough: {setting} only {past}"
    return f"use: {setting}, which {past}"


def _league_notes(answer: WhatIf, shown: Sequence[Replay], path: str) -> list[str]:
    """The lines below the league; ``shown``: its rows."""
    notes = [
        f"{setting_name(row.settings)} is never recommended: {row.flags[0]}"
        for row in shown
        if row.flags
    ]
    if answer.groups:
        notes += ["", "When it ran out, these lines held the most:"]
        notes += _groups_in_words(answer.groups)
    if answer.grows:
        notes.append("To see which lines keep memory, and in which step it runs out:")
        notes.append(f"    casebook leaks {word(path)}")
    notes += [f"note: {warning}" for warning in answer.warnings]
    # Otherwise what it says is among the warnings (whatif.py).
    if answer.proved == "oracle":
        notes.append(f"proof: {answer.proved_on}")
    for row in shown:
        for setting in row.not_modelled:
            note = f"not modelled: {setting}"
            if note not in notes:
                notes.append(note)
    return [*notes, SLOW_CALLS]


def _groups_in_words(groups: Sequence[LiveBytes]) -> list[str]:
    """A line for each place in the program, with the bytes and allocations that it holds, the most
    bytes first. Stacks that ``place_in_words`` gives the same words are one place.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for group in groups:
        place = "no stack recorded"
        if group.frames:
            place = place_in_words(group.frames)
        sizes[place] += group.size_bytes
        if group.count:
            counts[place] += group.count
    lines = []
    for place, size in sizes.most_common():
        allocations = f"{counts[place]} allocations"
        if counts[place] == 1:
            allocations = "1 allocation"
        lines.append(f"  {show_bytes(size)} in {allocations}: {place}")
    return lines


def ranked(answer: WhatIf) -> list[Replay]:
    """The rows of a what-if, the one to use first, which need not be the best (whatif.recommended);
    the others in their order, the best first.
    """
    if answer.needs_bytes:
        # none is to be used; ``use`` is "", as for the default settings
        return list(answer.rows)
    return sorted(answer.rows, key=lambda row: row.settings != answer.use)


def _league_cells(rows: Sequence[Replay]) -> list[list[object]]:
    """A row of cells for each setting. Values of max_split_size_mb with the same figures share a
    row, such as "max_split_size_mb:64, 128".
    """
    # By a setting, of max_split_size_mb without its value, and its figures: the name in its cell.
    names: dict[tuple[object, ...], str] = {}
    for row in rows:
        setting, _, value = row.settings.partition(":")
        if not _SPLIT_SIZE.fullmatch(row.settings):
            setting = row.settings
        alike = (setting, *_league_figures(row))
        if alike in names:
            names[alike] += f", {value}"
        else:
            names[alike] = setting_name(row.settings)
    return [[name, *figures] for (_, *figures), name in names.items()]


def _league_figures(row: Replay) -> tuple[object, ...]:
    """The figures of a setting, in the order of LEAGUE: where it runs out; the peak reserved, from
    the lowest to the highest where it depends on the driver's addresses; retries; slow calls.
    """
    peak = show_bytes(row.peak_reserved_low_bytes)
    highest = show_bytes(row.peak_reserved_high_bytes)
    if highest != peak:
        peak += f" to {highest}"
    return where_it_ends(row), peak, row.retries, row.slow_calls


def sweep_table(answers: Sequence[WhatIf]) -> Shown:
    """A row for each what-if of several releases and cards."""
    rows: list[list[object]] = []
    for answer in answers:
        use = answer.use or "the default"
        if answer.needs_bytes:
            settings = answer.needs_settings or "the default"
            use = f"none, {show_bytes(answer.needs_bytes)} are missing with {settings}"
        end = _default_end(answer)
        rows.append([answer.torch, answer.build, answer.capacity_bytes, end, use])
    columns = ["torch", "build", Column("card", "bytes"), "default settings", "use"]
    return Shown("What-ifs over releases and cards", columns, rows, widest=None)


def _default_end(answer: WhatIf) -> str:
    """How the run ends under the default settings; "not tried" where the what-if did not include
    them.
    """
    default = next((row for row in answer.rows if not row.settings), None)
    if default is None:
        return "not tried"
    if default.first_oom is None:
        return "passes"
    return f"fails at operation {default.first_oom.index}"


def smallest_table(sizes: dict[str, int]) -> Shown:
    """The smallest card on which the run passes, for each setting; ``sizes``: its bytes."""
    rows: list[list[object]] = []
    for conf in sorted(sizes, key=lambda conf: sizes[conf]):
        name = conf or "default settings"
        rows.append([name, sizes[conf], sizes[conf]])  # in words, and as a plain number
    columns = ["settings", Column("smallest card", "bytes"), "bytes"]
    return Shown("The smallest card that is enough", columns, rows, widest=None)
