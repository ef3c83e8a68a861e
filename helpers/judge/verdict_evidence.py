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


def listed_observations(observations: Iterable[Observation]) -> str:
    """What the observations say, each once."""
    return "; ".join(
        dict.fromkeys(observation.says.rstrip(".") for observation in observations)
    )


def sums_as_evidence(evidence: CaseEvidence) -> list[Evidence]:
    """The account of the first message with numbers, line by line, as it is shown."""
    for account in evidence.accounts:
        message = account.message
        if message.capacity or message.allowed or message.reserved_total:
            reading = seen(message.words[:80], "text", SOURCE)
            return [
                Evidence(f"{SUM}{number}", reading, capitalised(line))
                for number, line in enumerate(account.lines[:8], 1)
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
    reading = seen(message.words[:80], "text", SOURCE)
    return [Evidence(f"{SUM}1", reading, f"It prints: {', '.join(sizes)}")]


def evidence_beside(observations: Iterable[Observation]) -> list[Evidence]:
    """What was seen and is no reason for the verdict."""
    return [replace(row, id=BESIDE + row.id) for row in as_evidence(observations)]


def as_evidence(observations: Iterable[Observation]) -> list[Evidence]:
    return [
        Evidence(
            id=observation.name,
            reading=observation.reading,
            says=observation.says + _remark(observation),
        )
        for observation in observations
    ]


def _remark(observation: Observation) -> str:
    """Where a reading was not measured on this box."""
    if observation.filled:
        return WRITTEN_UP
    return "" if observation.hard else " (stated, not measured)"


def unique_rows(rows: list[Evidence], prefix: str = "") -> list[Evidence]:
    """The rows under ids of their own, each observation once."""
    unique: list[Evidence] = []
    counted: Counter[str] = Counter()
    for row in rows:
        if any(
            row.reading == other.reading and row.says == other.says for other in unique
        ):
            continue
        counted[row.id] += 1
        name = prefix + row.id.replace(":", "-")
        if counted[row.id] > 1:
            name = f"{name}-{counted[row.id]}"
        unique.append(replace(row, id=name))
    return unique
