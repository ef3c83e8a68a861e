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


class Framework(NamedTuple):
    """A framework by its name; ``takes_card``: it reserves most of the card when it starts."""

    name: str
    pattern: re.Pattern[str]
    takes_card: bool


@lru_cache(1)
def marks() -> tuple[Mark, ...]:
    """Every mark of marks.json."""
    rows = table("marks")["marks"]
    return tuple(
        Mark(row["name"], lazy(row["pattern"]), tuple(row["in"]), row["hard"]) for row in rows
    )


@lru_cache(1)
def frameworks() -> tuple[Framework, ...]:
    """Every framework of marks.json."""
    rows = table("marks")["frameworks"]
    return tuple(
        Framework(row["name"], lazy(row["form"], re.IGNORECASE), "takes_card" in row)
        for row in rows
    )


def mark_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What stands in the words themselves, and kinds of GPU."""
    for origin, source, text in evidence.texts:
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
        yield make_observation("two-kinds-of-gpu", "an APU and a card", "device list", "tool")


def framework_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Frameworks that reserve the card, and two that need device memory in one report."""
    names: list[str] = []
    for origin, source, text in evidence.texts:
        for framework in frameworks():
            if framework.name in names:
                continue
            if not framework.pattern.search(f"{source} {text}"[:20_000]):
                continue
            names.append(framework.name)
            if framework.takes_card:
                says = f"{framework.name} is at work, which takes most of every card when it starts"
                yield make_observation(
                    "preallocator", framework.name, source, origin, says, hard=False
                )
    if len(names) > 1:
        yield make_observation("other-library", ", ".join(names), "all texts", "tool", hard=False)
