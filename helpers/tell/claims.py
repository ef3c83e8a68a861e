"""What the case studies claim, and what becomes of each claim when it is checked.

The one table is env/claims.yaml. Reading it needs PyYAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from helpers.ground.child import CHECKOUT
from helpers.tell.shown import Shown

PATH = CHECKOUT / "env" / "claims.yaml"
WORTH = {
    "harmful": "harmful",
    "false": "folk",
    "unsupported": "folk",
    "depends": "depends",
    "true": "right",
}
"""What a remedy is worth by the verdict on its claim, the harmful first."""


@dataclass(frozen=True)
class Claim:
    """One claim in this project's words.

    ``case`` is its case's number, ``file`` and ``place`` where it stands.

    ``verdict``: true, false, unsupported, depends or harmful, as the head of the file says.
    ``check`` is what decides it on a box; ``test`` the test that holds the verdict. Both may be
    empty. ``advises``: it recommends a remedy; ``in_vain``: the case itself tried that remedy,
    and it did nothing.
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
    advises: bool
    in_vain: bool

    @property
    def worth(self) -> str:
        """What following it is worth: harmful, folk, depends or right."""
        return "folk" if self.in_vain else WORTH[self.verdict]


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
    content = _content()
    listed = []
    for row in content["claims"]:
        number, _, place = row["id"].partition("-")
        case = content["cases"][number]
        listed.append(
            Claim(
                id=row["id"],
                case=number,
                claim=row["claim"],
                file=case["file"],
                place=row["place"],
                verdict=str(row["verdict"]).lower(),  # a plain true in YAML is not a word
                reason=row["reason"],
                check=row["check"],
                test=row["test"],
                advises=place in case["advice"].split(),
                in_vain=place in case.get("in_vain", "").split(),
            )
        )
    return tuple(listed)


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


def claims_table(box_name: str) -> Shown:
    """Each claim of the case study that a box comes from, with what became of it.

    A box of no case says so.
    """
    listed = claims_for(box_name)
    counts = Counter(claim.verdict for claim in listed).most_common()
    head = ", ".join(f"{count} {verdict}" for verdict, count in counts)
    columns = ["claim", "verdict", "what it says", "why"]
    rows = [[claim.id, claim.verdict, claim.claim, claim.reason] for claim in listed]
    none = f"{box_name} comes from no case study: there are no claims to check."
    result = f"{len(listed)} claims: {head}" if listed else none
    return Shown("Claims of the case study", columns, rows, none=none, widest=None, result=result)


def remedies_of(case: str) -> Shown:
    """Each remedy that a case study advises, with what it is worth; harmful ones first."""
    return worth_table([claim for claim in claims() if claim.case == case and claim.advises])


def worth_of(claim_ids: Sequence[str]) -> Shown:
    """The named claims as remedies, with what each is worth; harmful ones first."""
    return worth_table([claim for claim in claims() if claim.id in claim_ids])


def worth_table(advised: Sequence[Claim]) -> Shown:
    """Remedies and why each is harmful, folk (false, without a source, or tried in vain),
    depends or right.
    """
    order = list(WORTH.values())
    ranked = sorted(advised, key=lambda claim: order.index(claim.worth))
    return _table("remedies", "worth", [(claim.worth, claim) for claim in ranked])


def wrong_statements(case: str) -> Shown:
    """What else a case study says that is not so, or not shown, with the reason."""
    statements = [
        (claim.verdict, claim)
        for claim in claims()
        if claim.case == case and not claim.advises and claim.verdict != "true"
    ]
    return _table("statements", "verdict", statements)


def _table(subject: str, kind: str, rows: Sequence[tuple[str, Claim]]) -> Shown:
    """Claims with a word for each, counted by that word in the title."""
    counts = Counter(word for word, _ in rows)
    title = f"{len(rows)} {subject}: "
    title += ", ".join(f"{count} {word}" for word, count in counts.items())
    columns = ["claim", kind, "it says", "what is known"]
    cells = [[claim.id, word, claim.claim, claim.reason] for word, claim in rows]
    return Shown(title, columns, cells, widest=None)


@lru_cache(maxsize=1)
def _content() -> Mapping[str, Any]:
    import yaml

    content: Mapping[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return content
