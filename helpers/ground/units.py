"""Sizes, moments, PCI addresses, when two figures are one, and which size still works: under
every other room.

The rule of sizes, written here once. A size that a person types means what its unit says: GB is
10^9 bytes, GiB is 2^30, and a bare K, M, G or T is binary. A size that a tool prints is binary
whatever the unit is called: amd-smi divides by 1024 * 1024 and prints "MB"
(amdsmi_commands.py), rocminfo divides by 1024 and prints "KB" (rocminfo.cc), amd-ttm computes
GiB and prints "GB", /proc prints KiB as "kB".
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

TIME = "%Y-%m-%dT%H:%M:%SZ"
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
ROUNDED = 0.015
"""Totals of two layers that differ by no more than this share are one number: torch rounds to
MiB, KFD to 2 MiB.
"""
NOT_MEASURED_BYTES = 1 << 62
"""NVML's 2**64 - 1 for "not available", printed as 17179869184.00 GiB, and what a negative
number wraps to.
"""
_NUMBER = r"[0-9][0-9.,']{0,30}"
_LETTERS = {letter: power % 4 + 1 for power, letter in enumerate("kmgtкмгт")}
_TYPED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)((?:b(?:ytes?)?)?)\s*", re.IGNORECASE)
_PRINTED = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]*)\s*")
_UNIT = re.compile(
    r"(?:b|bytes?|octets?|байт|([kmgtкмгт])([iи]?)(?:b(?:ytes?)?|o|б)?)?", re.IGNORECASE
)
_PCI = re.compile(
    r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])(?:\.([0-7]))?", re.IGNORECASE
)


def now() -> str:
    """The time as bundles, looks and records write it: UTC, whole seconds."""
    return time.strftime(TIME, time.gmtime())


def parse_size(text: str) -> int:
    """Bytes of a size as typed: ``1073741824``, ``8GiB``, ``20 GB`` or ``512M``.

    Raises ValueError naming what was seen and what is expected.
    """
    match = _TYPED.fullmatch(text)
    if not match:
        expected = "expected bytes or a number with a unit such as 8GiB or 20GB"
        raise ValueError(f"size {text!r}: {expected}")
    number, letter, binary, byte = match.groups()
    base = 1000 if letter and byte and not binary else 1024
    exact = float(number) if "." in number else int(number)
    return int(exact * base ** _power(letter))


@dataclass(frozen=True)
class Quantity:
    """A size as it was printed.

    The true one lies within ``precision_bytes`` of ``bytes``: half of the last printed digit.
    """

    bytes: int
    precision_bytes: int
    text: str


def quantity(
    words: str,
    unit: str = "",
    *,
    commas: bool = False,
    retyped: bool = False,
    decimal: bool = False,
) -> Quantity | None:
    """A size such as ``1.41gib``, ``1,41 GiB``, ``1,073,741,824 bytes`` or ``512``; ``unit``
    where it names none.

    None where it is none, or ambiguous. ``commas``: the program parts thousands with them. KB,
    MB and GB are binary, as nearly every program prints them; ``decimal``: this one does not.
    ``retyped``: the program never prints them, so a person did, and the decimal meaning lies
    within the precision too.
    """
    match = _PRINTED.fullmatch(words.replace(",", "") if commas else words)
    named = _UNIT.fullmatch(match.group(2) or unit) if match else None
    if not match or not named:
        return None
    number = match.group(1).rstrip(".,'")
    name = (named.group() or "bytes").lower()
    power = _power(named.group(1) or "")
    binary = bool(named.group(2))
    scale = 1000**power if decimal and not binary else 1024**power
    parts = _digits(number.replace("'", ""), scale == 1)
    if parts is None:
        return None
    divisor = 10 ** len(parts[1])
    size = int(parts[0] + parts[1]) * scale // divisor
    precision = 0 if scale == 1 else scale // (2 * divisor) + 1
    if retyped and not binary:
        precision += size - size * 1000**power // scale
    if power and len(name) < 4:
        name = name[0].upper() + name[1:-1] + name[-1:].upper()
    return Quantity(size, precision, f"{number} {name}")


def _digits(number: str, whole: bool) -> tuple[str, str] | None:
    """Digits before and after the decimal sign, or None where the sign may as well part thousands."""
    signs = sorted(set(number) & set(".,"), key=number.rindex)
    if not signs:
        return number, ""
    last = signs[-1]
    *head, tail = number.split(last)
    groups = head[0].split(signs[0]) if len(signs) == 2 else [*head, tail]
    thousands = 1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])
    if len(signs) == 2:
        return ("".join(groups), tail) if thousands and len(head) == 1 and not whole else None
    if len(head) > 1 or whole:
        return ("".join(groups), "") if thousands else None
    return None if (last == "," and thousands) or not tail else (head[0], tail)


@lru_cache(maxsize=1 << 12)
def printed_size(words: str, unit: str = "") -> int:
    """Bytes of a size as a tool prints it: ``8176 MiB``, ``46.75 GB``; ``unit`` where it names
    none.

    Commas part thousands. Raises ValueError saying what was seen.
    """
    size = quantity(words, unit, commas=True)
    if size is None:
        raise ValueError(f"{words[:60]!r} is no size" + (f" in {unit[:20]!r}" if unit else ""))
    return size.bytes


def _power(letter: str) -> int:
    return _LETTERS.get(letter.lower(), 0)


def show_bytes(count: int | None) -> str:
    """Bytes as TiB, GiB, MiB or KiB with two decimals, as plain bytes below 1 KiB, or
    ``unknown``: no size is not 0 B.
    """
    if count is None:
        return "unknown"
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size} B"


def pci_address(text: object) -> str:
    """A PCI address in one form, ``0000:03:00.0``: lower case, a domain of four digits or more;
    or empty.

    Takes ``03:00.0``, ``3:0.0``, ``00000000:03:00.0`` (nvidia-smi) and ``PCI:0000:03:00``
    (NVRM, which leaves the function out). A time of day is none.
    """
    match = _PCI.fullmatch(str(text).strip())
    if not match or not (match.group(1) or match.group(4)):
        return ""
    domain, bus, device, function = match.groups()
    place = f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
    return f"{place}.{function or '0'}"


def near(left: Any, right: Any, share: float = ROUNDED) -> bool:
    """Whether two sizes are one number; None is near nothing.

    They may differ by what their last printed digits hide (``precision_bytes`` of a printed
    size) or by ``share`` of the larger one, whichever is more. ``share=0``: as printed.
    """
    one = getattr(left, "bytes", left)
    other = getattr(right, "bytes", right)
    if one is None or other is None:
        return False
    hidden = getattr(left, "precision_bytes", 0) + getattr(right, "precision_bytes", 0)
    return bool(abs(one - other) <= max(hidden, share * max(abs(one), abs(other))))


def halved(works: Callable[[int], bool], passes: int, fails: int, step: int = 1) -> tuple[int, int]:
    """A size that works and one that does not, ``step`` apart or less: the gap between two
    such, halved.

    Either may be the larger of the two. Sizes in between are whole steps above the smaller one.
    """
    while abs(passes - fails) > step:
        steps = abs(passes - fails) // step
        middle = min(passes, fails) + max(1, steps // 2) * step
        if works(middle):
            passes = middle
        else:
            fails = middle
    return passes, fails


def plain(text: object, keep: str = "") -> str:
    """Text with each control, invisible or unpaired character spelt out (``\\x1b``, ``\\u202e``).

    So a process name cannot move a terminal's cursor, turn the reading direction or break a
    page. Spaces of any kind become a plain space; characters in ``keep`` (a newline, a tab)
    stay.
    """
    text = str(text)
    odd = {ord(c): _spelt(c) for c in set(text) if not (c.isprintable() or c in keep)}
    return text.translate(odd) if odd else text


def _spelt(char: str) -> str:
    code = ord(char)
    form = "\\x{:02x}" if code < 0x100 else "\\u{:04x}" if code < 0x10000 else "\\U{:08x}"
    return " " if unicodedata.category(char) == "Zs" else form.format(code)


def columns_of(text: str) -> int:
    """Columns a terminal needs for the text: two for an East Asian wide character, none for a
    combining one.
    """
    if text.isascii():
        return len(text)
    kinds = ((unicodedata.combining(c), unicodedata.east_asian_width(c)) for c in text)
    return sum(0 if combines else 1 + (wide in "WF") for combines, wide in kinds)


def cut(text: str, columns: int) -> str:
    """The text, or as much of its start as fits with an ellipsis."""
    if columns_of(text) <= columns:
        return text
    kept = ""
    for char in text:
        if columns_of(kept + char) > columns - 1:
            break
        kept += char
    return kept + "…"
