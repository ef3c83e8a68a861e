"""One run on the page of a batch, and how runs are put together there: by box, by trouble."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from markupsafe import Markup

from helpers.ground.shapes import Verdict
from helpers.ground.units import cut
from helpers.tell.resources import words
from helpers.tell.values import duration
from helpers.tell.verdict import beside

from .leading_verdict import leading
from .shapes import Run
from .which_runs import boxes_of, differences, grouped, swept

MOST_TEXTS = 6
MOST_NAMED = 4  # boxes with a problem that the headline names
MOST_VALUES = 6  # of parameters in a cell of that table
MOST_LETTERS = 40  # of an answer in a cell of the table of boxes
STATE_WORDS: dict[str, str] = words("states")
"""What became of a run, in words; the worst first."""
FINDINGS = {
    "problem": "lost",
    "without an answer": "waiting",
    "undecided": "waiting",
    "about something else": "answered",
    "healthy": "answered",
    "without a GPU": "answered",
}
"""What a batch may find out about a box, the most urgent first, and how the page marks it."""
CONFIDENCES = ("confirmed", "likely", "weak", "")


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, its executed notebook as HTML, or why there is none.

    ``folder`` is the run's own, below that of its batch. ``link`` leads to its notebook. ``apart`` tells
    it from the other runs of its notebook on its box.
    """

    run: Run
    anchor: str
    folder: Path
    gone: str
    link: str = ""
    apart: tuple[str, ...] = ()
    machine: str = ""
    question: str = ""
    html: Markup = Markup("")
    without: str = ""
    last_words: str = ""
    before: str = ""
    own_verdict: Verdict | None = None
    agrees: bool = False
    few: bool = False

    @property
    def batch(self) -> Path:
        """The folder of its batch."""
        return self.folder.parent

    @property
    def title(self) -> str:
        return Path(self.run.notebook).stem or self.run.run_id

    @property
    def name(self) -> str:
        """Its notebook, and what tells it from the other runs of that notebook on its box."""
        return ", ".join([self.title, *self.apart])

    @property
    def state(self) -> str:
        return STATE_WORDS[self.run.state]

    @property
    def cause(self) -> str:
        return self.run.cause or self.gone

    @property
    def time(self) -> str:
        return "" if self.run.seconds is None else duration(self.run.seconds)

    @property
    def ran(self) -> bool:
        return self.run.state not in ("planned", "skipped")

    @property
    def lost(self) -> bool:
        """Whether the run began and came to no answer."""
        return bool(self.gone) or (
            self.ran and self.run.state not in ("answered", "started")
        )

    @property
    def kind(self) -> str:
        """How its state is marked: a lost run must not look like one that came to an answer."""
        if self.lost:
            return "lost"
        return "answered" if self.run.state == "answered" else "waiting"

    @property
    def open(self) -> bool:
        """Whether the page shows it at once: somebody has to look at it, or there is little else.

        The answers for other values of a sweep are on top of the page already.
        """
        is_another_value = bool(self.apart and self.own_verdict)
        return bool(self.lost and self.html) or (self.few and not is_another_value)

    @property
    def is_rows(self) -> bool:
        """Whether its views alone stand on the page: it answered, and the answer is the page's."""
        is_told = self.lost or self.cause or self.not_clean or self.own_verdict
        return self.few and not (is_told or self.without)

    @property
    def outcome(self) -> str:
        """What it came to: its answer, else its state."""
        verdict = self.run.verdict
        return verdict.short if verdict else self.run.state.replace("_", " ")

    @property
    def says(self) -> str:
        """Its answer in a sentence, unless the page has said it above; or why there is none."""
        if self.run.verdict is None:
            return cut(self.cause, 120)
        return "" if self.agrees else self.run.verdict.headline

    @property
    def not_clean(self) -> str:
        """What kept its box or GPU from being clean afterwards."""
        run = self.run
        return f"{run.quarantined}: {run.gate}" if run.quarantined else run.gate

    @property
    def about(self) -> list[str]:
        """Which run it is: its id and parameters, where it stood, and the texts it left."""
        run = self.run
        parameters = run.parameters.items()
        lines = [run.run_id]
        lines += [
            f"{name}={value}"
            for name, value in parameters
            if value != "" and "{batch}" not in str(value)
        ]
        total = sum(run.cells.values())
        done = run.cells.get("completed", 0)
        if done < total:
            lines.append(f"{done} of {total} cells")
        if run.failing_cell is not None:
            lines.append(f"stopped in cell {run.failing_cell}")
        if run.attempt > 1:
            lines.append(f"attempt {run.attempt}")
        if run.strikes:
            lines.append(run.strikes_in_words)
        texts = [
            name for name in run.files if name.endswith((".txt", ".log", ".stderr"))
        ]
        if texts:
            lines.append(f"beside it: {', '.join(texts[:MOST_TEXTS])}")
        return lines


Sections = tuple[Section, ...]


@dataclass(frozen=True)
class Cell:
    """What the runs of a notebook on a box came to: the run that leads, its answer in a few words
    (empty where it has none), and how many runs that is said of, and which.
    """

    section: Section
    words: str
    note: str


@dataclass(frozen=True)
class BoxAnswer:
    """What a batch found out about one box; without a ``verdict``, the ``obstacle`` in its way.

    ``apart`` tells the run of the verdict from the other runs of its notebook, and ``values`` holds
    those that came to the same together, the verdict's first; ``cells`` has for each notebook that
    ran on this box what its runs came to.
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
        """One of ``FINDINGS``: whether the box has a problem."""
        if self.verdict is None:
            return "without an answer"
        if self.verdict.state == "healthy":
            return "healthy"
        if self.verdict.state == "aside":
            return "about something else"
        if _only_lacks_a_gpu(self.verdict) and not self.also_seen:
            return "without a GPU"
        return "undecided" if self.verdict.cause == "cannot-tell" else "problem"

    @property
    def kind(self) -> str:
        """How its finding is marked."""
        return FINDINGS[self.finding]

    @property
    def in_words(self) -> str:
        """Its problem in a few words, else its finding."""
        if self.finding == "without a GPU":
            return "not a problem here"
        if self.verdict is None or self.finding != "problem":
            return self.finding
        if _only_lacks_a_gpu(self.verdict):
            return "no GPU, and a separate problem"
        return self.verdict.name

    @property
    def also_seen(self) -> str:
        """What was seen on it that is another problem than its verdict's; mostly nothing."""
        if self.verdict is None:
            return ""
        return "; ".join(says.rstrip(".") for says in beside(self.verdict))

    @property
    def sure(self) -> str:
        """How sure a problem is; empty where none was found."""
        if self.verdict is None or self.finding != "problem":
            return ""
        return self.verdict.confidence

    @property
    def needs_a_step(self) -> bool:
        """Whether somebody has to do something: its verdict names a problem, or does not decide."""
        return self.verdict is not None and self.kind != "answered"

    @property
    def is_recorded(self) -> bool:
        """Whether it is a box from a bundle, and not the machine of the run."""
        return self.box not in ("", "live")


def _only_lacks_a_gpu(verdict: Verdict) -> bool:
    """Whether all that was seen is that no GPU is there, and no program failed for want of one."""
    says_none = any(row.id == "no-gpu" for row in verdict.evidence)
    return verdict.cause == "other" and says_none and not verdict.error


def in_order_of_trouble(answers: Iterable[BoxAnswer]) -> list[BoxAnswer]:
    """The boxes, those with a problem first; of these the recorded ones, then the surest."""

    def rank(answer: BoxAnswer) -> tuple[int, bool, int]:
        urgency = list(FINDINGS).index(answer.finding)
        return urgency, not answer.is_recorded, CONFIDENCES.index(answer.sure)

    return sorted(answers, key=rank)


def headline_of(answers: list[BoxAnswer]) -> str:
    """On how many boxes something is wrong, and what; of a few boxes, which has what."""
    troubled = [answer for answer in answers if answer.finding == "problem"]
    if not troubled:
        return f"No problem was found on {in_boxes(len(answers))}"
    has = "has" if len(troubled) == 1 else "have"
    count = f"{len(troubled)} of {len(answers)} boxes {has} a problem"
    if len(answers) == 1:
        count = "1 box has a problem"
    if len(troubled) <= MOST_NAMED:
        which = [f"{answer.box or 'no box'}: {_hedged(answer)}" for answer in troubled]
        return f"{count}. {'; '.join(which)}"
    causes = Counter(answer.in_words for answer in troubled)
    counted = [
        f"{name} ({boxes})" if boxes > 1 else name
        for name, boxes in causes.most_common()
    ]
    return f"{count}: {', '.join(counted)}"


def in_boxes(count: int) -> str:
    """So many boxes, in words."""
    return "1 box" if count == 1 else f"{count} boxes"


def _hedged(answer: BoxAnswer) -> str:
    """A problem in a few words, which say where it is only a hint."""
    return f"perhaps {answer.in_words}" if answer.sure == "weak" else answer.in_words


def others_of(answers: list[BoxAnswer]) -> str:
    """What was found on the boxes without a problem, counted."""
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
    """What the batch found out about each box, in order of first appearance."""
    return [
        _answer(box, runs) for box, runs in grouped(sections, attrgetter("run.box"))
    ]


def looked_at(answers: list[BoxAnswer], sections: Iterable[Section]) -> list[BoxAnswer]:
    """The answers about boxes that runs were about, the closing report apart."""
    boxes = boxes_of(section.run for section in sections)
    return [answer for answer in answers if answer.box in boxes]


def _answer(box: str, sections: Sections) -> BoxAnswer:
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
        obstacle = f"{lost.name}: {lost.state}. {lost.cause}".rstrip(". ") + "."
    by_title = grouped(sections, attrgetter("title"))
    return BoxAnswer(
        box=box,
        verdict=verdict,
        obstacle=obstacle,
        machine=next((s.machine for s in sections if s.machine), f"box {box}"),
        link=link,
        apart=apart,
        cells={title: _cell(runs, verdict) for title, runs in by_title},
        values=values,
    )


def _values(leader: Section, sections: Sections) -> list[Sections]:
    """The runs of the leader's notebook that have a verdict, those with one next step together."""
    with_verdict = (s for s in sections if s.title == leader.title and s.run.verdict)
    groups = grouped(
        with_verdict, attrgetter("run.verdict.headline", "run.verdict.next_step")
    )
    return sorted((runs for _, runs in groups), key=lambda runs: leader not in runs)


def _cell(runs: Sections, of_box: Verdict | None) -> Cell:
    """One verdict for the runs of a notebook on a box: the one that leads."""
    verdict = leading(section.run.verdict for section in runs)
    first = next(section for section in runs if section.run.verdict is verdict)
    words = ""
    if verdict is not None:
        agrees = of_box is not None and verdict.headline == of_box.headline
        words = "agrees"
        if not agrees:
            words = cut(re.split("[:;,(]", verdict.short)[0].strip(), MOST_LETTERS)
    return Cell(first, words, _note(first, runs))


def _note(first: Section, runs: Sections) -> str:
    """How many of a cell's runs came to what the cell says, and by which parameters."""
    lost = [section for section in runs if section.lost]
    if lost and first not in lost:
        return f"{len(lost)} of {len(runs)} {lost[0].run.state.replace('_', ' ')}"
    alike = [section for section in runs if section.outcome == first.outcome]
    if len(alike) == len(runs):
        return _counted(runs)
    others = [section for section in runs if section not in alike]
    shared = [
        part
        for part in first.apart
        if all(part in section.apart for section in alike)
        and not any(part in section.apart for section in others)
    ]
    return ", ".join([*shared, f"{len(alike)} of {len(runs)} runs"])


def _counted(runs: Sections) -> str:
    """How many runs there are, and with which values, where these are few; nothing of one run."""
    if len(runs) == 1:
        return ""
    count = f"{len(runs)} runs"
    values = swept([section.run for section in runs])
    parts = dict.fromkeys(itertools.chain.from_iterable(values))
    if not 0 < len(parts) <= MOST_VALUES:
        return count
    return f"{count}: {', '.join(parts)}"


def told_apart(sections: Sequence[Section]) -> list[Section]:
    """Each run with what tells it from the other runs of its notebook on its box."""
    apart = differences([section.run for section in sections])
    return [
        replace(section, apart=parts)
        for section, parts in zip(sections, apart, strict=True)
    ]


def troubles(sections: list[Section]) -> list[Sections]:
    """Runs that need attention, worst first; those that ended alike (numbers aside) together."""

    def alike(section: Section) -> tuple[str, ...]:
        run = section.run
        reason = f"{section.cause} {section.not_clean}"
        return (
            run.state,
            run.notebook,
            run.signal,
            re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", reason),
        )

    needing = [s for s in sections if s.lost or s.cause or s.not_clean]
    kinds = [members for _, members in grouped(needing, alike)]
    worst_first = list(STATE_WORDS)
    return sorted(kinds, key=lambda members: worst_first.index(members[0].run.state))
