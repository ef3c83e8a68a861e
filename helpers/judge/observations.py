"""What was observed: every reader of evidence in one list. Prose is not read."""

from __future__ import annotations

import re

from helpers.judge import form
from helpers.judge.ceiling_observations import ceiling_observations
from helpers.judge.evidence import CaseEvidence
from helpers.judge.figure_observations import (
    figures_in,
    series_observations,
    size_observations,
)
from helpers.judge.hardware import kind_of
from helpers.judge.loading_observations import loading_observations
from helpers.judge.marks import framework_observations, mark_observations
from helpers.judge.message_observations import SOURCE, message_observations
from helpers.judge.observation import Observation, make_observation
from helpers.judge.posted_access import access_observations, container_observations
from helpers.judge.posted_processes import process_observations
from helpers.judge.posted_versions import version_observations
from helpers.judge.settings_observations import settings_observations


def observe(evidence: CaseEvidence) -> tuple[Observation, ...]:
    """Everything that the evidence shows, from all its parts; the same observation may come from
    several sources.
    """
    observations = message_observations(evidence)
    observations += process_observations(evidence)
    observations += access_observations(evidence)
    observations += _of_figures(evidence)
    observations += loading_observations(evidence)
    observations += settings_observations(evidence)
    observations += version_observations(evidence)
    observations += container_observations(evidence)
    if evidence.bundle is not None:
        # It reads every layer of a box.
        from helpers.judge.box_observations import box_observations

        observations += box_observations(evidence, evidence.bundle)
    failed = _something_failed(evidence, observations)
    observations += mark_observations(evidence)
    if evidence.tools and not failed:
        words = "no error text"
        observations.append(
            make_observation("nothing-failed", words, SOURCE, "message", hard=False)
        )
    observations += series_observations(evidence)
    observations += framework_observations(evidence)
    return tuple(observations)


def _of_figures(evidence: CaseEvidence) -> list[Observation]:
    """What the figures of memory say, and which ceiling binds according to them or to the box."""
    figures = figures_in(evidence)
    kind = kind_of(evidence)
    return [
        *size_observations(evidence, figures, kind),
        *ceiling_observations(evidence, figures, kind),
    ]


def _something_failed(evidence: CaseEvidence, observations: list[Observation]) -> bool:
    """Whether a refusal was read, or the error text has any words beside warnings. A known error
    message has words, so only refusals in tools need to be looked for.
    """
    for observation in observations:
        if observation.hard and observation.name.endswith(("-refused", "-unsure")):
            return True
    without_warnings = form("warning").sub("", evidence.error_text)
    has_a_word = re.search(r"\w{3}", without_warnings)
    return has_a_word is not None
