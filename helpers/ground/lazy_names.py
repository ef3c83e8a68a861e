"""Public names of a room that are loaded when they are first asked for (PEP 562)."""

from importlib import import_module
from typing import Mapping


def load_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """The value of a public name of ``package``. ``homes`` has for each public name the module
    below the package that defines it.

    Raises AttributeError for a name that is not among them.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(f"{package}.{homes[name]}"), name)
