"""A batch, one of its runs, or any notebook as one page that may leave the box: redacted,
harmless, with what was replaced.

What a page needs is read, cut and redacted first; the page is made from that copy alone, so
nothing else can get onto it. It begins with a cover for somebody who was not there; all the
rest is an appendix, folded, and left out of a print.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from markupsafe import Markup, escape

from helpers.batch import report
from helpers.batch.kernel import last_words
from helpers.batch.notebook import (
    INJECTED,
    PARAMETERS,
    NotebookError,
    VerdictError,
    read_notebook,
    verdict_of,
)
from helpers.batch.record import EARLIER, read_batch
from helpers.batch.report import about_box, bundle_of, leading
from helpers.batch.shapes import Run
from helpers.ground.shapes import Verdict, as_dict, from_json
from helpers.look.bundle import open_bundle
from helpers.look.files import whole
from helpers.tell.page import Room, cells, notebook_html, render
from helpers.tell.redact import Find, redact_files, second_scan, texts_of
from helpers.tell.redact_box import known_values
from helpers.tell.redact_known import TABLE as REDACTION
from helpers.tell.redact_known import Known
from helpers.tell.redact_text import Replaced, redact_data
from helpers.tell.sanitise import cut_notebook
from helpers.tell.shown import plain, words
from helpers.tell.verdict import CAUSE_WORDS, alternatives, summary

from .issue_text import TABLE, about_cause, filled_in

MOST_NOTES = 8
MOST_STEPS = 3
MOST_CARDS = 3
AS_IS = "Not redacted, as was asked for: names, addresses and paths stand here as they were seen."
NO_ANSWER = "no run came to an answer"
TITLE = "Why this computer runs out of graphics memory"
_BOX = re.compile(r"^box\b[^=\n]*=\s*['\"]([^'\"\n\\]*)['\"]", re.MULTILINE)
_CARDS = re.compile(r'<section id="verdict">.*?</section>', re.DOTALL)
_PARTED = re.compile(r"<[^<>]*>|\s*\n\s*")


class ShareError(ValueError):
    """Nothing that can be shared. One line."""


@dataclass(frozen=True)
class Subject:
    """What is to be shared: files by the name that they have on the way to the page, and what
    was wrong with them.

    ``bundle`` is the folder or archive of the box that it is about, or ``no_bundle`` says why
    there is none. ``lead`` is the folder whose notebook gave the ``verdict``, ``when`` the
    moment of it, ``error`` the text that a run was given.
    """

    name: str
    kind: str
    files: dict[str, bytes] = field(repr=False)
    wrong: tuple[str, ...] = ()
    bundle: Path | None = None
    no_bundle: str = ""
    verdict: Verdict | None = None
    steps: tuple[str, ...] = ()
    lead: str = ""
    when: str = ""
    error: str = ""


@dataclass(frozen=True)
class Shared:
    """A page for others.

    ``replaced`` is None where it was not redacted; ``scan``: what a second scan found, or why
    not.
    """

    name: str
    html: str = field(repr=False)
    replaced: Replaced | None
    scan: list[Find] | str
    wrong: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What was replaced, what the second scan found and what was wrong, for a person."""
        lines = [AS_IS]
        scan = [self.scan] if isinstance(self.scan, str) else self.scan
        if self.replaced is not None:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.replaced.kinds().items())
            lines = [f"replaced: {kinds or 'nothing to replace was found'}"]
            lines += _notes(self.replaced.notes)
        if isinstance(self.scan, list):
            lines.append(f"second scan (detect-secrets): {len(self.scan)} found")
        lines.append(f"not looked for: {REDACTION['not_looked_for']}")
        return [*lines, *scan, *self.wrong]


def marked(html: str, finds: Iterable[str]) -> str:
    """A page that is not for others: every value that a second scan found is marked, and it
    says so at its head.
    """
    written = {getattr(find, name, "") for find in finds for name in ("value", "read")}
    pieces = {one for value in written for one in _PARTED.split(value) if len(one) > 3}
    values = pieces | {escape(one) for one in pieces}
    if values:
        some = "|".join(map(re.escape, sorted(values, key=len, reverse=True)))
        html = re.sub(rf"(<[^<>]*>)|({some})", lambda m: m[1] or f"<mark>{m[2]}</mark>", html)
    shown = "".join(f"<li>{escape(find)}</li>" for find in finds)
    head = f"<h1><mark>Not for others: the second scan found</mark></h1><ul>{shown}</ul>"
    html = html.replace('<details class="appendix">', '<details class="appendix" open>')
    return html.replace("<body>", f"<body>{head}", 1)


def subject(target: Path) -> Subject:
    """What to share of a batch's folder, a run's folder or a notebook. Raises ShareError."""
    target = target.resolve()
    if target.name == "notebook.ipynb" and target.with_name("run.json").is_file():
        target = target.parent
    if target.is_file():
        return _notebook(target)
    if (target / "run.json").is_file():
        return _batch(target.parent, [target])
    runs = sorted(path.parent for path in target.glob("*/run.json"))
    if runs or (target / "plan.yaml").is_file():
        return _batch(target, runs)
    raise ShareError(
        f"{target.name}: no batch, run or notebook; expected a folder below outputs or an .ipynb file"
    )


def known_of(about: Subject) -> Known:
    """What must not leave: values of this box and of the box that the subject is about."""
    return known_values("live", *([open_bundle(about.bundle)] if about.bundle else []))


def page(about: Subject, known: Known | None, allow_binary: bool = False) -> Shared:
    """The page of a subject, redacted by what is ``known``; as it is where that is None.

    Raises RedactError, a BundleError, where something cannot be read for sure, unless
    ``allow_binary``.
    """
    files = about.files
    replaced = None
    data: dict[str, Any] = {"name": about.name, "lead": about.lead, "wrong": list(about.wrong)}
    data["verdict"] = as_dict(about.verdict) if about.verdict else None
    if known is not None:
        files, replaced = redact_files(files, known, allow_binary)
        data = redact_data(data, known, replaced, "cover")
    name = data["name"]
    wrong = tuple(data["wrong"])
    try:
        verdict = from_json(Verdict, data["verdict"]) if data["verdict"] else None
    except ValueError:
        # A host is called as one of its fixed words. What its record says is in the appendix.
        verdict = None
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        for path, raw in files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)
        base = Path(folder) / (next(iter(files)).split("/")[0] if files else name)
        base.mkdir(exist_ok=True)
        html = report.page(base) if about.kind == "batch" else _notebook_page(base, name)
        cover = _cover(about, verdict, next((base / data["lead"]).glob("*.ipynb"), None))
    # One file: what led to a file beside it becomes words.
    html = re.sub(r'<a href="[^#"][^"]*">(.*?)</a>', r"\1", html)
    # The page is made from these alone, and here each find has the name of its cell.
    scan = second_scan(texts_of({**files, "cover": json.dumps(data, indent=1).encode()}))
    head, _, rest = html.partition("</h1>")[2].rpartition("</main>")[0].partition("</header>")
    rest = head + re.sub(r"<main\b[^>]*>", "", rest)
    cards = _CARDS.search(rest)
    if cards and cards[0].count("verdict hero") <= MOST_CARDS:
        cover["evidence"], rest = Markup(cards[0]), rest.replace(cards[0], "")
    html = render(
        "shared.html.j2",
        **cover,
        appendix=Markup(rest),
        kinds=replaced.kinds() if replaced else {},
        notes=[*(_notes(replaced.notes) if replaced else []), *wrong],
        as_is="" if replaced else AS_IS,
        scan=scan,
        not_looked_for=REDACTION["not_looked_for"],
    )
    return Shared(name, str(html), replaced, scan, wrong)


def _cover(about: Subject, verdict: Verdict | None, notebook: Path | None) -> dict[str, Any]:
    """What the page begins with: the case for somebody who was not there, from a redacted
    verdict and its notebook.
    """
    bundle = open_bundle(about.bundle) if about.bundle else None
    nb = nbformat.v4.reads(notebook.read_bytes()) if notebook else nbformat.v4.new_notebook()
    cause = about_cause(verdict)
    sure = "none"
    machine = report.machine_line(nb)
    nb.cells = [cell for cell in nb.cells if "image/" in str(cell.get("outputs", ""))]
    outputs = (out for c in cells(nb, Room(report.PAGE_BYTES)) for out in c.get("outputs", ()))
    met = [cause["plain"], cause["ask"], machine]
    still_open = []
    if verdict:
        sure = verdict.label if verdict.label in TABLE["sure"] else verdict.confidence
        met += [verdict.headline, summary(verdict), verdict.next_step.what]
        met += [row.says for row in verdict.evidence]
        also = [line for line in alternatives(verdict) if not line.startswith(CAUSE_WORDS["other"])]
        still_open = [f"It may also be this: {line}" for line in also]
    text = " ".join(met)
    items = bundle.items if bundle else ()
    return {
        "title": cause.get("title", TITLE),
        "headline": verdict.headline if verdict else NO_ANSWER,
        "when": _day(about.when),
        "machine": machine,
        "verdict": verdict,
        "cause": cause,
        "sure": TABLE["sure"][sure],
        "still_open": still_open,
        "picture": next((out for out in outputs if out.get("picture")), None),
        "filled": sum(item.constructed for item in items),
        "readings": len(items),
        "rests": len(filled_in(about.verdict, bundle)) if about.verdict else 0,
        "glossary": [
            (term, means) for term, seen, means in words("glossary") if re.search(seen, text)
        ],
        "evidence": "",
    }


def _day(when: str) -> str:
    """The day of a time as records have it, in words: 22 November 2026."""
    with suppress(ValueError):
        day = datetime.fromisoformat(when[:10])
        return f"{day.day} {day:%B %Y}"
    return ""


def _notes(notes: list[str]) -> list[str]:
    """The notes with alike ones counted: a page with 30 pictures needs no 30 lines."""
    counts = Counter(": ".join(note.split(": ")[-2:]) for note in notes)
    lines = [f"{words} ({count} places)" if count > 1 else words for words, count in counts.items()]
    more = len(lines) - MOST_NOTES
    return [*lines[:MOST_NOTES], *([f"and {more} more notes"] if more > 0 else [])]


def _batch(folder: Path, runs: list[Path]) -> Subject:
    """Some runs of a batch: their records, and of few also what the page shows beside them."""
    files = {}
    wrong = []
    for run in runs:
        below = f"{folder.name}/{run.name}"
        for record in (run / "run.json", *run.glob(f"{EARLIER}/*/run.json")):
            files[f"{folder.name}/{record.relative_to(folder)}"] = whole(record)
        if len(runs) > report.MOST_EMBEDDED:
            continue
        if (run / "notebook.ipynb").exists():
            files[f"{below}/notebook.ipynb"], lines = _cut(run / "notebook.ipynb")
            wrong += [f"{run.name}: {line.removeprefix(f'{run}/')}" for line in lines]
        if words := last_words(run / "kernel.stderr"):
            files[f"{below}/kernel.stderr"] = words.encode("utf-8", "replace")
    here = {run.name for run in runs}
    records = [run for run in read_batch(folder).runs if run.run_id in here]
    # A bundle from elsewhere has its path in the parameters: its box is called foreign.
    boxes = [str(run.parameters.get("box") or "") for run in records]
    bundle, why = bundle_of([*(run.box for run in records), *boxes], folder)
    names = about_box(open_bundle(bundle)) if bundle else set()
    verdict = leading(run.verdict for run in records if run.box in names)
    verdict = verdict or leading(run.verdict for run in records)
    leads = [run for run in records if verdict and run.verdict == verdict]
    steps = tuple(_step(run) for run in leads[:MOST_STEPS])
    lead, when = (leads[0].run_id, leads[0].started_at) if leads else ("", "")
    given = (str(run.parameters.get("message") or "") for run in leads)
    error = next(filter(None, given), "")
    name = runs[0].name if len(runs) == 1 else folder.name
    about = (bundle, why, verdict, steps, lead, when, error)
    return Subject(name, "batch", files, tuple(wrong), *about)


def _step(run: Run) -> str:
    """A run as a step that somebody else can take: the notebook, and the parameters that do not
    name its batch.
    """
    given = run.parameters.items()
    shown = (f"{key}={value!r}" for key, value in given if "{batch}" not in str(value))
    return ", ".join([run.notebook, *shown])


def _notebook(path: Path) -> Subject:
    raw, wrong = _cut(path)
    if not raw:
        raise ShareError(wrong[0].replace(f"{path.parent}/", ""))
    nb = nbformat.v4.reads(raw.decode())
    tagged = (c for c in nb.cells if {INJECTED, PARAMETERS} & set(c.metadata.get("tags", [])))
    boxes = [box[1] for cell in tagged if (box := _BOX.search(cell.source))]
    bundle, why = bundle_of(boxes[-1:], None)
    files = {f"notebook/{path.name}": raw}
    when = str(nb.metadata.get("papermill", {}).get("start_time") or "")
    about = (bundle, why, _verdict(nb), (path.name,), "", when)
    return Subject(path.stem, "notebook", files, tuple(wrong), *about)


def _verdict(nb: Any) -> Verdict | None:
    with suppress(VerdictError):
        return verdict_of(nb)
    return None


def _cut(path: Path) -> tuple[bytes, list[str]]:
    """A notebook cut to what a page shows, with what is wrong with it; nothing of one that
    cannot be read.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_core.paths import jupyter_path

    try:
        nb, wrong = read_notebook(path)
    except NotebookError as error:
        return b"", [plain(error)]
    kernel = nb.metadata.get("kernelspec", {})
    kernel = kernel.get("name", "") if isinstance(kernel, dict) else ""
    specs = KernelSpecManager(kernel_dirs=jupyter_path("kernels"))  # by itself it makes ~/.ipython
    if kernel and kernel not in specs.find_kernel_specs():
        wrong.append(f"kernel {kernel!r} is not installed here; shown is what was saved")
    cut_notebook(nb)
    return nbformat.writes(nb).encode("utf-8", "replace"), wrong


def _notebook_page(folder: Path, name: str) -> str:
    """The page of a notebook that no record tells of."""
    raw = next(folder.glob("*.ipynb")).read_bytes()
    nb = nbformat.v4.reads(raw.decode())
    about = {
        "Notebook": name,
        "Kernel": nb.metadata.get("kernelspec", {}).get("name"),
        "Python": nb.metadata.get("language_info", {}).get("version"),
        "Executed": nb.metadata.get("papermill", {}).get("start_time") or "not recorded",
        "This copy (SHA-256)": hashlib.sha256(raw).hexdigest(),
    }
    html = notebook_html(nb, Room(report.PAGE_BYTES))
    machine = report.machine_line(nb)
    verdict = _verdict(nb)
    about_page = {"batch": name, "up": "", "verdict": verdict, "machine": machine}
    return str(render("notebook.html.j2", about=about, html=html, **about_page))
