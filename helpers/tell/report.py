"""One page for a whole batch. Of a few runs: the verdict, the machine, every run with its true state, each notebook. Of a night
with many: the counts, what needs a person, the answers by notebook and box, with links to pages of single runs.

A page needs no network and runs nothing; that of a few runs is one file that can be mailed. Pages are written for partial
batches and torn records too, and name what could not be read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from helpers.look.files import write_atomic
from helpers.run.kernel import last_words
from helpers.run.notebook import NotebookError, open_notebook
from helpers.run.record import RecordUnreadable, gone, read_run
from helpers.shapes import Verdict

from . import night
from .batches import about, leading
from .night import STATE_WORDS as STATE_WORDS
from .night import Section
from .notebook_html import TEMPLATES, Room, notebook_html
from .tables import cut, one_source, plain, uncoloured
from .verdict import (
    CONFIDENCE_WORDS,
    NOTHING_AGAINST,
    NOTHING_MISSING,
    SUMS,
    alternatives,
    headline,
    label,
    named,
    rows,
    summary,
    sums,
)

PAGE_BYTES, RUN_PAGE_BYTES = 2_400_000, 1_200_000
"""Room for notebooks. With the markup around them a page stays under 3 MB, which every mail server takes."""
MOST_EMBEDDED = 12
"""A batch of more runs has a page of links: each run that is looked at first has a page of its own beside its record."""
MOST_RUN_PAGES = 200
MOST_TROUBLES, MOST_EARLIER = 150, 60


@dataclass(frozen=True)
class Answer:
    """What the batch found out about one box; without a verdict, what came in its way."""

    box: str
    machine: str
    verdict: Verdict | None
    obstacle: str
    link: str = ""


def write_index(batch_folder: Path) -> Path:
    """Write index.html into a batch folder, pages of its runs where it is large, and return its path.

    Raises FileNotFoundError where there is no such folder. A run's page that is newer than its record is left as it is.
    """
    folder = Path(batch_folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected a batch below outputs")
    path = folder / "index.html"
    sections, strange = _sections(folder)
    text = _page(folder, sections, strange)
    for section in sections if len(sections) > MOST_EMBEDDED else ():
        own = section.folder / "index.html"
        if section.link and not (
            own.exists() and own.stat().st_mtime >= (section.folder / "run.json").stat().st_mtime
        ):
            write_atomic(
                own,
                _page(
                    folder, [_opened(section, folder, Room(RUN_PAGE_BYTES))], [], up="../index.html"
                ),
            )
    write_atomic(path, text)
    return path


def page(folder: Path) -> str:
    """The page of a batch as text."""
    return _page(folder, *_sections(folder))


def _sections(folder: Path) -> tuple[list[Section], list[str]]:
    """Every run of a batch, and a line for each record that cannot be believed."""
    sections: list[Section] = []
    strange: list[str] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            run = read_run(path)
        except RecordUnreadable as error:
            strange.append(_below(folder, error))
        else:
            sections.append(Section(run, f"run-{len(sections) + 1}", path.parent, gone(run)))
    strange += [
        f"{path.name}: a run's folder without a run.json" for path in _without_record(folder)
    ]
    if len(sections) > MOST_EMBEDDED:
        first = {section.anchor for section in _looked_at_first(sections)}
        sections = [
            replace(s, link=f"{quote(s.folder.name)}/index.html") if s.anchor in first else s
            for s in sections
        ]
    return sections, strange


def _looked_at_first(sections: list[Section]) -> list[Section]:
    """The runs that get a page: the first of each trouble, one of each answer, then the rest in order."""
    troubles = [trouble.first for trouble in night.troubles(sections) if trouble.first.lost]
    answers = [
        section
        for _, groups in night.groups(sections)
        for group in groups
        for _, _, section in group.answers
    ]
    ran = sorted(
        (s for s in sections if s.run.state not in ("planned", "skipped")),
        key=lambda section: not section.lost,
    )
    return list({section.anchor: section for section in (*troubles, *answers, *ran)}.values())[
        :MOST_RUN_PAGES
    ]


def _page(folder: Path, sections: list[Section], strange: list[str], up: str = "") -> str:
    large, room = len(sections) > MOST_EMBEDDED, Room(PAGE_BYTES)
    if not large and not up:
        sections = [_opened(section, folder, room) for section in sections]
    troubles = night.troubles(sections)
    started = [trouble for trouble in troubles if trouble.first.run.state != "skipped"]
    nodes = [
        (node or "this one", here)
        for node, here in night.by(sections, lambda section: section.run.node)
    ]
    return (
        environment()
        .get_template("night.html.j2" if large else "page.html.j2")
        .render(
            batch=folder.resolve().name,
            up=up,
            sections=sections,
            answers=_answers(sections),
            strange=strange,
            counts=night.counted(sections),
            troubles=troubles[:MOST_TROUBLES],
            more_troubles=len(troubles) - MOST_TROUBLES,
            alarms=len(started),
            need=sum(len(trouble.runs) for trouble in started),
            groups=night.groups(sections),
            nodes=nodes if len(nodes) > 1 else [],
            gates=Counter(
                f"{s.run.quarantined}: {s.run.gate}" if s.run.quarantined else s.run.gate
                for s in sections
                if s.run.gate or s.run.quarantined
            ).most_common(),
            repeated=[
                (section, night.earlier(section)) for section in sections if section.run.attempt > 1
            ][:MOST_EARLIER],
            tool_versions=sorted(
                {section.run.tool_version for section in sections if section.run.tool_version}
            ),
        )
    )


def _below(folder: Path, error: Exception) -> str:
    """What went wrong in one line, with paths as seen from the batch, which is the same wherever the page is read."""
    return cut(plain(error).replace(plain(folder) + "/", ""), 300)


def _without_record(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not (path / "run.json").exists() and any(path.glob("*.ipynb"))
    ]


def _opened(section: Section, batch: Path, room: Room) -> Section:
    """The section with its executed notebook as HTML, or with why there is none."""
    run, folder = section.run, section.folder
    words = (
        "" if run.state == "answered" else run.last_words or last_words(folder / "kernel.stderr")
    )
    html, without, machine = "", "", ""
    try:
        notebook = open_notebook(folder / "notebook.ipynb")
        machine = machine_line(notebook)
        html = notebook_html(notebook, room, verdict_html, words, run.failing_cell)
    except NotebookError as error:
        written = (folder / "notebook.ipynb").exists()
        without = _below(batch, error) if written else "No executed notebook was written."
    # One odd notebook must not cost the page of a whole night; the page names what went wrong with it.
    except Exception as error:  # noqa: BLE001
        without = f"notebook.ipynb cannot be shown: {type(error).__name__}: {_below(batch, error)}"
    return replace(
        section,
        machine=machine,
        html=Markup(html),
        without=without,
        link=f"#{section.anchor}",
        last_words=uncoloured(words[-4000:]) if without else "",
    )


def machine_line(notebook: Any) -> str:
    """The first line that the cell with the tag ``machine`` printed; empty where there is none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []) if "machine" in cell.metadata.get("tags", []) else ():
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            lines = uncoloured("".join(text)).strip().splitlines()
            if lines:
                return lines[0]
    return ""


def _answers(sections: list[Section]) -> list[Answer]:
    """One answer a box, in order of first appearance: the verdict that leads (tell.batches.leading)."""
    answers = []
    for box, here in night.by(sections, lambda section: section.run.box):
        machine = next((section.machine for section in here if section.machine), "")
        said = [section for section in here if section.run.verdict]
        lead = leading([section.run.verdict for section in said])
        best = next((section for section in said if section.run.verdict is lead), None)
        lost = next((section for section in here if section.lost), None)
        obstacle = (
            f"{lost.title}: {lost.state}. {lost.cause}".rstrip(". ") + "."
            if lost
            else "No run has a verdict yet."
        )
        answers.append(
            Answer(
                box,
                machine,
                best.run.verdict if best else None,
                obstacle,
                best.link if best else "",
            )
        )
    return answers


def verdict_html(verdict: Verdict, hero: bool = False) -> str:
    """The verdict as a box of the page; ``hero`` gives it the heading."""
    return (
        environment()
        .get_template("verdict.html.j2")
        .render(
            verdict=verdict,
            hero=hero,
            words=headline(verdict),
            named=named(verdict),
            confidence=label(verdict),
            summary=summary(verdict),
            strength=0
            if verdict.cause == "cannot-tell"
            else 3 - list(CONFIDENCE_WORDS).index(verdict.confidence),
            alternatives=alternatives(verdict),
            sums=sums(verdict),
            sums_title=SUMS,
            evidence=rows(verdict),
            nothing_against=NOTHING_AGAINST,
            nothing_missing=NOTHING_MISSING,
        )
    )


@cache
def environment() -> jinja2.Environment:
    """The templates of pages. Every text is made harmless and escaped, whatever the template forgets."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            value
            if isinstance(value, Markup) or not isinstance(value, str)
            else plain(value, keep="\n\t")
        ),
    )
    environment.filters["headline"] = headline
    environment.filters["about"] = about
    environment.filters["counted"] = night.counted
    environment.filters["hero"] = lambda verdict: Markup(verdict_html(verdict, hero=True))
    environment.filters["source"] = lambda reading: one_source([reading])
    environment.filters["shown"] = lambda reading: reading.show()
    return environment
