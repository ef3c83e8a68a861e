"""Whether a text holds a secret: by its shape (secrets.json), by the name before it, by detect-secrets."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from helpers.look.environment import looks_secret, sounds_secret

AS_A_FILE = "text.yaml"
"""detect-secrets looks for values without quotation marks in files of this kind."""
LONG_WORD = re.compile(r"(?<![\w./+=-])[\w./+=-]{8,}")
PART_OF_A_WORD = re.compile(r"(?<![\w-])[\w-]{8,}")
UNBROKEN = re.compile("(?<![A-Za-z0-9])[A-Za-z0-9]{20,}")
TURN = re.compile("(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
MOST_TURNS = 0.45
MOST_TURNS_WITH_DIGITS = 0.3
"""Of the letters of a word; a random one has three fifths, a name in camel case two fifths."""
MAY_BE_ONE = re.compile(
    r"[\w.+/=:@-]{11}|['\"][\da-f]{9}|\d\.\d+\.\d|://|key|pass|pwd|secret|contrase",
    re.IGNORECASE,
)
"""What stands in each line in which one of the detectors finds anything."""
ASSIGNED = re.compile(r"(?<![\w-])([\w-]{3,})['\"]?\s*[:=]\s*\S")


@cache
def _detectors() -> tuple[Any, ...]:
    # It takes a third of a second, and a page without ticks needs none of it.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    classes: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    return tuple(detector() for detector in classes)


def is_secret(text: str) -> bool:
    """Whether detect-secrets finds a secret in it, or it holds what has the shape of a token, the
    name of one before a value, or letters and digits in no order.
    """
    return (
        any(
            map(looks_secret, {*LONG_WORD.findall(text), *PART_OF_A_WORD.findall(text)})
        )
        or any(map(sounds_secret, set(ASSIGNED.findall(text))))
        or any(map(_is_random, UNBROKEN.findall(text)))
        or any(map(_is_found, filter(MAY_BE_ONE.search, set(text.splitlines()))))
    )


def _is_random(word: str) -> bool:
    """Whether small letters, capitals and digits take turns as they do in no name."""
    most = MOST_TURNS
    if len(re.findall("[0-9]+", word)) > 1:
        most = MOST_TURNS_WITH_DIGITS
    return len(TURN.findall(word)) > most * len(word)


def _is_found(line: str) -> bool:
    return any(detector.analyze_line(AS_A_FILE, line) for detector in _detectors())
