"""A plan and the runs that it means: all of it is checked before anything runs, and ordered by
danger.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from helpers.ground.contract import one_line
from helpers.look.boxes import recorded_names

from .notebook_file import NotebookError
from .plan_steps import StepReader
from .plan_yaml import PlanError, read_yaml
from .shapes import DANGERS, Plan
from .step import DEFAULT_LIMITS, Step, digest

__all__ = ["CheckedPlan", "PlanError", "Step", "load_plan"]
MOST_RUNS = 5_000
_LIVE = re.compile(r"(\bbox: *(?:\[[^\]\n]*)?)\blive\b")


@dataclass(frozen=True)
class CheckedPlan:
    """A plan with its runs in the order they start.

    ``text`` is the file as read, ``sha256`` its digest.
    """

    plan: Plan
    text: str
    sha256: str
    steps: tuple[Step, ...]
    total_s: float


def load_plan(
    path: Path, box: str = "", measured: Mapping[str, float] | None = None
) -> CheckedPlan:
    """Read a plan and check all of it: keys, notebooks, parameters, boxes, presets, counts.

    Raises PlanError.

    ``box`` takes the place of ``live`` in every run; the name of a recorded box is also written
    into the plan's text. ``measured``: seconds that notebooks took here, by name.
    Paths of notebooks are relative to notebooks/ or to the plan's folder.
    """
    text, content = read_yaml(path)
    if box in recorded_names():  # what a batch keeps names the box that was used
        text = _LIVE.sub(rf"\g<1>{box}", text)
    try:
        plan = Plan.model_validate(content)
        refuse_many(plan)
    except ValidationError as error:
        raise PlanError(one_line(error, str(path))) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    steps = list(_steps(plan, path, box, measured or {}))
    if plan.order == "danger":
        steps = in_order(steps)
    width = max(3, len(str(len(steps) - 1)))  # ids sort as the runs do
    numbered = tuple(
        replace(step, run_id=f"{number:0{width}d}-{step.run_id}")
        for number, step in enumerate(steps)
    )
    total_s = plan.limits.total_s or DEFAULT_LIMITS.total_s or 0
    return CheckedPlan(plan, text, digest(text), numbered, total_s)


def _steps(
    plan: Plan, path: Path, box: str, measured: Mapping[str, float]
) -> Iterator[Step]:
    reader = StepReader(plan, path.resolve().parent, box, measured)
    for number, planned in enumerate(plan.runs):
        where = f"{path}: runs.{number}"
        try:
            yield from reader.steps(planned)
        except (PlanError, NotebookError) as error:
            raise PlanError(f"{where}: {error}") from error
        except (OSError, RuntimeError) as error:  # too long a name, a circle of links
            raise PlanError(
                f"{where}: a path cannot be followed: {str(error)[:200]}; correct it"
            ) from error


def in_order(steps: list[Step]) -> list[Step]:
    """Looks before loads before provokes, else as in the file; a step that waits stays behind
    all that stood before it.
    """
    ranks: list[int] = []
    for step in steps:
        rank = DANGERS.index(step.danger)
        if step.waits:
            rank = max([rank, *ranks])
        ranks.append(rank)
    return [steps[at] for at in sorted(range(len(steps)), key=ranks.__getitem__)]


def refuse_many(plan: Plan) -> None:
    """Count the runs that a plan asks for, by multiplication alone.

    Raises PlanError above 5,000, with the count.
    """
    count = sum(
        planned.repeats * math.prod(len(values) for values in planned.grid.values())
        for planned in plan.runs
    )
    if count > MOST_RUNS:
        # str() refuses 4,300 digits
        seen = f"{count:,}" if count < 10**15 else f"about 10^{math.log10(count):.0f}"
        raise PlanError(
            f"runs: seen {seen} runs with grids and repeats; expected at most "
            f"{MOST_RUNS:,}; make it several plans"
        )
