"""The tables and figures of a shared page: the answer's numbers, the box, and each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helpers.ground.shapes import Verdict
from helpers.tell.message import anew_table
from helpers.tell.shown import ABOUT, Shown
from helpers.tell.values import Column
from helpers.tell.verdict import label

from . import public, verdict_facts
from .box_facts import box_views
from .names import Names
from .public_copy import PublicCopy
from .subject import OWNERS_NOTEBOOK, Subject, parameters

if TYPE_CHECKING:
    from helpers.batch.shapes import Run

MOST_RUNS = 100


def views(about: Subject, copies: PublicCopy, is_told: bool) -> Iterator[Shown]:
    """The views of the page of a subject, in their order, as their rules let them through.

    ``is_told``: those of its notebook stand in the story above them.
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
        yield runs_view(about.runs, copies.names)


def typed_views(notebook: Any, copies: PublicCopy) -> Iterator[Shown]:
    """The views that a notebook's outputs hold as data, whoever wrote them; those that had a
    figure have one again, drawn of their data.
    """
    for number, notebook_cell in enumerate(notebook.cells, 1):
        for output in notebook_cell.get("outputs", []):
            about = output.get("metadata", {}).get(ABOUT)
            if not isinstance(about, dict) or "view" not in about:
                continue
            with suppress(ValueError):
                view = Shown.of_data(about["view"], f"Result of cell {number}")
                passing = view.passing(copies.rules)
                if "image/svg+xml" in output.get("data", {}):
                    passing = _drawn(passing)
                yield passing


def _drawn(view: Shown) -> Shown:
    from helpers.tell.figures import with_bars  # here: matplotlib takes long to load

    return with_bars(view)


def boxes_view(about: Subject, answers: Mapping[str, Verdict | None], names: Names) -> Shown:
    """Each box of a batch with the verdict that leads its runs, of ``answers`` by box."""
    runs = Counter(names.box(run.box) for run in about.runs)
    rows = []
    for box, verdict in answers.items():
        headline = verdict_facts.headline(verdict)
        sure = ""
        if verdict:
            headline = verdict.title or headline
            sure = label(verdict)
        rows.append([box, headline, sure, runs[box]])
    heads = ["box", "answer", "how sure", "runs"]
    return Shown("The boxes and what was found on each", heads, rows)


def runs_view(runs: tuple[Run, ...], names: Names) -> Shown:
    """Each run with its state and its answer, in the order in which the batch lists them."""
    columns = ["run", "notebook", "box", "state", "answer", "given", Column("time", "s")]
    rows = []
    for number, run in enumerate(runs[:MOST_RUNS], 1):
        state = f"{run.state.replace('_', ' ')} {public.signal_name(run.signal)}".strip()
        answer = ""
        if run.verdict is not None:
            answer = f"{verdict_facts.headline(run.verdict)} ({label(run.verdict)})"
        notebook = public.notebook(run.notebook) or OWNERS_NOTEBOOK
        given = ", ".join(parameters(run))
        rows.append([number, notebook, names.box(run.box), state, answer, given, run.seconds])
    title = "Runs"
    if len(runs) > MOST_RUNS:
        title = f"Runs, the first {MOST_RUNS} of {len(runs)}"
    return Shown(title, columns, rows)
