"""A program of the user's own, run whole on a GPU that is not there: what fits, what it asks
for, where it runs out.
"""

_HOMES = {
    "rehearse": "run",
    "Limits": "rehearsal",
    "Rehearsal": "rehearsal",
    "NotReady": "torches",
    "find_torch": "torches",
    "cache_folder": "torches",
    "find_capacity": "search",
    "find_batch": "search",
    "on_cards": "workloads",
    "measured_rows": "remedies",
}
"""Each public name, and the module of this room that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    from importlib import import_module  # here: importing the room loads nothing else

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted(__all__)
