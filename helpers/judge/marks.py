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


@lru_cache(1)
def marks() -> tuple[Mark, ...]:
    """Every mark of marks.json."""
    rows = table("marks")["marks"]
    return tuple(
        Mark(
            row["name"],
            lazy(row["pattern"]),
            tuple(row["texts"]),
            not row.get("hearsay", False),
        )
        for row in rows
    )


def mark_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What stands in the words themselves, and kinds of GPU."""
    for origin, source, text in evidence.words:
        for mark in marks():
            if origin not in mark.places and source not in mark.places:
                continue
            match = mark.pattern.search(text)
            if match:
                words = match.group().strip()
                if origin == "environment":
                    words = text
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
    for framework in table("marks")["frameworks"]:
        name = framework["name"]
        says = f"{name} is at work, which takes most of every card when it starts"
        for origin, source, text in evidence.texts:
            words = f"{source} {text}"[:20_000]
            if re.search(framework["form"], words, re.IGNORECASE):
                yield make_observation(
                    "preallocator", name, source, origin, says, hard=False
                )
                break
