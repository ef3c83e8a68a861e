"""What every run of a batch came to, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from helpers.tell.resources import words
from helpers.tell.shown import Shown

from .record import gone, read_batch
from .shapes import Run
from .which_runs import differences

NO_BATCH = "No batch was given: this report is about the box alone."
MOST_ROWS = 60
"""Rows that the table shows a person; those that did not answer come first."""


def runs_table(batch: str) -> Shown:
    """Each run with its true state and its answer, or why it has none.

    Without a batch one line that says so.
    """
    columns = ["notebook", "box", "parameters", "state", "answer, or why there is none"]
    if not batch:
        return Shown("Runs", columns, [], none=NO_BATCH, again=True)
    view = read_batch(Path(batch))
    runs = sorted(view.runs, key=lambda run: run.state == "answered")
    rows = []
    for run, apart in zip(runs, differences(runs), strict=True):
        end = run.cause or gone(run)
        if run.verdict:
            end = run.verdict.short
        rows.append(
            [run.notebook, run.box, ", ".join(apart), run.state.replace("_", " "), end]
        )
    unreadable = [f"Not readable: {line}" for line in view.unreadable]
    counts = [", ".join(counted(view.runs))]
    return Shown(
        "Runs of the batch",
        columns,
        rows,
        unreadable,
        counts,
        widest=80,
        again=True,
        most=MOST_ROWS,
    )


def counted(runs: Iterable[Run]) -> list[str]:
    """How many runs came to what, in words; the good state first, then the worst."""
    counts: Counter[str] = Counter(run.state for run in runs)
    states = dict.fromkeys(("answered", *words("states")))
    named = {"planned": "not started"}
    return [
        f"{counts[state]} {named.get(state, state.replace('_', ' '))}"
        for state in states
        if counts[state]
    ]
