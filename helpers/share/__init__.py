"""What may leave the box: a page and a report for a tracker, made of typed results alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "Subject": "subject",
    "ShareError": "subject",
    "subject_of": "subject",
    "SharedPage": "page",
    "page_of": "page",
    "Case": "tracker",
    "TRACKERS": "tracker",
    "issue_text": "tracker",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)
