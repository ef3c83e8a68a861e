"""The tables and figures of a shared page: the answer's numbers, the box, and each run."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from helpers.batch.leading_verdict import leading
from helpers.batch.shapes import Run
from helpers.ground.shapes import Verdict
from helpers.judge.evidence import CaseEvidence
from helpers.look.bundle import Bundle
from helpers.tell.message import anew_table
from helpers.tell.page_output import PageOutput
from helpers.tell.shown import ABOUT, Shown
from helpers.tell.svg import clean_svg
from helpers.tell.values import UNITS, Column, Rule, cell
from helpers.tell.verdict import label

from . import public, verdict_facts
from .box_facts import PublicBox
from .public import Names
from .sentences import Speaker
from .subject import OWNERS_NOTEBOOK, Subject, parameters

MOST_RUNS = 100
SPOKEN = ("word", "holder")
"""Classes of words of our own code: where a file holds them, each word has to be known."""


def views(about: Subject, evidence: CaseEvidence, names: Names, speaker: Speaker) -> list[Shown]:
    """The views of the page of a subject, in their order, as their rules let them through."""
    rules = public.rules(names)
    listed = []
    if len(box_names(about.runs)) > 1:
        listed.append(boxes_view(about.runs, names))
    if evidence.messages:
        listed.append(anew_table(evidence).passing(rules))
    if about.verdict:
        listed.append(numbers_view(about.verdict, evidence.bundle))
    if evidence.bundle:
        box = PublicBox(evidence, evidence.bundle, names)
        listed += [view.passing(rules) for view in box.views()]
    if about.notebook is not None:
        listed += typed_views(about.notebook, {**rules, **dict.fromkeys(SPOKEN, speaker.sentence)})
    if about.runs:
        listed.append(runs_view(about.runs, names))
    return listed


def typed_views(notebook: Any, rules: Mapping[str, Rule]) -> list[Shown]:
    """The views that a notebook's outputs hold as data, whoever wrote them."""
    listed = []
    for number, notebook_cell in enumerate(notebook.cells, 1):
        for output in notebook_cell.get("outputs", []):
            about = output.get("metadata", {}).get(ABOUT)
            if not isinstance(about, dict) or "view" not in about:
                continue
            with suppress(ValueError):
                view = Shown.of_data(about["view"], f"Result of cell {number}")
                listed.append(_with_known_heads(view, rules).passing(rules))
    return listed


def _with_known_heads(view: Shown, rules: Mapping[str, Rule]) -> Shown:
    """The view whose columns have a heading, a unit and a rule of the workbook."""
    columns = []
    for column in view.columns:
        is_known = column.passes in rules and (column.unit in UNITS or not column.unit)
        if not is_known or not rules["word"](column.name):
            column = Column("")
        columns.append(column)
    return replace(view, columns=columns)


def numbers_view(verdict: Verdict, bundle: Bundle | None) -> Shown:
    """The numbers that the verdict rests on."""
    rows = []
    for number in verdict_facts.numbers(verdict, bundle):
        source = number.source
        if not source:
            source = "not shown"
        if number.filled_in:
            source += " (reconstructed)"
        rows.append([number.speaks, number.value, source])
    columns = ["speaks", "what was read", "source"]
    return Shown("What the answer rests on", columns, rows, none="It rests on no number.")


def box_names(runs: Iterable[Run]) -> list[str]:
    """The boxes that runs are about, each once."""
    return list(dict.fromkeys(run.box for run in runs if run.box))


def boxes_view(runs: tuple[Run, ...], names: Names) -> Shown:
    """Each box with the verdict that leads its runs."""
    rows = []
    for box in box_names(runs):
        on_it = [run for run in runs if run.box == box]
        verdict = leading(run.verdict for run in on_it)
        sure = label(verdict) if verdict else ""
        rows.append([_box_name(box, names), verdict_facts.headline(verdict), sure, len(on_it)])
    return Shown(
        "The boxes and what was found on each", ["box", "answer", "how sure", "runs"], rows
    )


def runs_view(runs: tuple[Run, ...], names: Names) -> Shown:
    """Each run with its state and its answer, in the order in which the batch lists them."""
    columns = ["run", "notebook", "box", "state", "answer", "given", Column("time", "s")]
    rows = []
    for number, run in enumerate(runs[:MOST_RUNS], 1):
        notebook = public.notebook(run.notebook)
        if not notebook:
            notebook = OWNERS_NOTEBOOK
        given = ", ".join(parameters(run))
        box = _box_name(run.box, names)
        rows.append([number, notebook, box, _state(run), _answer(run), given, run.seconds])
    title = "Runs"
    if len(runs) > MOST_RUNS:
        title = f"Runs, the first {MOST_RUNS} of {len(runs)}"
    return Shown(title, columns, rows)


def _box_name(box: str, names: Names) -> str:
    """A box by its public name, else by its place among the others."""
    return public.box(box) or names.of("box", box)


def _state(run: Run) -> str:
    words = [run.state.replace("_", " "), public.signal_name(run.signal)]
    return " ".join(words).strip()


def _answer(run: Run) -> str:
    if run.verdict is None:
        return ""
    return f"{verdict_facts.headline(run.verdict)} ({label(run.verdict)})"


def table_of(view: Shown) -> dict[str, Any]:
    """A view for the template: its heads, marked where the column holds numbers, its cells, and
    its figure where it has one.
    """
    rows = []
    for row in view.cells[: view.most]:
        units = [column.unit for column in view.columns]
        rows.append([cell(value, unit) for value, unit in zip(row, units, strict=True)])
    heads = []
    for place, column in enumerate(view.columns):
        holds_numbers = any(row[place].number for row in rows)
        heads.append(f"#{column.name}" if holds_numbers else column.name)
    return {
        "title": view.title,
        "heads": heads,
        "rows": rows,
        "none": view.nothing,
        "figure": _figure(view),
    }


def _figure(view: Shown) -> PageOutput | None:
    """The figure of a view, drawn anew; None where it has none."""
    if view.draw is None:
        return None
    drawing = clean_svg(view.draw().svg())
    if drawing is None:
        return None
    svg, width, height = drawing
    encoded = base64.b64encode(svg.encode()).decode()
    data = f"image/svg+xml;base64,{encoded}"
    return PageOutput("picture", picture=data, alt=view.alt, width=width, height=height)
