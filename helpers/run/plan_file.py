"""What a plan's text may hold: YAML without its tricks, values that a record can keep, and no path outside the project."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from helpers.child import CHECKOUT, OUTPUTS
from helpers.look.files import opened

from .shapes import Plan

MOST_BYTES, MOST_RUNS, ALIAS_NODES, ALL_NODES = 1_000_000, 5_000, 1_000, 100_000
LONGEST_PATH = 4096
TEXT_TAG = "tag:yaml.org,2002:str"


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
        """YAML 1.1 reads the PCI address 0000:03:00.0 as a number of base 60; here it is text, as in YAML 1.2."""
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
    """(text of a plan file, what it holds). Raises PlanError; nothing is built before its size with aliases is known."""
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
        mark, problem = error.problem_mark, " ".join(str(error.problem).split())
        why = f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
    except (yaml.YAMLError, RecursionError) as error:
        why = f"no YAML ({type(error).__name__})"
    except ValueError as error:  # no UTF-8, a date such as 2024-13-45, a number of too many digits
        why = str(error)[:100]
    raise PlanError(f"{path}: {why}; expected a plan in YAML")


def count_runs(plan: Plan) -> int:
    """How many runs a plan asks for, by multiplication alone. Raises PlanError above 5,000, with the count."""
    grids = [math.prod(len(listed) for listed in planned.grid.values()) for planned in plan.runs]
    count = sum(planned.repeats * grid for planned, grid in zip(plan.runs, grids, strict=True))
    if count > MOST_RUNS:
        # str() refuses 4,300 digits
        seen = f"{count:,}" if count < 10**15 else f"about 10^{math.log10(count):.0f}"
        expected = f"expected at most {MOST_RUNS:,}; make it several plans"
        raise PlanError(f"runs: seen {seen} runs with grids and repeats; {expected}")
    return count


class Places:
    """Where a plan's paths may lead: the checkout, its outputs, the plan's folder, the folders named in ``outside``."""

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
        """Refuse a value that no record can keep, and text that reads as a path and leads outside. Raises PlanError."""
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
