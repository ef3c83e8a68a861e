"""A report in the form that a tracker asks for (templates/issue.md.j2), filled from typed facts.

It says who should be asked where the tracker's project is not at fault, and leaves a marked place
for the error text, which its author reads and pastes. What is not known says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.ground.shapes import Verdict
from helpers.judge.evidence import CaseEvidence
from helpers.look import rocm
from helpers.look.bundle import Bundle
from helpers.tell.message import printed_anew
from helpers.tell.render import render
from helpers.tell.verdict import label

from . import box_facts, public, verdict_facts
from .public_copy import PublicCopy
from .verdict_facts import TABLE

TRACKERS = tuple(TABLE["trackers"])


@dataclass(frozen=True)
class Case:
    """What a report is about: a verdict, the box's bundle, and where the verdict was seen."""

    verdict: Verdict | None
    evidence: CaseEvidence = CaseEvidence()
    steps: tuple[str, ...] = ()

    @property
    def bundle(self) -> Bundle | None:
        """The evidence bundle of the box, where there is one."""
        return self.evidence.bundle


def issue_text(tracker: str, case: Case) -> str:
    """The report for one of TRACKERS. Raises ValueError for another."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker {tracker!r}: expected one of {', '.join(TRACKERS)}")
    agents = []
    views = []
    if case.bundle is not None:
        names = (agent.name.show() for agent in rocm.agents(case.bundle))
        agents = list(filter(public.GFX.fullmatch, names))
        views = box_facts.report_views(case.bundle, PublicCopy(case.evidence))
    text = render(
        "issue.md.j2",
        tracker=tracker,
        form=TABLE["trackers"][tracker],
        case=case,
        facts=verdict_facts,
        box_facts=box_facts,
        agents=agents,
        views=views,
        messages=map(printed_anew, case.evidence.messages),
        label=label,
    )
    return re.sub(r"\s*\n\s*\n", "\n\n", text)
