"""The one decision about ceilings as an observation, with the layers that it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.judge.binding import decide
from helpers.judge.evidence import CaseEvidence
from helpers.judge.hardware import is_hip, total_of_message
from helpers.judge.numbers import Decision, numbers_of
from helpers.judge.observation import Observation, constructed_items, make_observation
from helpers.look.bundle import Bundle
from helpers.look.figures import Figure

if TYPE_CHECKING:
    from helpers.judge.ceilings import Stack

LAYER_OF_CAUSE = {
    "ttm-gtt-cap": "ttm",
    "carveout-only": "carveout",
    "hsa-pool-cap": "hsa",
    "metric-misreport": "metric",
}


def ceiling_observations(
    evidence: CaseEvidence, figures: list[Figure], kind: str
) -> Iterator[Observation]:
    """The decision about the ceilings of the box, or of the figures that were posted."""
    if evidence.bundle is not None:
        from helpers.judge.ceilings import ceiling_answer  # reads every layer of a box

        for stack in ceiling_answer(evidence.bundle, total_of_message(evidence)):
            observation = _of_decision(stack.decision, (), "bundle")
            if observation is not None:
                yield observation
                yield from _of_layers(evidence.bundle, stack, observation.name)
        return
    numbers = numbers_of(
        figures,
        kind=kind,
        kernel=evidence.fact("kernel"),
        hip=is_hip(evidence),
        failed=bool(evidence.messages),
    )
    observation = _of_decision(decide(numbers), numbers.hearsay, "tool")
    if observation is not None:
        yield observation


def _of_decision(
    decision: Decision, hearsay: tuple[str, ...], origin: str
) -> Observation | None:
    """A decision as an observation; None where its cause is no ceiling."""
    layer = LAYER_OF_CAUSE.get(decision.cause)
    if layer is None:
        return None
    name = f"ceiling-{layer}"
    if decision.pattern == "page_cache":
        name = "cache-counted-as-used"
    elif decision.confidence == "weak":
        name = f"ceiling-{layer}-hint"
    value: int | str = decision.pattern
    if decision.binding_bytes is not None:
        value = decision.binding_bytes
    observation = make_observation(
        name,
        value,
        "the layers' totals",
        origin,
        decision.says,
        hard=not set(decision.rests) & set(hearsay),
        proof=decision.confidence == "confirmed",
    )
    return replace(observation, filled=decision.filled)


def _of_layers(bundle: Bundle, stack: Stack, name: str) -> Iterator[Observation]:
    """The layers that a decision was made from, each with its reading, under the decision's
    name.
    """
    constructed = constructed_items(bundle)
    for row in stack.rows:
        if not row.layer_says or not row.value.ok:
            continue
        says = f"{row.name}, {row.layer_says}"
        if row.layer == stack.decision.binding:
            says += ": this one decides"
        elif row.layer == "gtt" and stack.decision.pattern == "gttsize_only":
            says += "; compute programs do not follow it"
        is_filled = row.value.item in constructed
        yield Observation(name, row.value, says, "bundle", filled=is_filled)
