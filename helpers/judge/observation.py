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
NEUTRAL_EVENTS = ("sizes", "note", "footer")
"""Events of messages (look/messages.json) that report no failure."""
LONGEST_QUOTE = 400
"""Characters of a text that a reading quotes: an error message with its advice."""


@dataclass(frozen=True)
class Observation:
    """One thing seen: ``name`` is what the catalogue calls it, ``says`` the sentence about it.

    ``origin``: message, tool, bundle, snapshot or environment. ``hard``: it was measured: parsed
    from what a program prints, or computed from printed numbers; otherwise it is hearsay (a
    description of a tool's output). ``proof``: it proves its cause by itself (the kernel's own
    line, blocks of a snapshot, layers that were read and agree). ``filled``: it rests on a
    reading that was filled in for a recorded box. ``remedy``: the one in failures.json that the
    program which prints it asks for; empty where there is none.
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
    """The ids and the sources of a bundle's items that no machine printed."""
    names: set[str] = set()
    for item in bundle.items:
        if item.constructed:
            names |= {item.id, item.source}
    return names


def observation_name(side: str, event: str) -> str:
    """The name of the observation that a message makes by its side and event; empty where the
    event is no failure.
    """
    if event in NEUTRAL_EVENTS:
        return ""
    names = table("observations")
    if side in names["hosts"] and event in names["refusals"]:
        return f"{side}-refused"
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

    Where ``says`` is empty, the sentence of observations.json is said. A number below zero, from
    figures that were rounded apart, counts as 0.
    """
    if isinstance(value, int):
        reading = seen(max(0, value), "bytes", source)
    elif isinstance(value, Reading):
        reading = value
    else:
        words = " ".join(str(value).split())[:LONGEST_QUOTE]
        if not words:
            words = "(empty)"
        reading = seen(words, "text", source)
    if not says:
        says = table("observations")["sentences"][name]
    return Observation(name, reading, says, origin, hard, proof)
