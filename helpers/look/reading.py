"""One value read off a box, with where it came from, or the reason why there is none.

A reading has three honest states: ``ok`` (a value, which may be a true zero), ``not_available`` (there is no such file,
tool or field) and ``not_allowed`` (it is there, and this process may not read it). Nothing in the project turns one of
the last two into 0 or None without its reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.shapes import NOT_ALLOWED as NOT_ALLOWED
from helpers.shapes import NOT_AVAILABLE as NOT_AVAILABLE
from helpers.shapes import OK as OK
from helpers.shapes import Reading as Reading


def seen(value: int | float | str, unit: str, source: str, item: str = "") -> Reading:
    """A value that was read; a true zero included."""
    return Reading(value, unit, OK, "", source, item)


def not_available(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: the file, tool or field does not exist, or what it said cannot be read as a value."""
    return Reading(None, unit, NOT_AVAILABLE, why, source, item)


def not_allowed(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: it exists and this process may not read it."""
    return Reading(None, unit, NOT_ALLOWED, why, source, item)


def absent(status: object, why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: not allowed where ``status`` says so, whatever wrote it; else not available."""
    make = not_allowed if status == NOT_ALLOWED else not_available
    return make(why, unit, source, item)


def sum_of(parts: Sequence[Reading]) -> Reading:
    """The sizes together, in bytes; one part without a value leaves the whole without one."""
    missing = [part for part in parts if not part.ok]
    if missing or len(parts) == 1:
        return (missing or parts)[0]
    source = " + ".join(dict.fromkeys(part.source for part in parts))
    return seen(sum(part.bytes for part in parts), "bytes", source, parts[0].item)
