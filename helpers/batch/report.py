"""One page for a batch, or for several: the verdict and its next step, what needs attention, what
each notebook came to on each box, and every run with its true state. Notebooks of a few runs are on
it, those of many on pages of their own beside it.

A page needs no network and runs nothing; that of a few runs is one file that can be mailed.
Pages are written for partial batches and torn records too, and name what could not be read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from helpers.ground.shapes import Verdict
from helpers.ground.units import cut, plain
from helpers.look.bundle import open_bundle
from helpers.look.files import write_atomic
from helpers.tell.box import facts
from helpers.tell.notebook_cells import machine_line, question
from helpers.tell.page import notebook_html
from helpers.tell.page_room import PageRoom
from helpers.tell.prose import uncoloured
from helpers.tell.render import render

from .batch_table import counted
from .kernel_process import last_words
from .leading_verdict import bundle_of
from .notebook_file import NotebookError, open_notebook
from .record import boot_id, gone, is_batch, last_words_before, read_batch
from .reserve import RELEASED
from .section import (
    BoxAnswer,
    Section,
    Sections,
    answers_of,
    headline_of,
    in_boxes,
    in_order_of_trouble,
    looked_at,
    others_of,
    told_apart,
    troubles,
)

PAGE_BYTES = 2_400_000
RUN_PAGE_BYTES = 1_200_000
"""Room for notebooks.

With the markup around them a page stays under 3 MB, which every mail server takes.
"""
MOST_EMBEDDED = 12
"""A batch of more runs has a page of links: each run that ran, those that were lost first, has a
page of its own beside its record.
"""
MOST_RUN_PAGES = 200
MOST_TROUBLES = 150
MOST_ALIKE = 6
MOST_OPEN = 4
LAST_WORDS = 700
OF_SEVERAL = "batches.html"
"""The page of several batches, in the folder that holds all of them."""


@dataclass(frozen=True)
class Report:
    """What a page is about: every run of its batches, and a line for each unreadable record.

    Links of the page count from ``folder``: the batch's own, or the one that holds all batches.
    """

    folder: Path
    batches: tuple[Path, ...]
    sections: list[Section]
    unreadable: list[str]

    @property
    def page_name(self) -> str:
        """The file of its page, in its folder."""
        return "index.html" if len(self.batches) == 1 else OF_SEVERAL

    @property
    def is_large(self) -> bool:
        """Whether the notebooks of its runs are on pages of their own."""
        return len(self.sections) > MOST_EMBEDDED


def write_index(*folders: Path) -> Path:
    """Write the page of a batch into its folder, or of several into the folder of all of them.

    A folder may be a batch or hold some. The runs of a large batch get pages of their own beside
    their records; one that is newer than its record is left as it is. Returns the path of the
    page. Raises FileNotFoundError where there is no such folder, and where it holds no batch.
    """
    batches = list(chain.from_iterable(map(batches_in, folders)))
    report = read_report(batches)
    text = _page(report)
    if report.is_large:
        for section in report.sections:
            _write_run_page(report, section)
    path = report.folder / report.page_name
    write_atomic(path, text)
    return path


def batches_in(folder: Path) -> list[Path]:
    """The folder itself where it is a batch, else the batches in it, the oldest first.

    Raises FileNotFoundError where there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: no such folder; expected a batch below outputs"
        )
    batches = sorted({record.parents[1] for record in folder.glob("*/*/run.json")})
    if is_batch(folder) or not batches:
        return [folder]
    return batches


def read_report(batches: Sequence[Path]) -> Report:
    """Every run of these batches, and what of them cannot be read."""
    folder = batches[0]
    if len(batches) > 1:
        folder = Path(os.path.commonpath([batch.resolve() for batch in batches]))
        batches = [batch.resolve() for batch in batches]
    sections: list[Section] = []
    unreadable: list[str] = []
    for batch in batches:
        view = read_batch(batch)
        for run in view.runs:
            anchor = f"run-{len(sections) + 1}"
            sections.append(Section(run, anchor, batch / run.run_id, gone(run)))
        unreadable += [_below(folder, line) for line in view.unreadable]
        for path in _folders_without_record(batch):
            unreadable.append(f"{path.name}: a run's folder without a run.json")
    report = Report(folder, tuple(batches), told_apart(sections), unreadable)
    if report.is_large:
        return replace(report, sections=_with_links(report.sections, folder))
    return report


def _folders_without_record(batch: Path) -> Iterator[Path]:
    """Folders of runs of which no record was written."""
    for path in sorted(batch.iterdir()):
        without_record = path.is_dir() and not (path / "run.json").exists()
        if without_record and any(path.glob("*.ipynb")):
            yield path


def _with_links(sections: Sequence[Section], folder: Path) -> list[Section]:
    """The sections, each with a link to the page of its run where it has one: of as many as fit,
    the lost ones first.
    """
    ran = [section for section in sections if section.ran]
    ran.sort(key=lambda section: not section.lost)
    with_page = {section.anchor for section in ran[:MOST_RUN_PAGES]}
    linked = []
    for section in sections:
        if section.anchor in with_page:
            page = quote(f"{section.folder.relative_to(folder)}/index.html")
            section = replace(section, link=page)
        linked.append(section)
    return linked


def page(folder: Path) -> str:
    """The page of a batch as text."""
    return _page(read_report([folder]))


def _write_run_page(report: Report, section: Section) -> None:
    path = section.folder / "index.html"
    record = section.folder / "run.json"
    is_newer = path.exists() and path.stat().st_mtime >= record.stat().st_mtime
    if not section.link or is_newer:
        return
    up = f"{os.path.relpath(report.folder, section.folder)}/{report.page_name}"
    opened = _opened(section, PageRoom(RUN_PAGE_BYTES), set())
    run_report = Report(section.batch, (section.batch,), [opened], [])
    write_atomic(path, _page(run_report, up))


def _page(report: Report, up: str = "") -> str:
    """The page as text; ``up`` leads from the page of a run to that of its batch."""
    sections = report.sections
    answers = answers_of(sections)
    if not report.is_large and not up:
        sections = _embedded(sections, answers)
        answers = answers_of(sections)
    kinds = troubles(sections)
    if report.is_large:
        sections = _with_last_words(sections, kinds)
    shown = sections
    folded: list[Section] = []
    if report.is_large:
        shown = [section for section in sections if section.kind != "answered"]
        folded = [section for section in sections if section.kind == "answered"]
    boxes = looked_at(answers, sections)
    urgent_first = in_order_of_trouble(boxes)
    notes = chain.from_iterable(section.run.notes for section in sections)
    html = render(
        "page.html.j2",
        batch=", ".join(batch.resolve().name for batch in report.batches[:MOST_OPEN]),
        **_titles(report, answers),
        up=up,
        sections=shown,
        folded=folded,
        runs=len(sections),
        many=len(answers) > 1,
        is_large=report.is_large,
        answers=answers,
        boxes=boxes,
        headline=headline_of(urgent_first),
        others=others_of(boxes),
        urgent_first=urgent_first,
        search=re.search,
        spoken=" ".join(map(_spoken, answers)),
        notebooks=sorted(set().union(*(box.cells for box in boxes))),
        unreadable=report.unreadable,
        counts=counted(section.run for section in sections),
        nodes=_by_node(sections),
        troubles=kinds[:MOST_TROUBLES],
        more_troubles=len(kinds) - MOST_TROUBLES,
        most_alike=MOST_ALIKE,
        need=sum(map(len, kinds)) + len(report.unreadable),
        released=[note for note in notes if note.endswith(RELEASED)],
    )
    return str(html)


def _spoken(answer: BoxAnswer) -> str:
    """What a page says of a box before anything is unfolded: the words that it has to explain."""
    verdict = answer.verdict
    if verdict is None:
        return answer.obstacle
    says = [row.says for row in (*verdict.evidence, *verdict.against)]
    return " ".join([verdict.headline, verdict.summary, verdict.error, *says])


def _by_node(sections: list[Section]) -> list[str]:
    """How many runs each machine carried out, where it was more than one."""
    counts = Counter(section.run.node for section in sections if section.run.node)
    if len(counts) < 2:
        return []
    return [f"{node} ({count})" for node, count in counts.most_common()]


def _titles(report: Report, answers: list[BoxAnswer]) -> dict[str, object]:
    """What the page is about (the box, or how many runs and boxes; the day; in its title the
    verdict), and where it is from.
    """
    runs = [section.run for section in report.sections]
    start = min((run.started_at for run in runs if run.started_at), default="")
    boxes = len(looked_at(answers, report.sections))
    box = f"{in_boxes(boxes)}, {len(runs)} runs"
    if len(runs) == boxes:
        box = f"{boxes} boxes, one run on each"
    verdict: Verdict | None = None
    row: list[tuple[str, str]] = []
    if len(answers) == 1:
        box = answers[0].box
        verdict = answers[0].verdict
        captured = report.batches[0] if box == "live" else None
        place, _ = bundle_of([box], captured)
        if place:
            bundle = open_bundle(place)
            box = bundle.box
            row = facts(bundle)
    heading = ", ".join(part for part in (box, start[:10]) if part)
    provenance: dict[str, list[str]] = {
        "Batch": [batch.resolve().name for batch in report.batches],
        "Written with": [
            f"VRAM Casebook {run.tool_version}" for run in runs if run.tool_version
        ],
        "Plan (SHA-256)": [run.plan_sha256 for run in runs],
        "Runs": [
            f"{section.name} {section.state} in {section.time} ({section.run.run_id})"
            for section in report.sections
            if len(answers) == 1
        ],
        "Boots": [run.boot_id for run in runs],
        "Started": [start],
        "Ended": [max((run.ended_at for run in runs), default="")],
        "Notebooks": [run.notebook for run in runs if len(answers) > 1],
        "Code and outputs": ["notebook.ipynb in the folder of each run"],
    }
    # The values in order of first appearance, without empty ones.
    listed = [
        (name, ", ".join(filter(None, dict.fromkeys(values))))
        for name, values in provenance.items()
    ]
    title = f"{heading}: {verdict.headline}" if verdict else heading
    return {"heading": heading, "title": title, "facts": row, "provenance": listed}


def _embedded(sections: list[Section], answers: list[BoxAnswer]) -> list[Section]:
    """Each run with its notebook. Nothing is shown twice: neither what an earlier notebook shows,
    nor the verdict that leads the only box.
    """
    room = PageRoom(PAGE_BYTES)
    shown_before: set[str] = set()
    opened = []
    leading = {answer.box: answer.verdict for answer in looked_at(answers, sections)}
    is_one_box = len(answers) == 1
    few = len(sections) <= MOST_OPEN and is_one_box
    for section in sections:
        verdict = section.run.verdict
        agrees = _agree(verdict, leading.get(section.run.box))
        if not (agrees and is_one_box):
            section = replace(section, own_verdict=verdict)
        section = replace(section, few=few, agrees=agrees)
        opened.append(_opened(section, room, shown_before))
    return opened


def _agree(verdict: Verdict | None, of_box: Verdict | None) -> bool:
    """Whether a run came to the answer of its box."""
    if verdict is None or of_box is None:
        return False
    are_healthy = verdict.state == "healthy" and of_box.state == "healthy"
    return are_healthy or verdict.headline == of_box.headline


def _with_last_words(sections: list[Section], kinds: list[Sections]) -> list[Section]:
    """Of each trouble the first run with what it said last, the others without."""
    first = {runs[0].anchor for runs in kinds[:MOST_TROUBLES] if runs[0].lost}
    output = []
    for section in sections:
        if section.anchor in first:
            last = section.run.last_words[-LAST_WORDS:]
            section = replace(
                section, few=True, last_words=last, before=_before(section)
            )
        output.append(section)
    return output


def _before(section: Section) -> str:
    """What was noted of a run: where its machine went down under it, what its kernel said last."""
    run = section.run
    lines = run.notes
    if section.gone and run.boot_id != boot_id():  # nobody has resumed the batch yet
        lines = [*lines, *last_words_before(run)]
    return uncoloured("\n".join(lines))


def _below(folder: Path, error: object) -> str:
    """What went wrong in one line, with paths as seen from the batch, which is the same
    wherever the page is read.
    """
    return cut(plain(error).replace(plain(folder) + "/", ""), 300)


def _opened(section: Section, room: PageRoom, shown_before: set[str]) -> Section:
    """The section with its executed notebook as HTML, or with why there is none."""
    run = section.run
    path = section.folder / "notebook.ipynb"
    words = ""
    if run.state != "answered":
        words = run.last_words or last_words(section.folder / "kernel.stderr")
    section = replace(section, link="", before=_before(section))
    try:
        notebook = open_notebook(path)
        section = replace(
            section, machine=machine_line(notebook), question=question(notebook)
        )
        html = notebook_html(
            notebook,
            room,
            words,
            run.failing_cell,
            shown_before,
            only_what_applies=section.few,
        )
        return replace(section, html=html)
    except NotebookError as error:
        without = "No executed notebook was written."
        if path.exists():
            without = _below(section.batch, error)
    # One odd notebook must not cost the page of a whole night; the page names what went wrong
    # with it.
    except Exception as error:  # noqa: BLE001
        why = f"{type(error).__name__}: {_below(section.batch, error)}"
        without = f"notebook.ipynb cannot be shown: {why}"
    return replace(section, without=without, last_words=uncoloured(words[-4000:]))
