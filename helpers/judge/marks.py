"""What stands in the words themselves: marks, frameworks and kinds of GPU that texts name.

Marks (marks.json) are words that programs print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from helpers.ground.tables import lazy
from helpers.judge import table
from helpers.judge.evidence import CaseEvidence
from helpers.judge.observation import Observation, make_observation
from helpers.look.parts import APU, CARD, device_list


class Mark(NamedTuple):
    """An observation, the pattern that makes it, the kinds and names of texts it is looked for
    in, and whether it is hard.
    """

    name: str
    pattern: re.Pattern[str]
    places: tuple[str, ...]
    hard: bool


class Preallocator(NamedTuple):
    """A framework that reserves most of the card when it starts."""

    name: str
    pattern: re.Pattern[str]


@lru_cache(1)
def marks() -> tuple[Mark, ...]:
    """Every mark of marks.json."""
    rows = table("marks")["marks"]
    return tuple(
        Mark(row["name"], lazy(row["pattern"]), tuple(row["in"]), row["hard"])
        for row in rows
    )


@lru_cache(1)
def preallocators() -> tuple[Preallocator, ...]:
    """Every framework of marks.json."""
    rows = table("marks")["frameworks"]
    return tuple(
        Preallocator(row["name"], lazy(row["form"], re.IGNORECASE)) for row in rows
    )


def mark_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What stands in the words themselves, and kinds of GPU."""
    for origin, source, text in evidence.words:
        for mark in marks():
            if origin not in mark.places and source not in mark.places:
                continue
            match = mark.pattern.search(text)
            if match:
                words = text if origin == "environment" else match.group().strip()
                yield make_observation(mark.name, words, source, origin, hard=mark.hard)
    kinds: set[str] = set()
    for _, _, text in evidence.texts:
        kinds.update(device.kind for device in device_list(text))
    if {APU, CARD} <= kinds:
        yield make_observation(
            "two-kinds-of-gpu", "an APU and a card", "device list", "tool"
        )


def framework_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Frameworks that reserve most of every card when they start."""
    for framework in preallocators():
        for origin, source, text in evidence.texts:
            if framework.pattern.search(f"{source} {text}"[:20_000]):
                says = f"{framework.name} is at work, which takes most of every card when it starts"
                yield make_observation(
                    "preallocator", framework.name, source, origin, says, hard=False
                )
                break
