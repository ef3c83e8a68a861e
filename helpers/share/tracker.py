"""A report in the form that a tracker asks for (templates/issue.md.j2), filled from typed facts.

It says whom to ask if nothing shows a fault of the tracker's project, and has a marked place for
the error text, which its author reads and pastes. For an unknown value it says why it is unknown.
"""

from __future__ import annotations

import re

from helpers.ground.shapes import Verdict
from helpers.look import rocm
from helpers.tell.message import printed_anew
from helpers.tell.render import render
from helpers.tell.verdict import label

from . import box_facts, public, verdict_facts
from .public_copy import PublicCopy
from .subject import Subject
from .verdict_facts import TABLE

TRACKERS = tuple(TABLE["trackers"])


def issue_text(tracker: str, about: Subject) -> str:
    """The report for one of TRACKERS. Raises ValueError for another."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker {tracker!r}: expected one of {', '.join(TRACKERS)}")
    agents = []
    views = []
    if about.bundle is not None:
        names = [agent.name.show() for agent in rocm.agents(about.bundle)]
        agents = [name for name in names if public.GFX.fullmatch(name)]
        views = box_facts.report_views(about.bundle, PublicCopy(about.evidence))
    text = render(
        "issue.md.j2",
        tracker=tracker,
        form=TABLE["trackers"][tracker],
        case=about,
        facts=verdict_facts,
        box_facts=box_facts,
        agents=agents,
        views=views,
        ask=whom_to_ask(tracker, about.verdict),
        messages=map(printed_anew, about.evidence.messages),
        label=label,
    )
    return re.sub(r"\s*\n\s*\n", "\n\n", text)  # a single empty line between paragraphs


def whom_to_ask(tracker: str, verdict: Verdict | None) -> str:
    """A sentence that says whom to ask if nothing shows a fault of the tracker's project; else
    empty.
    """
    cause = verdict_facts.about_cause(verdict)
    if tracker in cause["to"]:
        return ""
    return (
        f"Nothing here shows a fault of this tracker's project: ask {cause['instead']}"
    )
