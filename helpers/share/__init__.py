"""What may leave the box: a page and a report for a tracker, made of typed results and of the texts
that a person ticked.
"""

from __future__ import annotations

from typing import Any

from helpers.ground.lazy_names import load_name

# By name, the module of this room that has it: it is loaded when the name is used.
_HOMES = {
    "Subject": "subject",
    "ShareError": "subject",
    "subject_of": "subject",
    "page_of": "page",
    "Review": "review",
    "review_of": "page",
    "read_choices": "review",
    "TRACKERS": "tracker",
    "issue_text": "tracker",
    "whom_to_ask": "tracker",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return load_name(__name__, _HOMES, name)
