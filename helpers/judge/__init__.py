"""Judgement: facts in, verdict out. Pure functions, no effects."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from helpers.ground.tables import data


def table(name: str) -> Any:
    """What the file NAME.json of this folder holds: knowledge with its sources.

    It is shared, so nobody changes it.
    """
    return data(f"judge/{name}")


@lru_cache(maxsize=None)
def form(name: str) -> re.Pattern[str]:
    """The regular expression with this name in forms.json."""
    return re.compile(table("forms")[name]["form"])


def capitalised(text: str) -> str:
    """The text as the beginning of a sentence; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]
