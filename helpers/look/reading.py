"""One value read off a box, with where it came from, or the reason why there is none.

A reading has three honest states: ``ok`` (a value, which may be a true zero), ``not_available`` (there is no such file,
tool or field) and ``not_allowed`` (it is there, and this process may not read it). Nothing in the project turns one of
the last two into 0 or None without its reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OK, NOT_AVAILABLE, NOT_ALLOWED = "ok", "not_available", "not_allowed"
STATUSES = (OK, NOT_AVAILABLE, NOT_ALLOWED)
UNITS = ("bytes", "pages", "count", "text")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_POWERS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": KIB, "mi": MIB, "gi": GIB, "ti": 1 << 40}


@dataclass(frozen=True)
class Reading:
    """A value with its unit and source. ``value`` is None exactly when ``status`` is not ``ok``; then ``why`` says why.

    ``source`` is what a person would look at (a path or a command line); ``item`` is the id of the evidence item it came from.
    """

    # Read by pydantic where a shape holds a reading: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    value: int | float | str | None
    unit: str
    status: str
    why: str
    source: str
    item: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError("unit {!r}: expected one of {}".format(self.unit, ", ".join(UNITS)))
        if self.status not in STATUSES:
            raise ValueError("status {!r}: expected one of {}".format(self.status, ", ".join(STATUSES)))
        if (self.value is None) is (self.status == OK):
            raise ValueError(f"status {self.status!r} does not go with value {self.value!r}")
        if self.status != OK and not self.why:
            raise ValueError(f"a reading without a value says why ({self.source})")

    @property
    def ok(self) -> bool:
        return self.status == OK

    def show(self) -> str:
        """The reading as a person reads it: ``62.54 GiB``, ``not available: no such file``."""
        if self.status == NOT_AVAILABLE:
            return "not available: " + self.why
        if self.status == NOT_ALLOWED:
            return "not allowed: " + self.why
        if self.unit == "bytes":
            return show_bytes(int(self.value))  # type: ignore[arg-type]
        if self.unit == "pages":
            return f"{self.value} pages"
        return str(self.value)


def seen(value: int | float | str, unit: str, source: str, item: str = "") -> Reading:
    """A value that was read; a true zero included."""
    return Reading(value, unit, OK, "", source, item)


def not_available(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: the file, tool or field does not exist, or what it said cannot be read as a value."""
    return Reading(None, unit, NOT_AVAILABLE, why, source, item)


def not_allowed(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: it exists and this process may not read it."""
    return Reading(None, unit, NOT_ALLOWED, why, source, item)


def show_bytes(count: int) -> str:
    """Bytes as GiB, MiB or KiB with two decimals, or as plain bytes below 1 KiB; binary units, always named."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size} B"


def parse_size(text: str) -> int:
    """Bytes from ``1073741824``, ``8GiB``, ``20 GB`` or ``512M``; GB is decimal, GiB is binary, a bare K, M or G is binary.

    Raises ValueError naming what was seen and what is expected.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)(b?)\s*", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"size {text!r}: expected bytes or a number with a unit such as 8GiB or 20GB")
    number, power, binary, byte = match.groups()
    power = power.lower()
    if power and (binary or not byte):
        power += "i"
    exact = float(number) if "." in number else int(number)
    return int(exact * _POWERS[power])
