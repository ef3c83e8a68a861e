"""The steps of a plan: each line with its notebook, box, preset and parameters made concrete."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from helpers.ground.child import CHECKOUT
from helpers.ground.contract import one_line
from helpers.ground.units import pci_address
from helpers.look.archive import BundleError
from helpers.look.boxes import recorded_names
from helpers.look.bundle import open_bundle
from helpers.settings.presets import PresetError
from helpers.settings.presets import load as load_preset

from .notebook_file import (
    Allowed,
    allowed_values,
    check_parameters,
    open_notebook,
    parameters,
)
from .plan_yaml import PlanError, check_value
from .shapes import DANGERS, Danger, Plan, PlannedRun
from .step import DEFAULT_LIMITS, Step, digest

NOTEBOOKS = CHECKOUT / "notebooks"
ARCHIVES = (".tar.gz", ".tgz")
APART = ("box", "preset", "gpu")  # not among a run's own parameters


class NotebookFacts(BaseModel):
    """What a notebook says in ``metadata.casebook``: what it does to a box, what its numbers may
    be (null is an open end), whether it goes on at the cell at which it stopped.
    """

    safety: Danger | None = None
    ranges: dict[str, tuple[float | None, float | None]] = {}
    resumes: bool = False

    def danger(self, planned: PlannedRun) -> str:
        """What a run does to a box: the notebook's own word, which the plan may raise.

        One that says nothing may load it.
        """
        raised = planned.danger
        if (
            self.safety
            and raised
            and DANGERS.index(raised) < DANGERS.index(self.safety)
        ):
            raise PlanError(
                f"danger: seen {raised}, and {planned.notebook} {self.safety}; "
                "a plan may only raise it; leave it out"
            )
        return raised or self.safety or "loads"


class StepReader:
    """Makes the steps of a plan, each notebook and bundle read once.

    Paths count from ``base``; ``override`` takes the place of the box ``live``; ``measured`` are
    the seconds that notebooks took here, by name.
    """

    def __init__(
        self, plan: Plan, base: Path, override: str, measured: Mapping[str, float]
    ):
        self.plan = plan
        self.base = base
        self.override = override
        self.measured = measured
        self.recorded = ["live", *recorded_names()]
        self.places = {name: name for name in self.recorded}
        self.opened = cache(open_bundle)
        self.notebook = cache(self._notebook)

    def steps(self, planned: PlannedRun) -> Iterator[Step]:
        """The steps of one line of the plan. ``run_id`` has no number yet: the order gives it."""
        for name, values in planned.grid.items():
            if name in planned.parameters:
                raise PlanError(
                    f"{name!r} is in parameters and in grid; expected it in one of them"
                )
            if not values:
                raise PlanError(f"grid.{name}: seen an empty list; expected values")
        for chosen in itertools.product(*planned.grid.values()):
            mixed = {
                **planned.parameters,
                **dict(zip(planned.grid, chosen, strict=True)),
            }
            step = self._step(planned, mixed)
            yield from itertools.repeat(step, planned.repeats)

    def _step(self, planned: PlannedRun, mixed: dict[str, object]) -> Step:
        source, facts, annotations, allowed = self.notebook(planned.notebook)
        box, preset, gpu = (_text(planned, mixed, name) for name in APART)
        gpu = _pci(gpu)
        values = {name: value for name, value in mixed.items() if name not in APART}
        if gpu and "gpu" in annotations:
            values["gpu"] = gpu
        for name, value in values.items():
            check_value(value, f"parameter {name!r}")
        check_parameters(annotations, values, allowed)
        for name, text in (("box", box), ("preset", preset)):
            if text not in ("", "live") and name not in annotations:
                raise PlanError(
                    f"{planned.notebook} has no parameter {name!r}; seen "
                    f"{name}: {text}; leave it out"
                )
        place, box_name = self._box(box)
        identity = [planned.notebook, box, preset, values]
        if gpu:
            identity.append(gpu)
        key = json.dumps(identity, sort_keys=True)
        levels = (planned.limits, self.plan.limits, DEFAULT_LIMITS)
        return Step(
            run_id=f"{source.stem}-{digest(key)[:8]}",
            notebook=planned.notebook,
            source=source,
            parameters=values,
            takes=frozenset(annotations),
            box=place,
            box_name=box_name if "box" in annotations else "",
            preset=self._preset(preset),
            cell_s=next(level.cell_s for level in levels if level.cell_s),
            run_s=next(level.run_s for level in levels if level.run_s),
            danger=facts.danger(planned),
            gpu=gpu,
            waits="{batch}" in key,
            resumes=facts.resumes,
            estimate_s=self.measured.get(planned.notebook),
        )

    def _notebook(
        self, name: str
    ) -> tuple[Path, NotebookFacts, dict[str, ast.expr | None], dict[str, Allowed]]:
        """(the file, what its metadata says to this workbook, its parameters with their
        annotations, and what they may be).
        """
        places = [folder / name for folder in (NOTEBOOKS, self.base)]
        source = next((place for place in places if place.is_file()), None)
        if source is None:
            raise PlanError(
                f"notebook: seen {name!r}; expected a file in "
                f"{NOTEBOOKS.name}/ or beside the plan"
            )
        book = open_notebook(source)
        try:
            facts = NotebookFacts.model_validate(book.metadata.get("casebook", {}))
        except ValidationError as error:
            raise PlanError(one_line(error, f"{name}: metadata.casebook")) from error
        allowed = {**facts.ranges, **allowed_values(book)}
        return source.resolve(), facts, parameters(book), allowed

    def _box(self, box: str) -> tuple[str, str]:
        """(box as a notebook is given it, its name).

        A path counts from the plan's folder or from here. It is named by its end, or in full
        where another box has that name.
        """
        if box == "live":
            box = self.override or box
        if box in self.recorded:
            return box, box
        places = [folder / box for folder in (self.base, Path.cwd()) if box]
        place = next((place for place in places if place.exists()), None)
        if place is None:
            raise PlanError(
                f"box: seen {box!r}; expected a bundle's path or one of "
                f"{', '.join(self.recorded)}"
            )
        try:
            self.opened(place.resolve())
        except BundleError as error:
            raise PlanError(f"box: {error}") from error
        end = next((end for end in ARCHIVES if place.name.endswith(end)), "")
        path = str(place.resolve())
        name = place.name.removesuffix(end)
        if self.places.setdefault(name, path) != path:
            name = box.removesuffix(end)
        return path, name

    def _preset(self, preset: str) -> str:
        """The preset as a notebook is given it: a name of env/presets, or the absolute path of
        a file that ends in .env.
        """
        if preset in ("", "none"):
            return preset
        path = (self.base / preset).resolve() if preset.endswith(".env") else None
        try:
            load_preset(path or preset)
        except PresetError as error:
            raise PlanError(str(error)) from error
        return str(path or preset)


def _pci(gpu: str) -> str:
    address = pci_address(gpu)
    if gpu and not address:
        raise PlanError(
            f"gpu: seen {gpu!r}; expected a PCI address such as 0000:03:00.0; "
            "see: lspci -D"
        )
    return address


def _text(planned: PlannedRun, mixed: dict[str, object], name: str) -> str:
    """``box``, ``preset`` or ``gpu``: a key of its own, or a parameter or part of the grid
    under that name.
    """
    if name not in mixed:
        return str(getattr(planned, name))
    if name in planned.model_fields_set:
        raise PlanError(
            f"{name!r} is beside and among the parameters; expected it in one place"
        )
    if not isinstance(mixed[name], str):
        raise PlanError(f"parameter {name!r}: seen {mixed[name]!r}; expected str")
    return str(mixed[name])
