"""Judgement: facts in, verdict out. Pure functions, no effects."""

from __future__ import annotations

import json
import pkgutil
import re
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def table(name: str) -> Any:
    """What the file NAME.json of this folder holds: knowledge with its sources.

    It is shared, so nobody changes it.
    """
    return json.loads(pkgutil.get_data(__name__, f"{name}.json") or b"{}")


@lru_cache(maxsize=None)
def form(name: str) -> re.Pattern[str]:
    """What is looked for in a text, by its name in forms.json."""
    return re.compile(table("forms")[name]["form"])


def capitalised(text: str) -> str:
    """The text as the beginning of a sentence; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]
