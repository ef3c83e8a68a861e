"""What vendor tools print, read with care: JSON among warnings, sizes in their units, and why there is no answer."""

from __future__ import annotations

import itertools
import json
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from helpers.units import printed_size

from .bundle import Row, Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading

STDERR_MARK = "--- stderr ---"
LONGEST_WHY = 300
MOST_STARTS = 50
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_MEASURED = (
    "n/a|unknown|none|not supported|not available|not found|unknown error|gpu is lost|".split("|")
)
_REFUSED = ("insufficient permissions", "permission denied", "no permission")


@dataclass(frozen=True)
class Failure:
    """Why a tool gave no answer: ``status`` is not_available or not_allowed, ``why`` its own words where it had any."""

    status: str
    why: str
    text: Text

    def reading(self, unit: str = "text") -> Reading:
        """The failure in place of a value."""
        return self.text.refused(self.status, self.why, unit)


def plain(text: str) -> str:
    """The text without terminal colours (rocminfo prints them into a pipe too)."""
    return _COLOUR.sub("", text)


def stdout_of(text: Text) -> str:
    """What went to stdout, without colours."""
    return ("\n" + plain(text.text)).split("\n" + STDERR_MARK)[0][1:]


@lru_cache(1)
def failures() -> dict[str, dict[str, Any]]:
    """What each tool prints where it fails (helpers/tool_failures.json): status -> phrases, the more telling first."""
    content = pkgutil.get_data("helpers", "tool_failures.json") or b""
    data: dict[str, dict[str, Any]] = json.loads(content)
    return data


def why_nothing(text: Text, tool: str, expected: str) -> Failure:
    """Why a text held no answer: the tool's own lines that hold a phrase of its failures, or what became of it.

    The first phrase decides the status; the lines of all are quoted, because a tool often says the reason in its second line.
    """
    lines = [" ".join(line.split()) for line in plain(text.text).splitlines()]
    signs = failures().get(tool, {})
    phrases = [(s, phrase) for s in (NOT_ALLOWED, NOT_AVAILABLE) for phrase in signs.get(s, ())]
    found = [(s, line) for s, p in phrases for line in lines if p.lower() in line.lower()]
    if found:
        words = "; ".join(dict.fromkeys(line for _, line in found))[:LONGEST_WHY]
        return Failure(found[0][0], words, text)
    if not text.ok:
        status = NOT_ALLOWED if text.status == NOT_ALLOWED else NOT_AVAILABLE
        return Failure(status, text.why or text.status, text)
    words = next((line for line in lines if line and line != STDERR_MARK), "")
    begins = f"it printed no {expected}; it begins: {words[:120]}"
    return Failure(NOT_AVAILABLE, begins if words else "it printed nothing", text)


def find_json(text: str) -> Any:
    """The first JSON object or array that begins a line, or None.

    amd-smi prints "WARNING: User is missing the following required groups: render" on stdout before its JSON
    (amdsmi_helpers.py, check_required_groups), and libraries under a tool print lines of their own.
    """
    decoder = json.JSONDecoder(parse_int=_int, object_hook=Row)
    starts = re.finditer(r"^[ \t]*(?=[\[{])", text, re.MULTILINE)
    for start in itertools.islice(starts, MOST_STARTS):
        try:
            return decoder.raw_decode(text, start.end())[0]
        except (ValueError, RecursionError):
            continue  # a line such as "[drm] ..." begins like JSON and is none: a later one may
    return None


def _int(digits: str) -> int | float:
    # Before Python 3.11 a number of a million digits would cost minutes.
    return int(digits) if len(digits) < 20 else float(digits)


def mapping(value: Any) -> Row:
    """The value if it is a JSON object, or an empty one."""
    return value if isinstance(value, Row) else Row()


def size(raw: object, text: Text, unit: str = "") -> Reading:
    """Bytes from a tool's number, ``"8176 MiB"`` or ``{"value": 8176, "unit": "MB"}``; ``unit`` where it names none.

    "N/A", "UNKNOWN" and their like read as not available (it was not measured: that is no zero); "[Insufficient
    Permissions]" as not allowed.
    """
    if isinstance(raw, dict):
        unit = str(raw.get("unit") or unit)
        raw = raw.get("value")
    return _read(raw, text, "bytes", lambda words: printed_size(words, unit))


def count(raw: object, text: Text) -> Reading:
    """A whole number, or why there is none; the same words as for ``size``."""
    return _read(raw, text, "count", _whole)


def word(raw: object, text: Text) -> Reading:
    """A name or version as printed, or why there is none."""
    return _read(None if isinstance(raw, (dict, list)) else raw, text, "text", str)


def _read(raw: object, text: Text, unit: str, read: Callable[[str], int | str]) -> Reading:
    words = _words(raw)
    if words.lower() in _REFUSED:
        return text.refused(NOT_ALLOWED, words, unit)
    if raw is None or words.lower() in _NOT_MEASURED:
        why = f"not {'reported' if unit == 'text' else 'measured'} ({words})"
        return text.refused("", why if words else "no such field", unit)
    try:
        return text.seen(read(words), unit)
    except ValueError as error:
        return text.refused("", str(error), unit)


def _whole(words: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", words):
        raise ValueError(f"{words[:60]!r} is no whole number")
    return int(words)


def _words(raw: object) -> str:
    """The value as text, without the brackets that nvidia-smi puts around what is no value: ``[N/A]``."""
    words = " ".join(str(raw).split()) if raw is not None else ""
    bracketed = isinstance(raw, str) and words.startswith("[") and words.endswith("]")
    return words[1:-1].strip() if bracketed else words
