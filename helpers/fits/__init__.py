"""What fits: weights, cache and buffers of a model against what a card or a box can give, as its
server would round them.

Each public name is loaded when it is first asked for.
"""

from helpers.ground.lazy_names import load_name

_HOMES = {
    "read_model": "model",
    "read_record": "model",
    "read_log": "log",
    "ServerFacts": "sheet",
    "Sheet": "sheet",
    "MissingFigure": "sheet",
    "cards_of": "cards",
    "FitsAnswer": "answer",
    "family_of": "servers",
    "solved": "solving",
}
"""Each public name, and the module of this package that holds it."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)
