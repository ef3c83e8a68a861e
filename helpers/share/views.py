"""The tables of a shared page: what the answer rests on, the box, and each run."""

from __future__ import annotations

from typing import Any

from helpers.batch.shapes import Run
from helpers.ground.shapes import Verdict
from helpers.look.bundle import Bundle
from helpers.tell.shown import Shown
from helpers.tell.values import Column, cell
from helpers.tell.verdict import label

from . import public, verdict_facts
from .box_facts import events_view, holders_view, pools_view
from .subject import OWNERS_NOTEBOOK, Subject, parameters

MOST_RUNS = 100


def views(about: Subject, bundle: Bundle | None) -> list[Shown]:
    """The tables of the page of a subject, in their order."""
    listed = []
    if about.verdict:
        listed.append(numbers_view(about.verdict, bundle))
    if bundle:
        listed += [pools_view(bundle), holders_view(bundle), events_view(bundle)]
    if about.runs:
        listed.append(runs_view(about.runs))
    return listed


def numbers_view(verdict: Verdict, bundle: Bundle | None) -> Shown:
    """The numbers that the verdict rests on."""
    rows = []
    for number in verdict_facts.numbers(verdict, bundle):
        source = number.source
        if not source:
            source = "not shown"
        if number.filled_in:
            source += " (filled in)"
        rows.append([number.speaks, number.value, source])
    columns = ["speaks", "what was read", "source"]
    return Shown("What the answer rests on", columns, rows, none="It rests on no number.")


def runs_view(runs: tuple[Run, ...]) -> Shown:
    """Each run with its state and its answer, in the order in which the batch lists them."""
    columns = ["run", "notebook", "box", "state", "answer", "given", Column("time", "s")]
    boxes: dict[str, str] = {}
    rows = []
    for number, run in enumerate(runs[:MOST_RUNS], 1):
        notebook = public.notebook(run.notebook)
        if not notebook:
            notebook = OWNERS_NOTEBOOK
        given = ", ".join(parameters(run))
        box = _box_name(run.box, boxes)
        rows.append([number, notebook, box, _state(run), _answer(run), given, run.seconds])
    title = "Runs"
    if len(runs) > MOST_RUNS:
        title = f"Runs, the first {MOST_RUNS} of {len(runs)}"
    return Shown(title, columns, rows)


def _box_name(box: str, numbered: dict[str, str]) -> str:
    """A box by its public name, else by its place among the others, which ``numbered`` keeps."""
    name = public.box(box)
    if name or not box:
        return name
    return numbered.setdefault(box, f"box-{len(numbered) + 1}")


def _state(run: Run) -> str:
    words = [run.state.replace("_", " "), public.signal_name(run.signal)]
    return " ".join(words).strip()


def _answer(run: Run) -> str:
    if run.verdict is None:
        return ""
    return f"{verdict_facts.headline(run.verdict)} ({label(run.verdict)})"


def table_of(view: Shown) -> dict[str, Any]:
    """A view for the template: its heads, marked where the column holds numbers, and its cells."""
    rows = []
    for row in view.cells:
        units = [column.unit for column in view.columns]
        rows.append([cell(value, unit) for value, unit in zip(row, units, strict=True)])
    heads = []
    for place, column in enumerate(view.columns):
        holds_numbers = any(row[place].number for row in rows)
        heads.append(f"#{column.name}" if holds_numbers else column.name)
    return {"title": view.title, "heads": heads, "rows": rows, "none": view.none}
