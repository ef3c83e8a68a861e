"""The world that a failure comes from: the server, the system and the vendor that its texts name.

What helps depends on it: each server has options of its own, Windows has other commands than
Linux, and each vendor other tools. The rows are worlds.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Tuple

from helpers.judge import table
from helpers.judge.catalogue import Remedy, remedy
from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.judge.observation import Observation

VENDORS = ("AMD", "Intel", "NVIDIA")
Deciding = Tuple[str, str, str]  # made when imported, also on Python 3.8
"""A reading that would decide: its name, what it is, and how it is taken."""


def worlds_of(evidence: CaseEvidence) -> tuple[dict[str, Any], ...]:
    """The rows of worlds.json that the texts or the messages are of, in the file's order."""
    return evidence.once("worlds", lambda: _worlds_of(evidence))


def _worlds_of(evidence: CaseEvidence) -> tuple[dict[str, Any], ...]:
    words = "\n".join(f"{source}\n{text}" for _, source, text in evidence.words)
    programs = {message.program for message in evidence.messages}
    rows: dict[str, dict[str, Any]] = {}
    for row in table("worlds"):
        is_named = row["name"] in programs or re.search(row["form"], words)
        if row.get("not_beside") not in rows and (is_named or _has_file(row, evidence)):
            rows[row["name"]] = row
    return tuple(rows.values())


def _has_file(row: dict[str, Any], evidence: CaseEvidence) -> bool:
    """Whether the captured box has the file by which a world shows, with what it holds there."""
    if evidence.bundle is None or "file" not in row:
        return False
    file = evidence.bundle.read(row["file"])
    return file.ok and re.search(row.get("holds", ""), file.text) is not None


def vendor(evidence: CaseEvidence) -> str:
    """Whose GPU a failure is about: torch's own word for it, else the world, since other programs
    print CUDA's names on AMD's GPUs, too; empty where nothing says it.
    """
    of_torch = vendor_of(tuple(m for m in evidence.messages if m.program == "torch"))
    names = [row["name"] for row in worlds_of(evidence) if row["name"] in VENDORS]
    return next(filter(None, [of_torch, *names]), "")


def remedy_for(
    name: str, evidence: CaseEvidence, speaking: Iterable[Observation]
) -> Remedy:
    """What to do: what a program that speaks asks for, else the remedy of that name, as it is
    done in the world of the failure.
    """
    asked_for = [observation.remedy for observation in speaking]
    wanted = next(filter(None, [*asked_for, name]))
    in_its_world = [row["remedies"].get(wanted) for row in worlds_of(evidence)]
    return remedy(next(filter(None, [*in_its_world, wanted])))


def reading_for(deciding: Deciding, evidence: CaseEvidence) -> Deciding:
    """How a reading is taken in the world of the failure."""
    name = deciding[0]
    for row in worlds_of(evidence):
        if name in row["readings"]:
            reading, how = row["readings"][name]
            return name, reading, how
    return deciding
