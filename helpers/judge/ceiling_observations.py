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
from helpers.look.parts import APU, UNIFIED

if TYPE_CHECKING:
    from helpers.judge.ceilings import Stack

# What names of observations (``ceiling-...``) call the layer that a cause is about.
LAYER_OF_CAUSE = {
    "ttm-gtt-cap": "ttm",
    "carveout-only": "carveout",
    "hsa-pool-cap": "hsa",
    "metric-misreport": "metric",
}

LEAST_OF_A_CARD = 0.9
MOST_OF_A_CARD = 1.001
"""What a message calls the total of a card, as a share of what a layer has: a runtime keeps up to a
tenth of it (firmware, ECC), and sizes are printed rounded.
"""


def ceiling_observations(
    evidence: CaseEvidence, figures: list[Figure], kind: str
) -> Iterator[Observation]:
    """The decision about the ceilings of the box, or of the figures that were posted."""
    if evidence.bundle is not None:
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


def ceiling_answer(bundle: Bundle, message_total: int | None = None) -> list[Stack]:
    """Each GPU's ceilings with the decision about them, those with a cause first.

    ``message_total`` is the total in the failing program's message. It counts as torch's total
    where nobody asked torch, and no card of the box has this total.
    """
    from helpers.judge.ceilings import ceilings  # reads every layer of a box

    stacks = ceilings(bundle)
    is_of_a_card = any(_has_card_of(message_total, stack) for stack in stacks)
    answers = []
    for stack in stacks:
        numbers = stack.numbers
        shares_the_ram = numbers.kind in (APU, UNIFIED)
        lacks_total = numbers.torch is None and message_total is not None
        if shares_the_ram and lacks_total and not is_of_a_card:
            decision = decide(replace(numbers, torch=message_total))
            answers.append(replace(stack, decision=decision))
        else:
            answers.append(stack)
    return sorted(
        answers, key=lambda stack: stack.decision.cause in ("other", "cannot-tell")
    )


def _has_card_of(total: int | None, stack: Stack) -> bool:
    """Whether a stack is over a card with this total, so that a message is about the card and not
    about an APU beside it.
    """
    if total is None or stack.numbers.kind in (APU, UNIFIED):
        return False
    for row in stack.rows:
        # Rows about the RAM have other layers; those of a card's own VRAM have none.
        if row.layer not in (None, "carveout", "kfd_bank", "hip_total"):
            continue
        size = row.value
        if not size.ok or size.unit != "bytes":
            continue
        if LEAST_OF_A_CARD * size.bytes <= total <= MOST_OF_A_CARD * size.bytes:
            return True
    return False


def _of_decision(
    decision: Decision, hearsay: tuple[str, ...], origin: str
) -> Observation | None:
    """A decision as an observation; None where its cause is no ceiling.

    The catalogue knows three names: ``ceiling-LAYER``, ``ceiling-LAYER-hint`` for a weak
    decision, and one of its own for a total that counts page cache as used.
    """
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
    """The readings of the layers that a decision was made from, each as an observation with the
    decision's name.
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
