"""One page for a whole batch: the verdict first, then the machine, every run with its true state, and each notebook.

The page is one file that needs no network, runs nothing, and can be mailed. It is written for partial batches and torn records
too, and names what could not be read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from helpers.run.kernel import last_words
from helpers.run.notebook import NotebookError, open_notebook
from helpers.run.record import RecordUnreadable, gone, read_run, write_atomic
from helpers.run.shapes import Run, Verdict

from .notebook_html import TEMPLATES, Room, notebook_html
from .tables import cut, duration, one_source, plain, uncoloured
from .verdict import CONFIDENCE_WORDS, NOTHING_AGAINST, NOTHING_MISSING, alternatives, headline

PAGE_BYTES = 2_400_000
"""Room for notebooks. With the markup around them a page stays under 3 MB, which every mail server takes."""

STATE_WORDS = {
    "planned": "not started", "started": "started, no end recorded", "answered": "answered",
    "failed": "failed", "died": "died: its kernel was lost", "timed_out": "stopped: over its time limit",
    "stuck": "stuck in the kernel or driver", "rebooted": "the machine restarted during it",
    "node_lost": "its machine was lost", "skipped": "skipped",
}


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, its executed notebook as HTML, or why there is none."""

    run: Run
    anchor: str
    title: str
    state: str
    cause: str
    cells: str
    time: str
    machine: str
    html: Markup
    without: str
    last_words: str

    @property
    def lost(self) -> bool:
        """Whether the run began and came to no answer."""
        return self.run.state not in ("answered", "planned", "skipped")


@dataclass(frozen=True)
class Answer:
    """What the batch found out about one box; without a verdict, what came in its way."""

    box: str
    machine: str
    verdict: Verdict | None
    obstacle: str


def write_index(batch_folder: Path) -> Path:
    """Write index.html into a batch folder and return its path. Raises FileNotFoundError where there is no such folder."""
    folder = Path(batch_folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected a batch below outputs")
    path = folder / "index.html"
    write_atomic(path, page(folder))
    return path


def page(folder: Path) -> str:
    """The page of a batch as text."""
    room, strange = Room(PAGE_BYTES), []
    sections: list[Section] = []
    for path in sorted(folder.glob("*/run.json")):
        try:
            run = read_run(path)
        except RecordUnreadable as error:
            strange.append(_below(folder, error))
        else:
            sections.append(_section(run, len(sections) + 1, path.parent, room))
    strange += [f"{path.name}: a run's folder without a run.json" for path in _without_record(folder)]
    counts = Counter(STATE_WORDS[section.run.state].split(":")[0] for section in sections)
    return _environment().get_template("page.html.j2").render(
        batch=folder.resolve().name, sections=sections, answers=_answers(sections), strange=strange,
        counts=[f"{count} {words}" for words, count in counts.items()],
        tool_versions=sorted({section.run.tool_version for section in sections if section.run.tool_version}))


def _below(folder: Path, error: Exception) -> str:
    """What went wrong in one line, with paths as seen from the batch, which is the same wherever the page is read."""
    return cut(plain(error).replace(plain(folder) + "/", ""), 300)


def _without_record(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir())
            if path.is_dir() and not (path / "run.json").exists() and any(path.glob("*.ipynb"))]


def _section(run: Run, number: int, folder: Path, room: Room) -> Section:
    words = "" if run.state == "answered" else run.last_words or last_words(folder / "kernel.stderr")
    html, without, machine = "", "", ""
    try:
        notebook = open_notebook(folder / "notebook.ipynb")
        machine = machine_line(notebook)
        html = notebook_html(notebook, room, verdict_html, words, run.failing_cell)
    except NotebookError as error:
        written = (folder / "notebook.ipynb").exists()
        without = _below(folder, error) if written else "No executed notebook was written."
    # One odd notebook must not cost the page of a whole night; the page names what went wrong with it.
    except Exception as error:  # noqa: BLE001
        without = f"notebook.ipynb cannot be shown: {type(error).__name__}: {_below(folder, error)}"
    done, total = run.cells.get("completed", 0), sum(run.cells.values())
    return Section(
        run, f"run-{number}", Path(run.notebook).stem or run.run_id, STATE_WORDS[run.state], run.cause or gone(run),
        f"{done} of {total}" if total else "", duration(run.seconds) if run.seconds is not None else "", machine,
        Markup(html), without, uncoloured(words[-4000:]) if without else "")


def machine_line(notebook: Any) -> str:
    """The first line that the cell below the heading Machine printed."""
    below = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            below = cell.source.strip().split("\n")[0].strip("# ") == "Machine"
        for output in cell.get("outputs", []) if below else ():
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            lines = uncoloured("".join(text)).strip().splitlines()
            if lines:
                return lines[0]
    return ""


def _answers(sections: list[Section]) -> list[Answer]:
    """One answer a box, in order of first appearance: of the case report if it has one, else the firmest."""
    answers = []
    for box in dict.fromkeys(section.run.box for section in sections):
        here = [section for section in sections if section.run.box == box]
        machine = next((section.machine for section in here if section.machine), "")
        found = [section for section in here if section.run.verdict]
        best = min(found, key=_firmness, default=None)
        lost = next((section for section in here if section.lost), None)
        obstacle = f"{lost.title}: {lost.state}. {lost.cause}".rstrip(". ") + "." if lost else "No run has a verdict yet."
        answers.append(Answer(box, machine, best.run.verdict if best else None, obstacle))
    return answers


def _firmness(section: Section) -> tuple[bool, bool, int]:
    verdict = section.run.verdict
    assert verdict is not None
    return (not section.title.startswith("09"), verdict.cause == "cannot-tell",
            list(CONFIDENCE_WORDS).index(verdict.confidence))


def verdict_html(verdict: Verdict, hero: bool = False) -> str:
    """The verdict as a box of the page; ``hero`` gives it the heading."""
    return _environment().get_template("verdict.html.j2").render(
        verdict=verdict, hero=hero, words=headline(verdict), confidence=CONFIDENCE_WORDS[verdict.confidence],
        strength=3 - list(CONFIDENCE_WORDS).index(verdict.confidence), alternatives=alternatives(verdict),
        nothing_against=NOTHING_AGAINST, nothing_missing=NOTHING_MISSING)


def _environment() -> jinja2.Environment:
    """Every text is made harmless and escaped, whatever the template forgets."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else plain(value, keep="\n\t"))
    environment.filters["hero"] = lambda verdict: Markup(verdict_html(verdict, hero=True))
    environment.filters["source"] = lambda reading: one_source([reading])
    environment.filters["shown"] = lambda reading: reading.show()
    return environment
