"""What vendor tools print, read with care: JSON among warnings, sizes in their units, and why there is no answer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.units import printed_size

from .bundle import Text
from .reading import NOT_ALLOWED, NOT_AVAILABLE, Reading, not_allowed, not_available, seen

STDERR_MARK = "--- stderr ---"
LONGEST_WHY = 300
MOST_STARTS = 50
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_MEASURED = ("n/a", "unknown", "none", "not supported", "not available", "not found", "unknown error", "gpu is lost", "")
_REFUSED = ("insufficient permissions", "permission denied", "no permission")


@dataclass(frozen=True)
class Failure:
    """Why a tool gave no answer: ``status`` is not_available or not_allowed, ``why`` its own words where it had any."""

    status: str
    why: str

    def reading(self, unit: str, source: str, item: str = "") -> Reading:
        """The failure in place of a value."""
        return (not_allowed if self.status == NOT_ALLOWED else not_available)(self.why, unit, source, item)


def plain(text: str) -> str:
    """The text without terminal colours (rocminfo prints them into a pipe too)."""
    return _COLOUR.sub("", text)


def stdout_of(text: Text) -> str:
    """What went to stdout, without colours."""
    return plain(text.text).split("\n" + STDERR_MARK)[0] if not text.text.startswith(STDERR_MARK) else ""


def why_nothing(text: Text, signs: Sequence[tuple[str, str]], expected: str) -> Failure:
    """Why a text held no answer: the tool's own lines that hold one of ``signs`` (phrase, status), or what became of it.

    The first sign in the order given decides the status; the lines of all signs are quoted, because a tool often says the
    reason in its second line.
    """
    lines = [" ".join(line.split()) for line in plain(text.text).splitlines()]
    found = [(status, line) for phrase, status in signs for line in lines if phrase.lower() in line.lower()]
    if found:
        return Failure(found[0][0], "; ".join(dict.fromkeys(line for _, line in found))[:LONGEST_WHY])
    if not text.ok:
        return Failure(NOT_ALLOWED if text.status == NOT_ALLOWED else NOT_AVAILABLE, text.why or text.status)
    words = [line for line in lines if line and line != STDERR_MARK]
    if not words:
        return Failure(NOT_AVAILABLE, "it printed nothing")
    return Failure(NOT_AVAILABLE, f"it printed no {expected}; it begins: {words[0][:120]}")


def find_json(text: str) -> Any:
    """The first JSON object or array that begins a line, or None.

    amd-smi prints "WARNING: User is missing the following required groups: render" on stdout before its JSON
    (amdsmi_helpers.py, check_required_groups), and libraries under a tool print lines of their own.
    """
    decoder = json.JSONDecoder(parse_int=_int)
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


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """The value if it is a JSON array, or an empty one."""
    return value if isinstance(value, list) else []


def size(raw: object, source: str, item: str = "", unit: str = "") -> Reading:
    """Bytes from a tool's number, ``"8176 MiB"`` or ``{"value": 8176, "unit": "MB"}``; ``unit`` where it names none.

    "N/A", "UNKNOWN" and their like read as not available (it was not measured: that is no zero); "[Insufficient
    Permissions]" as not allowed.
    """
    if isinstance(raw, dict):
        unit = str(raw.get("unit") or unit)
        raw = raw.get("value")
    words = _words(raw)
    if words.lower() in _REFUSED:
        return not_allowed(words, "bytes", source, item)
    if raw is None or words.lower() in _NOT_MEASURED:
        return not_available(f"not measured ({words})" if words else "no such field", "bytes", source, item)
    try:
        return seen(printed_size("True" if isinstance(raw, bool) else words, unit), "bytes", source, item)
    except ValueError as error:
        return not_available(str(error), "bytes", source, item)


def count(raw: object, source: str, item: str = "") -> Reading:
    """A whole number, or why there is none; the same words as for ``size``."""
    words = _words(raw)
    if words.lower() in _REFUSED:
        return not_allowed(words, "count", source, item)
    if raw is None or words.lower() in _NOT_MEASURED:
        return not_available(f"not measured ({words})" if words else "no such field", "count", source, item)
    if isinstance(raw, bool) or not re.fullmatch(r"[0-9]{1,18}", words):
        return not_available(f"{words[:60]!r} is no whole number", "count", source, item)
    return seen(int(words), "count", source, item)


def word(raw: object, source: str, item: str = "") -> Reading:
    """A name or version as printed, or why there is none."""
    words = _words(raw)
    if words.lower() in _REFUSED:
        return not_allowed(words, "text", source, item)
    if isinstance(raw, (dict, list)) or raw is None or words.lower() in _NOT_MEASURED:
        return not_available(f"not reported ({words})" if words and isinstance(raw, str) else "no such field",
                             "text", source, item)
    return seen(words, "text", source, item)


def _words(raw: object) -> str:
    """The value as text, without the brackets that nvidia-smi puts around what is no value: ``[N/A]``."""
    words = " ".join(str(raw).split()) if raw is not None else ""
    return words[1:-1].strip() if isinstance(raw, str) and words.startswith("[") and words.endswith("]") else words
