"""A page that may leave the box: typed facts of a batch, a run or a notebook, and nothing else.

It begins with a cover for somebody who was not there. What a program printed, what a notebook
shows, and what a person wrote is not on it unless somebody ticked it in a review; the page says in
a sentence how much was left out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from helpers.look.bundle import Bundle
from helpers.tell.page_cells import ProseCell, cells
from helpers.tell.page_room import Room
from helpers.tell.render import render
from helpers.tell.resources import words

from . import public, verdict_facts
from .box_facts import filled_readings, machine_line
from .public import Names
from .review import NOTHING_TICKED, Choices, review_of
from .sentences import Speaker
from .subject import Subject
from .texts import counted, own_part
from .views import box_names, table_of, views

STORY_BYTES = 2_500_000
TITLE = "Why this computer runs out of graphics memory"


@dataclass(frozen=True)
class SharedPage:
    """A page for others, its name without an ending, and what of its subject stayed at home."""

    name: str
    left_out: str
    html: str = field(repr=False)


def page_of(about: Subject, choices: Choices = NOTHING_TICKED) -> SharedPage:
    """The page of a subject with the texts that somebody ticked.

    Raises BundleError where its bundle can no longer be read.
    """
    evidence = about.evidence()
    names = Names()
    speaker = Speaker(evidence, names)
    judged = speaker.judged(about.verdict)
    reviewed = review_of(about, evidence.bundle, speaker.said)
    ticked = reviewed.ticked(choices)
    kept = counted(row.text for row in reviewed.rows if row not in ticked) + about.unread
    left_out = left_out_words(kept)
    cover = _cover(about, evidence.bundle)
    boxes = len(box_names(about.runs))
    if boxes > 1:
        cover["title"] = f"What was found on {boxes} boxes"
    story = _story(about)
    if story:
        cover["title"] = story[0].heading
    html = render(
        "shared.html.j2",
        **cover,
        judged=judged,
        story=story,
        tables=[table_of(view) for view in views(about, evidence, names, speaker)],
        ticked=ticked,
        left_out=left_out,
        started=_day(about.when),
    )
    return SharedPage(name=about.name, left_out=left_out, html=str(html))


def _story(about: Subject) -> list[Any]:
    """A told case of the workbook, its words and figures as they were committed; else nothing."""
    place = public.notebooks().get(about.name)
    if about.notebook is None or place is None or place.parent.name != "cases":
        return []
    pieces = cells(own_part(about.notebook), Room(STORY_BYTES))
    if pieces and isinstance(pieces[0], ProseCell):
        return pieces
    return []


def left_out_words(left_out: Counter[str]) -> str:
    """One sentence: how many texts stayed at home, by kind."""
    counts = +left_out
    if not counts:
        return "Nothing was left out."
    kinds = ", ".join(_counted(count, kind) for kind, count in sorted(counts.items()))
    return f"Left out, because they may hold a person's words: {counts.total()} pieces ({kinds})."


def _counted(count: int, kind: str) -> str:
    if count == 1:
        return f"1 {kind}"
    noun, of, rest = kind.partition(" of ")
    return f"{count} {noun}s{of}{rest}"


def _cover(about: Subject, bundle: Bundle | None) -> dict[str, Any]:
    """What the page begins with: the case for somebody who was not there."""
    verdict = about.verdict
    cause = verdict_facts.about_cause(verdict)
    cover = {
        "title": cause.get("title", TITLE),
        "headline": verdict_facts.headline(verdict),
        "cause": cause,
        "sure": verdict_facts.how_sure(verdict),
        "machine": "",
        "still_open": [],
        "against": 0,
        "evidence": 0,
        "rests": 0,
        "readings": 0,
        "filled": 0,
    }
    if bundle:
        cover["machine"] = machine_line(bundle)
        cover["readings"] = len(bundle.items)
        cover["filled"] = filled_readings(bundle)
    if verdict:
        cover["still_open"] = [
            f"It may also be this: {line}" for line in verdict_facts.still_open(verdict)
        ]
        cover["against"] = len(verdict.against)
        cover["evidence"] = len(verdict.evidence)
        cover["rests"] = len(verdict_facts.filled_in(verdict, bundle))
    text = " ".join([cause["plain"], cause["ask"], cover["machine"], cover["headline"]])
    cover["glossary"] = _terms_in(" ".join([text, *cover["still_open"]]))
    return cover


def _terms_in(text: str) -> list[tuple[str, str]]:
    """The words of the field that stand in a text, each with what it means."""
    rows = words("glossary")
    return [(term, meaning) for term, pattern, meaning in rows if re.search(pattern, text)]


def _day(when: str) -> str:
    """The day of a time as records have it, in words: 22 November 2026; empty for another text."""
    try:
        day = datetime.fromisoformat(when[:10])
    except ValueError:
        return ""
    return f"{day.day} {day:%B %Y}"
