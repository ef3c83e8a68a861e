"""Tables of knowledge beside the code that reads them; expressions compiled when first asked."""

from __future__ import annotations

import json
import pkgutil
import re
from functools import lru_cache
from re import Pattern
from typing import Any

Table = Any
"""What a file of JSON holds; who reads it says of which type that is."""


@lru_cache(None)
def data(name: str) -> Table:
    """What the table of knowledge of that name holds: helpers/NAME.json."""
    return json.loads(pkgutil.get_data("helpers", f"{name}.json") or b"[]")


class _Lazy:
    def __init__(self, expression: str, flags: int):
        self._expression = expression
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        value: object = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, value)
        return value


def lazy(expression: str, flags: int = 0) -> Pattern[str]:
    """``re.compile``, put off until the pattern is first asked: most texts never need most
    patterns.
    """
    return _Lazy(expression, flags)  # type: ignore[return-value]
