"""The verdict where no cause is decided: what is possible, and which reading would decide."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from helpers.ground.shapes import (
    Alternative,
    Evidence,
    Missing,
    NextStep,
    Verdict,
    seen,
)
from helpers.judge import capitalised, form
from helpers.judge.case_names import fill, names_of
from helpers.judge.catalogue import DecidingReading, deciding_reading
from helpers.judge.confidence import Weighed
from helpers.judge.evidence import CaseEvidence
from helpers.judge.headlines import open_headline
from helpers.judge.missing_readings import missing_readings, not_handed_over
from helpers.judge.next_step import step_of_a_refusal
from helpers.judge.observation import NEUTRAL_EVENTS, Observation
from helpers.judge.verdict_evidence import (
    as_evidence,
    listed_observations,
    sums_as_evidence,
    unique_rows,
)
from helpers.look.message import Message

ENOUGH_READINGS = 3
"""With so many readings that would decide, a capture of the whole machine is not asked for, too."""
MOST_LISTED = 3
LONGEST_UNUSED = 200
"""Observations, and characters about unused text, that the summary has: it is a few lines."""
MOST_OBSERVATIONS = 12
"""Observations that are shown where none speaks for a cause: about a screen."""


def undecided(
    near: list[Weighed], observations: tuple[Observation, ...], evidence: CaseEvidence
) -> Verdict:
    """The verdict ``cannot-tell``: what was read, the possible causes (``near``, the heaviest
    first), and the readings that would decide, the best first.
    """
    named = [
        message for message in evidence.messages if message.event not in NEUTRAL_EVENTS
    ]
    # A rehearsal's printed answer is no error text, unless a program's own message is beside it.
    is_own = any(message.row == "casebook-rehearsal" for message in evidence.messages)
    if is_own and not named:
        return _own_answer()
    decides = (row.failure.decides for row in near)
    deciding = list(dict.fromkeys(not_handed_over(decides, evidence)))
    nothing_decides = not deciding
    if any(observation.name == "own-error" for observation in observations):
        deciding.insert(0, deciding_reading("own-error"))
    if _needs_the_message(named, evidence.error_text, nothing_decides):
        deciding.append(deciding_reading("message"))
    if evidence.bundle is None and len(deciding) < ENOUGH_READINGS:
        deciding.append(deciding_reading("look"))
    # All was handed over: only a look at the moment of the failure is left.
    if not deciding:
        deciding.append(deciding_reading("moment"))
    missing = missing_readings(deciding, evidence)
    speaking = tuple(chain.from_iterable(row.speaks_for for row in near))
    against = chain.from_iterable(row.against for row in near)
    rows = as_evidence(speaking)
    if not rows:
        rows = as_evidence(observations[:MOST_OBSERVATIONS])
    rows += sums_as_evidence(evidence)
    if not rows:
        rows = [_nothing_used(evidence)]
    names = names_of(evidence, observations)
    step = step_of_a_refusal(names, evidence, observations, nothing_decides)
    if step is None:
        step = _step_that_decides(deciding[0], missing[0], names)
    failures = [row.failure for row in near]
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=open_headline(failures, (*speaking, *observations), evidence),
        summary=_summary_of_open(near, observations, evidence),
        alternatives=[Alternative(failure.cause, "weak") for failure in failures],
        evidence=unique_rows(rows),
        against=unique_rows(as_evidence(against), "against-"),
        missing=missing,
        next_step=step,
    )


def _own_answer() -> Verdict:
    """The verdict on a text that a rehearsal printed: the evidence is in its recording."""
    title = "This is an answer of casebook rehearse, not a program's error"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}. Its evidence is in the recording.",
        next_step=NextStep(
            "Run the command after “All evidence:” in the text, or give the program's own output, "
            "whose file the text names last"
        ),
    )


def _needs_the_message(named: list[Message], text: str, nothing_decides: bool) -> bool:
    """Whether the program's own message should be asked for.

    ``named`` are the messages of failures in the text. Without one, yes, unless the text looks
    like a program's complaint: then it is the message, of a kind that is not known here. With
    some, only where no other reading decides, and they have no numbers or one was cut.
    """
    if not named:
        is_output = form("printed").search(text) and form("complaint").search(text)
        return not is_output
    has_no_number = not any(message.numbers for message in named)
    is_garbled = any(_lacks_its_capacity(message) for message in named)
    return nothing_decides and (has_no_number or is_garbled)


def _lacks_its_capacity(message: Message) -> bool:
    """Whether a message of torch's allocator has no total, neither the card's nor what is reserved.
    Every such message prints one, so this one was not pasted whole.
    """
    is_of_allocator = message.program == "torch" and message.allocated is not None
    has_a_total = message.capacity is not None or message.reserved_total is not None
    return is_of_allocator and not has_a_total


def _step_that_decides(
    wanted: DecidingReading, missing: Missing, names: Mapping[str, str]
) -> NextStep:
    """The reading to take, and what each of its results means."""
    advice = f"Still needed: {missing.reading}"
    if wanted.answer:
        advice += f". {fill(wanted.answer, names)}"
    precondition = "none"
    if wanted.while_running:
        precondition = "the program is running or has just failed"
    return NextStep(what=advice, command=missing.how, precondition=precondition)


def _summary_of_open(
    near: list[Weighed], observations: tuple[Observation, ...], evidence: CaseEvidence
) -> str:
    """The summary of a verdict that stays open: which causes are possible, or why none is (only
    prose was given, what was read shows no cause, or nothing was read).

    What could not be used (``evidence.unused``) is added where nothing was observed: then it may be
    why.
    """
    if near:
        causes = "; ".join(row.failure.title.rstrip(".") for row in near)
        summary = f"Still possible: {causes}."
    elif _is_prose_alone(evidence, observations):
        summary = (
            "No line of the text is a known error message, and descriptions in words are not read. "
            "Paste the program's output itself, from the first error on."
        )
    elif observations:
        summary = f"These readings show no cause: {listed_observations(observations[:MOST_LISTED])}."
    else:
        summary = "Nothing in what you gave explains a failure."
    if evidence.unused and not observations:
        unused = capitalised(evidence.unused[:LONGEST_UNUSED].rstrip("."))
        summary += f" {unused}."
    return summary


def _is_prose_alone(
    evidence: CaseEvidence, observations: tuple[Observation, ...]
) -> bool:
    """Whether a text was handed over, and no line of it is one that a program prints."""
    has_text = evidence.error_text.strip() or evidence.narrative.strip()
    if evidence.messages or not has_text:
        return False
    return not any(observation.hard for observation in observations)


def _nothing_used(evidence: CaseEvidence) -> Evidence:
    """How much text was read, where nothing of it could be used."""
    length = sum(len(text) for _, _, text in evidence.texts)
    reading = seen(f"{length} characters", "text", "the text handed over")
    return Evidence(
        "read", reading, "The text was read, but none of its lines is a known error"
    )
