"""Reads what vendor tools print: JSON among warnings, sizes in their units, and the reason why
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
from helpers.ground.units import LONGEST_PRINTED, printed_size
from helpers.look.bundle import Row, Text, rows

STDERR_MARK = "--- stderr ---"
"""The line that a capture puts between a command's stdout and its stderr (commands.py)."""
LONGEST_WHY = 300
LONGEST_BEGINNING = 120
"""Letters of a reason, and of an output that is quoted in it."""
MOST_STARTS = 50
"""Lines that begin like JSON and are tried."""
LONGEST_INT = 19
"""Digits of the largest number of 64 bits with a sign."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_MEASURED = "n/a|unknown|none|not supported|not available|not found|unknown error|gpu is lost".split(
    "|"
)
_REFUSED = ("insufficient permissions", "permission denied", "no permission")


def plain(text: str) -> str:
    """The text without terminal colours (rocminfo prints them into a pipe, too)."""
    return _COLOUR.sub("", text)


def stdout_of(text: Text) -> str:
    """What a command printed on stdout, without colours."""
    stdout, _, _ = f"\n{plain(text.text)}".partition(f"\n{STDERR_MARK}")
    return stdout[1:]


def failures() -> dict[str, dict[str, list[str]]]:
    """The phrases that each tool prints when it fails (tool_failures.json), by tool and status, the
    most specific first.
    """
    return dict(data("look/tool_failures"))


def why_nothing(text: Text, tool: str, expected: str) -> Text:
    """The text of a tool that lacks what was expected of it, with the reason and its status: the
    lines that contain a phrase of the tool's failures; else why the tool did not run; else how it
    begins.

    The first phrase decides the status; the lines of all are quoted, because a tool often prints
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
    if not text.ok and text.why:  # the tool did not run, or not to its end
        return text
    if not text.ok:
        return replace(text, why=text.status)
    first_line = next((line for line in lines if line not in ("", STDERR_MARK)), "")
    if not first_line:
        return replace(text, status=NOT_AVAILABLE, why="it printed nothing")
    beginning = first_line[:LONGEST_BEGINNING]
    why = f"it printed no {expected}; it begins: {beginning}"
    return replace(text, status=NOT_AVAILABLE, why=why)


def find_object(text: Text) -> Row:
    """The JSON object in a tool's stdout, or the first one of an array; empty if there is none."""
    answer = find_json(stdout_of(text))
    return next(iter(rows([answer]) + rows(answer)), Row())


def find_json(text: str) -> object:
    """The first JSON object or array that begins in a line of its own, or None.

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
            continue  # a line such as "[drm] ..." only begins like JSON
    return None


def _int(digits: str) -> int | float:
    # Before Python 3.11 a number of a million digits would take minutes.
    if len(digits) > LONGEST_INT:
        return float(digits)
    return int(digits)


def size(raw: object, text: Text, unit: str = "") -> Reading:
    """The bytes of what a tool has for a size: ``"8176 MiB"``, 8176, or ``{"value": 8176, "unit":
    "MB"}``. ``unit`` is that of a number without one.

    "N/A", "UNKNOWN" and so on read as not available, since it was not measured;
    "[Insufficient Permissions]" as not allowed.
    """
    if isinstance(raw, dict):
        if raw.get("unit"):
            unit = str(raw["unit"])
        raw = raw.get("value")
    return _read(raw, text, "bytes", lambda words: printed_size(words, unit))


def count(raw: object, text: Text) -> Reading:
    """A whole number, or why there is none, as for ``size``."""
    return _read(raw, text, "count", _whole_number)


def word(raw: object, text: Text) -> Reading:
    """A name or a version as it was printed, or why there is none."""
    if isinstance(raw, (dict, list)):
        raw = None
    return _read(raw, text, "text", str)


def _read(
    raw: object, text: Text, unit: str, read: Callable[[str], int | str]
) -> Reading:
    """The reading of what a tool has for a value, for which ``read`` gives the value of its words,
    or raises ValueError.
    """
    words = _words(raw)
    if not words:
        return text.refused("", "no such field", unit)
    if words.lower() in _REFUSED:
        return text.refused(NOT_ALLOWED, words, unit)
    if words.lower() in _NOT_MEASURED:
        if unit == "text":
            return text.refused("", f"not reported ({words})", unit)
        return text.refused("", f"not measured ({words})", unit)
    try:
        return text.seen(read(words), unit)
    except ValueError as error:
        return text.refused("", str(error), unit)


def _whole_number(words: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", words):
        raise ValueError(f"{words[:LONGEST_PRINTED]!r} is no whole number")
    return int(words)


def _words(raw: object) -> str:
    """The value as text in one line, without the brackets that nvidia-smi prints around words in
    place of a value: ``[N/A]``.
    """
    if raw is None:
        return ""
    words = " ".join(str(raw).split())
    if isinstance(raw, str) and words.startswith("[") and words.endswith("]"):
        return words[1:-1].strip()
    return words
