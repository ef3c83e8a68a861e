"""How much speaks for each known failure, and how sure that is.

Every entry of the catalogue is weighed on its own by the observations at hand: no order of
entries, observations or texts decides anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.ground.shapes import Confidence
from helpers.judge.catalogue import Failure, failures
from helpers.judge.observation import Observation

MEASURED = 2.0
SAID = 1.0
HINT = 0.7
SUFFICIENT = 1.0
PROOF = 3.0
KIND = {"contrast": 0.5, "symptom": 0.0, "oddity": -0.75}
"""What an entry weighs by itself: a measured need 2, a said one 1, a hint 0.7."""
POINTS = {
    "strong": 1.0,
    "weak": 0.5,
    "refuted_by": -2.0,
    "strong_against": -1.5,
    "weak_against": -0.5,
}
"""What an observation weighs that an entry names under this key; half where it is only said."""


@dataclass(frozen=True)
class Weighed:
    """One known failure, how much speaks for it here, and how sure that is."""

    failure: Failure
    weight: float
    confidence: Confidence
    speaks_for: tuple[Observation, ...]
    against: tuple[Observation, ...]


def weigh_failures(observations: Iterable[Observation]) -> list[Weighed]:
    """Every failure whose needs are met, the heaviest first; equal weights in the order of
    their ids.
    """
    by_name: dict[str, list[Observation]] = {}
    for observation in observations:
        by_name.setdefault(observation.name, []).append(observation)
    rows = []
    for failure in failures():
        weighed = _weigh(failure, by_name)
        if weighed is not None:
            rows.append(weighed)
    return sorted(rows, key=lambda row: (-row.weight, row.failure.id))


def _weigh(failure: Failure, by_name: dict[str, list[Observation]]) -> Weighed | None:
    """The weight of one failure; None where a need is not met, or a measurement refutes it."""
    groups = [_seen(group, by_name) for group in failure.needs]
    if not all(groups) or _hard(_seen(failure.refuted_by, by_name)):
        return None
    measured = all(_hard(group) for group in groups)
    speaking = list(itertools.chain(*groups))
    for observation in _seen((*failure.strong, *failure.weak), by_name):
        if observation not in speaking:
            speaking.append(observation)
    against = _seen(
        (*failure.refuted_by, *failure.strong_against, *failure.weak_against), by_name
    )
    sufficient = _hard(_seen(failure.sufficient, by_name))
    proofs = [proof for proof in _hard(_seen(failure.proof, by_name)) if proof.proof]
    weight = _base_weight(failure, measured) + KIND[failure.kind]
    for key, points in POINTS.items():
        weight += _points(getattr(failure, key), points, by_name)
    if sufficient:
        weight += SUFFICIENT
    if proofs:
        weight += PROOF
    confidence: Confidence = "weak"
    if may_be_confirmed(proofs, against):
        confidence = "confirmed"
    elif measured and may_be_likely(failure, bool(sufficient), speaking, against):
        confidence = "likely"
    return Weighed(
        failure, round(weight, 4), confidence, tuple(speaking), tuple(against)
    )


def may_be_confirmed(proofs: list[Observation], against: list[Observation]) -> bool:
    """Whether there is a proof that was read on the box, and no measurement speaks against it
    .
    """
    if not proofs or _hard(against):
        return False
    return not any(proof.filled for proof in proofs)


def may_be_likely(
    failure: Failure,
    sufficient: bool,
    speaking: list[Observation],
    against: list[Observation],
) -> bool:
    """Whether two measured observations, or an exclusion by arithmetic, speak for it, and no
    strong measurement against it.
    """
    if any(
        observation.name in failure.strong_against for observation in _hard(against)
    ):
        return False
    if sufficient:
        return True
    measured = {observation.name for observation in _hard(speaking)}
    return len(measured) >= 2 and failure.base != "hint"


def _seen(
    names: Iterable[str], by_name: dict[str, list[Observation]]
) -> list[Observation]:
    """The observations of these names, in their order."""
    observations: list[Observation] = []
    for name in names:
        observations += by_name.get(name, ())
    return observations


def _hard(observations: Iterable[Observation]) -> list[Observation]:
    """Those that were measured."""
    return [observation for observation in observations if observation.hard]


def _base_weight(failure: Failure, measured: bool) -> float:
    """What its needs weigh."""
    if failure.base == "hint":
        return HINT if measured else HINT / 2
    return MEASURED if measured else SAID


def _points(
    names: Iterable[str], points: float, by_name: dict[str, list[Observation]]
) -> float:
    """What observations beside the needs weigh, each name once, half where it is only said."""
    total = 0.0
    for name in by_name.keys() & set(names):
        total += points if _hard(by_name[name]) else points / 2
    return total
