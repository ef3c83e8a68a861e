"""A program of the user's own, run whole on a GPU that is not there: what fits, what it asks
for, where it runs out.
"""

from helpers.ground.lazy_names import load_name

_HOMES = {
    "rehearse": "run",
    "RehearsalLimits": "rehearsal",
    "Rehearsal": "rehearsal",
    "NotReady": "torches",
    "find_torch": "torches",
    "cache_folder": "torches",
    "find_capacity": "search",
    "find_batch": "search",
    "rehearse_study": "remedies",
}
"""Each public name, and the module of this room that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)


def __dir__() -> "list[str]":
    return sorted(__all__)
