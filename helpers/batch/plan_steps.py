"""Makes the steps of a plan: a step is one run, with its notebook, box, preset and parameters."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
APART = ("box", "preset", "gpu")
"""Names that a line of a plan may give as a key of its own, as a parameter or in its grid."""
KEY_LETTERS = 8
"""Of the digest in a run's id: enough to show at a glance that its parameters changed."""


class NotebookFacts(BaseModel):
    """What a notebook says of itself in ``metadata.casebook``.

    ``safety`` is what it does to a box. ``ranges`` has the least and the largest value of its
    numbers (None is an open end). ``resumes``: after an interruption it goes on at the cell where
    it stopped.
    """

    safety: Danger | None = None
    ranges: dict[str, tuple[float | None, float | None]] = {}
    resumes: bool = False

    def danger(self, planned: PlannedRun) -> str:
        """What a run does to a box: what the notebook says, which the plan may raise.

        A notebook that says nothing may load the box. Raises PlanError if the plan lowers it.
        """
        raised = planned.danger
        if not raised:
            return self.safety or "loads"
        if self.safety and DANGERS.index(raised) < DANGERS.index(self.safety):
            raise PlanError(
                f"danger: seen {raised}, and {planned.notebook} {self.safety}; "
                "a plan may only raise it; leave it out"
            )
        return raised


class NotebookInPlan(NamedTuple):
    """A notebook that a plan names: its file, what it says of itself, its parameters with their
    annotations, and the values that they may have.
    """

    source: Path
    facts: NotebookFacts
    annotations: dict[str, ast.expr | None]
    allowed: dict[str, Allowed]


class StepReader:
    """Makes the steps of a plan; reads each notebook and bundle once.

    Paths are relative to ``base``; ``override`` replaces the box ``live``; ``measured`` has the
    seconds that notebooks took here, by name. ``places`` has the path of each box by its name.
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
        """The steps of one line of the plan. Their ``run_id`` lacks the number, which the order of
        all steps gives. Raises PlanError or NotebookError.
        """
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
        """The step of a line for one combination of values; ``mixed`` has them with the line's
        fixed parameters.
        """
        notebook = self.notebook(planned.notebook)
        takes = notebook.annotations
        box, preset, gpu = (_text(planned, mixed, name) for name in APART)
        gpu = _pci(gpu)
        values = {name: value for name, value in mixed.items() if name not in APART}
        if gpu and "gpu" in takes:
            values["gpu"] = gpu
        for name, value in values.items():
            check_value(value, f"parameter {name!r}")
        check_parameters(takes, values, notebook.allowed)
        for name, text in (("box", box), ("preset", preset)):
            # "" and "live" are the defaults of these keys, which nobody need have written.
            if text not in ("", "live") and name not in takes:
                raise PlanError(
                    f"{planned.notebook} has no parameter {name!r}; seen "
                    f"{name}: {text}; leave it out"
                )
        place, box_name = self._box(box)
        if "box" not in takes:
            box_name = ""
        # Equal steps have equal ids, so that a resumed batch finds their records.
        identity = [planned.notebook, box, preset, values]
        if gpu:
            identity.append(gpu)
        key = json.dumps(identity, sort_keys=True)
        # The nearest level that sets a limit decides.
        levels = (planned.limits, self.plan.limits, DEFAULT_LIMITS)
        return Step(
            run_id=f"{notebook.source.stem}-{digest(key)[:KEY_LETTERS]}",
            notebook=planned.notebook,
            source=notebook.source,
            parameters=values,
            takes=frozenset(takes),
            box=place,
            box_name=box_name,
            preset=self._preset(preset),
            cell_s=next(level.cell_s for level in levels if level.cell_s),
            run_s=next(level.run_s for level in levels if level.run_s),
            danger=notebook.facts.danger(planned),
            gpu=gpu,
            waits="{batch}" in key,  # a parameter names the batch's folder
            resumes=notebook.facts.resumes,
            estimate_s=self.measured.get(planned.notebook),
        )

    def _notebook(self, name: str) -> NotebookInPlan:
        """The notebook of this name, in notebooks/ or beside the plan. Raises PlanError."""
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
        return NotebookInPlan(source.resolve(), facts, parameters(book), allowed)

    def _box(self, box: str) -> tuple[str, str]:
        """The box as a notebook gets it, a name or an absolute path, and its name in records.

        A relative path is looked for in the plan's folder and in the current one. The name of a
        bundle is that of its file or folder, or the path as given if another box has that name.
        Raises PlanError.
        """
        if box == "live" and self.override:
            box = self.override
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
            self.opened(place.resolve())  # only to refuse a bundle that cannot be read
        except BundleError as error:
            raise PlanError(f"box: {error}") from error
        suffix = next((end for end in ARCHIVES if place.name.endswith(end)), "")
        path = str(place.resolve())
        name = place.name.removesuffix(suffix)
        path_of_name = self.places.setdefault(name, path)
        if path_of_name != path:  # another box has this name
            name = box.removesuffix(suffix)
        return path, name

    def _preset(self, preset: str) -> str:
        """The preset as a notebook gets it: a name of env/presets, or the absolute path of a file
        that ends in .env. Raises PlanError.
        """
        if preset in ("", "none"):
            return preset
        named: str | Path = preset
        if preset.endswith(".env"):
            named = (self.base / preset).resolve()
        try:
            load_preset(named)
        except PresetError as error:
            raise PlanError(str(error)) from error
        return str(named)


def _pci(gpu: str) -> str:
    """The PCI address of a GPU in its usual form, empty for none. Raises PlanError."""
    address = pci_address(gpu)
    if gpu and not address:
        raise PlanError(
            f"gpu: seen {gpu!r}; expected a PCI address such as 0000:03:00.0; "
            "see: lspci -D"
        )
    return address


def _text(planned: PlannedRun, mixed: dict[str, object], name: str) -> str:
    """The value of a name of APART: a key of the line, or a parameter of that name. Raises
    PlanError if it is both, or no text.
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
