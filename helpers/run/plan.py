"""A plan file: which notebooks run, with what, for how long at most. Everything in it is checked before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from helpers.look.boxes import recorded_names
from helpers.units import pci_address

from .estimate import Estimates
from .kernel import CHECKOUT
from .notebook import NotebookError, check_parameters, open_notebook, parameters
from .plan_checks import Facts, Places, PlanError, count_runs, facts_of, read_yaml
from .shapes import DANGERS, Limits, Plan, PlannedRun, one_line

NOTEBOOKS = CHECKOUT / "notebooks"
ARCHIVES = (".tar.gz", ".tgz")
DEFAULT_LIMITS: Limits = Plan.model_fields["limits"].default


@dataclass(frozen=True)
class Step:
    """One concrete run of a plan. ``box`` is live, a recorded name or an absolute path; ``box_name`` is what records say,
    empty for a notebook that takes no box.
    ``parameters`` are those of the plan alone; ``takes`` names all that the notebook has. ``gpu`` is a PCI address, or empty.
    A step that ``waits`` reads the batch's own records: it starts when all before it have ended. ``estimate_s`` are seconds.
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
    danger: str = "looks"
    gpu: str = ""
    waits: bool = False
    estimate_s: float = 0.0
    estimate_from: str = "its limit"


@dataclass(frozen=True)
class CheckedPlan:
    """A plan with its runs in the order they start. ``text`` is the file as read, ``sha256`` its digest."""

    plan: Plan
    text: str
    sha256: str
    steps: tuple[Step, ...]
    total_s: float


def load_plan(path: Path, box: str = "", outside: Iterable[str | Path] = ()) -> CheckedPlan:
    """Read a plan and check all of it: keys, notebooks, parameters, boxes, presets, paths, counts. Raises PlanError.

    ``box`` takes the place of ``live`` in every run, ``outside`` adds to the plan's own. Notebook paths are relative to
    notebooks/ or to the plan's folder.
    """
    text, content = read_yaml(path)
    where, steps = str(path), list[Step]()
    try:
        plan = Plan.model_validate(content)
        count_runs(plan)
        reader = _Reader(plan, Places(path, [*plan.outside, *outside]), box)
        for number, planned in enumerate(plan.runs):
            where = f"{path}: runs.{number}"
            steps += reader.steps(planned)
    except ValidationError as error:
        raise PlanError(one_line(error, where)) from error
    except (PlanError, NotebookError) as error:
        raise PlanError(f"{where}: {error}") from error
    except (
        OSError,
        RuntimeError,
    ) as error:  # a name that is too long, links in a circle, an unknown ~user
        raise PlanError(
            f"{where}: a path cannot be followed: {str(error)[:200]}; correct it"
        ) from error
    steps = _in_order(steps) if plan.order == "danger" else steps
    width = max(3, len(str(len(steps) - 1)))  # ids sort as the runs do
    named = tuple(
        replace(step, run_id=f"{number:0{width}d}-{step.run_id}")
        for number, step in enumerate(steps)
    )
    digest, total_s = (
        hashlib.sha256(text.encode()).hexdigest(),
        plan.limits.total_s or DEFAULT_LIMITS.total_s or 0,
    )
    return CheckedPlan(plan, text, digest, named, total_s)


def _in_order(steps: list[Step]) -> list[Step]:
    """Looks before loads before provokes, else as in the file; a step that waits stays behind all that stood before it."""
    ranks: list[int] = []
    for step in steps:
        rank = DANGERS.index(step.danger)
        ranks.append(max([rank, *ranks]) if step.waits else rank)
    return [step for _, step in sorted(zip(ranks, steps, strict=True), key=lambda pair: pair[0])]


class _Reader:
    """Makes the steps of a plan, each notebook read once."""

    def __init__(self, plan: Plan, places: Places, override: str):
        self.plan, self.places, self.override = plan, places, override
        self.notebooks: dict[str, tuple[Path, Facts, dict[str, Any]]] = {}
        self.recorded = ["live", *recorded_names()]
        self.estimates = Estimates()

    def steps(self, planned: PlannedRun) -> Iterator[Step]:
        """The steps of one line of the plan. ``run_id`` has no number yet: the order gives it."""
        for name, listed in planned.grid.items():
            if name in planned.parameters:
                raise PlanError(f"{name!r} stands in parameters and in grid; expected one of them")
            if not listed:
                raise PlanError(f"grid.{name}: seen an empty list; expected values")
        source, facts, known = self._notebook(planned.notebook)
        levels = (planned.limits, self.plan.limits, DEFAULT_LIMITS)
        cell_s = next(level.cell_s for level in levels if level.cell_s)
        run_s = next(level.run_s for level in levels if level.run_s)
        danger = _danger(facts.safety or "", planned)
        for values in itertools.product(*planned.grid.values()):
            given = {**planned.parameters, **dict(zip(planned.grid, values, strict=True))}
            box, preset, gpu = (_text(planned, given, name) for name in ("box", "preset", "gpu"))
            if gpu and not pci_address(gpu):
                raise PlanError(
                    f"gpu: seen {gpu!r}; expected a PCI address such as 0000:03:00.0; see: lspci -D"
                )
            gpu = pci_address(gpu)
            own = {
                name: value for name, value in given.items() if name not in ("box", "preset", "gpu")
            }
            own.update({"gpu": gpu} if gpu and "gpu" in known else {})
            check_parameters(known, own)
            for name, value in own.items():
                self.places.check(value, f"parameter {name!r}")
                facts.check(name, value)
            for name, text in (("box", box), ("preset", preset)):
                if text and text != "live" and name not in known:
                    raise PlanError(
                        f"{planned.notebook} has no parameter {name!r}; seen {name}: {text}; leave it out"
                    )
            place, box_name = self._box(box)
            key = json.dumps(
                [planned.notebook, box, preset, own, *([gpu] if gpu else [])], sort_keys=True
            )
            name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
            estimate_s, estimate_from = self.estimates.of(
                planned.notebook, name, facts.seconds, run_s
            )
            step = Step(
                name,
                planned.notebook,
                source,
                own,
                frozenset(known),
                place,
                box_name if "box" in known else "",
                self._preset(preset),
                cell_s,
                run_s,
                danger,
                gpu,
                "{batch}" in key,
                estimate_s,
                estimate_from,
            )
            yield from itertools.repeat(step, planned.repeats)

    def _notebook(self, name: str) -> tuple[Path, Facts, dict[str, Any]]:
        """(the file, what its metadata says to this workbook, its parameters with their annotations)."""
        if name not in self.notebooks:
            found = next(
                (
                    folder / name
                    for folder in (NOTEBOOKS, self.places.base)
                    if (folder / name).is_file()
                ),
                None,
            )
            if found is None:
                raise PlanError(
                    f"notebook: seen {name!r}; expected a file in {NOTEBOOKS.name}/ or beside the plan"
                )
            source = self.places.inner(found, "notebook")
            book = open_notebook(source)
            self.notebooks[name] = source, facts_of(book, name), parameters(book)
        return self.notebooks[name]

    def _box(self, box: str) -> tuple[str, str]:
        """(box as a notebook is given it, its name). A path counts from the plan's folder or from here."""
        named = bool(self.override) and box == "live"  # by the caller: it may lie anywhere
        box = self.override if named else box
        if box in self.recorded:
            return box, box
        place = next(
            (
                place
                for place in (self.places.base / box, Path.cwd() / box)
                if box and place.exists()
            ),
            None,
        )
        if place is None:
            raise PlanError(
                f"box: seen {box!r}; expected a bundle's path or one of {', '.join(self.recorded)}"
            )
        real = place.resolve() if named else self.places.inner(place, "box")
        return str(real), next(
            (place.name[: -len(end)] for end in ARCHIVES if place.name.endswith(end)), place.name
        )

    def _preset(self, preset: str) -> str:
        """The preset as a notebook is given it: a name of env/presets, or the absolute path of a file that ends in .env."""
        from helpers.settings.presets import FOLDER, PresetError, load

        if preset in ("", "none"):
            return preset
        own = preset.endswith(".env")
        path = self.places.inner(
            self.places.base / preset if own else FOLDER / f"{preset}.env", "preset"
        )
        try:
            load(path if own else preset)
        except PresetError as error:
            raise PlanError(str(error)) from error
        return str(path) if own else preset


def _danger(said: str, planned: PlannedRun) -> str:
    """What a run does to a box: the notebook's own word, which the plan may raise. One that says nothing may load the box."""
    if said and planned.danger and DANGERS.index(planned.danger) < DANGERS.index(said):
        raise PlanError(
            f"danger: seen {planned.danger}, and {planned.notebook} {said}; a plan may only raise it; leave it out"
        )
    return planned.danger or said or "loads"


def _text(planned: PlannedRun, given: dict[str, Any], name: str) -> str:
    """``box``, ``preset`` or ``gpu``: a key of its own, or a parameter or part of the grid under that name."""
    if name not in given:
        return str(getattr(planned, name))
    if name in planned.model_fields_set:
        raise PlanError(f"{name!r} stands beside and among the parameters; expected one of them")
    if not isinstance(given[name], str):
        raise PlanError(f"parameter {name!r}: seen {given[name]!r}; expected str")
    return str(given[name])
