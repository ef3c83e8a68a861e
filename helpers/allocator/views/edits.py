"""Shows what changes of the program's own lines do: the what-if before and after an edit, and the
lines ranked by the edit that saves the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.allocator.edits.comparison import EditComparison
from helpers.allocator.edits.edit import parse
from helpers.allocator.views.replays import setting_name, where_it_ends
from helpers.ground.places import PROGRAM
from helpers.ground.replays import LineEdit, WhatIf
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import columns

BEFORE_AND_AFTER = (
    "program:word, settings:value, runs out at:ends, peak allocated:number:bytes, "
    "peak reserved:number:bytes"
)
LINES = "line:line, holds at the failure:number:bytes, change that is enough:word, with settings:value"
EXACT = (
    "predicted from the recording; where the program is at hand, rehearse it to be exact: change the "
    f"line and run {PROGRAM} rehearse --gpu CARD -- COMMAND, or let {PROGRAM} fix find the change"
)
AS_FAR = (
    "the recording ends at the failure: what the program needs after it is not counted"
)


def table(comparison: EditComparison) -> Shown:
    """The program before and after the edits, each under the default settings and under the best.
    Without any edit it has only the rows of the program as it is.
    """
    rows = _rows("as it is", comparison.before)
    if comparison.edits:
        rows += _rows("edited", comparison.after)
    missing = comparison.after.needs_bytes
    if missing:
        end = f"no setting helps, {show_bytes(missing)} are missing"
    elif comparison.after.use:
        end = f"use: {comparison.after.use}"
    else:
        end = "use: the default settings"
    words = "no line changed"
    if comparison.edits:
        words = ", ".join(edit.words for edit in comparison.edits)
    notes = []
    for edit, result in zip(comparison.edits, comparison.edited, strict=True):
        size = show_bytes(result.changed_bytes)
        note = f"{edit.words}: {result.changed} requests of {size} change; assumed: {edit.assumes}"
        if result.added_bytes:
            note += f"; {show_bytes(result.added_bytes)} are requested again"
        notes.append(note)
    if comparison.edits:
        notes.append(EXACT)
    title = f"{words}: {end}"
    return _shown(title, BEFORE_AND_AFTER, rows, notes, comparison.recording_fails)


def _rows(program: str, answer: WhatIf) -> list[list[object]]:
    """The rows of one program: under the default settings, and under those to use. Where the
    default settings are to be used, and where no setting passes, the second are the best row's.
    """
    best = answer.rows[0].settings
    if answer.use:
        best = answer.use
    rows = []
    for row in sorted(answer.rows, key=lambda row: row.settings):
        if row.settings in ("", best):
            name = setting_name(row.settings)
            peaks = (row.peak_allocated_bytes, row.peak_reserved_bytes)
            rows.append([program, name, where_it_ends(row), *peaks])
    return rows


def lines(
    ranking: Sequence[LineEdit], recording_fails: bool, why_none: Sequence[str] = ()
) -> Shown:
    """The program's own lines, each with the change of it that saves the run.

    ``recording_fails``: the recorded program ran out of memory itself. ``why_none``: why no line
    was ranked, where the trace is too long or the program leaks.
    """
    rows = [
        [row.line, row.live_bytes, _change(row.edit), setting_name(row.conf)]
        for row in ranking
    ]
    saving = [row for row in ranking if row.edit]
    if saving:
        saves = "is enough for the run to pass"
        if recording_fails:
            saves = "gets past the failure; what comes after is not counted"
        title = f"changing {saving[0].line} alone ({_change(saving[0].edit)}) {saves}"
    elif ranking:
        title = "no change of a single line is enough"
    elif why_none:
        title = f"no lines compared: {'; '.join(why_none)}"
    else:
        title = "no lines compared: nothing runs out, or the recording has no lines of the program"
    assumed = dict.fromkeys(row.assumes for row in saving)  # each once, in order
    notes = [f"assumed: {words}" for words in assumed]
    if saving:
        notes.append(
            f'to try another change, add to this command: --edit "{saving[0].edit}"'
        )
    return _shown(title, LINES, rows, notes, recording_fails)


def _change(edit: str) -> str:
    """A change of a line in words for people; ``edit``: as it is typed, "" for none that helps."""
    if not edit:
        return "not enough alone"
    return parse(edit).change


def _shown(
    title: str,
    heads: str,
    rows: list[list[object]],
    notes: list[str],
    recording_fails: bool,
) -> Shown:
    """A table with its title above it, and the note on a recording that ends at its failure."""
    if recording_fails:
        notes = [*notes, AS_FAR]
    return Shown(title, columns(heads, widest=None), rows, notes, [title, ""])
