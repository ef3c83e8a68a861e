"""Tables of knowledge beside the code that reads them; expressions compiled when first asked."""

from __future__ import annotations

import json
import pkgutil
import re
from functools import lru_cache
from re import Pattern
from typing import Any, Dict

Table = Any
"""The content of a JSON file; whoever reads it says of which type it is."""
JsonRow = Dict[str, Any]
"""An object of JSON; whoever reads a value of it says of which type it is."""


@lru_cache(None)
def data(name: str) -> Table:
    """The table of knowledge helpers/NAME.json. Raises FileNotFoundError where there is none."""
    text = pkgutil.get_data("helpers", f"{name}.json")
    assert text is not None  # only a loader that cannot read files gives None
    return json.loads(text)


class _Lazy:
    """Stands for a pattern; compiles it when one of its methods is first asked for."""

    def __init__(self, expression: str, flags: int):
        self._expression = expression
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        # Python calls this only for an attribute that is not set yet, so once for each method.
        method: object = getattr(re.compile(self._expression, self._flags), name)
        setattr(self, name, method)
        return method


def lazy(expression: str, flags: int = 0) -> Pattern[str]:
    """``re.compile``, put off until the pattern is first asked: most texts never need most
    patterns.
    """
    return _Lazy(expression, flags)  # type: ignore[return-value]
