"""Settings that a process inherits and that change what a GPU program gets: environment
variables and ulimits.

Variables are taken by allow-list (environment.json). A name that sounds like a secret is left
out even where its prefix is allowed.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from functools import lru_cache
from re import Pattern

from helpers.ground.shapes import Reading
from helpers.ground.tables import data
from helpers.look.bundle import Bundle, JsonRow, Row, Text

_KNOWN = data("look/environment")
NAMES = _KNOWN["names"].split()
PREFIXES = tuple(_KNOWN["prefixes"].split())
LIMITS: dict[str, str] = _KNOWN["limits"]
"""Each ulimit, named as in limits.conf(5), with its unit."""
VALUE_LIMIT = 4096
UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Variable:
    """One environment variable; an empty value is a value."""

    name: str
    value: str
    item: str


@dataclass(frozen=True)
class Limit:
    """One ulimit, the soft one, which holds.

    A limit that is not set reads as not available: unlimited.
    """

    name: str
    soft: Reading


def collect_environment() -> list[JsonRow]:
    """The table ``environment``.

    The home folder in a value is written ``~``; name and password in an address are left out.
    """
    names = filter(is_allowed, sorted(os.environ))
    return [{"name": name, "value": without_names(os.environ[name])} for name in names]


def is_allowed(name: str) -> bool:
    """Whether a variable of that name may be kept."""
    if sounds_secret(name):
        return False
    return name in NAMES or name.startswith(PREFIXES)


def sounds_secret(name: str) -> bool:
    """Whether the value of an option or a variable of that name is not to be shown: HF_TOKEN,
    --api-key, dbPassword.
    """
    words = [
        word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)
    ]
    while len(words) > 1 and words[-1] in _KNOWN["after a secret"].split():
        words.pop()
    if any(re.fullmatch(_KNOWN["secret anywhere"], word) for word in words):
        return True
    before, last = ["", "", *words][-2:]
    if last in ("keys", "tokens"):
        return before in _KNOWN["of secrets"].split()
    of_alphabet = last == "token" and before in _KNOWN["of a tokenizer"].split()
    return bool(re.fullmatch(_KNOWN["secret at the end"], last)) and not of_alphabet


def without_names(value: str) -> str:
    """A value with the home folder written ``~`` and without a name and password in an address."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[
        :VALUE_LIMIT
    ]
    home = os.path.expanduser("~")
    if len(home) > 1:
        value = re.sub(re.escape(home) + r"(?=[/:;,=\s]|$)", "~", value)
    return re.sub(r"://[^/@\s]+@", "://", value)


def collect_limits() -> list[JsonRow]:
    """The table ``limits``, in bytes or counts; one that is not set is the word ``unlimited``."""
    rows = []
    for name, unit in LIMITS.items():
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        rows.append(
            {
                "name": name,
                "soft": _in_words(soft),
                "hard": _in_words(hard),
                "unit": unit,
            }
        )
    return rows


def _in_words(limit: int) -> int | str:
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def variables(bundle: Bundle) -> tuple[Variable, ...]:
    """The environment variables that were kept, by name."""
    item = bundle.read("environment").item
    table = bundle.table("environment")
    kept = {
        str(row["name"]): str(row.get("value", "")) for row in table if "name" in row
    }
    return tuple(Variable(name, kept[name], item) for name in sorted(kept))


def limits(bundle: Bundle) -> tuple[Limit, ...]:
    """The ulimits of the capturing process, by name."""
    text = bundle.read("limits")
    readings = {}
    for row in bundle.table("limits"):
        name = row.text("name")
        if name:
            readings[name] = _limit(row, text.of(f"ulimit {name} (soft)"))
    return tuple(Limit(name, readings[name]) for name in sorted(readings))


def _limit(row: Row, text: Text) -> Reading:
    unit = "bytes" if row.get("unit") == "bytes" else "count"
    value = row.number("soft")
    if value is not None:
        return text.seen(value, unit)
    if row.get("soft") == UNLIMITED:
        return text.missing(UNLIMITED, unit)
    return text.missing("not captured", unit)


def looks_secret(word: str) -> bool:
    """Whether a word is a token by its own shape (secrets.json), or begins as one, or is a long
    number in hexadecimal.
    """
    shape, begins = _tokens()
    begins_as_one = word.startswith(begins) and word[-1].isalnum()
    return begins_as_one or bool(shape.fullmatch(word))


@lru_cache(1)
def _tokens() -> tuple[Pattern[str], tuple[str, ...]]:
    """The shape of a whole token, and how one begins that is known by it."""
    shapes = ["[0-9a-f]{32,}"]
    begins: list[str] = []
    for row in data("look/secrets")["tokens"]:
        shapes.append(row["shape"])
        begins += [start for start in row["begins"].split() if start[-1] in "_-"]
    return re.compile("|".join(shapes)), tuple(begins)
