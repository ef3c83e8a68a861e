"""Observations and sums as the evidence of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace

from helpers.ground.shapes import BESIDE, SUM, Evidence, seen
from helpers.ground.units import Quantity
from helpers.judge import capitalised
from helpers.judge.evidence import CaseEvidence
from helpers.judge.message_observations import SOURCE
from helpers.judge.observation import WRITTEN_UP, Observation
from helpers.look.message import Message

SHOWN = 80
"""Characters of a message that a row of sums quotes: it stands whole elsewhere in the answer."""
MOST_LINES = 8
"""Lines of an account that are evidence: the sums come first, further remarks last."""


def listed_observations(observations: Iterable[Observation]) -> str:
    """The sentences of the observations in one, each once."""
    sentences = [observation.says.rstrip(".") for observation in observations]
    return "; ".join(dict.fromkeys(sentences))


def sums_as_evidence(evidence: CaseEvidence) -> list[Evidence]:
    """The sums of the first message with numbers of the card, a row for each line; without one,
    the sizes that a message prints.
    """
    for account in evidence.accounts:
        message = account.message
        if message.capacity or message.allowed or message.reserved_total:
            reading = seen(message.words[:SHOWN], "text", SOURCE)
            return [
                Evidence(f"{SUM}{number}", reading, capitalised(line))
                for number, line in enumerate(account.lines[:MOST_LINES], 1)
            ]
    for message in evidence.messages:
        if message.numbers:
            return _printed_sizes(message)
    return []


def _printed_sizes(message: Message) -> list[Evidence]:
    """The sizes that a message prints, in one sentence."""
    sizes = []
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Quantity):
            sizes.append(f"{field.name.replace('_', ' ')} {value.text}")
    if not sizes:
        return []
    reading = seen(message.words[:SHOWN], "text", SOURCE)
    return [Evidence(f"{SUM}1", reading, f"It prints: {', '.join(sizes)}")]


def evidence_beside(observations: Iterable[Observation]) -> list[Evidence]:
    """Observations that are no reason for the verdict, as evidence."""
    return [replace(row, id=BESIDE + row.id) for row in as_evidence(observations)]


def as_evidence(observations: Iterable[Observation]) -> list[Evidence]:
    """A row of evidence for each observation."""
    return [
        Evidence(
            id=observation.name,
            reading=observation.reading,
            says=observation.says + _remark(observation),
        )
        for observation in observations
    ]


def _remark(observation: Observation) -> str:
    """A remark in brackets where a reading was not measured on this box; else empty."""
    if observation.filled:
        return WRITTEN_UP
    if not observation.hard:
        return " (stated, not measured)"
    return ""


def unique_rows(rows: list[Evidence], prefix: str = "") -> list[Evidence]:
    """The rows without repeats, each under an id of its own: ``prefix``, its name, and a number
    from the second of that name on.
    """
    unique: list[Evidence] = []
    counted: Counter[str] = Counter()
    for row in rows:
        alike = [other for other in unique if other.reading == row.reading]
        if any(other.says == row.says for other in alike):
            continue
        counted[row.id] += 1
        name = prefix + row.id.replace(":", "-")
        if counted[row.id] > 1:
            name = f"{name}-{counted[row.id]}"
        unique.append(replace(row, id=name))
    return unique
