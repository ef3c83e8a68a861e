"""A plan file: which notebooks run, with what, for how long at most. Everything in it is checked before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from helpers.look.boxes import recorded_names

from .kernel import CHECKOUT
from .notebook import NotebookError, check_parameters, open_notebook, parameters
from .shapes import Limits, Plan, PlannedRun, one_line

NOTEBOOKS = CHECKOUT / "notebooks"
ARCHIVES = (".tar.zst", ".tar.gz", ".tgz")
DEFAULT_LIMITS: Limits = Plan.model_fields["limits"].default


class PlanError(ValueError):
    """A plan that cannot run: one line with the file, the key, what was seen and what was expected."""


@dataclass(frozen=True)
class Step:
    """One concrete run of a plan. ``box`` is live, a recorded name or an absolute path; ``box_name`` is what records say,
    empty for a notebook that takes no box.

    ``parameters`` are those of the plan alone; ``takes`` names all that the notebook has.
    """

    run_id: str
    notebook: str
    source: Path
    parameters: dict[str, Any]
    takes: frozenset[str]
    box: str
    box_name: str
    preset: str
    cell_s: float
    run_s: float


@dataclass(frozen=True)
class CheckedPlan:
    """A plan with its runs in order. ``text`` is the file as read and ``sha256`` its digest."""

    plan: Plan
    text: str
    sha256: str
    steps: tuple[Step, ...]
    total_s: float


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which also refuses a key that stands twice instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} stands twice", problem_mark=key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_plan(path: Path, box: str = "") -> CheckedPlan:
    """Read a plan and check all of it: keys, notebooks, parameter names and types, boxes. Raises PlanError.

    ``box`` takes the place of ``live`` in every run. Notebook paths are relative to notebooks/ or to the plan's folder.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
        content = yaml.load(text, Loader=_Loader)  # a SafeLoader
        plan = Plan.model_validate(content)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}; expected a plan in YAML") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not UTF-8 text; expected a plan in YAML") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise PlanError(f"{path}:{where} {error.problem}; expected a plan in YAML") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PlanError(f"{path}: no YAML ({type(error).__name__}); expected a plan in YAML") from error
    except ValidationError as error:
        raise PlanError(one_line(error, str(path))) from error
    steps: list[Step] = []
    for number, planned in enumerate(plan.runs):
        try:
            steps += _steps(planned, plan, path, box, len(steps))
        except (PlanError, NotebookError) as error:
            raise PlanError(f"{path}: runs.{number}: {error}") from error
    total_s = plan.limits.total_s or DEFAULT_LIMITS.total_s or 0
    return CheckedPlan(plan, text, hashlib.sha256(raw).hexdigest(), tuple(steps), total_s)


def _steps(planned: PlannedRun, plan: Plan, path: Path, override: str, before: int) -> Iterator[Step]:
    source = _notebook(planned.notebook, path)
    known = parameters(open_notebook(source))
    levels = (planned.limits, plan.limits, DEFAULT_LIMITS)
    cell_s = next(level.cell_s for level in levels if level.cell_s)
    run_s = next(level.run_s for level in levels if level.run_s)
    number = before
    for given in _combinations(planned):
        own = {name: value for name, value in given.items() if name not in ("box", "preset")}
        box, preset = (_text(planned, given, name) for name in ("box", "preset"))
        check_parameters(known, own)
        for name, value in (("box", box), ("preset", preset)):
            if value and value != "live" and name not in known:
                raise PlanError(f"{planned.notebook} has no parameter {name!r}; seen {name}: {value}; leave it out")
        box, box_name = _box(override if override and box == "live" else box, path)
        box_name = box_name if "box" in known else ""
        digest = hashlib.sha256(json.dumps([planned.notebook, box, preset, own], sort_keys=True).encode()).hexdigest()[:8]
        for _ in range(planned.repeats):
            run_id = f"{number:03d}-{source.stem}-{digest}"
            number += 1
            yield Step(run_id, planned.notebook, source, own, frozenset(known), box, box_name, preset, cell_s, run_s)


def _combinations(planned: PlannedRun) -> Iterator[dict[str, Any]]:
    for name, listed in planned.grid.items():
        if name in planned.parameters:
            raise PlanError(f"{name!r} stands in parameters and in grid; expected one of them")
        if not listed:
            raise PlanError(f"grid.{name}: seen an empty list; expected values")
    for values in itertools.product(*planned.grid.values()):
        yield {**planned.parameters, **dict(zip(planned.grid, values, strict=True))}


def _text(planned: PlannedRun, given: dict[str, Any], name: str) -> str:
    """``box`` or ``preset``: a key of its own, or a parameter or part of the grid under that name."""
    if name not in given:
        return str(getattr(planned, name))
    if name in planned.model_fields_set:
        raise PlanError(f"{name!r} stands beside and among the parameters; expected one of them")
    if not isinstance(given[name], str):
        raise PlanError(f"parameter {name!r}: seen {given[name]!r}; expected str")
    return str(given[name])


def _notebook(name: str, path: Path) -> Path:
    for folder in (NOTEBOOKS, path.resolve().parent):
        if (folder / name).is_file():
            return (folder / name).resolve()
    raise PlanError(f"notebook: seen {name!r}; expected a file in {NOTEBOOKS.name}/ or beside the plan")


def _box(box: str, path: Path) -> tuple[str, str]:
    """(box as a notebook is given it, its name). A path counts from the plan's folder or from here."""
    if box == "live" or box in recorded_names():
        return box, box
    for place in (path.resolve().parent / box, Path.cwd() / box):
        if box and place.exists():
            name = place.name
            return str(place.resolve()), next((name[:-len(end)] for end in ARCHIVES if name.endswith(end)), name)
    known = ", ".join(["live", *recorded_names()])
    raise PlanError(f"box: seen {box!r}; expected a bundle's path or one of {known}")
