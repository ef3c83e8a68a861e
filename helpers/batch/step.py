"""A step, which is one run of a plan before it has run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .shapes import Limits, Plan

DEFAULT_LIMITS: Limits = Plan.model_fields["limits"].default
"""Those of a plan that sets none."""


@dataclass(frozen=True)
class Step:
    """One run of a plan, with all that the plan leaves to defaults filled in.

    ``notebook`` is its name in the plan, ``source`` its file. ``box`` is live, the name of a
    recorded box or an absolute path; ``box_name`` is the box in records, empty for a notebook that
    takes no box. ``parameters`` are those that the plan gives; ``takes`` has the names of all that
    the notebook has. ``cell_s`` and ``run_s`` are limits in seconds. ``gpu`` is a PCI address, or
    empty. A step that ``waits`` reads the batch's records, and starts when all before it have
    ended. One that ``resumes`` goes on at the cell where an earlier attempt stopped. ``estimate_s``
    is how many seconds its notebook took on this machine before; None if it has not run.
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
        """Whether it is a closing report, which only reads the records of the others: it runs
        however they ended, and again if one of them runs again.
        """
        return self.waits and self.danger == "looks"


def digest(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
