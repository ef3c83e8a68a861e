"""A plan and the runs that it means: all of it is checked before anything runs, ordered by
danger, and its time estimated.

An estimate comes from the records of earlier runs, else from what a notebook says, else from
its limit.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from helpers.ground.child import CHECKOUT, OUTPUTS
from helpers.ground.contract import one_line
from helpers.ground.units import pci_address, show_bytes
from helpers.look.archive import BundleError
from helpers.look.boxes import recorded_names
from helpers.look.bundle import open_bundle
from helpers.look.files import opened
from helpers.settings.presets import FOLDER, PresetError
from helpers.settings.presets import load as load_preset

from .notebook import NotebookError, check_parameters, open_notebook, parameters
from .shapes import DANGERS, Danger, Limits, Plan, PlannedRun

NOTEBOOKS = CHECKOUT / "notebooks"
ARCHIVES = (".tar.gz", ".tgz")
DEFAULT_LIMITS: Limits = Plan.model_fields["limits"].default
MOST_RECORDS = 200
BATCHES = "[0-9]*T[0-9]*Z-*"  # as batches are named: the newest has the last name
APART = ("box", "preset", "gpu")  # not among a run's own parameters
ITS_LIMIT = "its limit"
GONE_KEYS = {
    "insecure": "a cluster beyond loopback needs Dask's TLS configuration; see env/FLEET.md"
}
"""Keys of a plan that are gone, each with what to use instead."""
ROW = (
    *("box_name", "run_id", "notebook", "gpu", "preset", "parameters", "danger", "waits"),
    *("estimate_s", "estimate_from", "cell_s", "run_s"),
)


@dataclass(frozen=True)
class Step:
    """One concrete run of a plan.

    ``box`` is live, a recorded name or an absolute path; ``box_name`` is what records say,
    empty for a notebook that takes no box. ``parameters`` are those of the plan alone;
    ``takes`` names all that the notebook has. ``gpu`` is a PCI address, or empty. A step that
    ``waits`` reads the batch's own records: it starts when all before it have ended.
    ``estimate_s`` are seconds.
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
    estimate_from: str = ITS_LIMIT


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


def load_plan(path: Path, box: str = "") -> CheckedPlan:
    """Read a plan and check all of it: keys, notebooks, parameters, boxes, presets, paths, counts.

    Raises PlanError.

    ``box`` takes the place of ``live`` in every run, and one of the recorded in the text, too.
    Paths of notebooks are relative to notebooks/ or to the plan's folder.
    """
    text, content = read_yaml(path)
    if box in recorded_names():  # what a batch keeps names the box that was used
        text = _LIVE.sub(rf"\g<1>{box}", text)
    where = str(path)
    steps = list[Step]()
    for key, instead in GONE_KEYS.items():
        if isinstance(content, dict) and key in content:
            raise PlanError(f"{path}: {key} is gone; {instead}")
    try:
        plan = Plan.model_validate(content)
        count_runs(plan)
        reader = _Reader(plan, Places(path, plan.outside), box)
        for number, planned in enumerate(plan.runs):
            where = f"{path}: runs.{number}"
            steps += reader.steps(planned)
    except ValidationError as error:
        raise PlanError(one_line(error, where)) from error
    except (PlanError, NotebookError) as error:
        raise PlanError(f"{where}: {error}") from error
    except (OSError, RuntimeError) as error:  # too long a name, a circle of links, no such ~user
        why = f"a path cannot be followed: {str(error)[:200]}; correct it"
        raise PlanError(f"{where}: {why}") from error
    steps = in_order(steps) if plan.order == "danger" else steps
    width = max(3, len(str(len(steps) - 1)))  # ids sort as the runs do
    numbers = [f"{number:0{width}d}" for number in range(len(steps))]
    named = [replace(r, run_id=f"{at}-{r.run_id}") for at, r in zip(numbers, steps, strict=True)]
    total_s = plan.limits.total_s or DEFAULT_LIMITS.total_s or 0
    return CheckedPlan(plan, text, _digest(text), tuple(named), total_s)


def in_order(steps: list[Step]) -> list[Step]:
    """Looks before loads before provokes, else as in the file; a step that waits stays behind
    all that stood before it.
    """
    ranks: list[int] = []
    for step in steps:
        rank = DANGERS.index(step.danger)
        ranks.append(max([rank, *ranks]) if step.waits else rank)
    return [steps[at] for at in sorted(range(len(steps)), key=lambda at: ranks[at])]


class Facts(BaseModel):
    """What a notebook says in ``metadata.casebook``: what it does to a box, how long it takes,
    what its numbers may be.
    """

    safety: Danger | None = None
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ranges: dict[str, tuple[float | None, float | None]] = {}

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside its range; null is an open end. Raises PlanError."""
        least, most = self.ranges.get(name, (None, None))
        least = -math.inf if least is None else least
        most = math.inf if most is None else most
        if isinstance(value, (int, float)) and not least <= value <= most:
            raise PlanError(f"parameter {name!r}: seen {value}; expected {least:g} to {most:g}")

    def danger(self, planned: PlannedRun) -> str:
        """What a run does to a box: the notebook's own word, which the plan may raise.

        One that says nothing may load it.
        """
        own = self.safety
        raised = planned.danger
        if own and raised and DANGERS.index(raised) < DANGERS.index(own):
            seen = f"seen {raised}, and {planned.notebook} {own}"
            raise PlanError(f"danger: {seen}; a plan may only raise it; leave it out")
        return raised or own or "loads"


class _Reader:
    """Makes the steps of a plan, each notebook read once."""

    def __init__(self, plan: Plan, places: Places, override: str):
        self.plan = plan
        self.places = places
        self.override = override
        self.notebooks: dict[str, tuple[Path, Facts, dict[str, Any]]] = {}
        self.recorded = ["live", *recorded_names()]
        self.opened = cache(open_bundle)
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
        danger = facts.danger(planned)
        for values in itertools.product(*planned.grid.values()):
            given = {**planned.parameters, **dict(zip(planned.grid, values, strict=True))}
            box, preset, gpu = (_text(planned, given, name) for name in APART)
            gpu = _pci(gpu)
            own = {name: value for name, value in given.items() if name not in APART}
            own.update({"gpu": gpu} if gpu and "gpu" in known else {})
            check_parameters(known, own)
            for name, value in own.items():
                self.places.check(value, f"parameter {name!r}")
                facts.check(name, value)
            for name, text in (("box", box), ("preset", preset)):
                if text not in ("", "live") and name not in known:
                    wrong = f"{planned.notebook} has no parameter {name!r}"
                    raise PlanError(f"{wrong}; seen {name}: {text}; leave it out")
            place, box_name = self._box(box)
            what = [planned.notebook, box, preset, own, *([gpu] if gpu else [])]
            key = json.dumps(what, sort_keys=True)
            name = f"{source.stem}-{_digest(key)[:8]}"
            seconds, source_of = self.estimates.of(planned.notebook, name, facts.seconds, run_s)
            step = Step(
                run_id=name,
                notebook=planned.notebook,
                source=source,
                parameters=own,
                takes=frozenset(known),
                box=place,
                box_name=box_name if "box" in known else "",
                preset=self._preset(preset),
                cell_s=cell_s,
                run_s=run_s,
                danger=danger,
                gpu=gpu,
                waits="{batch}" in key,
                estimate_s=seconds,
                estimate_from=source_of,
            )
            yield from itertools.repeat(step, planned.repeats)

    def _notebook(self, name: str) -> tuple[Path, Facts, dict[str, Any]]:
        """(the file, what its metadata says to this workbook, its parameters with their
        annotations).
        """
        if name not in self.notebooks:
            files = [folder / name for folder in (NOTEBOOKS, self.places.base)]
            there = next((file for file in files if file.is_file()), None)
            if there is None:
                expected = f"expected a file in {NOTEBOOKS.name}/ or beside the plan"
                raise PlanError(f"notebook: seen {name!r}; {expected}")
            source = self.places.inner(there, "notebook")
            book = open_notebook(source)
            try:
                facts = Facts.model_validate(book.metadata.get("casebook", {}))
            except ValidationError as error:
                raise PlanError(one_line(error, f"{name}: metadata.casebook")) from error
            self.notebooks[name] = source, facts, parameters(book)
        return self.notebooks[name]

    def _box(self, box: str) -> tuple[str, str]:
        """(box as a notebook is given it, its name).

        A path counts from the plan's folder or from here.
        """
        named = bool(self.override) and box == "live"  # by the caller: it may lie anywhere
        box = self.override if named else box
        if box in self.recorded:
            return box, box
        places = [folder / box for folder in (self.places.base, Path.cwd()) if box]
        place = next((place for place in places if place.exists()), None)
        if place is None:
            expected = f"expected a bundle's path or one of {', '.join(self.recorded)}"
            raise PlanError(f"box: seen {box!r}; {expected}")
        real = place.resolve() if named else self.places.inner(place, "box")
        try:
            self.opened(real)
        except BundleError as error:
            raise PlanError(f"box: {error}") from error
        end = next((end for end in ARCHIVES if place.name.endswith(end)), "")
        return str(real), place.name.removesuffix(end)

    def _preset(self, preset: str) -> str:
        """The preset as a notebook is given it: a name of env/presets, or the absolute path of
        a file that ends in .env.
        """
        if preset in ("", "none"):
            return preset
        own = preset.endswith(".env")
        file = self.places.base / preset if own else FOLDER / f"{preset}.env"
        path = self.places.inner(file, "preset")
        try:
            load_preset(path if own else preset)
        except PresetError as error:
            raise PlanError(str(error)) from error
        return str(path) if own else preset


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _pci(gpu: str) -> str:
    address = pci_address(gpu)
    if gpu and not address:
        expected = "expected a PCI address such as 0000:03:00.0; see: lspci -D"
        raise PlanError(f"gpu: seen {gpu!r}; {expected}")
    return address


def _text(planned: PlannedRun, given: dict[str, Any], name: str) -> str:
    """``box``, ``preset`` or ``gpu``: a key of its own, or a parameter or part of the grid
    under that name.
    """
    if name not in given:
        return str(getattr(planned, name))
    if name in planned.model_fields_set:
        raise PlanError(f"{name!r} stands beside and among the parameters; expected one of them")
    if not isinstance(given[name], str):
        raise PlanError(f"parameter {name!r}: seen {given[name]!r}; expected str")
    return str(given[name])


# How long it will take, and what a dry run prints.


class Estimates:
    """Seconds of the newest answered runs below ``outputs``, by notebook with parameters and by
    notebook.
    """

    def __init__(self, outputs: Path = OUTPUTS):
        self.seconds: dict[str, list[float]] = defaultdict(list)
        batches = sorted(outputs.glob(BATCHES), reverse=True)
        records = (path for batch in batches for path in sorted(batch.glob("*/run.json")))
        for path in itertools.islice(records, MOST_RECORDS):
            try:
                run = json.loads(path.read_text(encoding="utf-8"))
                seconds = float(run["seconds"]) if run["state"] == "answered" else 0.0
                if 0 < seconds < math.inf:
                    for name in (str(run["run_id"]).partition("-")[2], str(run["notebook"])):
                        self.seconds[name].append(seconds)
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                continue  # a torn or foreign record only makes the estimate poorer

    def of(self, notebook: str, name: str, own_s: float | None, run_s: float) -> tuple[float, str]:
        """(seconds, where they come from) of a run.

        ``name``: its id without the number; ``own_s``: what its notebook says.
        """
        for key, of_what in ((name, "like it"), (notebook, "of this notebook")):
            earlier = self.seconds.get(key, [])
            if earlier:
                source = f"{len(earlier)} earlier run{'s' * (len(earlier) > 1)} {of_what}"
                return min(round(median(earlier), 1), run_s), source
        return (min(own_s, run_s), "the notebook's metadata") if own_s else (run_s, ITS_LIMIT)


def total_estimate_s(checked: CheckedPlan) -> float:
    """Seconds that a plan will take: runs that only look go side by side, all others alone."""
    busy = [0.0] * checked.plan.jobs
    for step in checked.steps:
        if step.danger == "looks" and not step.waits:
            busy[busy.index(min(busy))] += step.estimate_s
        else:
            busy = [max(busy) + step.estimate_s] * len(busy)
    return max(busy)


def dry_run(checked: CheckedPlan) -> list[dict[str, Any]]:
    """The runs of a plan in the order they start, as data."""
    rows = [{name: getattr(step, name) for name in ROW} for step in checked.steps]
    return [{"box": row.pop("box_name"), **row} for row in rows]


def dry_run_text(checked: CheckedPlan) -> str:
    """The runs of a plan in the order they start, and what holds for all of them, for a terminal."""
    plan = checked.plan
    gates = checked.plan.gates
    stop = checked.plan.stop
    rows = dry_run(checked)
    wide = {name: max(len(row[name]) for row in rows) for name in ("run_id", "danger", "box")}
    lines = []
    for row in rows:
        own = [f"{name}={value}" for name, value in row["parameters"].items() if name != "gpu"]
        what = " ".join(" ".join([row["gpu"], row["preset"], *own]).split())[:60]
        cells = "  ".join(f"{row[name]:<{width}}" for name, width in wide.items())
        lines.append(f"{cells}  {row['estimate_s']:6.1f} s  {what}".rstrip())
    total_s = total_estimate_s(checked)
    guesses = sum(row["estimate_from"] == ITS_LIMIT for row in rows)
    over = "; that is more than the plan's limit: its last runs are skipped"
    dangers = [row["danger"] for row in rows]
    counts = ", ".join(f"{dangers.count(danger)} {danger}" for danger in DANGERS)
    cell_s, run_s = (max(row[name] for row in rows) for name in ("cell_s", "run_s"))
    heat = f", below {gates.temperature_c} C" if gates.temperature_c else ""
    stops = [
        f"after {stop.after_failures} runs that failed" if stop.after_failures else "",
        f"a node after {stop.node_strikes} strikes" if stop.node_strikes else "",
        f"after a run that ends as {' or '.join(stop.on_states)}" if stop.on_states else "",
        f"at the first answer that is {stop.on_confidence} or surer" if stop.on_confidence else "",
    ]
    gate = f"{show_bytes(gates.disk_free_bytes)} free on the disk, memory back to within "
    gate += f"{gates.memory_back_fraction:.0%}, no holder left on its GPU, no new error in the kernel log"
    lines += [
        f"{len(rows)} runs ({counts}); of those that only look, {plan.jobs} at once.",
        f"Estimated: {timedelta(seconds=round(total_s))}, {guesses} runs of it at their limit for want of earlier ones"
        f"{over * (total_s > checked.total_s)}.",
        f"Limits: a cell {cell_s:g} s, a run {run_s:g} s, all of it {checked.total_s:g} s.",
        f"Gate after each run: {gate}{heat}; else a quarantine after {gates.settle_s:g} s.",
        f"Stops: {'; '.join(filter(None, stops)) or 'only at its limit'}.",
        f"Resume is refused once this file changes (now {checked.sha256[:12]}); a run that ended keeps its record, and",
        "one that died, hung, timed out or took its box down is never repeated by itself.",
    ]
    return "\n".join(lines)


# What a plan's text may hold: YAML without its tricks, values that a record can keep, and no
# path outside the project.

MOST_BYTES = 1_000_000
MOST_RUNS = 5_000
ALIAS_NODES = 1_000
ALL_NODES = 100_000
LONGEST_PATH = 4096
TEXT_TAG = "tag:yaml.org,2002:str"


class PlanError(ValueError):
    """A plan that cannot run: one line with the file, the key, what was seen and what was
    expected.
    """


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without tags, merges, keys that stand twice, and aliases that multiply
    ("billion laughs").
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.nodes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            raise _wrong(f"a tag ({event.tag}); a plan has none", event)
        node = super().compose_node(parent, index)
        assert node is not None
        if isinstance(event, yaml.AliasEvent):
            # No count yet: the alias stands inside what it names.
            if self.nodes.get(node, ALIAS_NODES + 1) > ALIAS_NODES:
                many = f"stands for itself or for more than {ALIAS_NODES:,} values"
                raise _wrong(f"alias *{event.anchor} {many}", event)
            return node
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        self.nodes[node] = 1 + sum(self.nodes[part] for part in parts)
        if max(self.nodes[node], len(self.nodes)) > ALL_NODES:
            raise _wrong(f"more than {ALL_NODES:,} values with its aliases written out", event)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """YAML 1.1 reads the PCI address 0000:03:00.0 as a number of base 60; here it is text,
        as in YAML 1.2.
        """
        tag = super().resolve(kind, value, implicit)
        number = str(tag).endswith((":int", ":float"))
        return TEXT_TAG if number and ":" in value else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _wrong(f"key {key.value!r} stands twice", key)
                if key.value == "<<":
                    raise _wrong(f"key {key.value!r} merges; write it out", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _wrong(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def read_yaml(path: Path) -> tuple[str, Any]:
    """(text of a plan file, what it holds).

    Raises PlanError; nothing is built before its size with aliases is known.
    """
    try:
        with opened(path) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes; say it with grids")
        text = raw.decode("utf-8")
        return text, yaml.load(text, Loader=_Loader)  # a SafeLoader
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = " ".join(str(error.problem).split())
        why = f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
    except (yaml.YAMLError, RecursionError) as error:
        why = f"no YAML ({type(error).__name__})"
    except ValueError as error:  # no UTF-8, a date such as 2024-13-45, a number of too many digits
        why = str(error)[:100]
    raise PlanError(f"{path}: {why}; expected a plan in YAML")


def count_runs(plan: Plan) -> int:
    """How many runs a plan asks for, by multiplication alone.

    Raises PlanError above 5,000, with the count.
    """
    grids = [math.prod(len(listed) for listed in planned.grid.values()) for planned in plan.runs]
    count = sum(planned.repeats * grid for planned, grid in zip(plan.runs, grids, strict=True))
    if count > MOST_RUNS:
        # str() refuses 4,300 digits
        seen = f"{count:,}" if count < 10**15 else f"about 10^{math.log10(count):.0f}"
        expected = f"expected at most {MOST_RUNS:,}; make it several plans"
        raise PlanError(f"runs: seen {seen} runs with grids and repeats; {expected}")
    return count


class Places:
    """Where a plan's paths may lead: the checkout, its outputs, the plan's folder, the folders
    named in ``outside``.
    """

    def __init__(self, path: Path, outside: Iterable[str | Path]):
        self.base = path.resolve().parent
        self.inside = [CHECKOUT.resolve(), OUTPUTS.resolve(), self.base]
        for name in outside:
            folder = self.base / Path(name).expanduser()
            if not folder.is_dir():
                raise PlanError(f"outside: seen {str(name)!r}; expected a folder")
            self.inside.append(folder.resolve())

    def inner(self, path: Path, what: str) -> Path:
        """The path with its links resolved. Raises PlanError where it leads outside."""
        real = path.resolve()
        if not any(real.is_relative_to(folder) for folder in self.inside):
            expected = "expected a path inside the checkout or the plan's folder"
            raise PlanError(
                f"{what}: {path} leads to {real}; {expected}; name its folder in outside:"
            )
        return real

    def check(self, value: Any, what: str) -> None:
        """Refuse a value that no record can keep, and text that reads as a path and leads outside.

        Raises PlanError.
        """
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                seen = str(value)[:40]
                raise PlanError(f"{what}: seen {seen}; expected text as keys; quote them")
            for one in (*value, *value.values()):
                self.check(one, what)
        elif isinstance(value, list):
            for one in value:
                self.check(one, what)
        elif isinstance(value, float) and not math.isfinite(value):
            raise PlanError(f"{what}: seen {value}; expected a finite number")
        elif isinstance(value, str):
            if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
                expected = "expected text without NUL and half letters"
                raise PlanError(f"{what}: seen {value[:40]!r}; {expected}")
            self._check_path(value.replace("{batch}", f"{OUTPUTS}/batch"), what)

    def _check_path(self, text: str, what: str) -> None:
        like_one = "/" in text or text == ".." or text.startswith("~")
        if not like_one or len(text) > LONGEST_PATH or "\n" in text:
            return
        path = Path(text).expanduser()
        for base in (self.base, CHECKOUT):
            if path.is_absolute() or ".." in path.parts or (base / path).exists():
                self.inner(base / path, what)
