"""A page that may leave the box: typed facts of a batch, a run or a notebook, and nothing else.

It begins with a cover for somebody who was not there. What a program printed, what a notebook
shows, and what a person wrote is not on it unless somebody ticked it in a review; the page says in
a sentence how much was left out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose
from helpers.look.boxes import recorded_names
from helpers.tell.page_cells import ProseCell, cells
from helpers.tell.page_output import figure_of
from helpers.tell.page_room import PageRoom
from helpers.tell.render import render
from helpers.tell.values import cell

from . import box_facts, public, verdict_facts
from .answers import box_answers, public_sections
from .public_copy import PublicCopy
from .review import NOTHING_TICKED, Choices, Review, review_beside
from .subject import Subject
from .texts import own_part
from .views import boxes_view, views

if TYPE_CHECKING:
    from helpers.batch.box_answer import BoxAnswer

STORY_BYTES = 2_500_000
"""Bytes that the cells of a case study may take on a page; what has no room is named instead."""


@dataclass(frozen=True)
class SharedPage:
    """A page for others: its file's name without an ending, a sentence about what it leaves out,
    and its HTML.
    """

    name: str
    left_out: str
    html: str = field(repr=False)


def review_of(about: Subject) -> Review:
    """The review of a subject: each text that its page leaves out."""
    copies = PublicCopy(about.evidence)
    # Both note in copies.said the texts that are on the page anyway.
    copies.verdict(_judged(about, copies))
    public_sections(about, copies)
    return review_beside(about, copies.said)


def page_of(about: Subject, choices: Choices = NOTHING_TICKED) -> SharedPage:
    """The page of a subject: its typed facts, and the texts that somebody ticked.

    A sentence on it counts the texts that were not ticked, and those that were not looked into.
    """
    copies = PublicCopy(about.evidence)
    judged = copies.verdict(_judged(about, copies))
    if about.is_verdict_ours:
        # anybody can read it in the workbook, so it is not reworded
        judged = about.verdict
    sections = public_sections(about, copies)
    answers = box_answers(sections)
    review = review_beside(about, copies.said)
    story = _story(about)
    ticked = review.ticked(choices)
    not_ticked = Counter(row.text.kind for row in review.rows if row not in ticked)
    left_out = left_out_words(not_ticked + about.unread)
    all_views = views(about, copies, sections, bool(story))
    html = render(
        "shared.html.j2",
        about=about,
        bundle=about.bundle,
        facts=verdict_facts,
        box_facts=box_facts,
        names=copies.names,
        boxes=boxes_view(answers, sections),
        answers=answers,
        heading=_heading(answers),
        recorded=[answer.box for answer in answers if answer.box in recorded_names()],
        story=story,
        verdict=about.verdict,
        judged=judged,
        views=[view for view in all_views if view.cells],
        ticked=ticked,
        left_out=left_out,
        started=_day(about.when),
        search=re.search,
        cell=cell,
        figure_of=figure_of,
    )
    return SharedPage(name=about.name, left_out=left_out, html=str(html))


def _judged(about: Subject, copies: PublicCopy) -> Verdict | None:
    """The verdict; a recorded program is judged again without its names, so none is in the
    sentences.
    """
    if about.evidence.program is None:
        return about.verdict
    public_program = copies.program(about.evidence.program)
    return diagnose(replace(about.evidence, program=public_program))


def _heading(answers: list[BoxAnswer]) -> tuple[str, str]:
    """A headline about several boxes, and a line about those without a problem; both are empty for
    a single box.
    """
    if len(answers) < 2:
        return "", ""
    # Imported here, because pydantic takes long to load.
    from helpers.batch.box_answer import headline_of, others_of

    return headline_of(answers), others_of(answers)


def _story(about: Subject) -> list[Any]:
    """The cells of one of the workbook's case studies, with its committed words and figures; empty
    for other subjects.
    """
    place = public.notebooks().get(about.name)
    if about.notebook is None or place is None or place.parent.name != "cases":
        return []
    pieces = cells(own_part(about.notebook), PageRoom(STORY_BYTES))
    # A case study begins with prose. Without it, as where a person changed the first cell, the rest
    # is no story, and its tables are shown as those of any notebook.
    if pieces and isinstance(pieces[0], ProseCell):
        return pieces
    return []


def left_out_words(left_out: Counter[str]) -> str:
    """One sentence: how many texts stayed at home, by kind."""
    if not left_out:
        return "Nothing was left out."
    by_kind = [_counted(count, kind) for kind, count in sorted(left_out.items())]
    kinds = ", ".join(by_kind)
    pieces = _counted(left_out.total(), "piece")
    return f"Left out, because they may hold a person's words: {pieces} ({kinds})."


def _counted(count: int, kind: str) -> str:
    """A count with its noun, in the plural where it needs one: "3 outputs of a cell"."""
    if count == 1:
        return f"1 {kind}"
    noun, of, rest = kind.partition(" of ")
    return f"{count} {noun}s{of}{rest}"


def _day(when: str) -> str:
    """The day of a time of a record, such as "22 November 2026"; empty for another text."""
    try:
        day = datetime.fromisoformat(when[: len("2026-11-22")])
    except ValueError:
        return ""
    return f"{day.day} {day:%B %Y}"
