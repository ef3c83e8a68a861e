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
    """The rows of worlds.json that the texts, the messages or the box show, in the file's order:
    servers first, then systems and vendors, so that the first with a remedy is the nearest.

    A row that is ``not_beside`` another counts only without that one: programs print CUDA's names
    on AMD's GPUs, too.
    """
    words = "\n".join(f"{source}\n{text}" for _, source, text in evidence.words)
    programs = {message.program for message in evidence.messages}
    rows: dict[str, dict[str, Any]] = {}
    for row in table("worlds"):
        if row.get("not_beside") in rows:
            continue
        is_named = row["name"] in programs or re.search(row["form"], words)
        if is_named or _has_file(row, evidence):
            rows[row["name"]] = row
    return tuple(rows.values())


def _has_file(row: dict[str, Any], evidence: CaseEvidence) -> bool:
    """Whether the captured box has the file that shows a world, with the text that it has there."""
    if evidence.bundle is None or "box_file" not in row:
        return False
    file = evidence.bundle.read(row["box_file"])
    return file.ok and re.search(row.get("box_file_has", ""), file.text) is not None


def vendor(evidence: CaseEvidence) -> str:
    """The vendor of the GPU that a failure is about: by torch's own messages, else by the world,
    since other programs print CUDA's names on AMD's GPUs, too. Empty where nothing says it.
    """
    messages = [message for message in evidence.messages if message.program == "torch"]
    of_torch = vendor_of(tuple(messages))
    if of_torch:
        return of_torch
    names = [row["name"] for row in worlds_of(evidence) if row["name"] in VENDORS]
    return next(iter(names), "")


def remedy_for(
    name: str, evidence: CaseEvidence, speaking: Iterable[Observation]
) -> Remedy:
    """The remedy that the program of a speaking observation asks for, else the one ``name``, as
    the world of the failure has it.
    """
    asked_for = [observation.remedy for observation in speaking if observation.remedy]
    if asked_for:
        name = asked_for[0]
    for row in worlds_of(evidence):
        if row["remedies"].get(name):
            return remedy(row["remedies"][name])
    return remedy(name)


def reading_for(wanted: DecidingReading, evidence: CaseEvidence) -> DecidingReading:
    """The reading as it is taken in the world of the failure."""
    for row in worlds_of(evidence):
        if wanted.name in row["readings"]:
            return replace(wanted, **row["readings"][wanted.name])
    return wanted
