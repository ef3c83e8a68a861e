"""What a reader answers, as plain values that a table of tests can hold and a person can read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from helpers.ground.shapes import NOT_ALLOWED, Reading
from helpers.look.bundle import Text

NOTHING = ("", None, False, [], {}, "? not captured")


def plain(value: Any) -> Any:
    """Readings as their value, or as ``? why`` (not available) and ``! why`` (not allowed); objects as their fields and
    properties that hold anything; tuples as lists."""
    if isinstance(value, Reading):
        mark = "!" if value.status == NOT_ALLOWED else "?"
        return value.value if value.ok else f"{mark} {value.why}"
    if isinstance(value, Text):
        return value.source
    if is_dataclass(value) and not isinstance(value, type):
        own = [one.name for one in fields(value)]
        own += [name for name, one in vars(type(value)).items() if isinstance(one, property)]
        pairs = ((name, plain(getattr(value, name))) for name in own)
        return {name: held for name, held in pairs if type(held) is int or held not in NOTHING}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value
