"""The runs of a batch and their outcomes, as a table."""

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
"""Rows that the table shows a person, about two screens; the rest is counted."""


def runs_table(batch: str) -> Shown:
    """Each run of the batch in the folder ``batch``, with its state and its answer, or why it has
    none; runs without an answer come first.

    If ``batch`` is empty, the table is one line that says so.
    """
    columns = ["notebook", "box", "parameters", "state", "answer, or why there is none"]
    if not batch:
        return Shown("Runs", columns, [], none=NO_BATCH, again=True)
    view = read_batch(Path(batch))
    # False sorts before True.
    runs = sorted(view.runs, key=lambda run: run.state == "answered")
    rows = []
    for run, parameters in zip(runs, differences(runs), strict=True):
        # both are empty while it is planned or under way
        outcome = run.cause or gone(run)
        if run.verdict:
            outcome = run.verdict.short
        state = run.state.replace("_", " ")
        rows.append([run.notebook, run.box, ", ".join(parameters), state, outcome])
    return Shown(
        "Runs of the batch",
        columns,
        rows,
        notes=[f"Not readable: {line}" for line in view.unreadable],
        before=[", ".join(counted(view.runs))],
        widest=80,
        again=True,
        most=MOST_ROWS,
    )


def counted(runs: Iterable[Run]) -> list[str]:
    """How many runs are in each state, such as "3 answered"; the good state first, then the others
    from the worst on.
    """
    counts: Counter[str] = Counter(run.state for run in runs)
    # words.json lists the states from the worst to the best.
    states = dict.fromkeys(("answered", *words("states")))
    listed = []
    for state in states:
        name = state.replace("_", " ")
        if state == "planned":
            name = "not started"
        if counts[state]:
            listed.append(f"{counts[state]} {name}")
    return listed
