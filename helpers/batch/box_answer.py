"""The answers of a batch about its boxes: what its runs found out about each, and in which
words.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from helpers.ground.shapes import Verdict
from helpers.ground.units import cut
from helpers.tell.verdict import beside

from .leading_verdict import CONFIDENCES, leading
from .section import Section, Sections
from .which_runs import boxes_of, grouped, swept

MOST_NAMED = 4
"""Boxes with a problem that the headline names; of more it counts the problems."""
MOST_VALUES = 6
MOST_LETTERS = 40
"""Values of parameters, and letters of an answer, in a cell of the table of boxes, which then fits
beside four others on a page.
"""
FINDINGS = {
    "problem": "lost",
    "without an answer": "waiting",
    "undecided": "waiting",
    "about something else": "answered",
    "healthy": "answered",
    "without a GPU": "answered",
}
"""What a batch may find out about a box, the most urgent first, and the mark of it on the page: as
of a run that was lost, waits or answered (``Section.kind``).
"""


@dataclass(frozen=True)
class Cell:
    """A cell of the table of boxes: the answer of one notebook's runs on one box.

    ``section`` is the run whose answer this is, ``words`` the answer in a few words (empty if there
    is none), and ``note`` says how many runs have this answer, and which.
    """

    section: Section
    words: str
    note: str


@dataclass(frozen=True)
class BoxAnswer:
    """What a batch found out about one box.

    ``verdict`` is the leading one; without one ``obstacle`` is a sentence that says why. ``link``
    leads to the verdict's run on the page, and ``apart`` are the parameters that tell this run
    from the others of its notebook. ``values`` has all runs of that notebook, in groups with the
    same answer, the verdict's first. ``cells`` has an answer for each notebook, by its title.
    ``machine`` is the box in a line.
    """

    box: str
    verdict: Verdict | None
    obstacle: str
    machine: str
    link: str
    apart: tuple[str, ...]
    cells: dict[str, Cell]
    values: list[Sections]

    @property
    def finding(self) -> str:
        """The finding about the box, a key of FINDINGS.

        A verdict with the state ``aside`` answers another question than the box's state. One that
        only says that there is no GPU is no problem, unless it also names a second problem.
        """
        if self.verdict is None:
            return "without an answer"
        if self.verdict.state == "healthy":
            return "healthy"
        if self.verdict.state == "aside":
            return "about something else"
        if _only_lacks_a_gpu(self.verdict) and not self.also_seen:
            return "without a GPU"
        if self.verdict.cause == "cannot-tell":
            return "undecided"
        return "problem"

    @property
    def kind(self) -> str:
        """The mark of its finding on the page."""
        return FINDINGS[self.finding]

    @property
    def in_words(self) -> str:
        """Its problem in a few words; without a problem its finding."""
        if self.finding == "without a GPU":
            return "not a problem here"
        if self.verdict is None or self.finding != "problem":
            return self.finding
        if _only_lacks_a_gpu(self.verdict):
            return "no GPU, and a separate problem"
        return self.verdict.name

    @property
    def also_seen(self) -> str:
        """Sentences about problems beside that of its verdict; mostly empty."""
        if self.verdict is None:
            return ""
        return "; ".join(says.rstrip(".") for says in beside(self.verdict))

    @property
    def sure(self) -> str:
        """The confidence of its problem, one of CONFIDENCES; empty if it has no problem."""
        if self.verdict is None or self.finding != "problem":
            return ""
        return self.verdict.confidence

    @property
    def needs_a_step(self) -> bool:
        """Whether the page shows the verdict's next step: it names a problem, or is undecided."""
        return self.verdict is not None and self.kind != "answered"

    @property
    def is_recorded(self) -> bool:
        """Whether it is a box from a bundle, and not the machine that ran the notebooks."""
        return self.box not in ("", "live")


def _only_lacks_a_gpu(verdict: Verdict) -> bool:
    """Whether the only thing wrong is that there is no GPU, and no program failed because of it.

    A verdict about this has no cause of its own: it has the cause ``other`` and the evidence
    ``no-gpu``, and ``error`` is the message of a program that failed.
    """
    says_none = any(row.id == "no-gpu" for row in verdict.evidence)
    return verdict.cause == "other" and says_none and not verdict.error


def in_order_of_trouble(answers: Iterable[BoxAnswer]) -> list[BoxAnswer]:
    """The boxes, the most urgent finding first; among equals recorded boxes first, which somebody
    chose to ask about, then those with the surest problem.
    """

    def rank(answer: BoxAnswer) -> tuple[int, bool, int]:
        urgency = list(FINDINGS).index(answer.finding)
        sure = (*CONFIDENCES, "").index(answer.sure)
        return urgency, not answer.is_recorded, sure  # False sorts before True

    return sorted(answers, key=rank)


def headline_of(answers: list[BoxAnswer]) -> str:
    """How many boxes have a problem, and which: of up to MOST_NAMED boxes the problem of each, of
    more how many boxes have each problem.
    """
    troubled = [answer for answer in answers if answer.finding == "problem"]
    if not troubled:
        return f"No problem was found on {in_boxes(len(answers))}"
    if len(answers) == 1:
        count = "1 box has a problem"
    elif len(troubled) == 1:
        count = f"1 of {len(answers)} boxes has a problem"
    else:
        count = f"{len(troubled)} of {len(answers)} boxes have a problem"
    if len(troubled) <= MOST_NAMED:
        return f"{count}. {'; '.join(map(_box_and_problem, troubled))}"
    problems = Counter(answer.in_words for answer in troubled)
    listed = []
    for problem, boxes in problems.most_common():
        if boxes > 1:
            problem += f" ({boxes})"
        listed.append(problem)
    return f"{count}: {', '.join(listed)}"


def in_boxes(count: int) -> str:
    """The number of boxes in words: "1 box", "2 boxes"."""
    if count == 1:
        return "1 box"
    return f"{count} boxes"


def _box_and_problem(answer: BoxAnswer) -> str:
    """A box and its problem, which is hedged if it is only a hint."""
    box = answer.box or "no box"
    if answer.sure == "weak":
        return f"{box}: perhaps {answer.in_words}"
    return f"{box}: {answer.in_words}"


def others_of(answers: list[BoxAnswer]) -> str:
    """How many of the boxes without a problem have each finding; empty if all have a problem."""
    counts = Counter(
        answer.finding for answer in answers if answer.finding != "problem"
    )
    others = [finding for finding in FINDINGS if counts[finding]]
    if not others:
        return ""
    if counts.total() == len(answers):
        return ", ".join(f"{in_boxes(counts[finding])} {finding}" for finding in others)
    if counts.total() == 1:
        return f"The other box: {others[0]}"
    words = ", ".join(f"{counts[finding]} {finding}" for finding in others)
    return f"The other {counts.total()} boxes: {words}"


def answers_of(sections: list[Section]) -> list[BoxAnswer]:
    """The answer about each box, in order of first appearance."""
    return [
        _answer(box, runs) for box, runs in grouped(sections, attrgetter("run.box"))
    ]


def looked_at(answers: list[BoxAnswer], sections: Iterable[Section]) -> list[BoxAnswer]:
    """The answers about boxes on which more ran than a closing report, which only reads the records
    of other runs (``which_runs.boxes_of``).
    """
    boxes = boxes_of(section.run for section in sections)
    return [answer for answer in answers if answer.box in boxes]


def _answer(box: str, sections: Sections) -> BoxAnswer:
    """The answer about a box, on which all of these runs are."""
    verdict = leading(section.run.verdict for section in sections)
    link = ""
    apart: tuple[str, ...] = ()
    values: list[Sections] = []
    if verdict is not None:
        leader = next(section for section in sections if section.run.verdict is verdict)
        link = f"#{leader.anchor}"
        apart = leader.apart
        values = _values(leader, sections)
    obstacle = "No run has a verdict yet."
    lost = next((section for section in sections if section.lost), None)
    if lost:
        # The cause may be empty, or end with a full stop of its own.
        obstacle = f"{lost.name}: {lost.state}. {lost.cause}".rstrip(". ") + "."
    by_title = grouped(sections, attrgetter("title"))
    machine = f"box {box}"
    machines = [section.machine for section in sections if section.machine]
    if machines:
        machine = machines[0]
    return BoxAnswer(
        box=box,
        verdict=verdict,
        obstacle=obstacle,
        machine=machine,
        link=link,
        apart=apart,
        cells={title: _cell(runs, verdict) for title, runs in by_title},
        values=values,
    )


def _values(leader: Section, sections: Sections) -> list[Sections]:
    """The runs of the leader's notebook that have a verdict, in groups with the same headline and
    next step; the leader's group is first.
    """
    with_verdict = (s for s in sections if s.title == leader.title and s.run.verdict)
    said = attrgetter("run.verdict.headline", "run.verdict.next_step")
    groups = [runs for _, runs in grouped(with_verdict, said)]
    # False sorts before True
    return sorted(groups, key=lambda runs: leader not in runs)


def _cell(runs: Sections, of_box: Verdict | None) -> Cell:
    """The cell for the runs of a notebook on a box, whose leading verdict is ``of_box``.

    Its words are empty if no run has a verdict, "agrees" if the runs say the same as the box's
    leading verdict, else the beginning of their answer, up to the first punctuation mark.
    """
    verdict = leading(section.run.verdict for section in runs)
    first = next(section for section in runs if section.run.verdict is verdict)
    if verdict is None:
        words = ""
    elif of_box is not None and verdict.headline == of_box.headline:
        words = "agrees"
    else:
        main_part = re.split("[:;,(]", verdict.short)[0]
        words = cut(main_part.strip(), MOST_LETTERS)
    return Cell(first, words, _note(first, runs))


def _note(first: Section, runs: Sections) -> str:
    """How many of a cell's runs were lost, if some were and ``first`` has an answer; else how many
    have the same outcome as ``first``, with the values of parameters that all of these runs have
    and no other run of the cell.
    """
    lost = [section for section in runs if section.lost]
    if lost and first not in lost:
        return f"{len(lost)} of {len(runs)} {lost[0].run.state.replace('_', ' ')}"
    alike = [section for section in runs if section.outcome == first.outcome]
    if len(alike) == len(runs):
        return _counted(runs)
    shared = set(first.apart).intersection(*(section.apart for section in alike))
    for section in runs:
        if section not in alike:
            shared -= set(section.apart)
    values = [value for value in first.apart if value in shared]
    return ", ".join([*values, f"{len(alike)} of {len(runs)} runs"])


def _counted(runs: Sections) -> str:
    """How many runs there are, and the values of parameters in which they differ, if these are at
    most MOST_VALUES; empty for one run.
    """
    if len(runs) == 1:
        return ""
    count = f"{len(runs)} runs"
    values_of_each = swept([section.run for section in runs])
    values = dict.fromkeys(itertools.chain.from_iterable(values_of_each))
    if not 0 < len(values) <= MOST_VALUES:
        return count
    return f"{count}: {', '.join(values)}"
