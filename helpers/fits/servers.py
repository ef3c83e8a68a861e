"""What is known of servers: their families, their releases by month, the bytes of a cache's types."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

NEWEST = 999912


@lru_cache(8)
def table(name: str = "servers") -> dict[str, Any]:
    """What the file NAME.json of this folder holds, with its sources.

    It is shared, so nobody changes it.
    """
    path = Path(__file__).with_name(f"{name}.json")
    return dict(json.loads(path.read_text("utf-8")))


@lru_cache(64)
def family_of(program: str) -> str:
    """The family whose rules a program follows; empty where none is known."""
    for family, names in table()["families"]:
        if re.search(names, program.lower()):
            return str(family)
    return ""


@lru_cache(64)
def date_of(version: str, family: str) -> int:
    """A release as the month it came out in (202511): as written, by build or release number;
    the newest where nothing says so.

    ``before 2025-05`` is the month before; a year alone is its end.
    """
    text = version.lower()
    dates = table()["dates"]
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
    return date - 1 if "before" in text else date


def _month_of(number: str, rows: list[list[str]]) -> int:
    """The month of the last release that is not above the number, of the first where none is."""
    wanted = _parts(number)
    months = [month for release, month in rows if _parts(release) <= wanted]
    return int([rows[0][1], *months][-1].replace("-", ""))


def _parts(number: str) -> list[int]:
    return [int(part) for part in number.split(".")]


def became(family: str, date: int) -> str:
    """The family whose server a program runs since a month, itself before it."""
    since, later = table()["becomes"].get(family, (date, family))
    return str(later) if date >= since else family
