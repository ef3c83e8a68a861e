"""Reads the YAML of a plan: only its plain features, and only values that a record can hold."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from helpers.look.files import opened

MOST_BYTES = 200_000
"""Room for a few thousand lines of runs; a larger file is no plan, or better written as grids."""
MOST_ALIASES = 100
"""More than a person writes by hand; with none inside an anchor they cannot multiply."""
TEXT_TAG = "tag:yaml.org,2002:str"
MOST_ERROR = 100
MOST_SEEN = 40
"""Letters of an error, and of a refused value, in a message of one line."""
UNKEPT = re.compile("[\0\ud800-\udfff]")
"""Characters that no record can hold: NUL and lone surrogates, which UTF-8 cannot encode."""


class PlanError(ValueError):
    """A plan cannot run: one line with the file, the key, what was seen and what was expected."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses merges (<<), a key that appears twice, and aliases
    inside of anchors, which multiply ("billion laughs").

    ``aliases`` counts the aliases so far, ``anchored`` the values with an anchor that are open.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self.aliases = 0
        self.anchored = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read the next value; refuses an alias inside of an anchor, or too many of them."""
        event = self.peek_event()
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias:
            self.aliases += 1
            if self.anchored or self.aliases > MOST_ALIASES:
                expected = f"expected at most {MOST_ALIASES}, and none inside an anchor"
                raise _wrong(f"alias *{event.anchor}: {expected}", event)
        if is_alias or not event.anchor:
            return super().compose_node(parent, index)
        self.anchored += 1
        node = super().compose_node(parent, index)
        self.anchored -= 1
        return node

    def resolve(
        self, kind: type[yaml.Node], value: str | None, implicit: object
    ) -> str | None:
        """The tag of a value. YAML 1.1, which PyYAML reads, takes the PCI address 0000:03:00.0 for
        a number of base 60; here it is text, as in YAML 1.2.
        """
        tag: str | None = super().resolve(kind, value, implicit)
        if str(tag).endswith((":int", ":float")) and ":" in str(value):
            return TEXT_TAG
        return tag

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        """The dict of a mapping; refuses a key that appears twice, and a merge."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _wrong(f"key {key.value!r} appears twice", key)
                if key.value == "<<":
                    raise _wrong(f"key {key.value!r} merges; write it out", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _wrong(problem: str, where: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    """An error with its place in the file."""
    mark = cast(yaml.error.Mark, where.start_mark)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def read_yaml(path: Path) -> tuple[str, object]:
    """(text of a plan file, the value that it holds). Raises PlanError."""
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
        why = problem
        if mark:
            why = f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    except (yaml.YAMLError, RecursionError) as error:
        why = f"no YAML ({type(error).__name__})"
    # Too large, no UTF-8, a date such as 2024-13-45, a number of too many digits.
    except ValueError as error:
        why = str(error)[:MOST_ERROR]
    raise PlanError(f"{path}: {why}; expected a plan in YAML")


def check_value(value: object, name: str) -> None:
    """Raise PlanError for a value of a parameter that no record, which is JSON, can hold."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            seen = str(value)[:MOST_SEEN]
            raise PlanError(f"{name}: seen {seen}; expected text as keys; quote them")
        check_value([*value, *value.values()], name)
    elif isinstance(value, list):
        for part in value:
            check_value(part, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise PlanError(f"{name}: seen {value}; expected a finite number")
    elif isinstance(value, str) and UNKEPT.search(value):
        raise PlanError(
            f"{name}: seen {value[:MOST_SEEN]!r}; expected text without NUL bytes or "
            "lone surrogates"
        )
