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

LONGEST_SEARCHED = 20_000
"""Characters of a text in which frameworks are searched: they name themselves as they start."""


class Mark(NamedTuple):
    """A mark of marks.json: the name of its observation, its pattern, ``places``, the origins and
    sources of the texts it is searched in, and whether it is hard (as in an Observation).
    """

    name: str
    pattern: re.Pattern[str]
    places: tuple[str, ...]
    hard: bool


@lru_cache(1)
def marks() -> tuple[Mark, ...]:
    """Every mark of marks.json."""
    every = []
    for row in table("marks")["marks"]:
        is_hard = not row.get("hearsay", False)
        pattern = lazy(row["pattern"])
        every.append(Mark(row["name"], pattern, tuple(row["texts"]), is_hard))
    return tuple(every)


def mark_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Every mark in the texts, and whether they list an APU and a card."""
    for origin, source, text in evidence.words:
        for mark in marks():
            if origin not in mark.places and source not in mark.places:
                continue
            match = mark.pattern.search(text)
            if match is None:
                continue
            words = match[0].strip()
            if origin == "environment":
                words = text  # a short fact, whole
            yield make_observation(mark.name, words, source, origin, hard=mark.hard)
    kinds: set[str] = set()
    for _, _, text in evidence.texts:
        kinds.update(device.kind for device in device_list(text))
    if {APU, CARD} <= kinds:
        words = "an APU and a card"
        yield make_observation("two-kinds-of-gpu", words, "device list", "tool")


def framework_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Frameworks that reserve most of every card when they start."""
    for framework in table("marks")["frameworks"]:
        name = framework["name"]
        says = f"{name} is at work, which takes most of every card when it starts"
        for origin, source, text in evidence.texts:
            words = f"{source} {text}"[:LONGEST_SEARCHED]
            if re.search(framework["form"], words, re.IGNORECASE):
                yield make_observation(
                    "preallocator", name, source, origin, says, hard=False
                )
                break
