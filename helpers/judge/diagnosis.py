"""The cause of a failure with its evidence, or what is missing to name it.

The best of each cause is compared: two causes that weigh alike are ``cannot-tell`` with both as
alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from helpers.ground.shapes import BESIDE, SUM, Alternative, NextStep, Verdict
from helpers.ground.shell import word
from helpers.ground.units import cut, plain
from helpers.judge.case_names import names_of
from helpers.judge.confidence import Weighed, weigh_failures
from helpers.judge.evidence import CaseEvidence, once
from helpers.judge.headlines import headline
from helpers.judge.missing_readings import (
    NO_EVIDENCE,
    missing_reading,
    missing_readings,
)
from helpers.judge.next_step import next_step
from helpers.judge.observation import SILENT, Observation
from helpers.judge.observations import observe
from helpers.judge.undecided import undecided
from helpers.judge.verdict_evidence import (
    as_evidence,
    evidence_beside,
    listed_observations,
    sums_as_evidence,
    unique_rows,
)
from helpers.look.bundle import Bundle
from helpers.look.message import of_device, of_host

NEAR = 1.0
LEAST = 0.8
MARGIN = 0.2
"""A cause that weighs less than LEAST is none, one that is not MARGIN above the next leaves it
open; one within NEAR is still likely.
"""
LONGEST_ERROR = 400
ENOUGH_OF_A_LINE = 30
LONGEST_ENDING = 60
"""Letters of an error line that are kept, by which it is found again in its text, and that may
follow what was read of it.
"""
APART = ("noted", "assert", "fault", "wrong-index", "option-refused", "setting-unread")


@once
def diagnose(evidence: CaseEvidence) -> Verdict:
    """The verdict on what was handed over.

    Never raises on odd evidence; says ``cannot-tell`` where it does not decide.
    """
    verdict = _judged(evidence)
    verdict = replace(verdict, error=_error_line(verdict, evidence))
    if evidence.bundle is None:
        return verdict
    from helpers.look.kernel_log import not_whole  # only a captured box has a log

    remark = not_whole(evidence.bundle)
    return replace(verdict, summary=f"{verdict.summary} {remark}".rstrip())


def _error_line(verdict: Verdict, evidence: CaseEvidence) -> str:
    """The line of the text that the verdict rests on, else that in which memory was refused, else
    that of its first failure; at most LONGEST_ERROR letters, empty where none was read.
    """
    reasons = [row for row in verdict.evidence if not row.id.startswith((BESIDE, SUM))]
    quotes = [str(row.reading.value) for row in reasons if row.reading.unit == "text"]
    failures = [message for message in evidence.messages if message.event not in SILENT]
    refusals = [
        message for message in failures if of_device(message) or of_host(message)
    ]
    quoted = [message for message in refusals if message.words in quotes]
    for message in [*quoted, *refusals, *failures]:
        return plain(_sentence(message.words, evidence.error_text))
    return ""


def _sentence(words: str, text: str) -> str:
    """The line of a text in which a message stands, without colours, or, where the line is too
    long or a log wrapped it, the message up to the end of its sentence.
    """
    start = words[:ENOUGH_OF_A_LINE]
    line = next((line for line in text.splitlines() if start in line), "")
    line = re.sub(r"\x1b\[[0-9;:]*m", "", line).strip()
    if len(words) < len(line) <= LONGEST_ERROR:
        return line
    _, quoted, rest = " ".join(text.split()).partition(words)
    end = rest.find(".") + 1
    if quoted and end <= LONGEST_ENDING:
        words += rest[:end]
    return cut(words, LONGEST_ERROR)


def _judged(evidence: CaseEvidence) -> Verdict:
    """The verdict on the texts and the box, or on a recorded program where that decides more."""
    verdict = verdict_of(observe(evidence), evidence)
    if evidence.program is not None:
        from helpers.judge.program_verdict import (
            program_verdict,
        )  # only a recording has facts

        of_program = program_verdict(evidence.program)
        is_open = of_program.label == "cannot-tell"
        if not is_open or verdict.label == "cannot-tell":
            return of_program
    return verdict


@dataclass(frozen=True)
class Ranking:
    """The best failure of each cause, the heaviest first."""

    rows: tuple[Weighed, ...]

    @property
    def top(self) -> Weighed:
        return self.rows[0]

    @property
    def close(self) -> list[Weighed]:
        """The causes that weigh at least a third of the first."""
        least = max(LEAST, self.top.weight / 3)
        return [row for row in self.rows[1:] if row.weight >= least]

    @property
    def behind(self) -> list[Weighed]:
        """The causes after the first that any weight speaks for."""
        return [row for row in self.rows[1:] if row.weight >= LEAST / 2]

    @property
    def gap(self) -> float:
        """By how much the first is above the next one that counts."""
        if not self.close:
            return NEAR
        return self.top.weight - self.close[0].weight

    @property
    def decides(self) -> bool:
        """Whether the first cause is far enough above the others."""
        return bool(self.rows) and self.top.weight >= LEAST and self.gap >= MARGIN


def rank(observations: Iterable[Observation]) -> Ranking:
    """The best failure of each cause by these observations."""
    best: dict[str, Weighed] = {}
    for row in weigh_failures(observations):
        best.setdefault(row.failure.cause, row)
    rows = sorted(best.values(), key=lambda row: (-row.weight, row.failure.cause))
    return Ranking(tuple(rows))


def verdict_of(
    observations: tuple[Observation, ...], evidence: CaseEvidence = NO_EVIDENCE
) -> Verdict:
    """The verdict that these observations support."""
    ranking = rank(observations)
    if ranking.decides:
        return _decided(ranking, observations, evidence)
    near = [row for row in ranking.rows if row.weight >= LEAST / 2][:3]
    nothing_failed = not (near or evidence.messages or evidence.error_text)
    if evidence.bundle is not None and nothing_failed:
        return _healthy(observations, evidence.bundle)
    return undecided(near, observations, evidence)


def _decided(
    ranking: Ranking, observations: tuple[Observation, ...], evidence: CaseEvidence
) -> Verdict:
    """The first cause, with what speaks for and against it and what would decide further."""
    top = ranking.top
    failure = top.failure
    close = ranking.close
    confidence = top.confidence
    has_rival = ranking.gap < NEAR and close[0].confidence != "weak"
    if confidence == "confirmed" and has_rival:
        confidence = "likely"
    missing = []
    if confidence != "confirmed":
        rivals = close[:2] or ranking.behind[:1]
        deciding = [row.failure.decides for row in (top, *rivals)]
        missing = missing_readings(deciding, evidence)
        if not missing:
            missing = [missing_reading("look", evidence)]
    # A second fault in the same text: an assertion or a wrong index is no consequence of memory.
    apart = [
        row
        for row in observations
        if row.name in APART and row.hard and row not in top.speaks_for
    ]
    against = list(top.against)
    if failure.cause == "true-capacity":
        # What was cached and would have met the request speaks against a card that is too
        # small, however little it weighs.
        against += [row for row in observations if row.name == "stranded-possible"]
    names = names_of(evidence, observations)
    others = ranking.behind if missing else close
    title = headline(failure, names, top.speaks_for, evidence)
    summary = f"{title}. {failure.mechanism}"
    if apart:
        summary += f" There is also a separate problem: {listed_observations(apart)}."
    return Verdict(
        cause=failure.cause,
        confidence=confidence,
        title=title,
        summary=summary,
        alternatives=[_alternative(row, top) for row in others[:4]],
        evidence=unique_rows(
            [
                *as_evidence(top.speaks_for),
                *evidence_beside(apart),
                *sums_as_evidence(evidence),
            ]
        ),
        against=unique_rows(as_evidence(against), "against-"),
        missing=missing,
        next_step=next_step(failure, names, evidence, top.speaks_for),
    )


def _alternative(row: Weighed, top: Weighed) -> Alternative:
    is_near = row.confidence != "weak" and top.weight - row.weight < NEAR
    return Alternative(row.failure.cause, "likely" if is_near else "weak")


def _healthy(observations: tuple[Observation, ...], bundle: Bundle) -> Verdict:
    """Nothing failed and nothing is out of the ordinary on this box; what was looked at is the
    evidence, what is free first.
    """
    free = [row for row in observations if row.name.startswith("free:")]
    hard = [row for row in observations if row.hard]
    title = "No problem found"
    if free:
        sizes = ", ".join(row.reading.show() for row in free)
        title += f": {sizes} of GPU memory is free"
    missing = missing_reading("failure")
    if bundle.kind != "live":
        how = missing.how.replace(" live ", f" {word(bundle.box)} ")
        missing = replace(missing, how=how)
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=title,
        summary="You gave no error message.",
        evidence=unique_rows(as_evidence([*free, *hard])),
        missing=[missing],
        next_step=NextStep(
            what="If a program fails on this machine, diagnose its error message together with this capture",
            command=missing.how,
            precondition="FILE begins with the first error",
        ),
    )
