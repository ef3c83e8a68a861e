"""PyTorch's caching allocator: its settings, traces of what was asked of it, and a model that
replays them.

A program that knows this project records a part of itself with ``recording``.
"""

_HOMES = {
    "recording": "under_torch.recording",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    from importlib import import_module  # here: importing the room loads nothing else

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
