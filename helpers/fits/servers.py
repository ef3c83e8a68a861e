"""Tables about servers, and a server's family and release by what it calls itself."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

NEWEST = 999912
"""The month of a release that is not known: later than any."""


@lru_cache(8)
def table(name: str = "servers") -> dict[str, Any]:
    """The content of the file NAME.json of this folder. It is shared, so nobody changes it."""
    path = Path(__file__).with_name(f"{name}.json")
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


@lru_cache(64)
def family_of(program: str) -> str:
    """The family of servers whose rules a program follows, such as llama.cpp for koboldcpp; empty
    where none is known. The first family counts that has a name in the program's: some programs
    have names of two, such as *ollama (llama runner)*.
    """
    for family, names in table()["families"]:
        if re.search(names, program.lower()):
            return str(family)
    return ""


@lru_cache(64)
def date_of(version: str, family: str) -> int:
    """The month in which a release came out (202511), by what its name has first of these: a month,
    a build (b4567), a release number, a year; NEWEST where it has none.

    ``before 2025-05`` is the month before; a year alone counts as its December. Words for a part of
    a year, such as *late 2025*, have a month in servers.json.
    """
    text = version.lower()
    dates = table()["dates"]
    # "Nov 2025" is written as 2025-11, too; a word that is no month as the month 00, no match.
    for word, year in re.findall(r"\b([a-z]{3})[a-z]*[. -]{1,2}(20\d\d)", text):
        text += f" {year}-{dates['words'].get(word, 0):02d}"
    date = NEWEST
    month = re.search(r"(20\d\d)-(0[1-9]|1[0-2])", text)
    build = re.search(r"\bb(?:uild )?(\d{3,5})\b", text)
    number = re.search(r"\b(\d+\.\d+(?:\.\d+)?)", text)
    year_alone = re.search(r"\b20\d\d\b", text)
    if month:
        date = int(month[1] + month[2])
    elif build:
        date = _month_of(build[1], dates["build"])
    elif number and family in dates:
        date = _month_of(number[1], dates[family])
    elif year_alone:
        date = int(year_alone[0] + "12")
    if "before" in text:
        return date - 1  # in January month 00, which compares as it should
    return date


def _month_of(number: str, rows: list[list[str]]) -> int:
    """The month of the last release whose number is not above this one; for a number below all of
    them that of the first. ``rows`` are pairs of a release and its month, the oldest first.
    """
    last_month = rows[0][1]
    for release, month in rows:
        if _parts(release) <= _parts(number):
            last_month = month
    return int(last_month.replace("-", ""))


def _parts(number: str) -> list[int]:
    """The parts of a release number, which compare as numbers: 0.10 is above 0.9."""
    return [int(part) for part in number.split(".")]


def became(family: str, date: int) -> str:
    """The family whose rules a family follows in the month ``date``: itself, but ollama those of
    llama.cpp since it runs llama-server (``becomes`` of servers.json).
    """
    if family not in table()["becomes"]:
        return family
    since, later = table()["becomes"][family]
    if date < since:
        return family
    return str(later)
