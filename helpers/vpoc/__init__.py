"""Volume profiles of futures sessions: right on the tick grid, within the memory that is free.

Each public name is loaded when it is first asked for.
"""

from helpers.ground.lazy_names import load_name

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
    "verdict_on_chunks": "answer",
}
"""Each public name, and the module of this package that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)
