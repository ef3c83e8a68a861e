"""One page for a whole batch: the verdict and its next step, what needs a person, what each
notebook came to on each box, what is new since the batch before, and every run with its true
state. Notebooks of a few runs are on it, those of many on pages of their own beside it.

A page needs no network and runs nothing; that of a few runs is one file that can be mailed.
Pages are written for partial batches and torn records too, and name what could not be read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from helpers.batch.gate import before_the_end
from helpers.batch.history import same_run
from helpers.batch.kernel import last_words
from helpers.batch.notebook import NotebookError, open_notebook
from helpers.batch.record import (
    EARLIER,
    BatchView,
    RecordUnreadable,
    boot_id,
    gone,
    read_batch,
    read_run,
)
from helpers.batch.shapes import Run
from helpers.ground.shapes import Verdict
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import Bundle, open_bundle
from helpers.look.files import write_atomic
from helpers.tell.box import ELSEWHERE
from helpers.tell.page import notebook_html
from helpers.tell.page_room import Room
from helpers.tell.render import render
from helpers.tell.shown import Shown, cut, duration, plain, uncoloured, words

PAGE_BYTES = 2_400_000
RUN_PAGE_BYTES = 1_200_000
"""Room for notebooks.

With the markup around them a page stays under 3 MB, which every mail server takes.
"""
MOST_EMBEDDED = 12
"""A batch of more runs has a page of links: each run that is looked at first has a page of its
own beside its record.
"""
MOST_RUN_PAGES = 200
MOST_TROUBLES = 150
MOST_EARLIER = 60
MOST_ALIKE = 6
MOST_EVIDENCE = 6
MOST_OPEN = 4
MOST_BEFORE = 20
LAST_WORDS = 700
LONGEST_NAME = 80
STATE_WORDS: dict[str, str] = words("states")
"""What became of a run, in words; the worst first."""


@dataclass(frozen=True)
class Section:
    """One run on the page: its record, its executed notebook as HTML, or why there is none.

    ``link`` leads to its notebook.
    """

    run: Run
    anchor: str
    folder: Path
    gone: str
    link: str = ""
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
    def title(self) -> str:
        return Path(self.run.notebook).stem or self.run.run_id

    @property
    def state(self) -> str:
        return STATE_WORDS[self.run.state]

    @property
    def cause(self) -> str:
        return self.run.cause or self.gone

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
    def kind(self) -> str:
        """How its state is marked: a lost run must not look like one that came to an answer."""
        return "lost" if self.lost else "answered" if self.run.state == "answered" else "waiting"

    @property
    def open(self) -> bool:
        """Whether the page shows it at once: somebody has to look at it, or there is little else."""
        return self.few or bool(self.lost and self.html)

    @property
    def outcome(self) -> str:
        """What it came to: its answer, else its state."""
        return self.run.verdict.short if self.run.verdict else self.run.state.replace("_", " ")

    @property
    def says(self) -> str:
        """Its answer in a sentence, where the page has not said that above; or why there is none."""
        if self.run.verdict is None:
            return cut(self.cause, 120)
        return "the answer above" if self.agrees else self.run.verdict.headline

    @property
    def not_clean(self) -> str:
        """What kept its box or GPU from being clean afterwards."""
        run = self.run
        return f"{run.quarantined}: {run.gate}" if run.quarantined else run.gate

    @property
    def about(self) -> list[str]:
        """Which run it is: its id and parameters, where it stood, and the texts it left that a
        person reads next.
        """
        run = self.run
        listed = [self.run.run_id]
        given = run.parameters.items()
        listed += [f"{name}={value}" for name, value in given if "{batch}" not in str(value)]
        total = sum(run.cells.values())
        done = run.cells.get("completed", 0)
        listed += [f"{done} of {total} cells"] * (done < total)
        listed += [f"stopped in cell {run.failing_cell}"] if run.failing_cell is not None else []
        listed += [f"node {run.node}"] if run.node else []
        listed += [f"attempt {run.attempt}"] if run.attempt > 1 else []
        listed += [f"{run.strikes} strike{'s' * (run.strikes > 1)}"] if run.strikes else []
        texts = [name for name in run.files if name.endswith((".txt", ".log", ".stderr"))]
        return listed + [f"beside it: {', '.join(texts[:MOST_EVIDENCE])}"] * bool(texts)

    @property
    def earlier(self) -> list[str]:
        """How the earlier attempts at the run ended, in one line each."""
        view = read_batch(self.folder / EARLIER)
        ends = [": ".join(filter(None, [STATE_WORDS[run.state], run.cause])) for run in view.runs]
        lines = [f"attempt {run.attempt}: {end}" for run, end in zip(view.runs, ends, strict=True)]
        return [*lines, *["a record of one cannot be read"] * len(view.unreadable)]


Sections = tuple[Section, ...]


def write_index(batch_folder: Path) -> Path:
    """Write index.html into a batch folder, pages of its runs where it is large, and return its
    path.

    Raises FileNotFoundError where there is no such folder. A run's page that is newer than its
    record is left as it is.
    """
    folder = Path(batch_folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected a batch below outputs")
    path = folder / "index.html"
    sections, unreadable = _sections(folder)
    text = _page(folder, sections, unreadable)
    for section in sections if len(sections) > MOST_EMBEDDED else ():
        own = section.folder / "index.html"
        record = section.folder / "run.json"
        newer = own.exists() and own.stat().st_mtime >= record.stat().st_mtime
        if section.link and not newer:
            opened = _opened(section, folder, Room(RUN_PAGE_BYTES), set())
            write_atomic(own, _page(folder, [opened], [], up="../index.html"))
    write_atomic(path, text)
    _link(path, sections)
    return path


def _link(path: Path, sections: list[Section]) -> None:
    """A link to the page by a name that says box, day and cause: for who keeps it, or looks for
    it among others.
    """
    answers = _answers(sections)
    causes = [answer["verdict"].short for answer in answers if answer["verdict"]]
    words = [_titles(path.parent, answers, [s.run for s in sections])["heading"], *causes]
    name = re.sub(r"[^\w.]+", "-", " ".join(words if len(answers) == 1 else words[:1])).strip("-.")
    for old in path.parent.glob("*.html"):
        if old.is_symlink():
            old.unlink()
    with suppress(OSError):  # a file system without links
        (path.parent / f"{name[:LONGEST_NAME]}.html").symlink_to(path.name)


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
    """The anchors of the runs that get a page: the first of each trouble, one of each answer,
    then the rest in order.
    """
    first = [runs[0] for runs in _troubles(sections) if runs[0].lost]
    first += [one for answer in _answers(sections) for cell in answer["cells"] for one, _ in cell]
    first += sorted((s for s in sections if s.ran), key=lambda section: not section.lost)
    return list(dict.fromkeys(section.anchor for section in first if section.ran))[:MOST_RUN_PAGES]


def _page(folder: Path, sections: list[Section], unreadable: list[str], up: str = "") -> str:
    large = len(sections) > MOST_EMBEDDED
    answers = _answers(sections)
    notebooks = list(dict.fromkeys(s.title for s in sections))
    if not large and not up:
        sections = _embedded(folder, sections, answers)
        answers = _answers(sections)
    troubles = _troubles(sections)
    if large:
        sections = _with_last_words(folder, sections, troubles)
    started = [runs for runs in troubles if runs[0].run.state != "skipped"]
    nodes = _by(sections, lambda section: section.run.node)
    gates = Counter(filter(None, (section.not_clean for section in sections))).most_common()
    repeated = [section for section in sections if section.run.attempt > 1][:MOST_EARLIER]
    html = render(
        "page.html.j2",
        batch=folder.resolve().name,
        **_titles(folder, answers, [section.run for section in sections]),
        up=up,
        sections=[s for s in sections if not (large and s.kind == "answered")],
        folded=[s for s in sections if large and s.kind == "answered"],
        runs=len(sections),
        many=len(answers) > 1,
        answers=answers,
        notebooks=notebooks,
        since=None if up else _since(folder, sections),
        unreadable=unreadable,
        counts=counted(section.run for section in sections),
        troubles=troubles[:MOST_TROUBLES],
        more_troubles=len(troubles) - MOST_TROUBLES,
        most_alike=MOST_ALIKE,
        alarms=len(started),
        need=sum(map(len, started)),
        nodes=[
            (node or "this one", here, counted(s.run for s in here))
            for node, here in nodes[1:] and nodes
        ],
        gates=[f"{why}{f', {count} times' if count > 1 else ''}" for why, count in gates],
        repeated=[f"{s.run.run_id}: {'; '.join([*s.earlier, s.state])}" for s in repeated],
    )
    return str(html)


def _titles(folder: Path, answers: list[dict[str, Any]], runs: list[Run]) -> dict[str, Any]:
    """What the page is about (the box, or how many runs and boxes; the day; in its title the
    verdict), and where it is from.
    """
    start = min((run.started_at for run in runs if run.started_at), default="")
    box = f"{len(runs)} runs on {len(answers)} boxes"
    verdict = None
    if len(answers) == 1:
        box = answers[0]["box"]
        verdict = answers[0]["verdict"]
        place = bundle_of([], folder)[0] if box == "live" else None
        box = open_bundle(place).box if place else box
    heading = ", ".join(filter(None, [box, start[:10]]))
    columns: dict[str, list[str]] = {
        "Batch": [folder.resolve().name],
        "Written with": [f"VRAM Casebook {run.tool_version}" for run in runs if run.tool_version],
        "Plan (SHA-256)": [run.plan_sha256 for run in runs],
        "Boots": [run.boot_id for run in runs],
        "Started": [start],
        "Ended": [max((run.ended_at for run in runs), default="")],
        "Notebooks": [run.notebook for run in runs],
        "Code and outputs": ["notebook.ipynb in the folder of each run"],
    }
    provenance = [(name, ", ".join(filter(None, dict.fromkeys(v)))) for name, v in columns.items()]
    title = f"{heading}: {verdict.headline}" if verdict else heading
    return {"heading": heading, "title": title, "provenance": provenance}


def _embedded(folder: Path, sections: list[Section], answers: list[dict]) -> list[Section]:
    """Each run with its notebook; what one of them shows, and the verdict that leads the only
    box, no other shows again.
    """
    room = Room(PAGE_BYTES)
    known = set[str]()
    opened = []
    lead = answers[0]["verdict"] if len(answers) == 1 else None
    few = len(sections) <= MOST_OPEN and len(answers) == 1
    for section in sections:
        own = section.run.verdict
        agrees = lead is not None and own is not None and own.headline == lead.headline
        section = replace(section, few=few, agrees=agrees, own_verdict=None if agrees else own)
        opened.append(_opened(section, folder, room, known))
    return opened


def _with_last_words(
    folder: Path, sections: list[Section], troubles: list[Sections]
) -> list[Section]:
    """Of each trouble the first run with what it said last, the others without."""
    first = {runs[0].anchor for runs in troubles[:MOST_TROUBLES] if runs[0].lost}

    def opened(s: Section) -> Section:
        return replace(
            s, few=True, last_words=s.run.last_words[-LAST_WORDS:], before=_before(folder, s)
        )

    return [opened(s) if s.anchor in first else s for s in sections]


def _before(folder: Path, section: Section) -> str:
    """What was noted of a run: where its machine went down under it, what was read there last
    and what its kernel said last.
    """
    run = section.run
    lines = section.run.notes
    if section.gone and run.boot_id != boot_id():  # nobody has resumed the batch yet
        lines = [*lines, *before_the_end(folder, run)]
    elif run.state == "node_lost":
        there = f"journalctl -k -b {run.boot_id.replace('-', '')} -n 20"
        why = "that machine has not answered since; there, if it comes back"
        lines = [*lines, f"What was read there last: not available because {why}: {there}"]
    return uncoloured("\n".join(lines))


def _since(folder: Path, sections: list[Section]) -> dict[str, Any] | None:
    """The name of the batch before with the same runs, and the runs that came to something
    else, those that changed alike together, what is lost now first and what is new last;
    None where no such batch lies beside this one.
    """
    own = {same_run(s.run): s for s in sections}
    plan = folder.resolve().name.partition("-")[2]
    earlier = sorted(path for path in folder.resolve().parent.glob(f"*-{plan}") if plan)
    before_it = [one for one in earlier if one.name < folder.resolve().name]
    for path in reversed(before_it[-MOST_BEFORE:]):
        before = {same_run(run): run for run in read_batch(path).runs}
        if not before.keys() & own.keys():
            continue
        moved: dict[tuple[str, str], list[Section]] = {}
        for key, section in own.items():
            then = Section(before[key], "", path, "").outcome if key in before else "was not there"
            if then != section.outcome:
                moved.setdefault((then, section.outcome), []).append(section)
        known = lambda row: (row[0][0] == "was not there", not row[1][0].lost)  # noqa: E731
        return {"name": path.name, "moved": sorted(moved.items(), key=known)}
    return None


def _below(folder: Path, error: Exception) -> str:
    """What went wrong in one line, with paths as seen from the batch, which is the same
    wherever the page is read.
    """
    return cut(plain(error).replace(plain(folder) + "/", ""), 300)


def _opened(section: Section, batch: Path, room: Room, known: set[str]) -> Section:
    """The section with its executed notebook as HTML, or with why there is none."""
    run = section.run
    path = section.folder / "notebook.ipynb"
    words = "" if run.state == "answered" else run.last_words
    words = words or last_words(section.folder / "kernel.stderr") * (run.state != "answered")
    section = replace(section, link="", before=_before(batch, section))
    try:
        notebook = open_notebook(path)
        section = replace(section, machine=machine_line(notebook), question=question(notebook))
        html = notebook_html(notebook, room, words, run.failing_cell, known)
        return replace(section, html=html)
    except NotebookError as error:
        without = _below(batch, error) if path.exists() else "No executed notebook was written."
    # One odd notebook must not cost the page of a whole night; the page names what went wrong
    # with it.
    except Exception as error:  # noqa: BLE001
        without = f"notebook.ipynb cannot be shown: {type(error).__name__}: {_below(batch, error)}"
    return replace(section, without=without, last_words=uncoloured(words[-4000:]))


def question(notebook: Any) -> str:
    """The heading that a notebook begins with: the question that it answers."""
    first = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    match = re.match(r"\s*# +([^\n]+)", first)
    return uncoloured(match[1]).strip() if match else ""


def machine_line(notebook: Any) -> str:
    """The line about the machine that the cell with the tag ``machine`` printed first; empty
    where there is none.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []) if "machine" in cell.metadata.get("tags", []) else ():
            text = output.get("text") or output.get("data", {}).get("text/plain") or ""
            lines = uncoloured("".join(text)).strip().splitlines()
            if own := [line for line in lines if not line.startswith(ELSEWHERE)]:
                return own[0]
    return ""


def _answers(sections: list[Section]) -> list[dict[str, Any]]:
    """What the batch found out about each box, in order of first appearance: the verdict that
    leads (tell.batches.leading), the machine, a link, and what each notebook came to;
    without a verdict, what came in its way.
    """
    answers = []
    notebooks = list(dict.fromkeys(section.title for section in sections))
    for box, here in _by(sections, lambda section: section.run.box):
        lead = leading(section.run.verdict for section in here)
        first = next((s for s in here if lead is not None and s.run.verdict is lead), None)
        lost = next((section for section in here if section.lost), None)
        obstacle = "No run has a verdict yet."
        if lost:
            obstacle = f"{lost.title}: {lost.state}. {lost.cause}".rstrip(". ") + "."
        by_title = dict(_by(here, lambda section: section.title))
        answer = {"box": box, "verdict": lead, "obstacle": obstacle}
        answer["machine"] = next(filter(None, (s.machine for s in here)), f"box {box}")
        answer["sure"] = lead.confidence if lead and not lead.state else ""
        answer["link"] = f"#{first.anchor}" if first else ""
        answer["cells"] = [_cell(by_title.get(title, ())) for title in notebooks]
        answers.append(answer)
    return answers


def _cell(runs: Iterable[Section]) -> list[tuple[Section, int]]:
    """What a notebook came to on a box: a run of each outcome with how many there are, the most
    frequent first.
    """
    alike = sorted(_by(runs, lambda section: section.outcome), key=lambda one: -len(one[1]))
    return [(here[0], len(here)) for _, here in alike]


def _by(sections: Iterable[Section], key: Callable[[Section], Any]) -> list[tuple[Any, Sections]]:
    """Sections under their key, both in order of first appearance."""
    groups: dict[Any, list[Section]] = {}
    for section in sections:
        groups.setdefault(key(section), []).append(section)
    return [(name, tuple(here)) for name, here in groups.items()]


def _troubles(sections: list[Section]) -> list[Sections]:
    """Runs that need a person, worst first; those that ended alike (numbers aside) stand together."""

    def alike(section: Section) -> tuple[str, ...]:
        run = section.run
        cause = re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", section.cause)
        return run.state, run.notebook, run.signal, cause

    needing = [s for s in sections if s.lost or s.cause or s.not_clean]
    worst = list(STATE_WORDS)
    runs = [here for _, here in _by(needing, alike)]
    return sorted(runs, key=lambda here: worst.index(here[0].run.state))


# A batch in tables: what every run came to, what the runs answered, and the verdict that leads.
# Also many nights of them.

NO_BATCH = "no batch: this report stands on the box alone"
MOST_ROWS = 60
MOST_NIGHTS = 12
"""Rows that a table for a person shows: of a batch those that did not answer first, of nights
the newest.
"""


def runs_table(batch: str) -> Shown:
    """Each run with its true state and its answer, or why it has none.

    Without a batch one line that says so.
    """
    columns = ["notebook", "box", "state", "answer, or why there is none"]
    if not batch:
        return Shown("Runs", columns, [], none=NO_BATCH, again=True)
    view = read_batch(Path(batch))
    first = sorted(view.runs, key=lambda run: run.state == "answered")
    rows = []
    for run in first:
        end = run.verdict.short if run.verdict else run.cause or gone(run)
        rows.append([run.notebook, run.box, run.state.replace("_", " "), end])
    below = [f"Not readable: {line}" for line in view.unreadable]
    how: dict[str, Any] = {"widest": 80, "again": True, "most": MOST_ROWS}
    return Shown("Runs of the batch", columns, rows, below, [", ".join(counted(view.runs))], **how)


def counted(runs: Iterable[Run]) -> list[str]:
    """How many runs came to what, in words; the good state first, then the worst."""
    counts = Counter[str](run.state for run in runs)
    named = {"planned": "not started"}
    states = [state for state in dict.fromkeys(("answered", *words("states"))) if counts[state]]
    return [f"{counts[state]} {named.get(state, state.replace('_', ' '))}" for state in states]


def nights(batch: str, question: str) -> Shown:
    """What the records of all batches beside this one answer to a question
    (helpers.batch.history.QUESTIONS, or SQL), and what could not be read. Where nothing can be
    asked one line says why.
    """
    from helpers.batch.history import MEANING, HistoryError, open_history

    try:
        history = open_history(Path(batch).resolve().parent)
        answer = history.ask(question).in_words()
    except HistoryError as error:
        return Shown("", [], [], none=plain(error))
    left_out = [f"Left out: {plain(line)}" for line in history.unreadable]
    asked = MEANING.get(question, question)
    rows = answer.rows
    none = f"No record answers to this question: {asked}."
    how: dict[str, Any] = {"none": none, "widest": 60, "most": MOST_NIGHTS}
    if question == "states":  # this batch still runs: its own page says how it ended
        rows = [row for row in rows[::-1] if row[0] != Path(batch).name]
        how["result"] = f"batches before this one: {len(rows)}"
    return Shown(asked[:1].upper() + asked[1:], answer.columns, rows, left_out, **how)


def leading(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The verdict of one box's runs that leads its page, its report and its shared issue: the
    firmest; of equals the first.

    An answer to a notebook's own question (state ``aside``) never leads where another says why
    the box fails, or that it cannot tell. A named cause comes before ``cannot-tell``, and that
    before it where nothing was handed over that failed.
    """

    def rank(v: Verdict) -> tuple[bool, bool, bool, int]:
        sure = ("confirmed", "likely", "weak").index(v.confidence)
        return v.state == "aside", v.cause == "cannot-tell", v.state == "healthy", sure

    return min((v for v in verdicts if v is not None), key=rank, default=None)


def about_box(bundle: Bundle) -> set[str]:
    """The names under which a batch's runs are about this box."""
    return {bundle.box, "live"} if bundle.kind == "live" else {bundle.box}


def of_batch(batch: str, bundle: Bundle) -> Verdict | None:
    """The verdict that leads among a batch's runs on this box; None where none of them is about
    the box itself.
    """
    runs = _answered(batch) if batch else []
    lead = leading(run.verdict for run in runs if run.box in about_box(bundle))
    return None if lead is None or lead.state == "aside" else lead


def _answered(batch: str) -> list:
    view: BatchView = read_batch(Path(batch))
    return [run for run in view.runs if run.state == "answered" and run.verdict is not None]


def bundle_of(boxes: Iterable[str], folder: Path | None) -> tuple[Path | None, str]:
    """Where the evidence of the box lies: captured by the batch, recorded, or a path that a
    parameter names; or why nowhere.
    """
    captured = [path.parent for path in folder.glob("box*/manifest.json")] if folder else []
    captured.sort(key=lambda path: (path / "manifest.json").stat().st_mtime)
    named = [p for box in boxes if box not in ("", "live") for p in (RECORDED / box, Path(box))]
    why = "no evidence bundle of this box lies beside it"
    for place in [*captured[-1:], *(place for place in named if place.exists())]:
        try:
            open_bundle(place)
            return place, ""
        except BundleError as error:
            why = f"the bundle cannot be read: {plain(error)}"
    return None, why
