"""The cause of a failure with its evidence, or what is missing to name it.

The best of each cause is compared: two causes that weigh alike are ``cannot-tell`` with both as
alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from helpers.ground.shapes import (
    BESIDE,
    SUM,
    Alternative,
    Confidence,
    Missing,
    NextStep,
    Verdict,
)
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
from helpers.judge.observation import NEUTRAL_EVENTS, Observation
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

LEAST = 0.8
"""A cause that weighs less is not named: one observation that somebody only said weighs 1.0
(confidence.py has the weights), a hint that was measured 0.7.
"""
MARGIN = 0.2
"""A cause that is not so much heavier than the next one leaves the verdict open. The smallest
weight of an observation, a weak one that is only said, is 0.25.
"""
NEAR = 1.0
"""A cause that is lighter by less than this, the weight of one strong observation, is still likely
beside the first.
"""
CLOSE_PART = 3
"""Causes count beside the first that weigh at least this part of it."""
MOST_OPEN = 3
MOST_ALTERNATIVES = 4
"""Causes that are listed, in a verdict that is open and in one that is decided: what a person can
check in turn.
"""
MOST_RIVALS = 2
"""Causes near the first whose deciding readings are asked for, so that the list stays short."""
LONGEST_ERROR = 400
"""Characters of the program's own error line that a verdict quotes."""
ENOUGH_OF_A_LINE = 30
"""Characters of a message by which its line is found again in the text."""
LONGEST_ENDING = 60
"""Characters behind a message that are still quoted, up to the end of its sentence."""
APART = ("noted", "assert", "fault", "wrong-index", "option-refused", "setting-unread")
"""Observations of a second fault in the same text, which is no consequence of missing memory."""


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
    """The line of the text that the verdict rests on, else the first line in which memory was
    refused, else that of the first failure; empty where none was read.
    """
    quotes = set()
    for row in verdict.evidence:
        is_reason = not row.id.startswith((BESIDE, SUM))
        if is_reason and row.reading.unit == "text":
            quotes.add(str(row.reading.value))
    failures = [
        message for message in evidence.messages if message.event not in NEUTRAL_EVENTS
    ]
    refusals = [
        message for message in failures if of_device(message) or of_host(message)
    ]
    quoted = [message for message in refusals if message.words in quotes]
    for message in [*quoted, *refusals, *failures]:
        return plain(_line_of(message.words, evidence.error_text))
    return ""


def _line_of(words: str, text: str) -> str:
    """The line of a text in which the words of a message stand, without a terminal's colours, or,
    where the line is too long or a log wrapped it, the words up to the end of their sentence.
    """
    start = words[:ENOUGH_OF_A_LINE]
    line = next((line for line in text.splitlines() if start in line), "")
    line = re.sub(r"\x1b\[[0-9;:]*m", "", line).strip()
    if len(words) < len(line) <= LONGEST_ERROR:
        return line
    unwrapped = " ".join(text.split())
    _before, quoted, rest = unwrapped.partition(words)
    ending, full_stop, _after = rest.partition(".")
    if quoted and full_stop and len(ending) < LONGEST_ENDING:
        words += ending + full_stop
    return cut(words, LONGEST_ERROR)


def _judged(evidence: CaseEvidence) -> Verdict:
    """The verdict on a recorded program, or on the texts and the box where only that decides."""
    verdict = verdict_of(observe(evidence), evidence)
    if evidence.program is None:
        return verdict
    # Only a recording has facts.
    from helpers.judge.program_verdict import program_verdict

    of_program = program_verdict(evidence.program)
    # The recording leaves it open, and the texts or the box do not.
    if of_program.label == "cannot-tell" and verdict.label != "cannot-tell":
        return verdict
    return of_program


@dataclass(frozen=True)
class Ranking:
    """The best failure of each cause, the heaviest first."""

    rows: tuple[Weighed, ...]

    @property
    def top(self) -> Weighed:
        return self.rows[0]

    @property
    def close(self) -> list[Weighed]:
        """The causes after the first that count beside it."""
        least = max(LEAST, self.top.weight / CLOSE_PART)
        return [row for row in self.rows[1:] if row.weight >= least]

    @property
    def behind(self) -> list[Weighed]:
        """The causes after the first that are worth a line."""
        return [row for row in self.rows[1:] if _is_worth_a_line(row)]

    @property
    def gap(self) -> float:
        """By how much the first is heavier than the next one that counts; NEAR without one."""
        if not self.close:
            return NEAR
        return self.top.weight - self.close[0].weight

    @property
    def decides(self) -> bool:
        """Whether the first cause is heavy enough, and enough above the others."""
        return bool(self.rows) and self.top.weight >= LEAST and self.gap >= MARGIN


def _is_worth_a_line(row: Weighed) -> bool:
    """Whether a cause is listed as possible: from half of what names one on."""
    return row.weight >= LEAST / 2


def rank(observations: Iterable[Observation]) -> Ranking:
    """The heaviest failure of each cause, given these observations; of equal weights the cause
    first by name.
    """
    best: dict[str, Weighed] = {}
    for row in weigh_failures(observations):  # the heaviest first
        best.setdefault(row.failure.cause, row)
    rows = sorted(best.values(), key=lambda row: (-row.weight, row.failure.cause))
    return Ranking(tuple(rows))


def verdict_of(
    observations: tuple[Observation, ...], evidence: CaseEvidence = NO_EVIDENCE
) -> Verdict:
    """The verdict that these observations support: the first cause where one decides; that nothing
    is wrong, of a box alone on which nothing failed; else what is still possible.
    """
    ranking = rank(observations)
    if ranking.decides:
        return _decided(ranking, observations, evidence)
    possible = [row for row in ranking.rows if _is_worth_a_line(row)][:MOST_OPEN]
    nothing_failed = not (possible or evidence.messages or evidence.error_text)
    if evidence.bundle is not None and nothing_failed:
        return _healthy(observations, evidence.bundle)
    return undecided(possible, observations, evidence)


def _decided(
    ranking: Ranking, observations: tuple[Observation, ...], evidence: CaseEvidence
) -> Verdict:
    """The first cause, with what speaks for and against it and what would decide further."""
    top = ranking.top
    failure = top.failure
    confidence = _confidence(ranking)
    others = ranking.close
    missing = []
    if confidence != "confirmed":
        others = ranking.behind
        missing = _what_would_decide(ranking, evidence)
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
    title = headline(failure, names, top.speaks_for, evidence)
    summary = f"{title}. {failure.mechanism}"
    if apart:
        summary += f" There is also a separate problem: {listed_observations(apart)}."
    reasons = as_evidence(top.speaks_for)
    reasons += [*evidence_beside(apart), *sums_as_evidence(evidence)]
    return Verdict(
        cause=failure.cause,
        confidence=confidence,
        title=title,
        summary=summary,
        alternatives=[_alternative(row, top) for row in others[:MOST_ALTERNATIVES]],
        evidence=unique_rows(reasons),
        against=unique_rows(as_evidence(against), "against-"),
        missing=missing,
        next_step=next_step(failure, names, evidence, top.speaks_for),
    )


def _confidence(ranking: Ranking) -> Confidence:
    """How sure the first cause is: beside another one that is likely and near, no more than
    likely.
    """
    confidence = ranking.top.confidence
    has_rival = ranking.gap < NEAR and ranking.close[0].confidence != "weak"
    if confidence == "confirmed" and has_rival:
        return "likely"
    return confidence


def _what_would_decide(ranking: Ranking, evidence: CaseEvidence) -> list[Missing]:
    """The readings that would confirm the first cause or exclude its nearest rivals; where all
    were handed over, a look at the machine.
    """
    rivals = ranking.close[:MOST_RIVALS]
    if not rivals:
        rivals = ranking.behind[:1]
    deciding = [row.failure.decides for row in (ranking.top, *rivals)]
    missing = missing_readings(deciding, evidence)
    if not missing:
        return [missing_reading("look", evidence)]
    return missing


def _alternative(row: Weighed, top: Weighed) -> Alternative:
    """Another cause beside the first, likely where it is nearly as heavy."""
    confidence: Confidence = "weak"
    if row.confidence != "weak" and top.weight - row.weight < NEAR:
        confidence = "likely"
    return Alternative(row.failure.cause, confidence)


def _healthy(observations: tuple[Observation, ...], bundle: Bundle) -> Verdict:
    """Nothing failed and nothing is unusual on this box. The evidence is all that was read, first
    how much memory is free.
    """
    free = [row for row in observations if row.name.startswith("free:")]
    hard = [row for row in observations if row.hard]
    title = "No problem found"
    if free:
        sizes = ", ".join(row.reading.show() for row in free)
        title += f": {sizes} of GPU memory is free"
    missing = missing_reading("failure")
    # Its command is for the live box; this capture is named in its place.
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
