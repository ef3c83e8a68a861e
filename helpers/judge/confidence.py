"""How much speaks for each known failure, and how sure that is.

Every entry of the catalogue is weighed on its own by what was observed: no order of entries,
observations or texts decides anything. The weights only order the causes, and no weight makes one
sure (may_be_confirmed, may_be_likely). Their sizes are a choice: one strong observation makes up
for a need that was only said, and three for a proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Dict, List

from helpers.ground.shapes import Confidence
from helpers.judge.catalogue import Failure, failures
from helpers.judge.observation import Observation

MEASURED = 2.0
SAID = 1.0
HINT = 0.7
"""What the needs of an entry weigh: measured, only said, or of an entry that is a hint (half of it
where that is only said).
"""
SUFFICIENT = 1.0
PROOF = 3.0
"""What an exclusion by arithmetic, and what a proof adds."""
KIND = {"contrast": 0.5, "symptom": 0.0, "oddity": -0.75}
"""What the kind of an entry adds: a contrast shows its cause by itself, an oddity stands beside
other failures.
"""
POINTS = {
    "strong": 1.0,
    "weak": 0.5,
    "refuted_by": -2.0,
    "strong_against": -1.5,
    "weak_against": -0.5,
}
"""What an observation weighs that an entry names under this key; half where it is only said."""
ByName = Dict[str, List[Observation]]  # evaluated at import, also on Python 3.8
"""The observations that were made, by their names."""


@dataclass(frozen=True)
class Weighed:
    """One known failure, its weight and confidence, and the observations that speak for it (the
    needs first) and against it.
    """

    failure: Failure
    weight: float
    confidence: Confidence
    speaks_for: tuple[Observation, ...]
    against: tuple[Observation, ...]


def weigh_failures(observations: Iterable[Observation]) -> list[Weighed]:
    """Every failure whose needs are met, the heaviest first; equal weights in the order of
    their ids.
    """
    by_name: ByName = {}
    for observation in observations:
        by_name.setdefault(observation.name, []).append(observation)
    rows = []
    for failure in failures():
        weighed = _weigh(failure, by_name)
        if weighed is not None:
            rows.append(weighed)
    return sorted(rows, key=lambda row: (-row.weight, row.failure.id))


def _weigh(failure: Failure, by_name: ByName) -> Weighed | None:
    """The weight of one failure; None where a need is not met, or a measurement refutes it."""
    groups = [_seen(group, by_name) for group in failure.needs]
    if not all(groups) or _hard(_seen(failure.refuted_by, by_name)):
        return None
    needs_are_measured = all(_hard(group) for group in groups)
    supporting = _seen((*failure.strong, *failure.weak), by_name)
    needed = list(itertools.chain(*groups))
    speaking = needed + [row for row in supporting if row not in needed]
    against = _seen(
        (*failure.refuted_by, *failure.strong_against, *failure.weak_against), by_name
    )
    sufficient = _hard(_seen(failure.sufficient, by_name))
    proofs = [proof for proof in _hard(_seen(failure.proof, by_name)) if proof.proof]
    weight = _base_weight(failure, needs_are_measured) + KIND[failure.kind]
    for key, points in POINTS.items():
        weight += _points(getattr(failure, key), points, by_name)
    if sufficient:
        weight += SUFFICIENT
    if proofs:
        weight += PROOF
    confidence: Confidence = "weak"
    if may_be_confirmed(proofs, against):
        confidence = "confirmed"
    elif needs_are_measured and may_be_likely(failure, sufficient, speaking, against):
        confidence = "likely"
    weight = round(weight, 4)  # sums of floats in another order stay equal
    return Weighed(failure, weight, confidence, tuple(speaking), tuple(against))


def may_be_confirmed(proofs: list[Observation], against: list[Observation]) -> bool:
    """Whether there is a proof, each was read on the box, and no measurement is against them."""
    if not proofs or _hard(against):
        return False
    return not any(proof.filled for proof in proofs)


def may_be_likely(
    failure: Failure,
    sufficient: list[Observation],
    speaking: list[Observation],
    against: list[Observation],
) -> bool:
    """Whether two measured observations, or a ``sufficient`` one, speak for a failure, and no
    strong measurement against it.
    """
    if any(row.name in failure.strong_against for row in _hard(against)):
        return False
    if sufficient:
        return True
    # Two of one name may be one fact that two texts repeat.
    measured = {observation.name for observation in _hard(speaking)}
    return len(measured) >= 2 and failure.base != "hint"


def _seen(names: Iterable[str], by_name: ByName) -> list[Observation]:
    """The observations with these names, in the order of the names."""
    observations: list[Observation] = []
    for name in names:
        observations += by_name.get(name, ())
    return observations


def _hard(observations: Iterable[Observation]) -> list[Observation]:
    """The observations that were measured."""
    return [observation for observation in observations if observation.hard]


def _base_weight(failure: Failure, needs_are_measured: bool) -> float:
    """What the needs of a failure weigh."""
    if failure.base == "hint":
        if needs_are_measured:
            return HINT
        return HINT / 2
    if needs_are_measured:
        return MEASURED
    return SAID


def _points(names: Iterable[str], points: float, by_name: ByName) -> float:
    """What observations beside the needs weigh: ``points`` for each name once, half where it is
    only said.
    """
    total = 0.0
    for name in by_name.keys() & set(names):
        total += points
        if not _hard(by_name[name]):
            total -= points / 2
    return total
