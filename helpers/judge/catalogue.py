"""The catalogue of known failures: what must be seen, what speaks for and against each, what to
do.

To add one, copy an entry of failures.json: its keys are explained in ``Failure``. A test walks
every entry and every name in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from helpers.ground.shapes import Cause
from helpers.judge import table


@dataclass(frozen=True)
class Remedy:
    """What to do: commands with placeholders in braces, if there are any, what must hold before
    it, and what it may harm.

    ``shown_by_capture``: a captured box already has what the command would show.
    """

    id: str
    advice: str
    command: str
    precondition: str
    harm: str
    shown_by_capture: bool = False


@dataclass(frozen=True)
class DecidingReading:
    """A reading that would decide: its name, what it is, how it is taken, and what its results
    mean.

    ``while_running``: it has to be taken while the program runs, or just after it failed.
    """

    name: str
    reading: str
    how: str
    answer: str = ""
    while_running: bool = False


@dataclass(frozen=True)
class Failure:
    """One known failure.

    ``kind``: symptom (it is what fails), oddity (something odd that may stand beside another
    failure), contrast (fails with X, works without X). ``base`` is plain or hint: even measured,
    a hint is only that. ``needs``: groups of observations, of each group one must be there.
    ``sufficient``: of these one alone makes it likely, since it is an exclusion by arithmetic or
    the program's own statement of the cause. ``proof``: of these one that is a proof makes it
    confirmed. ``strong`` and ``weak`` support it; ``refuted_by`` ends it where measured,
    ``strong_against`` and ``weak_against`` speak against it. ``source`` is where the mechanism
    can be read.
    """

    id: str
    cause: Cause
    title: str
    mechanism: str
    needs: tuple[tuple[str, ...], ...]
    decides: DecidingReading
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
    """Every entry, in the order of the file, which decides nothing.

    Raises KeyError or TypeError, with the word, for a name or a key that is not known.
    """
    data = table("failures")
    return tuple(_failure(row, data["groups"]) for row in data["failures"])


def _failure(row: Mapping[str, Any], groups: Mapping[str, list[str]]) -> Failure:
    """An entry of the file with its groups, its reading and its remedy looked up."""
    entry: dict[str, Any] = dict(row)
    for key, value in row.items():
        if isinstance(value, list) and key != "needs":
            entry[key] = _members(value, groups)
    entry["needs"] = tuple(_members(group, groups) for group in row["needs"])
    entry["decides"] = deciding_reading(row["decides"])
    entry["remedy"] = remedy(row["remedy"])
    return Failure(**entry)


def remedy(name: str) -> Remedy:
    """The remedy of a name. Raises KeyError for another name."""
    return Remedy(id=name, **table("failures")["remedies"][name])


def deciding_reading(name: str) -> DecidingReading:
    """The reading of a name. Raises KeyError for another name."""
    return DecidingReading(name=name, **table("failures")["readings"][name])


def _members(names: list[str], groups: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The names with each group (written in capitals) in its members."""
    members: dict[str, None] = {}
    for name in names:
        members.update(dict.fromkeys(groups.get(name, [name])))
    return tuple(members)
