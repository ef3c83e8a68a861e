"""A batch, one of its runs, or any notebook as one page that may leave the box: redacted, harmless, and told what was replaced.

What a page needs is read, cut and redacted first; the page is made from that copy alone, so nothing else can get onto it.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from markupsafe import Markup

from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import open_bundle
from helpers.run.kernel import last_words
from helpers.run.notebook import INJECTED, NBFORMAT, PARAMETERS, VerdictError, verdict_of
from helpers.run.record import EARLIER, read_batch
from helpers.shapes import Verdict

from . import report
from .batches import about_box, leading
from .notebook_html import Room, notebook_html
from .redact import Known, Replaced, known_values, redact_files, replace, second_scan
from .sanitise import cut_notebook, read_notebook
from .tables import plain

MOST_NOTES = 8
AS_IS = "Not redacted, as was asked for: names, addresses and paths stand here as they were seen."


class ShareError(ValueError):
    """Nothing that can be shared. One line."""


@dataclass(frozen=True)
class Subject:
    """What is to be shared: files by the name that they have on the way to the page, and what was wrong with them.

    ``bundle`` is the folder or archive of the box that it is about, or ``no_bundle`` says why there is none.
    """

    name: str
    kind: str
    files: dict[str, bytes] = field(repr=False)
    wrong: tuple[str, ...] = ()
    bundle: Path | None = None
    no_bundle: str = ""
    verdict: Verdict | None = None
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shared:
    """A page for others. ``replaced`` is None where it was not redacted; ``scan``: what a second scan found, or why not."""

    name: str
    html: str = field(repr=False)
    replaced: Replaced | None
    scan: list[str] | str
    wrong: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What was replaced, what the second scan found and what was wrong, for a person."""
        told = [AS_IS]
        if self.replaced is not None:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.replaced.kinds().items())
            told = [
                f"replaced: {kinds or 'nothing to replace was found'}",
                *_notes(self.replaced.notes),
            ]
        found = self.scan if isinstance(self.scan, list) else []
        return [
            *told,
            self.scan
            if isinstance(self.scan, str)
            else f"second scan (detect-secrets): {len(found)} found",
            *found,
            *self.wrong,
        ]


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

    Raises RedactError, a BundleError, where something cannot be read for sure, unless ``allow_binary``.
    """
    files, replaced = (
        redact_files(about.files, known, allow_binary) if known is not None else (about.files, None)
    )
    name = replace(about.name, known, replaced, "name") if known is not None else about.name
    wrong = tuple(
        replace(line, known, replaced, "notes") if known is not None else line
        for line in about.wrong
    )
    with tempfile.TemporaryDirectory(prefix="casebook-") as folder:
        for path, raw in files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)
        base = Path(folder) / (next(iter(files)).split("/")[0] if files else name)
        base.mkdir(exist_ok=True)

        def made(scan: list[str] | str) -> str:
            end = (
                report.environment()
                .get_template("shared.html.j2")
                .render(
                    replaced=replaced,
                    notes=_notes(replaced.notes) if replaced else [],
                    as_is=AS_IS,
                    scan=scan,
                    wrong=wrong,
                )
            )
            return f"{before}{end}{mark}{after}"

        html = report.page(base) if about.kind == "batch" else _notebook_page(base, name)
        # One file: what led to a file beside it becomes words.
        before, mark, after = re.sub(r'<a href="[^#"][^"]*">(.*?)</a>', r"\1", html).rpartition(
            "</main>"
        )
        scan = second_scan({"page": html})
        return Shared(name, made(scan), replaced, scan, wrong)


def _notes(notes: list[str]) -> list[str]:
    """The notes with alike ones counted: a page with 30 pictures needs no 30 lines."""
    said = Counter(": ".join(note.split(": ")[-2:]) for note in notes)
    told = [f"{words} ({count} places)" if count > 1 else words for words, count in said.items()]
    return [
        *told[:MOST_NOTES],
        *([f"and {len(told) - MOST_NOTES} more notes"] if len(told) > MOST_NOTES else []),
    ]


def _batch(folder: Path, runs: list[Path]) -> Subject:
    """Some runs of a batch: their records, and of few also what the page shows beside them."""
    files, wrong = {}, []
    for run in runs:
        for record in (run / "run.json", *run.glob(f"{EARLIER}/*/run.json")):
            files[f"{folder.name}/{record.relative_to(folder)}"] = record.read_bytes()
        if len(runs) <= report.MOST_EMBEDDED and (run / "notebook.ipynb").exists():
            files[f"{folder.name}/{run.name}/notebook.ipynb"], told = _shown(run / "notebook.ipynb")
            wrong += [f"{run.name}: {line.removeprefix(str(run) + '/')}" for line in told]
        if len(runs) <= report.MOST_EMBEDDED and (words := last_words(run / "kernel.stderr")):
            files[f"{folder.name}/{run.name}/kernel.stderr"] = words.encode("utf-8", "replace")
    here = {run.name for run in runs}
    records = [run for run in read_batch(folder).runs if run.run_id in here]
    bundle, why = _bundle_of([run.box for run in records], folder)
    names = about_box(open_bundle(bundle)) if bundle else set()
    verdict = leading(
        run.verdict for run in [run for run in records if run.box in names] or records
    )
    steps = [
        ", ".join(
            [
                run.notebook,
                *(
                    f"{key}={value!r}"
                    for key, value in run.parameters.items()
                    if "{batch}" not in str(value)
                ),
            ]
        )
        for run in records
        if verdict and run.verdict == verdict
    ]
    return Subject(
        runs[0].name if len(runs) == 1 else folder.name,
        "batch",
        files,
        tuple(wrong),
        bundle,
        why,
        verdict,
        tuple(steps[:3]),
    )


def _bundle_of(boxes: Iterable[str], folder: Path | None) -> tuple[Path | None, str]:
    """Where the evidence of the box lies: captured by the batch, recorded, or a path that a parameter names; or why nowhere."""
    captured = (
        sorted(folder.glob("box*/manifest.json"), key=lambda path: path.stat().st_mtime)[-1:]
        if folder
        else []
    )
    places = [path.parent for path in captured]
    places += [
        place
        for box in boxes
        if box not in ("", "live")
        for place in (RECORDED / box, Path(box))
        if place.exists()
    ]
    why = "no evidence bundle of this box lies beside it"
    for place in places:
        try:
            open_bundle(place)
            return place, ""
        except BundleError as error:
            why = f"the bundle cannot be read: {plain(error)}"
    return None, why


def _notebook(path: Path) -> Subject:
    raw, wrong = _shown(path)
    if not raw:
        raise ShareError(wrong[0].replace(f"{path.parent}/", ""))
    nb = nbformat.reads(raw.decode(), as_version=NBFORMAT)
    box = ""
    for cell in nb.cells:
        if set(cell.metadata.get("tags", [])) & {INJECTED, PARAMETERS}:
            box = next(
                iter(
                    re.findall(
                        r"^box\b[^=\n]*=\s*['\"]([^'\"\n\\]*)['\"]", cell.source, re.MULTILINE
                    )
                ),
                box,
            )
    bundle, why = _bundle_of([box], None)
    return Subject(
        path.stem,
        "notebook",
        {f"notebook/{path.name}": raw},
        tuple(wrong),
        bundle,
        why,
        _verdict(nb),
        (path.name,),
    )


def _verdict(nb: Any) -> Verdict | None:
    try:
        return verdict_of(nb)
    except VerdictError:
        return None


def _shown(path: Path) -> tuple[bytes, list[str]]:
    """A notebook cut to what a page shows, with what is wrong with it; nothing of one that cannot be read."""
    try:
        nb, wrong = read_notebook(path)
        cut_notebook(nb)
        return nbformat.writes(nb).encode("utf-8", "replace"), wrong
    except ValueError as error:
        return b"", [plain(error)]


def _notebook_page(folder: Path, name: str) -> str:
    """The page of a notebook that no record tells of."""
    raw = next(folder.glob("*.ipynb")).read_bytes()
    nb = nbformat.reads(raw.decode(), as_version=NBFORMAT)
    language = nb.metadata.get("language_info", {}).get("version", "")
    about: dict[str, Any] = {
        "Notebook": name,
        "Kernel": nb.metadata.get("kernelspec", {}).get("name", "-"),
        "Python": language or "-",
        "Executed": nb.metadata.get("papermill", {}).get("start_time") or "not recorded",
        "This copy (SHA-256)": hashlib.sha256(raw).hexdigest(),
    }
    return (
        report.environment()
        .get_template("notebook.html.j2")
        .render(
            batch=name,
            up="",
            verdict=_verdict(nb),
            machine=report.machine_line(nb),
            about=about,
            html=Markup(notebook_html(nb, Room(report.PAGE_BYTES), report.verdict_html)),
        )
    )
