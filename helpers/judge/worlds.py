"""The world that a failure comes from: the server, the system and the vendor that its texts name.

What helps depends on it: each server has options of its own, Windows has other commands than
Linux, and each vendor other tools. The rows are worlds.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from helpers.judge import table
from helpers.judge.catalogue import DecidingReading, Remedy, remedy
from helpers.judge.evidence import CaseEvidence, once, vendor_of
from helpers.judge.observation import Observation

VENDORS = ("AMD", "Intel", "NVIDIA")


@once
def worlds_of(evidence: CaseEvidence) -> tuple[dict[str, Any], ...]:
    """The rows of worlds.json that the texts or the messages are of, in the file's order."""
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
    if evidence.bundle is None or "box_file" not in row:
        return False
    file = evidence.bundle.read(row["box_file"])
    return file.ok and re.search(row.get("box_file_has", ""), file.text) is not None


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


def reading_for(wanted: DecidingReading, evidence: CaseEvidence) -> DecidingReading:
    """The reading as it is taken in the world of the failure."""
    for row in worlds_of(evidence):
        if wanted.name in row["readings"]:
            return replace(wanted, **row["readings"][wanted.name])
    return wanted
