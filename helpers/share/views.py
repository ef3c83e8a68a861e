"""The tables and figures of a shared page: the answer's numbers, the box, and each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from helpers.tell.message import anew_table
from helpers.tell.shown import ABOUT, Shown
from helpers.tell.values import Column
from helpers.tell.verdict import label

from . import verdict_facts
from .box_facts import box_views
from .public_copy import PublicCopy
from .subject import Subject, parameters

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from helpers.batch.box_answer import BoxAnswer
    from helpers.batch.section import Section

MOST_RUNS = 100
"""Rows of the table of runs, so that a page of a long batch stays readable."""
NO_BOX = "no box"


def views(
    about: Subject, copies: PublicCopy, sections: Sequence[Section], is_told: bool
) -> Iterator[Shown]:
    """The tables and figures of a subject's page, in their order, with only public cells.

    ``sections``: copies of its runs. ``is_told``: the page shows the notebook as a story, with its
    tables and figures.
    """
    if about.evidence.messages:
        yield anew_table(about.evidence)
    if about.verdict:
        rows = verdict_facts.numbers(about.verdict, about.bundle)
        heads = ["speaks", "what was read", "source"]
        if rows:
            yield Shown("What the answer rests on", heads, rows)
    if about.bundle:
        yield from box_views(about.evidence, about.bundle, copies)
    if about.notebook is not None and not is_told:
        yield from typed_views(about.notebook, copies)
    if about.runs:
        yield runs_view(sections)


def typed_views(notebook: NotebookNode, copies: PublicCopy) -> Iterator[Shown]:
    """The tables that a notebook's outputs have as data, with only public cells.

    An output that had a figure gets a new one, drawn from the public cells.
    """
    for number, notebook_cell in enumerate(notebook.cells, 1):
        for output in notebook_cell.get("outputs", []):
            about = output.get("metadata", {}).get(ABOUT)
            if not isinstance(about, dict) or "view" not in about:
                continue
            # A table in a form that is not known, of an older release or of a person, is left out.
            with suppress(ValueError):
                view = Shown.of_data(about["view"], f"Result of cell {number}")
                passing = view.passing(copies.rules)
                if "image/svg+xml" in output.get("data", {}):
                    passing = _drawn(passing)
                yield passing


def _drawn(view: Shown) -> Shown:
    """A table with its numbers as bars."""
    # Imported here, because matplotlib takes long to load.
    from helpers.tell.figures import with_bars

    return with_bars(view)


def boxes_view(answers: Sequence[BoxAnswer], runs: Iterable[Section]) -> Shown:
    """Each box of a batch with the answer that leads its runs."""
    counts = Counter(section.run.box for section in runs)
    rows = []
    for answer in answers:
        says = answer.obstacle  # why no run has a verdict
        sure = ""
        if answer.verdict is not None:
            says = answer.verdict.headline
            sure = label(answer.verdict)
        box = answer.box
        if not box:
            box = NO_BOX
        rows.append([box, says, sure, counts[answer.box]])
    heads = ["box", "answer", "how sure", "runs"]
    return Shown("The boxes and what was found on each", heads, rows)


def runs_view(sections: Sequence[Section]) -> Shown:
    """Each run with its state and its answer, in the order in which the batch lists them."""
    time = Column("time", "s")
    columns = ["run", "notebook", "box", "state", "answer", "given", time]
    rows = []
    for number, section in enumerate(sections[:MOST_RUNS], 1):
        run = section.run
        state = f"{run.state.replace('_', ' ')} {run.signal}".strip()
        answer = ""
        if run.verdict is not None:
            answer = f"{run.verdict.headline} ({label(run.verdict)})"
        settings = ", ".join(parameters(run))
        rows.append(
            [number, run.notebook, run.box, state, answer, settings, run.seconds]
        )
    title = "Runs"
    if len(sections) > MOST_RUNS:
        title = f"Runs, the first {MOST_RUNS} of {len(sections)}"
    return Shown(title, columns, rows)
