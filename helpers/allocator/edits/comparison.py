"""The what-if of a program before and after edits, and which line to edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from helpers.allocator.call_sites import LinesError
from helpers.allocator.edits.edit import Edit
from helpers.allocator.edits.edited import Edited, edited
from helpers.allocator.edits.ranking import ranked
from helpers.allocator.study import Study
from helpers.ground import contract
from helpers.ground.replays import LineEdit, WhatIf
from helpers.ground.shapes import Verdict

CONFS = ["", "expandable_segments:True"]
"""The settings that are tried first: the default ones, and those that help most programs."""
MOST_EVENTS = 200_000
"""A longer trace is replayed under CONFS alone, and its lines are not ranked: a ranking replays it
for each edit of several lines.
"""
PLAIN_EVENTS = 2_000
"""The same for plain Python, which replays 20,000 operations a second."""
TOO_LONG = (
    "a trace this long: its lines are not ranked; ask about one of them with --edit"
)

PUT_OFF = (
    "smaller pieces would only put off a leak: no changes of single lines were tried"
)


@dataclass(frozen=True)
class EditComparison:
    """The what-if of a trace before and after edits.

    ``edited``: what each edit changed, beside ``edits``. ``recording_fails``: the recorded program
    ran out of memory, so the rest of it is missing.
    """

    edits: list[Edit]
    edited: list[Edited]
    before: WhatIf
    after: WhatIf
    recording_fails: bool

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON: a row for each edit, and both what-ifs."""
        rows = [
            {
                "edit": edit.words,
                "assumes": edit.assumes,
                "requests": result.changed,
                "bytes": result.changed_bytes,
                "added_bytes": result.added_bytes,
            }
            for edit, result in zip(self.edits, self.edited, strict=True)
        ]
        before = contract.as_dict(self.before)
        return {"edits": rows, "before": before, "after": contract.as_dict(self.after)}


def compare_edits(study: Study, edits: Sequence[Edit]) -> EditComparison:
    """The what-if without the edits and with all of them, each made to the result of the one
    before; without any edit the two are the same. Raises ValueError in one line for an edit that
    cannot be made.
    """
    results: list[Edited] = []
    trace = study.trace
    for edit in edits:
        results.append(edited(trace, edit))
        trace = results[-1].trace
    confs = None  # all of the grid
    if len(study.trace) > MOST_EVENTS:
        confs = CONFS
    before = study.what_if(confs)
    after = before
    if edits:
        after = replace(study, trace=trace).what_if(confs)
    return EditComparison(list(edits), results, before, after, study.trace.ran_out)


def lines_that_save(
    study: Study, answer: WhatIf, verdict: Verdict
) -> tuple[list[LineEdit], list[str]]:
    """The lines whose change saves the run, ranked; and a note on why none are ranked, if the trace
    is too long or the program keeps more with each step. Both are empty where the default settings
    pass, and where the trace has no line of the program. ``answer`` and ``verdict``: of the study.
    """
    if verdict.cause == "user-leak":
        return [], [PUT_OFF]
    # Without a row of the default settings nothing is known to fail under them.
    default = [row for row in answer.rows if not row.settings]
    if all(row.passes for row in default):
        return [], []
    most_events = PLAIN_EVENTS
    if find_spec("numba"):
        most_events = MOST_EVENTS
    if len(study.trace) > most_events:
        return [], [TOO_LONG]
    confs = [""]
    # No setting passes alone, but the one that needs least may together with an edit.
    if answer.needs_bytes and answer.needs_settings:
        confs.append(answer.needs_settings)
    try:
        return ranked(study, confs), []
    except LinesError:
        return [], []
