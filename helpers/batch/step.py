"""One concrete run of a plan, before it has run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .shapes import Limits, Plan

DEFAULT_LIMITS: Limits = Plan.model_fields["limits"].default


@dataclass(frozen=True)
class Step:
    """One concrete run of a plan.

    ``box`` is live, a recorded name or an absolute path; ``box_name`` is what records say,
    empty for a notebook that takes no box. ``parameters`` are those of the plan alone;
    ``takes`` names all that the notebook has. ``gpu`` is a PCI address, or empty. A step that
    ``waits`` reads the batch's own records: it starts when all before it have ended. One that
    ``resumes`` goes on where an earlier attempt stopped. ``estimate_s`` is how many seconds its
    notebook took here before; None where it has not run.
    """

    run_id: str
    notebook: str
    source: Path
    parameters: dict[str, object]
    takes: frozenset[str]
    box: str
    box_name: str
    preset: str
    cell_s: float
    run_s: float
    danger: str = "looks"
    gpu: str = ""
    waits: bool = False
    resumes: bool = False
    estimate_s: float | None = None

    @property
    def closes(self) -> bool:
        """Whether it only reads what the others left: it runs whatever became of them, and again
        when one of them runs again.
        """
        return self.waits and self.danger == "looks"


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
