"""Verbs and options that are gone, each with what to use instead (gone.json)."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.ground.tables import data

GONE: dict[str, str] = data("commands/gone")
"""What to use instead, by the verb, or by the verb and its option: ``run --keys``."""


def instead(argv: Sequence[str]) -> str:
    """What to use in place of the verb or an option of a command line, as one line of an error.

    ``argv``: the verb and its words. Returns an empty text where nothing of it is gone.
    """
    if not argv:
        return ""
    verb, *words = argv
    names = [verb]
    for word in words:
        if word == "--":  # the user's own command follows
            break
        option, _, _ = word.partition("=")
        names.append(f"{verb} {option}")
    for name in names:
        if name in GONE:
            return f"{name} is gone; {GONE[name]}"
    return ""
