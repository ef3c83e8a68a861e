"""What vendor tools print, read with care: JSON among warnings, sizes in their units, and why
there is no answer.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace

from helpers.ground.shapes import NOT_ALLOWED, NOT_AVAILABLE, Reading
from helpers.ground.tables import data
from helpers.ground.units import printed_size
from helpers.look.bundle import Row, Text, rows

STDERR_MARK = "--- stderr ---"
LONGEST_WHY = 300
MOST_STARTS = 50
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_MEASURED = "n/a|unknown|none|not supported|not available|not found|unknown error|gpu is lost".split(
    "|"
)
_REFUSED = ("insufficient permissions", "permission denied", "no permission")


def plain(text: str) -> str:
    """The text without terminal colours (rocminfo prints them into a pipe too)."""
    return _COLOUR.sub("", text)


def stdout_of(text: Text) -> str:
    """What went to stdout, without colours."""
    return ("\n" + plain(text.text)).split("\n" + STDERR_MARK)[0][1:]


def failures() -> dict[str, dict[str, list[str]]]:
    """What each tool prints where it fails (tool_failures.json): status -> phrases, the
    more telling first.
    """
    return dict(data("look/tool_failures"))


def why_nothing(text: Text, tool: str, expected: str) -> Text:
    """A text that held no answer, with why: the tool's own lines that hold a phrase of its
    failures, or what became of it.

    The first phrase decides the status; the lines of all are quoted, because a tool often says
    the reason in its second line.
    """
    lines = [" ".join(line.split()) for line in plain(text.text).splitlines()]
    phrases = failures().get(tool, {})
    reasons: list[str] = []
    statuses: list[str] = []
    for status in (NOT_ALLOWED, NOT_AVAILABLE):
        for phrase in phrases.get(status, ()):
            quoted = [line for line in lines if phrase.lower() in line.lower()]
            if quoted:
                statuses.append(status)
                reasons += quoted
    if reasons:
        why = "; ".join(dict.fromkeys(reasons))[:LONGEST_WHY]
        return replace(text, status=statuses[0], why=why)
    if not text.ok:
        return replace(text, why=text.why or text.status)
    first_words = next((line for line in lines if line and line != STDERR_MARK), "")
    if not first_words:
        return replace(text, status=NOT_AVAILABLE, why="it printed nothing")
    why = f"it printed no {expected}; it begins: {first_words[:120]}"
    return replace(text, status=NOT_AVAILABLE, why=why)


def find_object(text: Text) -> Row:
    """The first JSON object in a tool's stdout, or an empty one; of an array its first."""
    answer = find_json(stdout_of(text))
    return next(iter(rows([answer]) + rows(answer)), Row())


def find_json(text: str) -> object:
    """The first JSON object or array that begins a line, or None.

    amd-smi prints "WARNING: User is missing the following required groups: render" on stdout
    before its JSON (amdsmi_helpers.py, check_required_groups), and libraries under a tool print
    lines of their own.
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
    if len(digits) >= 20:
        return float(digits)
    return int(digits)


def size(raw: object, text: Text, unit: str = "") -> Reading:
    """Bytes from a tool's number, ``"8176 MiB"`` or ``{"value": 8176, "unit": "MB"}``; ``unit``
    where it names none.

    "N/A", "UNKNOWN" and their like read as not available (it was not measured: that is no
    zero); "[Insufficient Permissions]" as not allowed.
    """
    if isinstance(raw, dict):
        if raw.get("unit"):
            unit = str(raw["unit"])
        raw = raw.get("value")
    return _read(raw, text, "bytes", lambda words: printed_size(words, unit))


def count(raw: object, text: Text) -> Reading:
    """A whole number, or why there is none; the same words as for ``size``."""
    return _read(raw, text, "count", _whole_number)


def word(raw: object, text: Text) -> Reading:
    """A name or version as printed, or why there is none."""
    if isinstance(raw, (dict, list)):
        raw = None
    return _read(raw, text, "text", str)


def _read(
    raw: object, text: Text, unit: str, read: Callable[[str], int | str]
) -> Reading:
    words = _words(raw)
    if not words:
        return text.refused("", "no such field", unit)
    if words.lower() in _REFUSED:
        return text.refused(NOT_ALLOWED, words, unit)
    if words.lower() in _NOT_MEASURED:
        missing = "reported" if unit == "text" else "measured"
        return text.refused("", f"not {missing} ({words})", unit)
    try:
        return text.seen(read(words), unit)
    except ValueError as error:
        return text.refused("", str(error), unit)


def _whole_number(words: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", words):
        raise ValueError(f"{words[:60]!r} is no whole number")
    return int(words)


def _words(raw: object) -> str:
    """The value as text, without the brackets that nvidia-smi puts around what is no value:
    ``[N/A]``.
    """
    if raw is None:
        return ""
    words = " ".join(str(raw).split())
    if isinstance(raw, str) and words.startswith("[") and words.endswith("]"):
        return words[1:-1].strip()
    return words
