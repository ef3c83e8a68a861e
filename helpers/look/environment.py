"""Environment variables and ulimits that change how a GPU program runs.

Only variables of an allow-list (environment.json) are kept. One whose name sounds like a secret is
left out even if its prefix is allowed.
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
"""The unit of each ulimit, by its name in limits.conf(5)."""
VALUE_LIMIT = 4096
"""Letters of a variable's value that are kept: the longest path that the kernel takes (PATH_MAX).
"""
UNLIMITED = "unlimited"


@dataclass(frozen=True)
class Variable:
    """One environment variable; an empty value is a value."""

    name: str
    value: str
    item: str


@dataclass(frozen=True)
class Limit:
    """One ulimit: its soft value, which is in force. One that is not set reads as not available:
    unlimited.
    """

    name: str
    soft: Reading


def collect_environment() -> list[JsonRow]:
    """The table ``environment``: a row for each variable of the allow-list that is set."""
    names = filter(is_allowed, sorted(os.environ))
    return [{"name": name, "value": without_names(os.environ[name])} for name in names]


def is_allowed(name: str) -> bool:
    """Whether a variable of that name may be kept."""
    if sounds_secret(name):
        return False
    return name in NAMES or name.startswith(PREFIXES)


def sounds_secret(name: str) -> bool:
    """Whether an option or a variable has a secret for a value, by its name: HF_TOKEN, --api-key,
    dbPassword; but not MAX_TOKENS or bos_token.
    """
    # The words of a name in any style: snake_case, kebab-case, camelCase, CAPITALS.
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)
    words = [word.lower() for word in words]
    while len(words) > 1 and words[-1] in _KNOWN["after a secret"].split():
        words.pop()
    if any(re.fullmatch(_KNOWN["secret anywhere"], word) for word in words):
        return True
    # The last two words, of which a short name lacks one or both.
    word_before, last = ["", "", *words][-2:]
    if last in ("keys", "tokens"):
        return word_before in _KNOWN["of secrets"].split()
    if last == "token" and word_before in _KNOWN["of a tokenizer"].split():
        return False
    return re.fullmatch(_KNOWN["secret at the end"], last) is not None


def without_names(value: str) -> str:
    """A value with the home folder written ``~``, and without the user and password of a URL."""
    # As a person sees it: bytes that are no UTF-8 become question marks.
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    value = value[:VALUE_LIMIT]
    home = os.path.expanduser("~")
    if len(home) > 1:  # the home folder / would be in every path
        value = re.sub(re.escape(home) + r"(?=[/:;,=\s]|$)", "~", value)
    return re.sub(r"://[^/@\s]+@", "://", value)


def collect_limits() -> list[JsonRow]:
    """The table ``limits``: the soft and the hard value of each ulimit in its unit, or the word
    ``unlimited``.
    """
    rows = []
    for name, unit in LIMITS.items():
        soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        row = {"name": name, "soft": soft, "hard": hard, "unit": unit}
        for kind in ("soft", "hard"):
            if row[kind] == resource.RLIM_INFINITY:
                row[kind] = UNLIMITED
        rows.append(row)
    return rows


def variables(bundle: Bundle) -> tuple[Variable, ...]:
    """The environment variables that were kept, sorted by name."""
    item = bundle.read("environment").item
    values = {}
    for row in bundle.table("environment"):
        if "name" in row:
            values[str(row["name"])] = str(row.get("value", ""))
    return tuple(Variable(name, values[name], item) for name in sorted(values))


def limits(bundle: Bundle) -> tuple[Limit, ...]:
    """The ulimits of the capturing process, sorted by name."""
    text = bundle.read("limits")
    readings = {}
    for row in bundle.table("limits"):
        name = row.text("name")
        if name:
            readings[name] = _limit(row, text.of(f"ulimit {name} (soft)"))
    return tuple(Limit(name, readings[name]) for name in sorted(readings))


def _limit(row: Row, text: Text) -> Reading:
    """The soft value of a row of the table ``limits``."""
    unit = "count"
    if row.get("unit") == "bytes":
        unit = "bytes"
    value = row.number("soft")
    if value is not None:
        return text.seen(value, unit)
    if row.get("soft") == UNLIMITED:
        return text.missing(UNLIMITED, unit)
    return text.missing("not captured", unit)


def looks_secret(word: str) -> bool:
    """Whether a word is a secret token by its form or by its beginning (secrets.json), or a long
    hexadecimal number.
    """
    form, beginnings = _tokens()
    if word.startswith(beginnings) and word[-1].isalnum():
        return True
    return form.fullmatch(word) is not None


@lru_cache(1)
def _tokens() -> tuple[Pattern[str], tuple[str, ...]]:
    """The form of a whole token, and the beginnings that only tokens have, such as ``hf_``."""
    forms = ["[0-9a-f]{32,}"]  # as long as a key of 128 bits
    beginnings: list[str] = []
    for row in data("look/secrets")["tokens"]:
        forms.append(row["shape"])
        # Without one of these signs at its end a beginning may be that of a word.
        beginnings += [start for start in row["begins"].split() if start[-1] in "_-"]
    return re.compile("|".join(forms)), tuple(beginnings)
