"""Whether a text holds a secret: by its shape (secrets.json), by the name before it, by
detect-secrets.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from helpers.look.environment import looks_secret, sounds_secret

AS_A_FILE = "text.yaml"
"""detect-secrets looks for values without quotation marks in files of this kind."""
# Words that may be a token: with the marks of base64 and paths, and between such marks. No token of
# secrets.json has fewer than eight characters.
LONG_WORD = re.compile(r"(?<![\w./+=-])[\w./+=-]{8,}")
PART_OF_A_WORD = re.compile(r"(?<![\w-])[\w-]{8,}")
UNBROKEN = re.compile("(?<![A-Za-z0-9])[A-Za-z0-9]{20,}")
"""Letters and digits without a mark, as many as keys of services have."""
TURN = re.compile("(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
"""A character of another kind (small letter, capital, digit) than the one before it."""
MOST_TURNS = 0.45
MOST_TURNS_WITH_DIGITS = 0.3
"""The share of turns up to which a word is a name: random characters have three fifths, a name in
camel case two fifths, and a name with several numbers fewer.
"""
MAY_BE_ONE = re.compile(
    r"[\w.+/=:@-]{11}|['\"][\da-f]{9}|\d\.\d+\.\d|://|key|pass|pwd|secret|contrase",
    re.IGNORECASE,
)
"""Each line in which a detector of detect-secrets finds something matches this; it is
much faster.
"""
ASSIGNED = re.compile(r"(?<![\w-])([\w-]{3,})['\"]?\s*[:=]\s*\S")
"""A name before a value: ``api_key = ...``, ``"token": ...``."""


@cache
def _detectors() -> tuple[Any, ...]:
    """One of each of detect-secrets' detectors."""
    # Imported here: it takes a third of a second, and a page without ticks does not need it.
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    classes: list[Any] = list(get_mapping_from_secret_type_to_class().values())
    return tuple(detector() for detector in classes)


def is_secret(text: str) -> bool:
    """Whether a text has a word in the shape of a token, a value after a name such as ``password``,
    random letters and digits, or what detect-secrets finds.
    """
    words = {*LONG_WORD.findall(text), *PART_OF_A_WORD.findall(text)}
    if any(looks_secret(word) for word in words):
        return True
    if any(sounds_secret(name) for name in set(ASSIGNED.findall(text))):
        return True
    if any(_is_random(word) for word in UNBROKEN.findall(text)):
        return True
    lines = filter(MAY_BE_ONE.search, set(text.splitlines()))
    return any(_has_detected_secret(line) for line in lines)


def _is_random(word: str) -> bool:
    """Whether small letters, capitals and digits take turns more often than in a name."""
    most_turns = MOST_TURNS
    numbers = re.findall("[0-9]+", word)
    if len(numbers) > 1:
        most_turns = MOST_TURNS_WITH_DIGITS
    return len(TURN.findall(word)) > most_turns * len(word)


def _has_detected_secret(line: str) -> bool:
    return any(detector.analyze_line(AS_A_FILE, line) for detector in _detectors())
