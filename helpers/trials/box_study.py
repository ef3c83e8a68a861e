"""Which remedies help on a box? Predicted for each, and tried where there is time and a GPU."""

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
from helpers.trials.catalogue import Remedy, chosen, elsewhere, pairs
from helpers.trials.fixes import FixRow, fix_table
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.prediction import predict
from helpers.trials.record import TrialRecord, read_trials
from helpers.trials.targets import CPU, Target, free_targets

OUT = OUTPUTS / "trials"
CPU_BYTES = 20 << 30
NEWEST_TORCH = "2.14.1"


@dataclass(frozen=True)
class FixStudy:
    """The fix table of a box with what it rests on: how many ``trials`` were made, how many of them
    ``before`` this run was interrupted, ``why`` none was made, and what went wrong (``troubles``).

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
    """Where remedies are to help: a card's size, the torch on it with its ROCm release, and what
    kinds of box it is.
    """

    capacity_bytes: int
    torch: str
    build: str
    recorded: bool
    kinds: tuple[str, ...]
    gfx: str = ""


def _place_of_card(card: GpuCard) -> _Place:
    """A card that is in no box."""
    vendor = {"rocm": "AMD", "cuda": "NVIDIA"}[card.vendor]
    return _Place(
        card.total_bytes,
        NEWEST_TORCH,
        card.vendor,
        recorded=True,
        kinds=("gpu", vendor),
    )


def _place_of_box(bundle: Bundle, capacity: str) -> _Place:
    """A box with its largest card; without a GPU it is a card of 20 GiB."""
    listed = gpus(bundle)
    facts = framework(bundle)
    torch = NEWEST_TORCH
    if facts.version.ok:
        torch = str(facts.version.value)
    build = "cuda"
    if any(gpu.driver == "amdgpu" for gpu in listed):
        build = "rocm"
    if build == "rocm" and "+rocm" not in torch and facts.hip.ok:
        release = ".".join(str(facts.hip.value).split(".")[:2])
        torch = f"{torch.partition('+')[0]}+rocm{release}"
    if "+rocm" not in torch:
        torch = torch.partition("+")[0]
    kinds = ["gpu" if listed else "cpu", *(gpu.vendor for gpu in listed)]
    if any(gpu.integrated for gpu in listed):
        kinds.append("APUs")
    capacity_bytes = largest_pool(bundle)[0] or CPU_BYTES
    if capacity:
        capacity_bytes = parse_capacity(capacity)
    return _Place(
        capacity_bytes=capacity_bytes,
        torch=torch,
        build=build,
        recorded=not is_this_box(bundle),
        kinds=tuple(kinds),
        gfx=next(filter(None, (gpu.indices.get("gfx") for gpu in listed)), ""),
    )


def fix_study(
    bundle: Bundle | GpuCard,
    names: Sequence[str] = (),
    *,
    of: Sequence[Remedy] = (),
    trace: str = "growing-loop",
    capacity: str = "",
    repeats: int = 3,
    budget_s: float = 0.0,
    seed: int = 0,
) -> FixStudy:
    """Predict each remedy for the box and, where it is this machine and ``budget_s`` is above
    0, try what fits that time.

    ``names`` are remedies of the table, also those for other boxes; ``of`` are remedies that are in
    no table. Without either, all remedies for this box are meant. A GpuCard is a card that is in
    no box. Raises ValueError (fixplan.BudgetError) in one line.
    """
    target = CPU
    if isinstance(bundle, GpuCard):
        place = _place_of_card(bundle)
    else:
        place = _place_of_box(bundle, capacity)
        if not place.recorded:
            free, _ = free_targets(bundle)
            target = next(iter(free), CPU)
    others: Counter[str] = Counter()
    wanted = list(of or chosen(names))
    if not names and not of:
        for remedy in list(wanted):
            other = elsewhere(remedy, place.build, place.kinds)
            if other:
                wanted.remove(remedy)
                others[other] += 1
    requests = open_study(trace, capacity=str(place.capacity_bytes)).trace
    predictions = {
        remedy.id: predict(
            remedy, place.capacity_bytes, requests, place.torch, place.build, place.gfx
        )
        for remedy in wanted
        if remedy.how != "argued"
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


def _carried_out(plan: fixplan.FixPlan, target: Target) -> fixplan.Ran:
    """Make the trials of a plan; a run of a batch keeps them beside its notebook, and goes on from
    those that it finished before.
    """
    out = OUT
    finished: list[TrialRecord] = []
    if os.environ.get(TRIALS_HERE):
        out = Path(os.environ[TRIALS_HERE])
        finished = read_trials(out)
    python = torch_interpreter()
    return fixplan.run(plan, python=python, out=out, target=target, finished=finished)
