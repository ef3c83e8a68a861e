"""What the case studies claim, and what became of each claim when it was checked.

All claims are in env/claims.yaml. Reading it needs PyYAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
"""What a remedy is worth by the verdict on its claim, in the order of a table: a reader has to see
the harmful first. Folk remedies are passed on, but nothing shows that they help.
"""


@dataclass(frozen=True)
class Claim:
    """One claim in this project's words; ``case`` is its case's number.

    ``verdict``: true, false, unsupported, depends or harmful; the head of claims.yaml explains
    each. ``advises``: whether it recommends a remedy; ``in_vain``: whether the case itself tried
    that remedy, and it did nothing.
    """

    id: str
    case: str
    claim: str
    verdict: str
    reason: str
    advises: bool
    in_vain: bool

    @property
    def worth(self) -> str:
        """What following it is worth: harmful, folk, depends or right. A remedy that did nothing in
        its own case is folk, whatever is known of it elsewhere.
        """
        if self.in_vain:
            return "folk"
        return WORTH[self.verdict]


@lru_cache(maxsize=1)
def content() -> Mapping[str, Any]:
    """The table as it is written: ``cases`` by number, and the rows ``claims``."""
    import yaml

    table: Mapping[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return table


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """Every claim of every case, in the order of the file."""
    listed = []
    for row in content()["claims"]:
        # An id is the case's number and the claim's place in it: 003-12.
        number, _, place = row["id"].partition("-")
        case = content()["cases"][number]
        # YAML reads true and false as truth values.
        verdict = str(row["verdict"]).lower()
        listed.append(
            Claim(
                id=row["id"],
                case=number,
                claim=row["claim"],
                verdict=verdict,
                reason=row["reason"],
                advises=place in case["advice"].split(),
                in_vain=place in case.get("in_vain", "").split(),
            )
        )
    return tuple(listed)


def claims_table(box_name: str) -> Shown:
    """Each claim of the case study that a box comes from, with the verdict on it.

    For a box of no case study the table is empty and says so.
    """
    cases = content()["cases"]
    numbers = [number for number, row in cases.items() if box_name in row["boxes"]]
    listed = [claim for claim in claims() if claim.case in numbers]
    columns = ["claim", "verdict", "what it says", "why"]
    rows = [[claim.id, claim.verdict, claim.claim, claim.reason] for claim in listed]
    none = f"{box_name} comes from no case study: there are no claims to check."
    result = none
    if listed:
        ranked = Counter(claim.verdict for claim in listed).most_common()
        result = f"{len(listed)} claims: {_counted(ranked)}"
    return Shown(
        "Claims of the case study",
        columns,
        rows,
        none=none,
        widest=None,
        result=result,
        label="Claims",
    )


def remedies_of(case: str) -> Shown:
    """Each remedy that a case study advises, with what it is worth; harmful ones first."""
    return _remedies(row for row in claims() if row.case == case and row.advises)


def worth_of(claim_ids: Sequence[str]) -> Shown:
    """The named claims as remedies, with what each is worth; harmful ones first."""
    return _remedies(claim for claim in claims() if claim.id in claim_ids)


def wrong_statements(case: str) -> Shown:
    """Each claim of a case study that advises nothing and is not right, with the reason."""
    listed = [row for row in claims() if row.case == case and not row.advises]
    wrong = [(row.verdict, row) for row in listed if row.verdict != "true"]
    return _judged_claims("statements", "verdict", wrong)


def _remedies(advised: Iterable[Claim]) -> Shown:
    """A table of claims as remedies, in the order of WORTH: the harmful ones first."""
    order = list(WORTH.values())
    ranked = sorted(advised, key=lambda claim: order.index(claim.worth))
    return _judged_claims(
        "remedies", "worth", [(claim.worth, claim) for claim in ranked]
    )


def _judged_claims(
    subject: str, heading: str, rows: Sequence[tuple[str, Claim]]
) -> Shown:
    """A table of pairs of a judgement and its claim; the title counts the claims by judgement.

    ``subject`` names the claims in the title, ``heading`` is that of the judgements.
    """
    counts = Counter(judgement for judgement, _ in rows)
    columns = ["claim", heading, "it says", "what is known"]
    cells = [[row.id, judgement, row.claim, row.reason] for judgement, row in rows]
    title = f"{len(rows)} {subject}: {_counted(counts.items())}"
    return Shown(title, columns, cells, widest=None)


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    """Pairs of a word and its count as ``3 folk, 2 right``."""
    return ", ".join(f"{count} {word}" for word, count in counts)
