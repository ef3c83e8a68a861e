"""What changing the program's own lines does: settings before and after an edit, lines ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from helpers.allocator.call_sites import LinesError
from helpers.allocator.driver import Card
from helpers.allocator.edits.edit import Edit
from helpers.allocator.edits.edited import Edited, edited
from helpers.allocator.edits.ranking import ranked
from helpers.allocator.trace import Trace
from helpers.allocator.whatif import whatif
from helpers.ground import contract
from helpers.ground.replays import LineEdit, Replay, WhatIf
from helpers.ground.units import show_bytes
from helpers.tell.shown import Shown
from helpers.tell.values import Column

CONFS = ["", "expandable_segments:True"]
MOST_EVENTS = 200_000
"""A longer trace is replayed under CONFS alone, and its lines are not ranked."""
PLAIN_EVENTS = 2_000
"""Nor are those of a trace longer than this where only plain Python can replay it."""
TOO_LONG = "a trace this long: its lines are not ranked; ask about one of them with --edit"
AS_FAR = "as far as the recording goes: what the program would ask for after it failed is not in it"


@dataclass(frozen=True)
class Study:
    """The what-if of a trace before and after edits.

    ``recording_fails``: the recorded program ran out of memory, so that the rest is missing.
    """

    edits: list[Edit]
    edited: list[Edited]
    before: WhatIf
    after: WhatIf
    recording_fails: bool


def study(
    trace: Trace,
    edits: Sequence[Edit],
    card: Card,
    *,
    torch: str = "2.14.1",
    build: str = "cuda",
    fraction: float | None = None,
) -> Study:
    """The what-if without the edits, and with them one after the other.

    Raises ValueError in one line.
    """
    results: list[Edited] = []
    for edit in edits:
        results.append(edited(results[-1].trace if results else trace, edit))
    confs = CONFS if len(trace) > MOST_EVENTS else None

    def league(trace: Trace) -> WhatIf:
        return whatif(trace, card, confs=confs, torch=torch, build=build, fraction=fraction)

    before = league(trace)
    after = league(results[-1].trace) if results else before
    return Study(list(edits), results, before, after, failed(trace))


def as_dict(study: Study) -> dict[str, Any]:
    """The study as JSON holds it."""
    rows = [
        {
            "edit": edit.words,
            "assumes": edit.assumes,
            "requests": result.changed,
            "bytes": result.changed_bytes,
            "added_bytes": result.added_bytes,
        }
        for edit, result in zip(study.edits, study.edited, strict=True)
    ]
    before = contract.as_dict(study.before)
    return {"edits": rows, "before": before, "after": contract.as_dict(study.after)}


def table(study: Study) -> Shown:
    """Before and after, under the default settings and the best."""
    rows = _rows("as it is", study.before)
    if study.edits:
        rows += _rows("edited", study.after)
    missing = study.after.needs_bytes
    end = f"use: {study.after.use or 'the default settings'}"
    if missing:
        end = f"no setting helps: {show_bytes(missing)} are missing"
    words = ", ".join(edit.words for edit in study.edits) or "no line changed"
    title = f"{words}: {end}"
    notes = []
    for edit, result in zip(study.edits, study.edited, strict=True):
        size = show_bytes(result.changed_bytes)
        note = f"{edit.words}: {result.changed} requests of {size}, {edit.assumes}"
        if result.added_bytes:
            note += f"; it adds {show_bytes(result.added_bytes)} asked for again"
        notes.append(note)
    if study.recording_fails:
        notes.append(AS_FAR)
    columns = [
        "program",
        "settings",
        "runs out at",
        Column("peak allocated", "bytes"),
        Column("peak reserved", "bytes"),
    ]
    return Shown(title, columns, rows, notes, [title, ""], widest=None)


def _rows(program: str, answer: WhatIf) -> list[list[Any]]:
    """The rows of one program: the default settings, and the best where it is another."""
    default = next(row for row in answer.rows if not row.settings)
    shown = [default]
    best = _best(answer)
    if best is not default:
        shown.append(best)
    return [
        [
            program,
            row.settings or "default",
            f"operation {row.first_oom.index:,}" if row.first_oom else "passes",
            row.peak_allocated_bytes,
            row.peak_reserved_bytes,
        ]
        for row in shown
    ]


def _best(answer: WhatIf) -> Replay:
    """The row of the setting to use; the first where that is the default."""
    named = (row for row in answer.rows if row.settings and row.settings == answer.use)
    return next(named, answer.rows[0])


def least(trace: Trace, card: Card, answer: WhatIf, fraction: float | None) -> list[LineEdit]:
    """The lines ranked where the default settings fail.

    Empty where the trace has no lines, or plain Python would take long.
    """
    if unranked(trace, answer) or not _default_fails(answer):
        return []
    confs = [""]
    if answer.needs_bytes and answer.needs_settings:
        confs.append(answer.needs_settings)
    try:
        return ranked(trace, card, confs, torch=answer.torch, build=answer.build, fraction=fraction)
    except LinesError:
        return []


def unranked(trace: Trace, answer: WhatIf) -> list[str]:
    """Why the lines of a trace are not ranked, though the default settings fail, as a note;
    empty where they are.
    """
    most = MOST_EVENTS if find_spec("numba") else PLAIN_EVENTS
    if _default_fails(answer) and len(trace) > most:
        return [TOO_LONG]
    return []


def _default_fails(answer: WhatIf) -> bool:
    return any(not row.settings and not row.passes for row in answer.rows)


def failed(trace: Trace) -> bool:
    """Whether the recorded program ran out of memory itself, so that the rest of it is missing."""
    return any(call.action == "oom" for call in trace.driver)


def lines(ranking: Sequence[LineEdit], recording_fails: bool) -> Shown:
    """The program's own lines by which change saves the run."""
    rows = [
        [row.line, row.live_bytes, row.edit or "it alone does not", row.conf or "default"]
        for row in ranking
    ]
    saving = [row for row in ranking if row.edit]
    if saving:
        title = f"{saving[0].edit} saves the run"
    elif ranking:
        title = "no line alone saves the run"
    else:
        title = "no line ranked: nothing runs out, or no line of a program is known"
    notes = [f"assumed: {words}" for words in dict.fromkeys(row.assumes for row in saving)]
    if recording_fails:
        notes.append(AS_FAR)
    columns = ["line", Column("live where it fails", "bytes"), "change that saves it", "settings"]
    return Shown(title, columns, rows, notes, [title, ""], widest=None)
