"""The catalogue of known failures, read from failures.json: what must be seen, what speaks for and against it, what to do.

To add one, copy an entry of the file: its keys are explained in ``Failure``. A test walks every entry and every name in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from helpers.shapes import CAUSES, Cause

DATA = Path(__file__).with_name("failures.json")
KINDS = ("contrast", "symptom", "oddity")
BASES = ("plain", "hint")


@dataclass(frozen=True)
class Remedy:
    """What to do: one command with placeholders in braces, what must hold before it, and what it may harm."""

    what: str
    command: str
    precondition: str
    harm: str


@dataclass(frozen=True)
class Failure:
    """One known failure.

    ``kind``: symptom (it is what fails), oddity (something odd that may stand beside another failure), contrast (fails with X,
    works without X). ``needs``: groups of observations, of each group one must be there. ``sufficient``: of these one alone
    makes it likely, since it is an exclusion by arithmetic or the program's own statement of the cause. ``proof``: of these
    one that is a proof makes it confirmed. ``strong`` and ``weak`` support it; ``refuted_by`` ends it where measured,
    ``strong_against`` and ``weak_against`` speak against it. ``base`` hint: even measured it is only a hint. ``decides`` is
    the reading that would decide and how it is taken; ``source`` where the mechanism can be read.
    """

    id: str
    cause: Cause
    title: str
    mechanism: str
    needs: tuple[tuple[str, ...], ...]
    decides: tuple[str, str]
    remedy: Remedy
    source: str
    kind: str = "symptom"
    base: str = "plain"
    sufficient: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    strong: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()
    strong_against: tuple[str, ...] = ()
    weak_against: tuple[str, ...] = ()


@lru_cache(1)
def failures() -> tuple[Failure, ...]:
    """Every entry, in the order of the file, which decides nothing."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(_failure(row, data) for row in data["failures"])


def _failure(row: Mapping[str, Any], data: Mapping[str, Any]) -> Failure:
    known = {field.name for field in fields(Failure)}
    got: dict[str, Any] = dict(row)
    odd = sorted(set(got) - known)
    if odd:
        raise ValueError(f"failures.json, {row.get('id')}: unknown key {odd[0]}")
    got["decides"] = tuple(data["readings"][row["decides"]])
    got["remedy"] = Remedy(**data["remedies"][row["remedy"]])
    groups = data.get("groups", {})
    for key, value in got.items():
        if key == "needs":
            got[key] = tuple(_spread(group, groups) for group in value)
        elif isinstance(value, list):
            got[key] = _spread(value, groups)
    made = Failure(**got)
    if made.cause not in CAUSES or made.kind not in KINDS or made.base not in BASES:
        raise ValueError(f"failures.json, {made.id}: {made.cause}, {made.kind}, {made.base}")
    return made


def _spread(names: Any, groups: Mapping[str, Any]) -> tuple[str, ...]:
    """The names with each group (written in capitals) in its members."""
    return tuple(dict.fromkeys(one for name in names for one in groups.get(name, [name])))
