"""One thing that was seen, with its reading and where it stands.

An observation says nothing about causes; the catalogue does.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground.shapes import Reading, seen
from helpers.judge import table
from helpers.look.bundle import Bundle

WRITTEN_UP = " (from the write-up)"
"""What is said of a reading that no machine printed: the box's story gave it."""
SILENT = ("sizes", "note", "footer")


@dataclass(frozen=True)
class Observation:
    """One thing seen. ``origin``: message, tool, bundle, snapshot or environment.

    ``hard``: a parser of the program that prints it, or arithmetic on printed numbers, gave it;
    else it is hearsay (a description of a tool's output). ``proof``: it proves its cause
    by itself (the kernel's own line, blocks of a snapshot, layers really read that agree).
    ``filled``: it rests on a reading that was filled in for a recorded box. ``remedy``: the one
    in failures.json that the program which prints it asks for; empty where there is none.
    """

    name: str
    reading: Reading
    says: str
    origin: str
    hard: bool = True
    proof: bool = False
    filled: bool = False
    remedy: str = ""


def constructed_items(bundle: Bundle) -> set[str]:
    """The ids and the sources of the items that no machine printed."""
    items = [item for item in bundle.items if item.constructed]
    return {item.id for item in items} | {item.source for item in items}


def observation_name(side: str, event: str) -> str:
    """The name of the observation that a row of the grammar makes; empty for rows that only
    inform.
    """
    if event in SILENT:
        return ""
    names = table("observations")
    if side in names["hosts"] and event in names["refusals"]:
        return side + "-refused"
    return str(names["events"].get(event, event))


def make_observation(
    name: str,
    value: Reading | int | str | None,
    source: str,
    origin: str,
    says: str = "",
    hard: bool = True,
    proof: bool = False,
) -> Observation:
    """An observation of a Reading, of a number of bytes, or of words.

    What it says is the sentence of observations.json, unless ``says`` has words of its own.
    """
    if isinstance(value, int):
        reading = seen(max(0, value), "bytes", source)
    elif isinstance(value, Reading):
        reading = value
    else:
        words = " ".join(str(value).split())[:400]
        reading = seen(words or "(empty)", "text", source)
    return Observation(
        name,
        reading,
        says or table("observations")["sentences"][name],
        origin,
        hard,
        proof,
    )
