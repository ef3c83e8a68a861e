"""What is to be shared: a batch, one of its runs, a notebook, or a recording, as records and a
bundle.
"""

from __future__ import annotations

import re
from collections import Counter
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
LAST_WORDS = 2000
"""Characters at the end of an output in which a failure is looked for."""
ARCHIVES = (".tar.gz", ".tgz")
RECORDINGS = (".pickle", ".pkl")
OWNERS_NOTEBOOK = "a notebook of its owner"
EXPECTED = (
    "expected a batch, a run's folder, an .ipynb file, a bundle as capture --out writes it, "
    "the .pickle of record or rehearse, or the name of a recorded box"
)
_BOX = re.compile(r"^box\b[^=\n]*=\s*['\"]([^'\"\n\\]*)['\"]", re.MULTILINE)


class ShareError(ValueError):
    """Nothing that can be shared. One line."""


@dataclass(frozen=True)
class Subject:
    """What is to be shared.

    ``evidence`` is that of the box that it is about, with the messages that its parameters and
    outputs hold, or ``no_bundle`` says why no box is in it. ``when`` is the moment of the
    ``verdict`` as its record has it. ``texts`` are those that stay at home until somebody ticks
    them, ``unread`` counts what is not looked into. ``notebook`` is the one that is shared, where
    it is one.
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
    """Whether the verdict stands in one of the workbook's own notebooks as it was committed."""
    is_recording: bool = False
    """Whether it is about the recording of one program, and about no box."""

    @property
    def bundle(self) -> Bundle | None:
        """The evidence bundle of the box, where there is one."""
        return self.evidence.bundle


def subject_of(target: Path, with_notebooks: bool = False) -> Subject:
    """What to share of a batch's folder or a run's, by its path or its name below outputs; of a
    notebook, an evidence bundle, a recording of a program, or a recorded box by its name.

    ``with_notebooks``: with the texts of each notebook of a batch. Raises ShareError where it is none of
    them.
    """
    if not target.exists() and public.box(str(target)):
        target = RECORDED / target
    target = kept(target).resolve()
    if target.name == "notebook.ipynb" and target.with_name("run.json").is_file():
        target = target.parent
    if (target / "manifest.json").is_file() or target.name.endswith(ARCHIVES):
        return _of_bundle(target)
    if target.suffix in RECORDINGS and target.is_file():
        return _of_recording(target)
    if target.is_file():
        return _of_notebook(target)
    if (target / "run.json").is_file():
        return _of_batch(target.parent, only=target.name)
    from helpers.batch.record import is_batch  # here: pydantic takes long to load

    if is_batch(target):
        return _of_batch(target, with_notebooks=with_notebooks)
    seen = (
        "a pipe or a device"
        if target.exists() and not target.is_dir()
        else "nothing to share"
    )
    raise ShareError(f"{target.name}: {seen}; {EXPECTED}")


def _of_batch(folder: Path, only: str = "", with_notebooks: bool = False) -> Subject:
    """All runs of a batch, or the one in the folder ``only``."""
    from helpers.batch.record import read_batch
    from helpers.batch.which_runs import boxes_of

    view = read_batch(folder)
    runs = tuple(run for run in view.runs if only in ("", run.run_id))
    if only and not runs:
        raise ShareError(
            f"{only}: its run.json cannot be read; expected a run of this workbook"
        )
    # A bundle from elsewhere has its path in the parameters: its box is called foreign.
    looked_at = boxes_of(runs)
    boxes = looked_at + [str(run.parameters.get("box") or "") for run in runs]
    bundle, no_bundle = bundle_of(boxes, folder)
    on_the_box = _names_of(bundle)
    if (
        "live" in on_the_box
        and on_the_box.isdisjoint(looked_at)
        and "" not in looked_at
    ):
        # It is of the machine that ran the batch, and no run looked at that one.
        bundle, no_bundle = bundle_of(boxes, None)
        on_the_box = _names_of(bundle)
    verdict = leading(run.verdict for run in runs if run.box in on_the_box)
    if verdict is None:
        verdict = leading(run.verdict for run in runs)
    leads = [run for run in runs if verdict is not None and run.verdict == verdict]
    name = public.batch_name(folder.name)
    if only:
        name += f"-run-{view.runs.index(runs[0]) + 1}"
    subject = Subject(
        name=name,
        runs=runs,
        verdict=verdict,
        no_bundle=no_bundle,
        steps=tuple(map(step, leads[:MOST_STEPS])),
        when="".join(run.started_at for run in leads[:1]),
        unread=Counter({"unreadable record": len(view.unreadable)}),
    )
    return _with_evidence(
        _with_texts(subject, folder, bool(only), with_notebooks), bundle
    )


def _names_of(bundle: Path | None) -> set[str]:
    """The names of the box that a bundle is about."""
    return about_box(open_bundle(bundle)) if bundle else set()


def _with_texts(
    subject: Subject, folder: Path, is_one_run: bool, with_notebooks: bool
) -> Subject:
    """The subject with the texts of its records, and of its notebooks where they are read."""
    texts: list[SharedText] = []
    unread = Counter(subject.unread)
    notebook = None
    for number, run in enumerate(subject.runs, 1):
        texts += of_run(run, f"run {number}")
        if not is_one_run and not with_notebooks:
            unread["executed notebook"] += bool(run.cells)
            continue
        with suppress(NotebookError):
            notebook = read_notebook(folder / run.run_id / "notebook.ipynb")
            texts += of_notebook(notebook, "" if is_one_run else f"run {number}, ")
    if not is_one_run:
        notebook = None
    return replace(subject, texts=tuple(texts), unread=unread, notebook=notebook)


def _with_evidence(subject: Subject, bundle: Path | None) -> Subject:
    """The subject with what a bundle, its parameters and its outputs hold, and with the verdict on
    their messages where no run has one.
    """
    kinds = [PARAMETER]
    if subject.notebook is not None:
        kinds.append(OUTPUT)
    printed = [text.text[-LAST_WORDS:] for text in subject.texts if text.kind in kinds]
    evidence = evidence_from_message("\n".join(printed))
    if bundle is not None:
        captured = evidence_from_bundle(open_bundle(bundle))
        if evidence.messages:
            captured = replace(evidence, bundle=captured.bundle)
        evidence = captured
    verdict = subject.verdict
    if verdict is None and evidence.messages:
        verdict = diagnose(evidence)
    return replace(subject, evidence=evidence, verdict=verdict)


def step(run: Run) -> str:
    """A run as a step that somebody else can take: its notebook with what it was given."""
    name = public.notebook(run.notebook)
    if not name:
        return OWNERS_NOTEBOOK
    return ", ".join([f"{name}.ipynb", *parameters(run)])


def parameters(run: Run) -> list[str]:
    """The parameters of a run that are typed, as ``name=value``."""
    return [f"{name}={value}" for name, value in typed_parameters(run).items()]


def typed_parameters(run: Run) -> dict[str, str]:
    """The parameters of a run of the workbook's own notebooks that are typed, by name."""
    if not public.notebook(run.notebook):
        return {}
    names = _parameter_names(public.notebooks()[Path(run.notebook).stem])
    values = {name: public.parameter(value) for name, value in run.parameters.items()}
    return {name: value for name, value in values.items() if value and name in names}


@cache
def _parameter_names(notebook: Path) -> frozenset[str]:
    return frozenset(parameters_of(open_notebook(notebook)))


def _of_bundle(path: Path) -> Subject:
    try:
        bundle = open_bundle(path)
    except BundleError as error:
        raise ShareError(plain(error).replace(f"{path.parent}/", "")) from error
    evidence = evidence_from_bundle(bundle)
    verdict = diagnose(evidence)
    return Subject(
        name=public.box(bundle.box) or "box",
        verdict=verdict,
        evidence=evidence,
        when=bundle.captured_at,
        texts=tuple(of_verdict(verdict, "verdict")),
    )


def _of_recording(path: Path) -> Subject:
    """What a rehearsal or a recording of a program came to."""
    # Here, since numpy takes long to load.
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
    try:
        notebook = read_notebook(path)
    except NotebookError as error:
        raise ShareError(plain(error).replace(f"{path.parent}/", "")) from error
    bundle, no_bundle = bundle_of(_boxes_of(notebook)[-1:], None)
    texts = list(of_notebook(notebook))
    verdict = None
    is_verdict_ours = False
    with suppress(VerdictError):
        verdict = verdict_of(notebook)
        is_verdict_ours = verdict is not None and verdict == verdict_of(
            own_part(notebook)
        )
    if verdict and not is_verdict_ours:
        texts += of_verdict(verdict, "verdict")
    name = public.notebook(path.name)
    subject = Subject(
        name=name or "notebook",
        verdict=verdict,
        no_bundle=no_bundle,
        steps=(f"{name}.ipynb" if name else OWNERS_NOTEBOOK,),
        when=str(notebook.metadata.get("papermill", {}).get("start_time") or ""),
        texts=tuple(texts),
        notebook=notebook,
        is_verdict_ours=is_verdict_ours,
    )
    return _with_evidence(subject, bundle)


def _boxes_of(notebook: NotebookNode) -> list[str]:
    """The values that cells of parameters give to ``box``."""
    boxes = []
    for cell in notebook.cells:
        if {INJECTED, PARAMETERS} & set(cell.metadata.get("tags", [])):
            boxes += _BOX.findall(cell.source)
    return boxes
