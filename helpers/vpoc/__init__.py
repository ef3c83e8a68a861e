"""Volume profiles of futures sessions: right on the tick grid, within the memory that is free.

Each public name is loaded when it is first asked for.
"""

_HOMES = {
    "Trades": "trades",
    "TradesError": "trades",
    "generated": "trades",
    "read_trades": "reading",
    "profiles": "counting",
    "STRATEGIES": "counting",
    "by_rule": "levels",
    "profiles_of": "files",
    "write": "files",
    "plan": "planner",
    "free_of": "free",
    "verdict": "answer",
}
"""Each public name, and the module of this package that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
