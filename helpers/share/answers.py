"""What the runs of a batch came to, as others may read it: the batch's own page and this one are
made by the same functions, this one of copies of the runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import public, verdict_facts
from .public_copy import PublicCopy
from .subject import OWNERS_NOTEBOOK, Subject, typed_parameters

if TYPE_CHECKING:
    from helpers.batch.box_answer import BoxAnswer
    from helpers.batch.section import Section
    from helpers.batch.shapes import Run


def public_sections(about: Subject, copies: PublicCopy) -> list[Section]:
    """The runs of a subject, each without a text that is not known."""
    if not about.runs:
        return []
    from helpers.batch.section import (
        Section,
        told_apart,
    )  # here: pydantic takes long to load

    runs = [_public_run(run, copies) for run in about.runs]
    return told_apart([Section(run, anchor="", folder=Path(), gone="") for run in runs])


def box_answers(sections: list[Section]) -> list[BoxAnswer]:
    """What the runs found out about each box, the most urgent first."""
    if not sections:
        return []
    from helpers.batch.box_answer import answers_of, in_order_of_trouble, looked_at

    return in_order_of_trouble(looked_at(answers_of(sections), sections))


def _public_run(run: Run, copies: PublicCopy) -> Run:
    verdict = copies.verdict(run.verdict)
    if verdict is not None and not verdict.title:
        verdict = replace(verdict, title=verdict_facts.headline(run.verdict))
    parameters = typed_parameters(run)
    if run.reads_batch:
        parameters["batch"] = "{batch}"
    changes = {
        "box": copies.names.box(run.box),
        "notebook": public.notebook(run.notebook) or OWNERS_NOTEBOOK,
        "parameters": parameters,
        "preset": public.parameter(run.preset),
        "gpu": public.typed("pci", run.gpu),
        "signal": public.signal_name(run.signal),
        "verdict": verdict,
    }
    texts = dict.fromkeys(("cause", "last_words", "node", "gate", "quarantined"), "")
    return run.model_copy(update={**changes, **texts, "notes": [], "files": []})
