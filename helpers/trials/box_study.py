"""Which remedies help on a box: a prediction for each, and trials if the box is here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.allocator.study import open_study
from helpers.ground.child import OUTPUTS
from helpers.ground.units import parse_capacity
from helpers.ground.workbook_process import TRIALS_HERE
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle
from helpers.look.cards import GpuCard, largest_pool
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.trials import fixplan
from helpers.trials.catalogue import Remedy, chosen, elsewhere, pairs, remedies
from helpers.trials.effect import FEWEST_PAIRS
from helpers.trials.fixes import FixRow, fix_table
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.prediction import predict
from helpers.trials.record import TrialRecord, read_trials
from helpers.trials.targets import CPU, Target, free_targets

OUT = OUTPUTS / "trials"
CPU_BYTES = 20 << 30
"""The size of card for which remedies are predicted on a box without a GPU: 20 GiB, as of a common
large consumer card.
"""
NEWEST_TORCH = "2.14.1"
"""The release that is assumed where there is none: that of the recorded runs (prediction.py)."""


@dataclass(frozen=True)
class FixStudy:
    """The fix table of a box and how it was made.

    Its predictions are for a card of ``capacity_bytes`` under the release ``torch`` and the
    ``build`` (cuda or rocm). ``trials`` were made, ``before`` of them before this run was
    interrupted; ``why`` says why none was; ``troubles`` has a line for each thing that went wrong.
    ``elsewhere`` counts the remedies that are for other boxes, by the kind of box.
    """

    rows: tuple[FixRow, ...]
    capacity_bytes: int
    torch: str
    build: str
    why: str = ""
    trials: int = 0
    before: int = 0
    troubles: tuple[str, ...] = ()
    elsewhere: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """Where remedies should help: the size of the card, its ``gfx`` target (ROCm), the release and
    the build of torch. ``kinds`` are the words by which a remedy says which boxes it is for: gpu or
    cpu, AMD, NVIDIA, APUs. ``recorded``: nothing can be tried there.
    """

    capacity_bytes: int
    torch: str
    build: str
    recorded: bool
    kinds: tuple[str, ...]
    gfx: str = ""


def _place_of_card(card: GpuCard) -> _Place:
    """A card alone, which is in no box."""
    vendor = {"rocm": "AMD", "cuda": "NVIDIA"}[card.vendor]
    return _Place(
        card.total_bytes,
        NEWEST_TORCH,
        card.vendor,
        recorded=True,
        kinds=("gpu", vendor),
    )


def _place_of_box(bundle: Bundle, capacity: str) -> _Place:
    """A box with its largest card, or one of CPU_BYTES; ``capacity`` replaces its size."""
    listed = gpus(bundle)
    build = "cuda"  # also without a GPU, where a card is assumed (CPU_BYTES)
    if any(gpu.driver == "amdgpu" for gpu in listed):
        build = "rocm"
    kinds = ["cpu"]
    if listed:
        kinds = ["gpu", *(gpu.vendor for gpu in listed)]
    if any(gpu.integrated for gpu in listed):
        kinds.append("APUs")
    largest_bytes, _, _ = largest_pool(bundle)
    capacity_bytes = largest_bytes or CPU_BYTES
    if capacity:
        capacity_bytes = parse_capacity(capacity)
    targets = [gpu.indices["gfx"] for gpu in listed if gpu.indices.get("gfx")]
    return _Place(
        capacity_bytes=capacity_bytes,
        torch=_torch_of(bundle, build),
        build=build,
        recorded=not is_this_box(bundle),
        kinds=tuple(kinds),
        gfx="".join(targets[:1]),  # the first, or empty
    )


def _torch_of(bundle: Bundle, build: str) -> str:
    """The release of torch on a box: 2.14.1+rocm7.1 for a ROCm build, else a plain one such as
    2.14.1, without a local part such as +cu130. NEWEST_TORCH if the box tells none.
    """
    facts = framework(bundle)
    torch = NEWEST_TORCH
    if facts.version.ok:
        torch = str(facts.version.value)
    if "+rocm" in torch:
        return torch
    # A ROCm build from another source has no such part: it is made of the version of HIP.
    release, _, _ = torch.partition("+")
    if build == "rocm" and facts.hip.ok:
        rocm = ".".join(str(facts.hip.value).split(".")[:2])
        return f"{release}+rocm{rocm}"
    return release


def fix_study(
    bundle: Bundle | GpuCard,
    names: Sequence[str] = (),
    *,
    of: Sequence[Remedy] = (),
    trace: str = "growing-loop",
    capacity: str = "",
    repeats: int = FEWEST_PAIRS,
    budget_s: float = 0.0,
    seed: int = 0,
) -> FixStudy:
    """Predict what each remedy does on the box and, if the box is this machine and ``budget_s`` is
    above 0, try those that fit into this time.

    ``names`` are remedies of env/remedies.yaml, also those for other boxes; ``of`` are remedies
    that are not there. Without either, all remedies for this box are meant. Predictions replay
    ``trace``, the name of an example or a path. ``repeats`` and ``seed`` are as of
    ``fixplan.plan``. Raises ValueError (fixplan.BudgetError) with one line.
    """
    target = CPU
    if isinstance(bundle, GpuCard):
        place = _place_of_card(bundle)
    else:
        place = _place_of_box(bundle, capacity)
        if not place.recorded:
            free, _ = free_targets(bundle)
            target = next(iter(free), CPU)
    wanted, others = _wanted(names, of, place)
    requests = open_study(trace, capacity=str(place.capacity_bytes)).trace
    predictions = {
        remedy.id: predict(
            remedy, place.capacity_bytes, requests, place.torch, place.build, place.gfx
        )
        for remedy in wanted
        if remedy.how != "argued"  # env/remedies.yaml has the verdict on these
    }
    tried, not_tried = pairs(wanted, gpu=target.pci != "cpu", build=place.build)
    plan = fixplan.NOTHING
    ran = fixplan.NOT_RUN
    why = ""
    if place.recorded:
        why = "the box is recorded, so nothing can be tried on it"
    elif not tried:
        why = "no remedy chosen can be tried here"
    elif budget_s <= 0:
        why = "no time budget was given"
    else:
        plan = fixplan.plan(tried, repeats=repeats, budget_s=budget_s, seed=seed)
        ran = _carried_out(plan, target)
        not_tried |= plan.left_out
    rows = fix_table(
        wanted,
        recorded=place.recorded,
        predictions=predictions,
        tried=plan.pairs,
        ran=ran,
        not_tried=not_tried,
    )
    return FixStudy(
        rows=tuple(rows),
        capacity_bytes=place.capacity_bytes,
        torch=place.torch,
        build=place.build,
        why=why,
        trials=len(plan.trials),
        before=ran.before,
        troubles=ran.troubles,
        elsewhere=others,
    )


def _wanted(
    names: Sequence[str], of: Sequence[Remedy], place: _Place
) -> tuple[list[Remedy], Counter[str]]:
    """(the remedies that are meant, how many were left out for each kind of other boxes)."""
    left_out: Counter[str] = Counter()
    if of:
        return list(of), left_out
    if names:
        return list(chosen(names)), left_out
    wanted = []
    for remedy in remedies():
        other_boxes = elsewhere(remedy, place.build, place.kinds)
        if other_boxes:
            left_out[other_boxes] += 1
        else:
            wanted.append(remedy)
    return wanted, left_out


def _carried_out(plan: fixplan.FixPlan, target: Target) -> fixplan.Ran:
    """Make the trials of a plan. In a run of a batch (TRIALS_HERE) their records are in the run's
    folder, and trials that an earlier attempt finished are not made again.
    """
    out = OUT
    finished: list[TrialRecord] = []
    if os.environ.get(TRIALS_HERE):
        out = Path(os.environ[TRIALS_HERE])
        finished = read_trials(out)
    python = torch_interpreter()
    return fixplan.run(plan, python=python, out=out, target=target, finished=finished)
