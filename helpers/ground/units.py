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
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "к": 1, "м": 2, "г": 3, "т": 4}
_TYPED = re.compile(
    r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(i?)((?:b(?:ytes?)?)?)\s*",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\s*([0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,4})\s*")
LONGEST_SEEN = 40
"""Letters of wrong input that an error shows."""
_PRINTED = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]*)\s*")
_UNIT = re.compile(
    r"(?:b|bytes?|octets?|байт|([kmgtкмгт])([iи]?)(?:b(?:ytes?)?|o|б)?)?", re.IGNORECASE
)
_PCI = re.compile(
    r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])(?:\.([0-7]))?",
    re.IGNORECASE,
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
        raise ValueError(f"size {cut(text, LONGEST_SEEN)!r}: {expected}")
    number, letter, binary, byte = match.groups()
    base = 1024
    if letter and byte and not binary:
        base = 1000
    # A whole number of more than 2**53 bytes is no float.
    exact = float(number) if "." in number else int(number)
    return int(exact * base ** _power(letter))


def parse_capacity(text: str) -> int:
    """Bytes of a card as typed. Raises ValueError also below 1 MiB, where a unit was forgotten."""
    size = parse_size(text)
    if size == 0:
        raise ValueError(
            f"size {cut(text, LONGEST_SEEN)!r}: expected a size above 0, such as 20GiB"
        )
    if size < MIB:
        seen = f"{cut(text, LONGEST_SEEN)} is a card of {size:,} bytes"
        raise ValueError(f"{seen}; expected a size with its unit, such as 20GiB")
    return size


def typed_size(count: int) -> str:
    """Bytes of a card as an option takes them: ``3GiB``, ``24210MiB``."""
    if count % GIB == 0:
        return f"{count // GIB}GiB"
    return f"{count >> 20}MiB"


def parse_count(text: str, least: int = 1) -> int:
    """A whole number as typed: ``8112000`` or ``8,112,000``.

    Raises ValueError naming what was seen and what is expected.
    """
    match = _COUNT.fullmatch(text)
    count = -1
    if match:
        count = int(match[1].replace(",", ""))
    if count < least:
        expected = f"expected a whole number of {least} or more, with at most 15 digits"
        raise ValueError(f"{cut(text, LONGEST_SEEN)!r}: {expected}")
    return count


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
    if commas:
        words = words.replace(",", "")
    match = _PRINTED.fullmatch(words)
    if match is None:
        return None
    named = _UNIT.fullmatch(match[2] or unit)
    if named is None:
        return None
    number = match[1].rstrip(".,'")
    power = _power(named[1] or "")
    is_binary = bool(named[2])
    scale = 1024**power
    if decimal and not is_binary:
        scale = 1000**power
    digits = _digits(number.replace("'", ""), is_whole=scale == 1)
    if digits is None:
        return None
    before, behind = digits
    divisor = 10 ** len(behind)
    size = int(before + behind) * scale // divisor
    precision = 0
    if scale > 1:
        precision = scale // (2 * divisor) + 1
    if retyped and not is_binary:
        precision += size - size * 1000**power // scale
    return Quantity(size, precision, f"{number} {_shown_unit(named)}")


def _shown_unit(named: re.Match[str]) -> str:
    """A unit as it is shown: ``GiB`` of gib, ``bytes`` where none is named."""
    unit = (named.group() or "bytes").lower()
    if named[1] and len(unit) < 4:
        return unit[0].upper() + unit[1:-1] + unit[-1:].upper()
    return unit


def _digits(number: str, is_whole: bool) -> tuple[str, str] | None:
    """Digits before and after the decimal sign; None where the sign may as well part thousands."""
    signs = sorted(set(number) & set(".,"), key=number.rindex)
    if not signs:
        return number, ""
    decimal_sign = signs[-1]
    *head, tail = number.split(decimal_sign)
    if len(signs) == 2:
        groups = head[0].split(signs[0])
        if len(head) == 1 and not is_whole and _are_thousands(groups):
            return "".join(groups), tail
        return None
    if is_whole or len(head) > 1:
        groups = [*head, tail]
        return ("".join(groups), "") if _are_thousands(groups) else None
    if not tail or (decimal_sign == "," and _are_thousands([*head, tail])):
        return None
    return head[0], tail


def _are_thousands(groups: list[str]) -> bool:
    return 1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])


@lru_cache(maxsize=1 << 12)
def printed_size(words: str, unit: str = "") -> int:
    """Bytes of a size as a tool prints it: ``8176 MiB``, ``46.75 GB``; ``unit`` where it names
    none.

    Commas part thousands. Raises ValueError saying what was seen.
    """
    size = quantity(words, unit, commas=True)
    if size is None:
        in_unit = f" in {unit[:20]!r}" if unit else ""
        raise ValueError(f"{words[:60]!r} is no size{in_unit}")
    return size.bytes


def _power(letter: str) -> int:
    return _POWERS.get(letter.lower(), 0)


def show_bytes(count: int | None) -> str:
    """Bytes as TiB, GiB, MiB or KiB with two decimals, as plain bytes below 1 KiB, or
    ``unknown``: no size is not 0 B.
    """
    if count is None:
        return "unknown"
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def times_in_words(count: int) -> str:
    """How often, such as once or 3 times."""
    return "once" if count == 1 else f"{count} times"


def told_apart(size: int, other: int) -> tuple[str, str]:
    """Two sizes in words that differ where the sizes do: in smaller units where GiB round alike."""
    words = (show_bytes(size), show_bytes(other))
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size == other or words[0] != words[1]:
            return words
        words = (f"{size / unit:.2f} {name}", f"{other / unit:.2f} {name}")
    return words


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


def _bytes_of(size: object) -> float | None:
    value = getattr(size, "bytes", size)
    return value if isinstance(value, (int, float)) else None


def near(left: object, right: object, share: float = ROUNDED) -> bool:
    """Whether two sizes are one number: numbers, or what has ``bytes``. None is near nothing.

    They may differ by what their last printed digits hide (``precision_bytes`` of a printed
    size) or by ``share`` of the larger one, whichever is more. ``share=0``: as printed.
    """
    left_bytes = _bytes_of(left)
    right_bytes = _bytes_of(right)
    if left_bytes is None or right_bytes is None:
        return False
    hidden = getattr(left, "precision_bytes", 0) + getattr(right, "precision_bytes", 0)
    largest = max(abs(left_bytes), abs(right_bytes))
    return bool(abs(left_bytes - right_bytes) <= max(hidden, share * largest))


def halved(
    works: Callable[[int], bool], passes: int, fails: int, step: int = 1
) -> tuple[int, int]:
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
    spelt = {
        ord(char): _spelt(char)
        for char in set(text)
        if not char.isprintable() and char not in keep
    }
    return text.translate(spelt)


def _spelt(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    return escaped(ord(char))


def escaped(code: int, as_byte: int = 0x100) -> str:
    """A character as a string literal spells it: as a byte below ``as_byte``."""
    if code < as_byte:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def columns_of(text: str) -> int:
    """Columns a terminal needs for the text: two for an East Asian wide character, none for a
    combining one.
    """
    if text.isascii():
        return len(text)
    columns = 0
    for char in text:
        if not unicodedata.combining(char):
            columns += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return columns


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
