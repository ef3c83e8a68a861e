"""A page that may leave the box: typed facts of a batch, a run or a notebook, and nothing else.

It begins with a cover for somebody who was not there. What a program printed, what a notebook
shows, and what a person wrote is not on it; the page says in a sentence how much that was.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from helpers.batch.shapes import Run
from helpers.look.bundle import Bundle, open_bundle
from helpers.tell.page import render
from helpers.tell.shown import Column, Shown, cell, words
from helpers.tell.verdict import label

from . import public, verdict_facts
from .box_facts import events_view, filled_readings, holders_view, machine_line, pools_view
from .subject import Subject, parameters

TITLE = "Why this computer runs out of graphics memory"
MOST_ROWS = 100


@dataclass(frozen=True)
class SharedPage:
    """A page for others, its name without an ending, and what of its subject stayed at home."""

    name: str
    left_out: str
    html: str = field(repr=False)


def page_of(about: Subject) -> SharedPage:
    """The page of a subject. Raises BundleError where its bundle can no longer be read."""
    bundle = open_bundle(about.bundle) if about.bundle else None
    left_out = left_out_words(about.left_out, bundle)
    html = render(
        "shared.html.j2",
        **_cover(about, bundle),
        tables=[table_of(view) for view in views(about, bundle)],
        left_out=left_out,
        started=_day(about.when),
    )
    return SharedPage(name=about.name, left_out=left_out, html=str(html))


def left_out_words(left_out: Counter[str], bundle: Bundle | None) -> str:
    """One sentence: how many texts stayed at home, by kind."""
    counts = +left_out
    if bundle is not None:
        counts["item of the evidence bundle"] = len(bundle.items)
    if not counts:
        return "Nothing was left out."
    kinds = ", ".join(_counted(count, kind) for kind, count in sorted(counts.items()))
    return f"Left out, because they may hold a person's words: {counts.total()} pieces ({kinds})."


def _counted(count: int, kind: str) -> str:
    if count == 1:
        return f"1 {kind}"
    noun, of, rest = kind.partition(" of ")
    noun, beside, place = noun.partition(" beside ")
    return f"{count} {noun}s{beside}{place}{of}{rest}"


def _cover(about: Subject, bundle: Bundle | None) -> dict[str, Any]:
    """What the page begins with: the case for somebody who was not there."""
    verdict = about.verdict
    cause = verdict_facts.about_cause(verdict)
    headline = verdict_facts.headline(verdict)
    machine = machine_line(bundle) if bundle else ""
    still_open = verdict_facts.still_open(verdict) if verdict else []
    text = " ".join([cause["plain"], cause["ask"], machine, headline, *still_open])
    return {
        "title": cause.get("title", TITLE),
        "headline": headline,
        "machine": machine,
        "cause": cause,
        "sure": verdict_facts.how_sure(verdict),
        "against": len(verdict.against) if verdict else 0,
        "still_open": [f"It may also be this: {line}" for line in still_open],
        "evidence": len(verdict.evidence) if verdict else 0,
        "filled": filled_readings(bundle),
        "readings": len(bundle.items) if bundle else 0,
        "rests": len(verdict_facts.filled_in(verdict, bundle)) if verdict else 0,
        "glossary": [
            (term, meaning)
            for term, pattern, meaning in words("glossary")
            if re.search(pattern, text)
        ],
    }


def views(about: Subject, bundle: Bundle | None) -> list[Shown]:
    """The tables of the page: what the answer rests on, the box, and each run."""
    listed = []
    if about.verdict:
        listed.append(_numbers_view(about, bundle))
    if bundle:
        listed += [pools_view(bundle), holders_view(bundle), events_view(bundle)]
    if about.runs:
        listed.append(_runs_view(about.runs))
    return listed


def _numbers_view(about: Subject, bundle: Bundle | None) -> Shown:
    """The numbers that the verdict rests on."""
    rows = []
    numbers = verdict_facts.numbers(about.verdict, bundle) if about.verdict else []
    for number in numbers:
        mark = " (filled in)" if number.filled_in else ""
        rows.append([number.speaks, number.value, f"{number.source or 'not shown'}{mark}"])
    columns = ["speaks", "what was read", "source"]
    return Shown("What the answer rests on", columns, rows, none="It rests on no number.")


def _runs_view(runs: tuple[Run, ...]) -> Shown:
    """Each run with its state and its answer, in the order in which the batch lists them."""
    boxes: dict[str, str] = {}
    rows = []
    for number, run in enumerate(runs, 1):
        name = public.box(run.box)
        if run.box and not name:
            name = boxes.setdefault(run.box, f"box-{len(boxes) + 1}")
        answer = ""
        if run.verdict:
            answer = f"{verdict_facts.headline(run.verdict)} ({label(run.verdict)})"
        rows.append(
            [
                number,
                public.notebook(run.notebook) or "a notebook of its owner",
                name,
                " ".join(
                    filter(None, [run.state.replace("_", " "), public.signal_name(run.signal)])
                ),
                answer,
                ", ".join(parameters(run)),
                run.seconds,
            ]
        )
    columns = ["run", "notebook", "box", "state", "answer", "given", Column("time", "s")]
    return Shown("Runs", columns, rows[:MOST_ROWS])


def table_of(view: Shown) -> dict[str, Any]:
    """A view for the template: its heads, marked where the column holds numbers, and its cells."""
    rows = [
        [cell(value, column.unit) for value, column in zip(row, view.columns, strict=True)]
        for row in view.cells
    ]
    is_number = [any(written.number for written in column) for column in zip(*rows, strict=True)]
    names = [column.name for column in view.columns]
    heads = [
        f"#{name}" if number else name
        for name, number in zip(names, is_number or names, strict=True)
    ]
    return {"title": view.title, "heads": heads, "rows": rows, "none": view.none}


def _day(when: str) -> str:
    """The day of a time as records have it, in words: 22 November 2026; empty for another text."""
    try:
        day = datetime.fromisoformat(when[:10])
    except ValueError:
        return ""
    return f"{day.day} {day:%B %Y}"
