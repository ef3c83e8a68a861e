"""Reads a plan and makes its steps: all of it is checked before anything runs, and ordered by
danger.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from pydantic import ValidationError

from helpers.ground.contract import one_line
from helpers.look.boxes import recorded_names

from .notebook_file import NotebookError
from .plan_steps import StepReader
from .plan_yaml import PlanError, read_yaml
from .shapes import DANGERS, DEFAULT_TOTAL_S, Plan
from .step import Step, digest

__all__ = ["CheckedPlan", "PlanError", "Step", "load_plan"]
MOST_RUNS = 5_000
"""About a week of runs of two minutes, and few enough for one page and one folder."""
LONGEST_COUNT = 10**15
"""A larger count is written as a power of ten: Python refuses to print more than 4,300 digits."""
MOST_ERROR = 200
"""Letters of an error, which may quote a path of any length, in a message."""
LEAST_DIGITS = 3
"""Digits of a run's number, so that folders of up to 1,000 runs sort in the order of the plan."""
_LIVE = re.compile(r"(\bbox: *(?:\[[^\]\n]*)?)\blive\b")
"""A box ``live`` in the text of a plan: ``box: live``, or in a list, ``box: [strix-halo-1,
live]``.
"""


@dataclass(frozen=True)
class CheckedPlan:
    """A plan with its runs in the order they start.

    ``text`` is the file as read, ``sha256`` its digest, ``total_s`` the limit for all runs
    together, in seconds.
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

    ``box`` replaces ``live`` in every run; if it is the name of a recorded box, it is also written
    into the plan's text. ``measured`` has the seconds that notebooks took here, by name. Paths of
    notebooks are relative to notebooks/ or to the plan's folder. Raises PlanError.
    """
    text, content = read_yaml(path)
    if box in recorded_names():
        # The text that a batch keeps must name the box that was used.
        text = _LIVE.sub(rf"\g<1>{box}", text)
    try:
        plan = Plan.model_validate(content)
        refuse_many(plan)
    except ValidationError as error:
        raise PlanError(one_line(error, str(path))) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    if measured is None:
        measured = {}
    steps = list(_steps(plan, path, box, measured))
    if plan.order == "danger":
        steps = in_order(steps)
    last_number = len(steps) - 1
    width = max(LEAST_DIGITS, len(str(last_number)))
    numbered = tuple(
        replace(step, run_id=f"{number:0{width}d}-{step.run_id}")
        for number, step in enumerate(steps)
    )
    total_s = plan.limits.total_s
    if total_s is None:
        total_s = DEFAULT_TOTAL_S
    return CheckedPlan(plan, text, digest(text), numbered, total_s)


def _steps(
    plan: Plan, path: Path, box: str, measured: Mapping[str, float]
) -> Iterator[Step]:
    """The steps of all lines of a plan, as in the file. Raises PlanError with the line's place."""
    reader = StepReader(plan, path.resolve().parent, box, measured)
    for number, planned in enumerate(plan.runs):
        where = f"{path}: runs.{number}"
        try:
            yield from reader.steps(planned)
        except (PlanError, NotebookError) as error:
            raise PlanError(f"{where}: {error}") from error
        except (OSError, RuntimeError) as error:  # too long a name, a loop of links
            why = str(error)[:MOST_ERROR]
            raise PlanError(
                f"{where}: a path cannot be followed: {why}; correct it"
            ) from error


def in_order(steps: list[Step]) -> list[Step]:
    """Steps that look first, then those that load, then those that provoke, each as in the file.

    A step that waits reads what the steps before it in the file left, and so stays behind them.
    """
    ranked: list[tuple[int, Step]] = []
    highest = 0
    for step in steps:
        rank = DANGERS.index(step.danger)
        if step.waits:
            rank = max(rank, highest)
        highest = max(rank, highest)
        ranked.append((rank, step))
    ranked.sort(key=itemgetter(0))  # stable: equal ranks stay as in the file
    return [step for _, step in ranked]


def refuse_many(plan: Plan) -> None:
    """Raise PlanError if a plan asks for more than MOST_RUNS runs; they are counted, not made."""
    count = 0
    for planned in plan.runs:
        points = math.prod(map(len, planned.grid.values()))
        count += planned.repeats * points
    if count > MOST_RUNS:
        seen = f"{count:,}"
        if count >= LONGEST_COUNT:
            seen = f"about 10^{math.log10(count):.0f}"
        raise PlanError(
            f"runs: seen {seen} runs with grids and repeats; expected at most "
            f"{MOST_RUNS:,}; make it several plans"
        )
