"""The verdict on a trace, with which its command, notebook and page all begin."""

from __future__ import annotations

from dataclasses import replace

from helpers.allocator.program_facts import facts_of
from helpers.allocator.study import Study
from helpers.ground.replays import WhatIf
from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence


def verdict(study: Study, league: WhatIf | None = None) -> Verdict:
    """Why the program of a study's trace failed on its card, or that it did not.

    ``league``: the study's what-if, where it was made already. The verdict on an example or a
    pattern gets the state "aside", if it has no other: a page then sets it aside, because it does
    not say why this machine fails.
    """
    answer = diagnose(CaseEvidence(program=facts_of(study, league)))
    if study.of_user or answer.state:
        return answer
    return replace(answer, state="aside")
