"""The results of a batch's runs, as others may read them.

The functions are those of the batch's own page; here they get copies of the runs without private
text.
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
    """The runs of a subject, each without texts that are not known."""
    if not about.runs:
        return []
    # Imported here, because pydantic takes long to load.
    from helpers.batch.section import Section, told_apart

    runs = [_public_run(run, copies) for run in about.runs]
    # A shared page links to no folder and no anchor of the batch.
    return told_apart([Section(run, anchor="", folder=Path(), gone="") for run in runs])


def box_answers(sections: list[Section]) -> list[BoxAnswer]:
    """What the runs found out about each box, the most urgent first."""
    if not sections:
        return []
    from helpers.batch.box_answer import answers_of, in_order_of_trouble, looked_at

    return in_order_of_trouble(looked_at(answers_of(sections), sections))


def _public_run(run: Run, copies: PublicCopy) -> Run:
    """A copy of a run for a shared page: each text in it has one of the forms that ``public`` knows,
    such as a number or the name of a setting, or is empty.
    """
    verdict = copies.verdict(run.verdict)
    # A title that is no sentence of the workbook is left out of the copy; a table of runs needs
    # one, so it gets the headline that belongs to the cause.
    if verdict is not None and not verdict.title:
        verdict = replace(verdict, title=verdict_facts.headline(run.verdict))
    parameters = typed_parameters(run)
    if run.reads_batch:
        parameters["batch"] = "{batch}"  # as the plan has it, in place of a path
    notebook = public.notebook(run.notebook)
    if not notebook:
        notebook = OWNERS_NOTEBOOK
    changes = {
        "box": copies.names.box(run.box),
        "notebook": notebook,
        "parameters": parameters,
        "preset": public.parameter(run.preset),
        "gpu": public.typed("pci", run.gpu),
        "signal": public.signal_name(run.signal),
        "verdict": verdict,
    }
    texts = dict.fromkeys(("cause", "last_words", "node", "gate", "quarantined"), "")
    return run.model_copy(update={**changes, **texts, "notes": [], "files": []})
