"""Writes one page for a batch, or for several: the verdict and its next step, what needs attention,
the answer of each notebook on each box, and every run with its state.

If there are few runs, their notebooks are on the page, which is one file that can be mailed; if
there are many, each has a page of its own. A page needs neither a network nor a server.
Pages are also written for unfinished batches and torn records, and name what could not be read.
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
from .box_answer import (
    BoxAnswer,
    answers_of,
    headline_of,
    in_boxes,
    in_order_of_trouble,
    looked_at,
    others_of,
)
from .kernel_process import last_words
from .leading_verdict import bundle_of
from .notebook_file import NotebookError, open_notebook
from .record import boot_id, gone, is_batch, last_words_before, read_batch
from .reserve import RELEASED
from .section import Section, Sections, told_apart, troubles

PAGE_BYTES = 2_400_000
RUN_PAGE_BYTES = 1_200_000
"""Room for notebooks on the page of a batch and on that of a run.

With the markup around them a page stays under 3 MB, which every mail server takes.
"""
MOST_EMBEDDED = 12
"""The page of a batch of more runs has links to pages of its runs, and no notebooks."""
MOST_RUN_PAGES = 200
"""Runs of a large batch that get pages, lost ones first: enough for a night, not 5,000 files."""
MOST_TROUBLES = 150
"""Kinds of trouble that a page lists; the rest is counted."""
MOST_ALIKE = 6
"""Runs with the same trouble that a page names, such that they fit into one line."""
MOST_OPEN = 4
"""Up to this many runs the page shows their notebooks unfolded; its title names as many batches."""
LAST_WORDS = 700
"""Characters of a run's last words on the page of a large batch: about ten lines."""
LAST_WORDS_OF_RUN = 4000
"""Characters of them where they stand in place of a notebook."""
MOST_ERROR = 300
"""Characters of the line that says what could not be read."""
OF_SEVERAL = "batches.html"
"""The page of several batches, in the folder that holds all of them."""


@dataclass(frozen=True)
class Report:
    """What a page is about: every run of its batches, and a line for each unreadable record.

    The page is in ``folder``, to which its links are relative: the batch's own, or the one that has
    all batches.
    """

    folder: Path
    batches: tuple[Path, ...]
    sections: list[Section]
    unreadable: list[str]

    @property
    def page_name(self) -> str:
        """The file of its page, in its folder."""
        if len(self.batches) == 1:
            return "index.html"
        return OF_SEVERAL

    @property
    def is_large(self) -> bool:
        """Whether the notebooks of its runs are on pages of their own."""
        return len(self.sections) > MOST_EMBEDDED


def write_index(*folders: Path) -> Path:
    """Write the page of a batch into its folder, or of several into the folder that has all of
    them; returns the path of the page.

    Each of ``folders`` is a batch or has batches in it. The runs of a large batch get pages of
    their own beside their records. Raises FileNotFoundError if a folder does not exist.
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
    """The folder itself if it is a batch or has no batch in it, else the batches in it, in the
    order of their names, which begin with the time. Raises FileNotFoundError if there is no such
    folder.
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
    """Every run of these batches, and the records of them that cannot be read."""
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
    """Folders of a batch that have a notebook and no record: the record was deleted or not
    written.
    """
    for path in sorted(batch.iterdir()):
        without_record = path.is_dir() and not (path / "run.json").exists()
        if without_record and any(path.glob("*.ipynb")):
            yield path


def _with_links(sections: Sequence[Section], folder: Path) -> list[Section]:
    """The sections, with links to the pages of the first MOST_RUN_PAGES runs that ran, lost ones
    first.
    """
    ran = [section for section in sections if section.ran]
    ran.sort(key=lambda section: not section.lost)  # False sorts before True
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
    """Write the page of a run that is linked, unless it is newer than the run's record."""
    path = section.folder / "index.html"
    record = section.folder / "run.json"
    is_newer = path.exists() and path.stat().st_mtime >= record.stat().st_mtime
    if not section.link or is_newer:
        return
    up = f"{os.path.relpath(report.folder, section.folder)}/{report.page_name}"
    opened = _with_notebook(section, PageRoom(RUN_PAGE_BYTES), set())
    run_report = Report(section.batch, (section.batch,), [opened], [])
    write_atomic(path, _page(run_report, up))


def _page(report: Report, up: str = "") -> str:
    """The page as text; ``up`` is the link from the page of a run to that of its batch, else
    empty.
    """
    sections = report.sections
    answers = answers_of(sections)
    if not report.is_large and not up:  # the page of a run has its notebook already
        sections = _with_notebooks(sections, answers)
        answers = answers_of(sections)  # with the machines that the notebooks name
    kinds = troubles(sections)
    shown = sections
    folded: list[Section] = []
    if report.is_large:
        sections = _with_last_words(sections, kinds)
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
    """The text about a box that a page shows before anything is unfolded; the page explains the
    words of its glossary that are in it.
    """
    verdict = answer.verdict
    if verdict is None:
        return answer.obstacle
    says = [row.says for row in (*verdict.evidence, *verdict.against)]
    return " ".join([verdict.headline, verdict.summary, verdict.error, *says])


def _by_node(sections: list[Section]) -> list[str]:
    """How many runs each machine carried out, such as "oak (3)"; none if it was one machine."""
    counts = Counter(section.run.node for section in sections if section.run.node)
    if len(counts) < 2:
        return []
    return [f"{node} ({count})" for node, count in counts.most_common()]


def _titles(report: Report, answers: list[BoxAnswer]) -> dict[str, object]:
    """The heading of the page, its title, and tables of facts and provenance, by these names.

    The heading is the box, or how many runs and boxes there are, with the day; ``title`` has the
    verdict, too; ``facts`` and ``provenance`` are (name, value) in order.
    """
    runs = [section.run for section in report.sections]
    starts = [run.started_at for run in runs if run.started_at]
    day = min(starts, default="")[: len("2026-01-31")]
    boxes = len(looked_at(answers, report.sections))
    subject = f"{in_boxes(boxes)}, {len(runs)} runs"
    if len(runs) == boxes:
        # several: of a single box ``subject`` becomes its name below
        subject = f"{boxes} boxes, one run on each"
    verdict: Verdict | None = None
    facts_of_box: list[tuple[str, str]] = []
    if len(answers) == 1:
        subject, facts_of_box = _box_and_facts(answers[0].box, report.batches[0])
        verdict = answers[0].verdict
    heading = ", ".join(filter(None, (subject, day)))
    title = heading
    if verdict:
        title = f"{heading}: {verdict.headline}"
    return {
        "heading": heading,
        "title": title,
        "facts": facts_of_box,
        "provenance": _provenance(report, is_one_box=len(answers) == 1),
    }


def _box_and_facts(box: str, batch: Path) -> tuple[str, list[tuple[str, str]]]:
    """(the name of a box, its facts as (name, value)), from its bundle if that can be found."""
    captured = None
    if box == "live":  # its bundle was captured into the folder of the batch
        captured = batch
    place, _ = bundle_of([box], captured)
    if place is None:
        return box, []
    bundle = open_bundle(place)
    return bundle.box, facts(bundle)


def _provenance(report: Report, is_one_box: bool) -> list[tuple[str, str]]:
    """Where the page comes from, as (name, values): batches, versions, plan, runs, boots, times."""
    runs = [section.run for section in report.sections]
    starts = [run.started_at for run in runs if run.started_at]
    provenance: dict[str, list[str]] = {
        "Batch": [batch.resolve().name for batch in report.batches],
        "Written with": [
            f"VRAM Casebook {run.tool_version}" for run in runs if run.tool_version
        ],
        "Plan (SHA-256)": [run.plan_sha256 for run in runs],
        "Runs": [
            f"{section.name} {section.state} in {section.time} ({section.run.run_id})"
            for section in report.sections
            if is_one_box
        ],
        "Boots": [run.boot_id for run in runs],
        "Started": [min(starts, default="")],
        "Ended": [max((run.ended_at for run in runs), default="")],
        "Notebooks": [run.notebook for run in runs if not is_one_box],
        "Code and outputs": ["notebook.ipynb in the folder of each run"],
    }
    listed = []
    for name, values in provenance.items():
        distinct = dict.fromkeys(filter(None, values))  # in order of first appearance
        listed.append((name, ", ".join(distinct)))
    return listed


def _with_notebooks(sections: list[Section], answers: list[BoxAnswer]) -> list[Section]:
    """The sections with their notebooks. Nothing is shown twice: no output that an earlier notebook
    shows, nor the verdict that leads the only box.
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
        opened.append(_with_notebook(section, room, shown_before))
    return opened


def _agree(verdict: Verdict | None, of_box: Verdict | None) -> bool:
    """Whether a run's verdict says the same as the one that leads its box: both are healthy, in
    whatever words, or both have the same headline.
    """
    if verdict is None or of_box is None:
        return False
    are_healthy = verdict.state == "healthy" and of_box.state == "healthy"
    return are_healthy or verdict.headline == of_box.headline


def _with_last_words(sections: list[Section], kinds: list[Sections]) -> list[Section]:
    """The sections; of each kind of trouble the first run has its last words and notes."""
    first = {runs[0].anchor for runs in kinds[:MOST_TROUBLES] if runs[0].lost}
    changed = []
    for section in sections:
        if section.anchor in first:
            # ``few`` has it shown unfolded, on this large page, too.
            last = section.run.last_words[-LAST_WORDS:]
            section = replace(
                section, few=True, last_words=last, notes=_notes_on(section)
            )
        changed.append(section)
    return changed


def _notes_on(section: Section) -> str:
    """The notes on a run; if its machine went down during it, with the kernel's last words."""
    run = section.run
    lines = run.notes
    if section.gone and run.boot_id != boot_id():  # nobody has resumed the batch yet
        lines = [*lines, *last_words_before(run)]
    return uncoloured("\n".join(lines))


def _below(folder: Path, error: object) -> str:
    """An error in one line, with paths relative to ``folder``: they hold wherever it is copied
    to.
    """
    line = plain(error).replace(plain(folder) + "/", "")
    return cut(line, MOST_ERROR)


def _with_notebook(section: Section, room: PageRoom, shown_before: set[str]) -> Section:
    """The section with its executed notebook as HTML, or with the reason why there is none.

    The notebook takes its bytes from ``room``; outputs in ``shown_before`` are left out, and its
    own are added there.
    """
    run = section.run
    path = section.folder / "notebook.ipynb"
    words = ""
    if run.state != "answered":
        words = run.last_words or last_words(section.folder / "kernel.stderr")
    # No link: the notebook is on this page, and the run needs no page of its own.
    section = replace(section, link="", notes=_notes_on(section))
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
    # One odd notebook must not prevent the page of a whole night, which names the error.
    except Exception as error:  # noqa: BLE001
        why = f"{type(error).__name__}: {_below(section.batch, error)}"
        without = f"notebook.ipynb cannot be shown: {why}"
    last = uncoloured(words[-LAST_WORDS_OF_RUN:])
    return replace(section, without=without, last_words=last)
