"""Verbs and options that are gone, each with what to use instead (gone.json)."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.tables import data

GONE: dict[str, str] = data("commands/gone")
"""What to use instead, by the verb, or by the verb and its option: ``run --keys``."""


def instead(argv: Sequence[str]) -> str:
    """What to use in place of the verb or an option of a command line, as one line of an error.

    Returns an empty text where nothing of ``argv`` is gone.
    """
    name = ""
    for word in argv:
        if word == "--":
            break
        name = f"{argv[0]} {word.partition('=')[0]}" if name else word
        if name in GONE:
            return f"{name} is gone; {GONE[name]}"
    return ""
