"""Which remedies help on a box: predictions by replay, trials where the box is this machine, one table of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from helpers.allocator.trace import Trace
from helpers.load import fixplan
from helpers.load.box import is_this_box, torch_interpreter
from helpers.load.fixplan import FixPlan, Planned, Ran
from helpers.load.remedies import FixRow, Prediction, Remedy, fix_table, pairs, predict, remedies
from helpers.load.study import study
from helpers.load.targets import Target, gpu_targets
from helpers.load.trial_record import TrialRecord
from helpers.look.bundle import Bundle
from helpers.look.framework import framework
from helpers.look.gpus import gpus
from helpers.look.kernel_log import events
from helpers.look.reading import parse_size

CPU_BYTES = 20 << 30
OUT = Path(__file__).resolve().parents[2] / "outputs" / "trials"


@dataclass(frozen=True)
class FixStudy:
    """The fix table of a box with what it rests on; ``plan`` and ``ran`` are None where nothing was tried, ``why`` says why."""

    rows: tuple[FixRow, ...]
    capacity_bytes: int
    torch: str
    build: str
    recorded: bool
    plan: FixPlan | None
    ran: Ran | None
    why: str


def chosen(names: str) -> tuple[Remedy, ...]:
    """The remedies named, with blanks between, or all. Raises ValueError for one that does not exist."""
    known = {one.id: one for one in remedies()}
    if unknown := [name for name in names.split() if name not in known and name != "all"]:
        raise ValueError(f"remedy {unknown[0]!r}: expected all, or some of {', '.join(known)}")
    return tuple(known.values()) if "all" in names.split() else tuple(known[name] for name in names.split())


def box_of(bundle: Bundle, capacity: str = "") -> tuple[int, str, str]:
    """(bytes of the card to predict for, torch, build) of a box; a box without a GPU is predicted for a card of 20 GiB."""
    facts = framework(bundle)
    torch = str(facts.version.value) if facts.version.ok else "2.14.1"
    build = "rocm" if any(gpu.driver == "amdgpu" for gpu in gpus(bundle)) else "cuda"
    totals = [int(pool.total.value or 0) for gpu in gpus(bundle) for pool in gpu.pools if pool.total.ok]
    size = parse_size(capacity) if capacity else max(totals, default=CPU_BYTES)
    return size, torch.split("+")[0], build


def fix_study(bundle: Bundle, names: str = "all", *, trace: str = "growing-loop", capacity: str = "", repeats: int = 3,
              budget_s: float = 0.0, seed: int = 0, out: Path = OUT,
              on_trial: Callable[[Planned, TrialRecord | None], None] = lambda planned, record: None) -> FixStudy:
    """Predict each remedy for the box and, where it is this machine and ``budget_s`` is above 0, try what fits that time.

    Raises ValueError (fixplan.PlanError) in one line.
    """
    wanted = chosen(names)
    size, torch, build = box_of(bundle, capacity)
    requests: Trace = study(trace, capacity=str(size)).trace
    guesses: Mapping[str, Prediction] = {one.id: predict(one, size, requests, torch, build)
                                         for one in wanted if one.how != "argued"}
    recorded = not is_this_box(bundle)
    plan, ran, why = None, None, "recorded: nothing can be tried on it here" if recorded else ""
    target = Target()
    if not recorded:
        free = [one for one in gpu_targets(gpus(bundle), [event for event in events(bundle) if event.boot == 0])
                if one.visible_variable and not one.refused]
        target = free[0] if free else target
    tried, not_tried = pairs(wanted, gpu=target.pci != "cpu", build=build)
    if not recorded and budget_s > 0 and tried:
        plan, ran = fixplan.within(tried, repeats=repeats, budget_s=budget_s, seed=seed, run=partial(
            fixplan.run, python=torch_interpreter(), out=out, target=target, on_trial=on_trial))
    elif not recorded:
        why = "no time budget was given" if tried else "no remedy chosen can be tried here"
    told = {**not_tried, **(plan.left_out if plan else {})}
    rows = fix_table(wanted, recorded=recorded, predictions=guesses, tried=plan.pairs if plan else (), ran=ran, not_tried=told)
    return FixStudy(tuple(rows), size, torch, build, recorded, plan, ran, why)
