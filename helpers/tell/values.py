"""How one value of a table is written: a size, a time, a share, a reading without a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.ground.shapes import Reading
from helpers.ground.units import plain, show_bytes

WIDEST = 48
"""Columns a cell of words may take before it is cut with an ellipsis; sources and notes below
the table are never cut.
"""
MOST_BYTES = 1 << 62
"""A size beyond this is a mistake of whoever printed it."""
MOST_SECONDS = 1e12


def size(reading: Reading) -> int | None:
    """The bytes of a reading that has any, None otherwise."""
    value = reading.value
    if not reading.ok or reading.unit != "bytes":
        return None
    if not isinstance(value, (int, float)) or abs(value) >= MOST_BYTES:
        return None
    return int(value)


def size_or_zero(reading: Reading) -> int:
    """The bytes of a reading, 0 where it has none."""
    return size(reading) or 0


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``0.8 s``, ``42 s``, ``4 min 05 s``, ``3 h 07 min 21 s``,
    ``2 d 06 h 10 min``.
    """
    if not abs(seconds) < MOST_SECONDS:
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
    return f"{round(share, 2) + 0:.0%}"


def _milliseconds(seconds: float) -> str:
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
"""How a plain number of a column with that unit is written."""


if TYPE_CHECKING:
    Rule = Callable[[Any], Any]
else:  # Python 3.8 knows no types of a Callable
    Rule = Callable
"""What is let through of a cell."""


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
    """Columns from their headings in a line: ``GPU:pci, total:number, pending:number:bytes``, each
    with the rule by which it may leave this machine and its unit, where it has them.
    """
    listed = []
    for head in heads.split(", "):
        name, passes, unit = [*head.split(":"), "", ""][:3]
        listed.append(Column(name, unit, widest, passes))
    return listed


class WrittenValue(NamedTuple):
    """A value as it is written.

    ``number`` is whether it is a number, None where it is neither a number nor words; ``why`` says
    why there is no value.
    """

    words: str
    number: bool | None
    why: str = ""


def cell(value: object, unit: str = "") -> WrittenValue:
    """How a value of a table is written; ``unit`` is the one of its column."""
    if isinstance(value, Reading):
        if not value.ok:
            return WrittenValue(
                value.status.replace("_", " "), None, plain(value.show())
            )
        return WrittenValue(plain(value.show()), value.unit != "text")
    if value is None or value == "":
        return WrittenValue("-", None)
    if isinstance(value, bool):
        return WrittenValue("yes" if value else "no", False)
    if isinstance(value, (int, float)):
        return WrittenValue(UNITS[unit](value) if unit else plain(value), True)
    return WrittenValue(plain(value), False)


def bare_values(column: Iterable[object]) -> list[object]:
    """The values of a column for a frame: all of one kind, a reading as what was read."""
    values = []
    for value in column:
        if isinstance(value, Reading):
            value = value.value if value.ok else None
        values.append(value)
    kinds = {type(value) for value in values if value not in (None, "")}
    if kinds <= {int, float} or kinds == {bool}:
        return [None if value == "" else value for value in values]
    return [None if value is None else plain(value) for value in values]
