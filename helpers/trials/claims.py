"""What the case studies claim, and what becomes of each claim when it is checked:
env/claims.yaml, read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from helpers.ground.child import CHECKOUT

PATH = CHECKOUT / "env" / "claims.yaml"


@dataclass(frozen=True)
class Claim:
    """One claim in this project's words.

    ``case`` is its case's number, ``file`` and ``place`` where it stands.

    ``verdict``: true, false, unsupported, depends or harmful, as the head of the file says.
    ``check`` is what decides it on a box; ``test`` the test that holds the verdict. Both may be
    empty.
    """

    id: str
    case: str
    claim: str
    file: str
    place: str
    verdict: str
    reason: str
    check: str
    test: str


@dataclass(frozen=True)
class Case:
    """One case study: what it is about, and the recorded boxes made from it."""

    number: str
    file: str
    about: str
    boxes: tuple[str, ...]


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """Every claim of every case, in the order of the file."""
    files = {case.number: case.file for case in cases()}
    found = []
    for row in _content()["claims"]:
        # A plain true or false in YAML is not a word.
        row = {**row, "verdict": str(row["verdict"]).lower()}
        found.append(Claim(case=row["id"][:3], file=files[row["id"][:3]], **row))
    return tuple(found)


def cases() -> tuple[Case, ...]:
    """The case studies, by number."""
    return tuple(
        Case(number, row["file"], row["about"], tuple(row["boxes"]))
        for number, row in _content()["cases"].items()
    )


def claims_for(box_name: str) -> tuple[Claim, ...]:
    """The claims of the case that a recorded box was made from; none for any other box."""
    numbers = {case.number for case in cases() if box_name in case.boxes}
    return tuple(claim for claim in claims() if claim.case in numbers)


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return content
