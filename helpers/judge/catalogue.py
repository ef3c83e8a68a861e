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
    """What to do against a failure: advice and commands, with placeholders in braces.

    ``precondition`` is what must hold before, ``harm`` what it may harm; each may be empty.
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
    """A reading that would decide between causes: what it is (``reading``), how to take it, and
    what its results mean (``answer``).

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
    failure), contrast (fails with X, works without X). ``base`` is plain or hint: a hint stays
    one even where it was measured.

    The other tuples name observations. ``needs`` are groups, and of each group one must be
    there. One of ``sufficient`` alone makes the failure likely: it excludes everything else by
    arithmetic, or the program itself states the cause. One of ``proof`` that is a proof makes it
    confirmed. ``strong`` and ``weak`` support it; ``strong_against`` and ``weak_against`` speak
    against it, and ``refuted_by`` excludes it where measured. ``source`` is where the mechanism
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
    """The remedy with this name in failures.json. Raises KeyError where there is none."""
    return Remedy(id=name, **table("failures")["remedies"][name])


def deciding_reading(name: str) -> DecidingReading:
    """The reading with this name in failures.json. Raises KeyError where there is none."""
    return DecidingReading(name=name, **table("failures")["readings"][name])


def _members(names: list[str], groups: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The names, each once, with the members of a group in place of its name, which is written in
    capitals.
    """
    members: list[str] = []
    for name in names:
        members += groups.get(name, [name])
    return tuple(dict.fromkeys(members))
