"""What changing the program's own lines does: the settings table before and after an edit, and
the lines ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from helpers.allocator.driver import Card
from helpers.allocator.edit import Edit, Edited, edited, ranked
from helpers.allocator.lines import LinesError
from helpers.allocator.trace import Trace
from helpers.allocator.whatif import whatif
from helpers.ground import contract
from helpers.ground.replays import LineEdit, WhatIf
from helpers.ground.units import show_bytes
from helpers.tell.shown import Column, Shown

CONFS = ["", "expandable_segments:True"]
MOST_EVENTS = 200_000
PLAIN_EVENTS = 2_000
"""A longer trace is replayed under CONFS alone, and its lines are not ranked; these are not
where only plain Python can.
"""
TOO_LONG = "a trace this long: its lines are not ranked; ask about one of them with --edit"
AS_FAR = "as far as the recording goes: what the program would ask for after it failed is not in it"


@dataclass(frozen=True)
class Study:
    """The what-if of a trace before and after edits."""

    edits: list[Edit]
    made: list[Edited]
    before: WhatIf
    after: WhatIf
    ends: bool


def study(trace: Trace, edits: Sequence[Edit], card: Card, **how: Any) -> Study:
    """The edits, one after the other, and the what-if without and with them.

    Raises ValueError in one line.
    """
    made: list[Edited] = []
    for edit in edits:
        made.append(edited(made[-1].trace if made else trace, edit))
    confs = CONFS if len(trace) > MOST_EVENTS else None
    before = after = whatif(trace, card, confs=confs, **how)
    if made:
        after = whatif(made[-1].trace, card, confs=confs, **how)
    return Study(list(edits), made, before, after, failed(trace))


def as_dict(one: Study) -> dict[str, Any]:
    """The study as JSON holds it."""
    rows: list[dict[str, Any]] = []
    for edit, made in zip(one.edits, one.made, strict=True):
        rows.append({"edit": edit.words, "assumes": edit.assumes, "requests": made.changed})
        rows[-1] |= {"bytes": made.taken, "added_bytes": made.added}
    both = {"before": one.before, "after": one.after}
    return {"edits": rows, **{name: contract.as_dict(answer) for name, answer in both.items()}}


def table(one: Study) -> Shown:
    """Before and after, under the default settings and the best."""
    rows: list[list[Any]] = []
    for name, answer in (("as it is", one.before), ("edited", one.after))[: 1 + bool(one.edits)]:
        default = next(row for row in answer.rows if not row.settings)
        best = next((row for row in answer.rows if row.settings == answer.use), default)
        best = best if best.settings else answer.rows[0]
        for row in [default, best][: 1 + (best is not default)]:
            out = f"operation {row.first_oom.index:,}" if row.first_oom else "passes"
            peaks = [row.peak_allocated_bytes, row.peak_reserved_bytes]
            rows.append([name, row.settings or "default", out, *peaks])
    missing = one.after.needs_bytes
    use = one.after.use or "the default settings"
    end = f"no setting helps: {show_bytes(missing)} are missing" if missing else f"use: {use}"
    words = ", ".join(edit.words for edit in one.edits) or "no line changed"
    before = [f"{words}: {end}", ""]
    below = [
        f"{edit.words}: {made.changed} requests of {show_bytes(made.taken)}, {edit.assumes}"
        + (f"; it adds {show_bytes(made.added)} asked for again" if made.added else "")
        for edit, made in zip(one.edits, one.made, strict=True)
    ]
    below += [AS_FAR] * one.ends
    asked = [Column("peak allocated", "bytes"), Column("peak reserved", "bytes")]
    head = ["program", "settings", "runs out at", *asked]
    return Shown(before[0], head, rows, below, before, widest=None)


def least(trace: Trace, card: Card, answer: WhatIf, fraction: float | None) -> list[LineEdit]:
    """The lines ranked where the default settings fail; none where the trace has no lines, or
    plain Python would take long.
    """
    if unranked(trace, answer) or all(row.settings or row.passes for row in answer.rows):
        return []
    confs = list(dict.fromkeys(["", *[answer.needs_settings] * bool(answer.needs_bytes)]))
    how: dict[str, Any] = {"torch": answer.torch, "build": answer.build, "fraction": fraction}
    with suppress(LinesError):
        return ranked(trace, card, confs, **how)
    return []


def unranked(trace: Trace, answer: WhatIf) -> list[str]:
    """Why the lines of a trace are not ranked, though the default settings fail, as a note;
    empty where they are.
    """
    most = MOST_EVENTS if find_spec("numba") else PLAIN_EVENTS
    fails = any(not row.settings and not row.passes for row in answer.rows)
    return [TOO_LONG] * (fails and len(trace) > most)


def failed(trace: Trace) -> bool:
    """Whether the recorded program ran out of memory itself, so that the rest of it is missing."""
    return any(call.action == "oom" for call in trace.driver)


def lines(found: Sequence[LineEdit], ends: bool) -> Shown:
    """The program's own lines by which change saves the run."""
    rows = [
        [one.line, one.live_bytes, one.edit or "it alone does not", one.conf or "default"]
        for one in found
    ]
    saving = [one for one in found if one.edit]
    says = f"{saving[0].edit} saves the run" if saving else "no line alone saves the run"
    says = says if found else "no line ranked: nothing runs out, or no line of a program is known"
    below = [f"assumed: {words}" for words in dict.fromkeys(one.assumes for one in saving)]
    below += [AS_FAR] * ends
    columns = ["line", Column("live where it fails", "bytes"), "change that saves it", "settings"]
    return Shown(says, columns, rows, below, [says, ""], widest=None)
