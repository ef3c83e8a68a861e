"""One page for a whole batch. Of a few runs: the verdict, the machine, every run with its true state, each notebook. Of a night
with many: the counts, what needs a person, the answers by notebook and box, with links to pages of single runs.

A page needs no network and runs nothing; that of a few runs is one file that can be mailed. Pages are written for partial
batches and torn records too, and name what could not be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from helpers.look.files import write_atomic
from helpers.run.kernel import last_words
from helpers.run.notebook import NotebookError, open_notebook
from helpers.run.record import EARLIER, RecordUnreadable, gone, read_run
from helpers.run.shapes import Run

from .batches import leading
from .page import Room, notebook_html, render
from .tables import cut, duration, plain, uncoloured

PAGE_BYTES, RUN_PAGE_BYTES = 2_400_000, 1_200_000
"""Room for notebooks. With the markup around them a page stays under 3 MB, which every mail server takes."""
MOST_EMBEDDED = 12
"""A batch of more runs has a page of links: each run that is looked at first has a page of its own beside its record."""
MOST_RUN_PAGES = 200
MOST_TROUBLES, MOST_EARLIER, MOST_ALIKE, MOST_EVIDENCE = 150, 60, 6, 6
STATE_WORDS = {
    "rebooted": "the machine restarted during it",
    "stuck": "stuck in the kernel or driver",
    "node_lost": "its machine was lost",
    "died": "died: its kernel was lost",
    "timed_out": "stopped: over its time limit",
    "started": "started, no end recorded",
    "failed": "failed",
    "answered": "answered",
    "planned": "not started",
    "skipped": "skipped",
}
"""What became of a run, in words; the worst first."""


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, its executed notebook as HTML, or why there is none. ``link`` leads to its notebook."""

    run: Run
    anchor: str
    folder: Path
    gone: str
    link: str = ""
    machine: str = ""
    html: Markup = Markup("")
    without: str = ""
    last_words: str = ""

    @property
    def title(self) -> str:
        return Path(self.run.notebook).stem or self.run.run_id

    @property
    def state(self) -> str:
        return STATE_WORDS[self.run.state]

    @property
    def cause(self) -> str:
        return self.run.cause or self.gone

    @property
    def cells(self) -> str:
        total = sum(self.run.cells.values())
        return f"{self.run.cells.get('completed', 0)} of {total}" if total else ""

    @property
    def time(self) -> str:
        return duration(self.run.seconds) if self.run.seconds is not None else ""

    @property
    def ran(self) -> bool:
        return self.run.state not in ("planned", "skipped")

    @property
    def lost(self) -> bool:
        """Whether the run began and came to no answer."""
        return bool(self.gone) or (self.ran and self.run.state not in ("answered", "started"))

    @property
    def answer(self) -> str:
        return self.run.verdict.short if self.run.verdict else ""

    @property
    def not_clean(self) -> str:
        """What kept its box or GPU from being clean afterwards."""
        run = self.run
        return f"{run.quarantined}: {run.gate}" if run.quarantined else run.gate

    @property
    def evidence(self) -> list[str]:
        """What a person reads next: texts that the run left in its folder."""
        texts = (".txt", ".log", ".stderr")
        return [name for name in self.run.files if name.endswith(texts)][:MOST_EVIDENCE]

    @property
    def earlier(self) -> list[str]:
        """How the earlier attempts at the run ended, in one line each."""
        lines = []
        for path in sorted(self.folder.glob(f"{EARLIER}/*/run.json")):
            try:
                run = read_run(path)
                why = f"; {run.cause}" if run.cause else ""
                lines.append(f"attempt {run.attempt}: {STATE_WORDS[run.state]}{why}")
            except RecordUnreadable:
                lines.append(f"{path.parent.name}: its record cannot be read")
        return lines


Sections = tuple[Section, ...]


def write_index(batch_folder: Path) -> Path:
    """Write index.html into a batch folder, pages of its runs where it is large, and return its path.

    Raises FileNotFoundError where there is no such folder. A run's page that is newer than its record is left as it is.
    """
    folder = Path(batch_folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected a batch below outputs")
    path = folder / "index.html"
    sections, unreadable = _sections(folder)
    text = _page(folder, sections, unreadable)
    for section in sections if len(sections) > MOST_EMBEDDED else ():
        own, record = section.folder / "index.html", section.folder / "run.json"
        newer = own.exists() and own.stat().st_mtime >= record.stat().st_mtime
        if section.link and not newer:
            opened = _opened(section, folder, Room(RUN_PAGE_BYTES))
            write_atomic(own, _page(folder, [opened], [], up="../index.html"))
    write_atomic(path, text)
    return path


def page(folder: Path) -> str:
    """The page of a batch as text."""
    return _page(folder, *_sections(folder))


def _sections(folder: Path) -> tuple[list[Section], list[str]]:
    """Every run of a batch, and a line for each record that cannot be believed."""
    sections: list[Section] = []
    unreadable: list[str] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            run = read_run(path)
        except RecordUnreadable as error:
            unreadable.append(_below(folder, error))
        else:
            sections.append(Section(run, f"run-{len(sections) + 1}", path.parent, gone(run)))
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not (path / "run.json").exists() and any(path.glob("*.ipynb")):
            unreadable.append(f"{path.name}: a run's folder without a run.json")
    if len(sections) > MOST_EMBEDDED:
        first = _looked_at_first(sections)
        sections = [
            replace(s, link=f"{quote(s.folder.name)}/index.html") if s.anchor in first else s
            for s in sections
        ]
    return sections, unreadable


def _looked_at_first(sections: list[Section]) -> list[str]:
    """The anchors of the runs that get a page: the first of each trouble, one of each answer, then the rest in order."""
    first = [runs[0] for runs in _troubles(sections) if runs[0].lost]
    for _, group in _groups(sections):
        first += [section for box in group for _, _, section in box["answers"]]
    first += sorted((s for s in sections if s.ran), key=lambda section: not section.lost)
    return list(dict.fromkeys(section.anchor for section in first))[:MOST_RUN_PAGES]


def _page(folder: Path, sections: list[Section], unreadable: list[str], up: str = "") -> str:
    large, room = len(sections) > MOST_EMBEDDED, Room(PAGE_BYTES)
    if not large and not up:
        sections = [_opened(section, folder, room) for section in sections]
    troubles = _troubles(sections)
    started = [runs for runs in troubles if runs[0].run.state != "skipped"]
    nodes = _by(sections, lambda section: section.run.node)
    html = render(
        "night.html.j2" if large else "page.html.j2",
        batch=folder.resolve().name,
        up=up,
        sections=sections,
        answers=_answers(sections),
        unreadable=unreadable,
        counts=_counted(sections),
        troubles=troubles[:MOST_TROUBLES],
        more_troubles=len(troubles) - MOST_TROUBLES,
        most_alike=MOST_ALIKE,
        alarms=len(started),
        need=sum(map(len, started)),
        groups=_groups(sections),
        nodes=[(node or "this one", here, _counted(here)) for node, here in nodes[1:] and nodes],
        gates=Counter(filter(None, (section.not_clean for section in sections))).most_common(),
        repeated=[section for section in sections if section.run.attempt > 1][:MOST_EARLIER],
        versions=sorted(filter(None, {section.run.tool_version for section in sections})),
    )
    return str(html)


def _below(folder: Path, error: Exception) -> str:
    """What went wrong in one line, with paths as seen from the batch, which is the same wherever the page is read."""
    return cut(plain(error).replace(plain(folder) + "/", ""), 300)


def _opened(section: Section, batch: Path, room: Room) -> Section:
    """The section with its executed notebook as HTML, or with why there is none."""
    run, path = section.run, section.folder / "notebook.ipynb"
    words = "" if run.state == "answered" else run.last_words
    words = words or last_words(section.folder / "kernel.stderr") * (run.state != "answered")
    section = replace(section, link=f"#{section.anchor}")
    try:
        notebook = open_notebook(path)
        section = replace(section, machine=machine_line(notebook))
        return replace(section, html=notebook_html(notebook, room, words, run.failing_cell))
    except NotebookError as error:
        without = _below(batch, error) if path.exists() else "No executed notebook was written."
    # One odd notebook must not cost the page of a whole night; the page names what went wrong with it.
    except Exception as error:  # noqa: BLE001
        without = f"notebook.ipynb cannot be shown: {type(error).__name__}: {_below(batch, error)}"
    return replace(section, without=without, last_words=uncoloured(words[-4000:]))


def machine_line(notebook: Any) -> str:
    """The first line that the cell with the tag ``machine`` printed; empty where there is none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []) if "machine" in cell.metadata.get("tags", []) else ():
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            lines = uncoloured("".join(text)).strip().splitlines()
            if lines:
                return lines[0]
    return ""


def _answers(sections: list[Section]) -> list[dict[str, Any]]:
    """What the batch found out about each box, in order of first appearance: the verdict that leads (tell.batches.leading),
    the machine, and a link; without a verdict, what came in its way."""
    answers = []
    for box, here in _by(sections, lambda section: section.run.box):
        lead = leading(section.run.verdict for section in here)
        links = [s.link for s in here if lead is not None and s.run.verdict is lead]
        lost = next((section for section in here if section.lost), None)
        obstacle = "No run has a verdict yet."
        if lost:
            obstacle = f"{lost.title}: {lost.state}. {lost.cause}".rstrip(". ") + "."
        machine = next((section.machine for section in here if section.machine), f"box {box}")
        about = {"box": box, "machine": machine, "verdict": lead, "obstacle": obstacle}
        answers.append({**about, "link": links[0] if links else ""})
    return answers


def _counted(sections: Iterable[Section]) -> list[str]:
    """How many runs came to what, in words; the good state first, then the worst."""
    counts = Counter[str](section.run.state for section in sections)
    words = {"planned": "not started"}
    return [
        f"{counts[state]} {words.get(state, state.replace('_', ' '))}"
        for state in dict.fromkeys(("answered", *STATE_WORDS))
        if counts[state]
    ]


def _by(sections: Iterable[Section], key: Callable[[Section], Any]) -> list[tuple[Any, Sections]]:
    """Sections under their key, both in order of first appearance."""
    groups: dict[Any, list[Section]] = {}
    for section in sections:
        groups.setdefault(key(section), []).append(section)
    return [(name, tuple(here)) for name, here in groups.items()]


def _troubles(sections: list[Section]) -> list[Sections]:
    """Runs that need a person, worst first; those that ended alike (numbers aside) stand together."""

    def alike(section: Section) -> tuple[str, ...]:
        run, cause = section.run, re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", section.cause)
        return run.state, run.notebook, run.signal, cause

    needing = [s for s in sections if s.lost or s.cause or s.not_clean]
    worst = list(STATE_WORDS)
    runs = [here for _, here in _by(needing, alike)]
    return sorted(runs, key=lambda here: worst.index(here[0].run.state))


def _groups(sections: list[Section]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Notebook by notebook and box by box: the answers, each with how often it came and a run that gave it, the most frequent
    first; what became of the runs; their median time."""

    def group(box: str, runs: Sections) -> dict[str, Any]:
        answers = Counter(section.answer for section in runs if section.answer).most_common()
        seconds = [s.run.seconds for s in runs if s.run.seconds is not None]
        first = {section.answer: section for section in reversed(runs)}
        return {
            "box": box,
            "answers": [(answer, count, first[answer]) for answer, count in answers],
            "states": _counted(runs),
            "time": duration(median(seconds)) if seconds else "",
        }

    return [
        (title, [group(*one) for one in _by(here, lambda section: section.run.box)])
        for title, here in _by(sections, lambda section: section.title)
    ]
