"""The subject of a shared page: a batch, one of its runs, a notebook, a bundle, or a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.batch.leading_verdict import about_box, bundle_of, leading
from helpers.batch.notebook_file import (
    NotebookError,
    VerdictError,
    open_notebook,
    read_notebook,
    verdict_of,
)
from helpers.batch.notebook_file import parameters as parameters_of
from helpers.ground.places import kept
from helpers.ground.shapes import Verdict
from helpers.ground.units import plain
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import (
    CaseEvidence,
    evidence_from_bundle,
    evidence_from_message,
)
from helpers.look.archive import BundleError
from helpers.look.boxes import RECORDED
from helpers.look.bundle import Bundle, open_bundle
from helpers.tell.notebook_cells import INJECTED, PARAMETERS

from . import public
from .texts import (
    OUTPUT,
    PARAMETER,
    SharedText,
    of_notebook,
    of_run,
    of_verdict,
    own_part,
)

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from helpers.batch.shapes import Run

MOST_STEPS = 3
"""Runs that a page names as the way to the same verdict."""
LAST_WORDS = 2000
"""Characters at the end of an output in which a failure is looked for."""
ARCHIVES = (".tar.gz", ".tgz")
RECORDINGS = (".pickle", ".pkl")
OWNERS_NOTEBOOK = "a notebook of its owner"
EXPECTED = (
    "expected a batch, a run's folder, an .ipynb file, a bundle as capture --out writes it, "
    "the .pickle of record or rehearse, or the name of a recorded box"
)
# box = "..." in a cell of parameters, also with a type.
_BOX = re.compile(r"^box\b[^=\n]*=\s*['\"]([^'\"\n\\]*)['\"]", re.MULTILINE)


class ShareError(ValueError):
    """There is nothing that can be shared; the message is one line."""


@dataclass(frozen=True)
class Subject:
    """The subject of a shared page.

    ``name``: of the page's file. ``runs``: of a batch. ``verdict``: the answer that leads, and
    ``when``: its moment, as the record has it. ``evidence``: of the box, and the messages in
    parameters and outputs; ``no_bundle`` says why it has no box. ``steps``: how to get the same
    answer. ``texts``: those that are not shared until somebody ticks them; ``unread`` counts by
    kind what was not looked into. ``notebook``: the one that is shared, if it is a notebook or one
    run.
    """

    name: str = ""
    runs: tuple[Run, ...] = ()
    verdict: Verdict | None = None
    evidence: CaseEvidence = CaseEvidence()
    no_bundle: str = ""
    steps: tuple[str, ...] = ()
    when: str = ""
    texts: tuple[SharedText, ...] = ()
    unread: Counter[str] = field(default_factory=Counter)
    notebook: NotebookNode | None = None
    is_verdict_ours: bool = False
    """Whether the verdict is in one of the workbook's own notebooks, as it was committed."""
    is_recording: bool = False
    """Whether it is the recording of a program, without a box."""

    @property
    def bundle(self) -> Bundle | None:
        """The evidence bundle of the box, where there is one."""
        return self.evidence.bundle


def subject_of(target: Path, with_notebooks: bool = False) -> Subject:
    """The subject that a path names: the folder of a batch or a run (by its path or its name below
    outputs), a notebook, an evidence bundle, a recording of a program, or a recorded box by its
    name.

    ``with_notebooks``: with the texts of each notebook of a batch. Raises ShareError for any other
    path.
    """
    if not target.exists() and public.box(str(target)):
        target = RECORDED / target
    target = kept(target).resolve()
    if target.name == "notebook.ipynb" and target.with_name("run.json").is_file():
        target = target.parent  # the notebook of a run stands for the run
    if (target / "manifest.json").is_file() or target.name.endswith(ARCHIVES):
        return _of_bundle(target)
    if target.suffix in RECORDINGS and target.is_file():
        return _of_recording(target)
    if target.is_file():
        return _of_notebook(target)
    if (target / "run.json").is_file():
        return _of_batch(target.parent, only=target.name)
    # Imported here, because pydantic takes long to load.
    from helpers.batch.record import is_batch

    if is_batch(target):
        return _of_batch(target, with_notebooks=with_notebooks)
    seen = "nothing to share"
    if target.exists() and not target.is_dir():
        seen = "a pipe or a device"
    raise ShareError(f"{target.name}: {seen}; {EXPECTED}")


def _of_batch(folder: Path, only: str = "", with_notebooks: bool = False) -> Subject:
    """All runs of a batch, or the one in the folder ``only``."""
    from helpers.batch.record import read_batch

    view = read_batch(folder)
    runs = tuple(run for run in view.runs if only in ("", run.run_id))
    if only and not runs:
        raise ShareError(
            f"{only}: its run.json cannot be read; expected a run of this workbook"
        )
    bundle, no_bundle = _bundle_of_runs(runs, folder)
    names = _names_of(bundle)
    # First of the runs on the box of the bundle, so that the answer and the box belong together.
    verdict = leading(run.verdict for run in runs if run.box in names)
    if verdict is None:
        verdict = leading(run.verdict for run in runs)
    leads = []
    when = ""
    if verdict is not None:
        leads = [run for run in runs if run.verdict == verdict]
        when = leads[0].started_at
    name = public.batch_name(folder.name)
    if only:
        number = view.runs.index(runs[0]) + 1  # as the batch's page numbers its runs
        name += f"-run-{number}"
    subject = Subject(
        name=name,
        runs=runs,
        verdict=verdict,
        no_bundle=no_bundle,
        steps=tuple(map(step, leads[:MOST_STEPS])),
        when=when,
        unread=Counter({"unreadable record": len(view.unreadable)}),
    )
    subject = _with_texts(subject, folder, bool(only), with_notebooks)
    return _with_evidence(subject, bundle)


def _bundle_of_runs(runs: Sequence[Run], folder: Path) -> tuple[Path | None, str]:
    """The bundle of the box that runs looked at, else None and why there is none."""
    from helpers.batch.which_runs import boxes_of

    looked_at = boxes_of(runs)
    # A bundle from elsewhere is named by its path in the parameters; as a box it is "foreign".
    boxes = [*looked_at]
    for run in runs:
        box = run.parameters.get("box")
        if box:
            boxes.append(str(box))
    bundle, no_bundle = bundle_of(boxes, folder)
    names = _names_of(bundle)
    is_of_this_machine = "live" in names
    was_looked_at = "" in looked_at or not names.isdisjoint(looked_at)
    if is_of_this_machine and not was_looked_at:
        # The batch's own bundle is of the machine that ran it; these runs are about other boxes.
        return bundle_of(boxes, None)
    return bundle, no_bundle


def _names_of(bundle: Path | None) -> set[str]:
    """The names of the box that a bundle is about; none for no bundle."""
    if bundle is None:
        return set()
    return about_box(open_bundle(bundle))


def _with_texts(
    subject: Subject, folder: Path, is_one_run: bool, with_notebooks: bool
) -> Subject:
    """The subject with the texts of its records, and of its notebooks.

    ``is_one_run``: it is a single run, whose notebook is shared. The notebooks of a batch are read
    only ``with_notebooks``; otherwise they are counted as unread.
    """
    texts: list[SharedText] = []
    unread = Counter(subject.unread)
    notebook = None
    for number, run in enumerate(subject.runs, 1):
        texts += of_run(run, f"run {number}")
        if not is_one_run and not with_notebooks:
            if run.cells:
                unread["executed notebook"] += 1
            continue
        place = f"run {number}, "
        if is_one_run:
            place = ""
        with suppress(NotebookError):  # a run that never began has no notebook
            notebook = read_notebook(folder / run.run_id / "notebook.ipynb")
            texts += of_notebook(notebook, place)
    if not is_one_run:
        notebook = None
    return replace(subject, texts=tuple(texts), unread=unread, notebook=notebook)


def _with_evidence(subject: Subject, bundle: Path | None) -> Subject:
    """The subject with the evidence of a bundle and of the error messages in its parameters and
    outputs.

    Where no run has a verdict, it gets the verdict on these messages.
    """
    kinds = [PARAMETER]
    if subject.notebook is not None:
        kinds.append(OUTPUT)
    printed = [text.text[-LAST_WORDS:] for text in subject.texts if text.kind in kinds]
    evidence = evidence_from_message("\n".join(printed))
    if bundle is not None:
        captured = evidence_from_bundle(open_bundle(bundle))
        # What the runs printed stands in place of an error text that the bundle has.
        if evidence.messages:
            captured = replace(evidence, bundle=captured.bundle)
        evidence = captured
    verdict = subject.verdict
    if verdict is None and evidence.messages:
        verdict = diagnose(evidence)
    return replace(subject, evidence=evidence, verdict=verdict)


def step(run: Run) -> str:
    """A run as a step that somebody else can take: the notebook, and its parameters."""
    name = public.notebook(run.notebook)
    if not name:
        return OWNERS_NOTEBOOK
    return ", ".join([f"{name}.ipynb", *parameters(run)])


def parameters(run: Run) -> list[str]:
    """The parameters of a run that may be shared, as ``name=value``."""
    return [f"{name}={value}" for name, value in typed_parameters(run).items()]


def typed_parameters(run: Run) -> dict[str, str]:
    """The parameters that may be shared, by name; none of a notebook that is not the workbook's."""
    if not public.notebook(run.notebook):
        return {}
    names = _parameter_names(public.notebooks()[Path(run.notebook).stem])
    values = {name: public.parameter(value) for name, value in run.parameters.items()}
    return {name: value for name, value in values.items() if value and name in names}


@cache
def _parameter_names(notebook: Path) -> frozenset[str]:
    """The names of a notebook's parameters."""
    return frozenset(parameters_of(open_notebook(notebook)))


def _of_bundle(path: Path) -> Subject:
    """An evidence bundle. Raises ShareError."""
    try:
        bundle = open_bundle(path)
    except BundleError as error:
        # Without the folders above it, whose names may be private.
        raise ShareError(plain(error).replace(f"{path.parent}/", "")) from error
    evidence = evidence_from_bundle(bundle)
    verdict = diagnose(evidence)
    name = public.box(bundle.box)
    if not name:
        name = "box"
    return Subject(
        name=name,
        verdict=verdict,
        evidence=evidence,
        when=bundle.captured_at,
        texts=tuple(of_verdict(verdict, "verdict")),
    )


def _of_recording(path: Path) -> Subject:
    """The recording of a program, by record or rehearse. Raises ShareError."""
    # Imported here, because numpy takes long to load.
    from helpers.allocator.program_facts import evidence_from_trace
    from helpers.allocator.trace import TraceError

    try:
        evidence = evidence_from_trace(path)
    except TraceError as error:
        raise ShareError(plain(error).replace(f"{path.parent}/", "")) from error
    verdict = diagnose(evidence)
    return Subject(
        name="recording",
        verdict=verdict,
        evidence=evidence,
        is_recording=True,
        texts=tuple(of_verdict(verdict, "verdict")),
    )


def _of_notebook(path: Path) -> Subject:
    """A notebook. Raises ShareError."""
    try:
        notebook = read_notebook(path)
    except NotebookError as error:
        raise ShareError(plain(error).replace(f"{path.parent}/", "")) from error
    # The last value counts, because papermill injects its parameters after the notebook's own.
    last_box = _boxes_of(notebook)[-1:]
    bundle, no_bundle = bundle_of(last_box, None)
    texts = list(of_notebook(notebook))
    verdict = None
    is_verdict_ours = False
    with suppress(VerdictError):
        verdict = verdict_of(notebook)
        committed_verdict = verdict_of(own_part(notebook))
        is_verdict_ours = verdict is not None and verdict == committed_verdict
    if verdict and not is_verdict_ours:  # the words of ours are public
        texts += of_verdict(verdict, "verdict")
    name = public.notebook(path.name)
    steps = (f"{name}.ipynb",)
    if not name:
        name = "notebook"
        steps = (OWNERS_NOTEBOOK,)
    started = notebook.metadata.get("papermill", {}).get("start_time")
    when = ""
    if started:
        when = str(started)
    subject = Subject(
        name=name,
        verdict=verdict,
        no_bundle=no_bundle,
        steps=steps,
        when=when,
        texts=tuple(texts),
        notebook=notebook,
        is_verdict_ours=is_verdict_ours,
    )
    return _with_evidence(subject, bundle)


def _boxes_of(notebook: NotebookNode) -> list[str]:
    """The values that cells of parameters give to ``box``, in the order of the cells."""
    boxes = []
    for cell in notebook.cells:
        if {INJECTED, PARAMETERS} & set(cell.metadata.get("tags", [])):
            boxes += _BOX.findall(cell.source)
    return boxes
