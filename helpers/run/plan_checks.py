"""What a plan's text may hold: YAML without its tricks, values that a record can keep, and no path outside the project."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from .kernel import CHECKOUT
from .shapes import Danger, Plan, one_line

MOST_BYTES, MOST_RUNS, ALIAS_NODES, ALL_NODES = 1_000_000, 5_000, 1_000, 100_000


class PlanError(ValueError):
    """A plan that cannot run: one line with the file, the key, what was seen and what was expected."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader without tags, merges, keys that stand twice, and aliases that multiply ("billion laughs")."""

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
            if (
                self.nodes.get(node, ALIAS_NODES + 1) > ALIAS_NODES
            ):  # none yet: it stands inside what it names
                raise _wrong(
                    f"alias *{event.anchor} stands for itself or for more than {ALIAS_NODES:,} values",
                    event,
                )
            return node
        parts = (
            [part for pair in node.value for part in pair]
            if isinstance(node, yaml.MappingNode)
            else node.value
            if isinstance(node, yaml.SequenceNode)
            else ()
        )
        self.nodes[node] = 1 + sum(self.nodes[part] for part in parts)
        if max(self.nodes[node], len(self.nodes)) > ALL_NODES:
            raise _wrong(f"more than {ALL_NODES:,} values with its aliases written out", event)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """YAML 1.1 reads the PCI address 0000:03:00.0 as a number of base 60; here it is text, as in YAML 1.2."""
        tag = super().resolve(kind, value, implicit)
        return (
            "tag:yaml.org,2002:str"
            if str(tag).endswith((":int", ":float")) and ":" in value
            else tag
        )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen or key.value == "<<":
                    raise _wrong(
                        f"key {key.value!r} "
                        + ("stands twice" if key.value in seen else "merges; write it out"),
                        key,
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _wrong(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


def read_yaml(path: Path) -> tuple[str, Any]:
    """(text of a plan file, what it holds). Raises PlanError; nothing is built before its size with aliases is known."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes; say it with grids")
        text = raw.decode("utf-8")
        return text, yaml.load(text, Loader=_Loader)  # a SafeLoader
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        why = (f"line {mark.line + 1}, column {mark.column + 1}: " if mark else "") + " ".join(
            str(error.problem).split()
        )
    except (yaml.YAMLError, RecursionError) as error:
        why = f"no YAML ({type(error).__name__})"
    except (
        ValueError
    ) as error:  # also no UTF-8, a date such as 2024-13-45, a number of too many digits
        why = str(error)[:100]
    raise PlanError(f"{path}: {why}; expected a plan in YAML")


def count_runs(plan: Plan) -> int:
    """How many runs a plan asks for, by multiplication alone. Raises PlanError above 5,000, with the count."""
    count = sum(
        planned.repeats * math.prod(len(listed) for listed in planned.grid.values())
        for planned in plan.runs
    )
    if count > MOST_RUNS:
        seen = (
            f"{count:,}" if count < 10**15 else f"about 10^{math.log10(count):.0f}"
        )  # str() refuses 4,300 digits
        raise PlanError(
            f"runs: seen {seen} runs with grids and repeats; expected at most {MOST_RUNS:,}; make it several plans"
        )
    return count


class Places:
    """Where a plan's paths may lead: the checkout, its outputs, the plan's folder, the folders named in ``outside``."""

    def __init__(self, path: Path, outside: Iterable[str | Path]):
        self.base = path.resolve().parent
        self.inside = [CHECKOUT.resolve(), (CHECKOUT / "outputs").resolve(), self.base]
        for name in outside:
            folder = self.base / Path(name).expanduser()
            if not folder.is_dir():
                raise PlanError(f"outside: seen {str(name)!r}; expected a folder")
            self.inside.append(folder.resolve())

    def inner(self, path: Path, what: str) -> Path:
        """The path with its links resolved. Raises PlanError where it leads outside."""
        real = path.resolve()
        if not any(real.is_relative_to(folder) for folder in self.inside):
            raise PlanError(
                f"{what}: {path} leads to {real}; expected a path inside the checkout or the plan's folder; "
                f"name its folder in outside:"
            )
        return real

    def check(self, value: Any, what: str) -> None:
        """Refuse a value that no record can keep, and text that reads as a path and leads outside."""
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise PlanError(f"{what}: seen {str(value)[:40]}; expected text as keys; quote them")
        if isinstance(value, (list, dict)):
            for one in [*value, *value.values()] if isinstance(value, dict) else value:
                self.check(one, what)
        elif isinstance(value, float) and not math.isfinite(value):
            raise PlanError(f"{what}: seen {value}; expected a finite number")
        elif isinstance(value, str):
            if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
                raise PlanError(
                    f"{what}: seen {value[:40]!r}; expected text without NUL and half letters"
                )
            text = value.replace("{batch}", f"{CHECKOUT}/outputs/batch")
            if (
                len(text) <= 4096
                and "\n" not in text
                and ("/" in text or text == ".." or text.startswith("~"))
            ):
                path = Path(text).expanduser()
                for base in (self.base, CHECKOUT):
                    if path.is_absolute() or ".." in path.parts or (base / path).exists():
                        self.inner(base / path, what)


class Facts(BaseModel):
    """What a notebook says in ``metadata.casebook``: what it does to a box, how long it takes, what its numbers may be."""

    safety: Danger | None = None
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ranges: dict[str, tuple[float | None, float | None]] = {}

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside its range; null is an open end. Raises PlanError."""
        least, most = self.ranges.get(name, (None, None))
        least, most = -math.inf if least is None else least, math.inf if most is None else most
        if isinstance(value, (int, float)) and not least <= value <= most:
            raise PlanError(f"parameter {name!r}: seen {value}; expected {least:g} to {most:g}")


def facts_of(notebook: Any, name: str) -> Facts:
    """The facts of an opened notebook. Raises PlanError."""
    try:
        return Facts.model_validate(notebook.metadata.get("casebook", {}))
    except ValidationError as error:
        raise PlanError(one_line(error, f"{name}: metadata.casebook")) from error
