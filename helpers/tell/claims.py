"""The claims of the case study that a box comes from, and what became of each."""

from __future__ import annotations

from collections import Counter

from helpers.load.claims import claims_for

from .tables import table


def claims_table(box: str) -> str:
    """Each claim of the box's case with its verdict and reason; a box of no case says so."""
    found = claims_for(box)
    if not found:
        return f"{box} comes from no case study: there are no claims to check."
    counts = Counter(claim.verdict for claim in found)
    head = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{len(found)} claims: {head}\n" + table(
        [[c.id, c.verdict, c.claim, c.reason] for c in found],
        ["claim", "verdict", "what it says", "why"],
        widest=None,
    )
