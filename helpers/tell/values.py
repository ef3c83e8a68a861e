"""How one value of a table is written: a size, a time, a share, a reading without a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes

WIDEST = 48
"""Columns that a cell of words may take before it is cut with an ellipsis, a third of a wide
terminal; sources and notes below the table are never cut.
"""
MOST_BYTES = 1 << 62
"""Larger sizes are mistakes of the program that printed them, such as -1 as an unsigned number."""
MOST_SECONDS = 1e12
"""Longer times, over 30,000 years, are mistakes, too."""


def size(reading: Reading) -> int | None:
    """The bytes of a reading; None where it has no value, is not in bytes, or has MOST_BYTES or
    more, which no machine has.
    """
    value = reading.value
    if not reading.ok or reading.unit != "bytes":
        return None
    if not isinstance(value, (int, float)) or abs(value) >= MOST_BYTES:
        return None
    return int(value)


def size_or_zero(reading: Reading) -> int:
    """The bytes of a reading, 0 where ``size`` has none."""
    return size(reading) or 0


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``0.8 s``, ``42 s``, ``4 min 05 s``, ``3 h 07 min 21 s``,
    ``2 d 06 h 10 min``.
    """
    if not abs(seconds) < MOST_SECONDS:  # written so, it is true for NaN, too
        return plain(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    minutes = f"{total // 60 % 60:02d} min"
    hours = total // 3600
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    if total < 86400:
        return f"{hours} h {minutes} {total % 60:02d} s"
    return f"{hours // 24} d {hours % 24:02d} h {minutes}"


def percent(share: float) -> str:
    """A share as whole percent: ``35%``, and never ``-0%``."""
    return f"{round(share, 2) + 0:.0%}"  # -0.0 + 0 is 0.0


def _milliseconds(seconds: float) -> str:
    """Seconds in milliseconds; from one second on as ``duration`` writes them."""
    if seconds >= 1:
        return duration(seconds)
    return f"{1e3 * seconds:.1f} ms"


UNITS: dict[str, Callable[[Any], str]] = {
    "bytes": show_bytes,
    "s": duration,
    "0.1 s": "{:.1f} s".format,
    "ms": _milliseconds,
    "%": percent,
    "1,000": "{:,}".format,
    "0.01": "{:,.2f}".format,
}
"""How a plain number is written in a column of each unit; ``0.1 s`` and ``0.01`` are precisions."""


if TYPE_CHECKING:
    Rule = Callable[[Any], Any]
else:  # Python 3.8 knows no types of a Callable
    Rule = Callable
"""What may leave this machine of a cell's value: the value, part of it, or None."""


class Column(NamedTuple):
    """A column: its heading, the unit of its plain numbers (a key of UNITS, or none), how wide a
    cell of words may be (None: any width), and the rule by which its cells may leave this machine
    (a key of PublicCopy.rules in helpers/share; empty: they stay).
    """

    name: str
    unit: str = ""
    widest: int | None = WIDEST
    passes: str = ""


def columns(heads: str, widest: int | None = WIDEST) -> list[Column]:
    """Columns from a text like ``GPU:pci, note, pending:number:bytes``: for each its heading, the
    rule by which its cells may leave this machine, and its unit; rule and unit may be missing.
    """
    listed = []
    for column in heads.split(", "):
        name, _, further = column.partition(":")
        rule, _, unit = further.partition(":")
        listed.append(Column(name, unit, widest, passes=rule))
    return listed


class WrittenValue(NamedTuple):
    """A value as it is written.

    ``number``: True for a number, False for words, None where there is no value; ``why`` is then
    the reason, if one is known.
    """

    words: str
    number: bool | None
    why: str = ""


def cell(value: object, unit: str = "") -> WrittenValue:
    """How a value of a table is written. ``unit`` is the one of its column, in which plain numbers
    are written; a reading has a unit of its own. A reading without a value is the name of the
    reason.
    """
    if isinstance(value, Reading):
        if not value.ok:
            status = value.status.replace("_", " ")
            return WrittenValue(status, None, plain(value.show()))
        return WrittenValue(plain(value.show()), value.unit != "text")
    if value is None or value == "":
        return WrittenValue("-", None)
    if value is True:
        return WrittenValue("yes", False)
    if value is False:
        return WrittenValue("no", False)
    if isinstance(value, (int, float)):
        if unit:
            return WrittenValue(UNITS[unit](value), True)
        return WrittenValue(plain(value), True)
    return WrittenValue(plain(value), False)


def bare_values(column: Iterable[object]) -> list[object]:
    """The values of a column for a frame: of a reading what was read. Values of mixed types all
    become text; only where all are numbers, or all are true or false, they stay as they are, and an
    empty text becomes None.
    """
    values = []
    for value in column:
        if isinstance(value, Reading):
            value = value.value  # None where nothing was read
        values.append(value)
    kinds = {type(value) for value in values if value not in (None, "")}
    is_text = not (kinds <= {int, float} or kinds == {bool})
    bare = []
    for value in values:
        if value == "" and not is_text:
            value = None
        elif value is not None and is_text:
            value = plain(value)
        bare.append(value)
    return bare
