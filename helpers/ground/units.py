"""Sizes, times, PCI addresses and text for a terminal: read, written and compared.

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
"""Sizes from here on are no sizes: NVML gives 2**64 - 1 for "not available", which programs print
as 17179869184.00 GiB, and a negative number that wraps is near it.
"""
_NUMBER = r"[0-9][0-9.,']{0,30}"
"""Digits, with any of the signs that stand between thousands or before decimals."""
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "к": 1, "м": 2, "г": 3, "т": 4}
"""Of 1024, or of 1000, by the letter of a unit, Latin or Cyrillic."""
_TYPED = re.compile(
    r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(i?)((?:b(?:ytes?)?)?)\s*",
    re.IGNORECASE,
)
"""Groups: the number, the letter of the unit, ``i`` if it is binary, and ``b``, ``byte`` or
``bytes``.
"""
_COUNT = re.compile(r"\s*([0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,4})\s*")
LONGEST_SEEN = 40
"""Letters of wrong input that an error shows."""
LONGEST_PRINTED = 60
"""The same of what a tool printed."""
_PRINTED = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]*)\s*")
"""Groups: the number, and the letters behind it."""
_UNIT = re.compile(
    r"(?:b|bytes?|octets?|байт|([kmgtкмгт])([iи]?)(?:b(?:ytes?)?|o|б)?)?", re.IGNORECASE
)
"""A unit in English, French or Russian, or none. Groups: its letter, and ``i`` if it is binary."""
_PCI = re.compile(
    r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])(?:\.([0-7]))?",
    re.IGNORECASE,
)
"""Groups: domain, bus, device (five bits, so at most 1f), function (three bits)."""


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
    if letter and byte and not binary:  # GB; G and GiB are binary
        base = 1000
    scale: int = base ** _power(letter)
    if "." in number:
        return int(float(number) * scale)
    return int(number) * scale  # without a float, which is exact up to 2**53 only


def parse_capacity(text: str) -> int:
    """Bytes of a card as typed. Raises ValueError as parse_size does, and for a size below 1 MiB:
    no card is so small, so the unit was forgotten.
    """
    size = parse_size(text)
    shown = cut(text, LONGEST_SEEN)
    if size == 0:
        raise ValueError(f"size {shown!r}: expected a size above 0, such as 20GiB")
    if size < MIB:
        seen = f"{shown} is a card of {size:,} bytes"
        raise ValueError(f"{seen}; expected a size with its unit, such as 20GiB")
    return size


def typed_size(count: int) -> str:
    """Bytes of a card as an option takes them: ``3GiB`` for whole GiB, else ``24210MiB``, rounded
    down to whole MiB.
    """
    if count % GIB == 0:
        return f"{count // GIB}GiB"
    return f"{count // MIB}MiB"


def parse_count(text: str, least: int = 1) -> int:
    """A whole number as typed: ``8112000`` or ``8,112,000``.

    Raises ValueError naming what was seen and what is expected.
    """
    match = _COUNT.fullmatch(text)
    if match:
        count = int(match[1].replace(",", ""))
        if count >= least:
            return count
    expected = f"expected a whole number of {least} or more, with at most 15 digits"
    raise ValueError(f"{cut(text, LONGEST_SEEN)!r}: {expected}")


@dataclass(frozen=True)
class Quantity:
    """A size as it was printed, which is ``text``.

    The true size lies within ``precision_bytes`` of ``bytes``: half a unit of the last printed
    digit.
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
    """The size that ``words`` print, such as ``1.41gib``, ``1,41 GiB``, ``1,073,741,824 bytes``
    or ``512``; ``unit`` is the unit of a bare number. None for words that are no size, and for a
    number that can be read in two ways (``_digits``).

    ``commas``: the program writes commas between thousands, so each comma is taken away. KB, MB
    and GB are binary, as nearly every program prints them; ``decimal``: this program's are decimal.
    ``retyped``: this program prints GiB, so a GB in its line was typed by a person, who may have
    meant either; then the precision is so large that it covers the decimal size, too.
    """
    if commas:
        words = words.replace(",", "")
    match = _PRINTED.fullmatch(words)
    if match is None:
        return None
    number, printed_unit = match.groups()
    if printed_unit:
        unit = printed_unit
    unit_parts = _UNIT.fullmatch(unit)
    if unit_parts is None:
        return None
    number = number.rstrip(".,'")  # the end of a sentence, not of the number
    power = _power(unit_parts[1])
    is_binary = bool(unit_parts[2])
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
        # Half of the last digit's unit, and one byte for what both divisions cut off.
        precision = scale // (2 * divisor) + 1
    if retyped and not is_binary:
        decimal_size = size * 1000**power // scale
        precision += size - decimal_size
    return Quantity(size, precision, f"{number} {_shown_unit(unit_parts)}")


def _shown_unit(unit_parts: re.Match[str]) -> str:
    """A match of _UNIT as it is shown: ``GiB`` for gib, ``bytes`` for no unit, and a unit spelt in
    full in lower case.
    """
    unit = unit_parts.group().lower()
    if not unit:
        return "bytes"
    # With a letter such as g, up to three letters are an abbreviation: gb, gib. ``gibytes`` is
    # none, and ``b`` has no such letter.
    if unit_parts[1] and len(unit) <= len("gib"):
        return unit.upper().replace("I", "i").replace("И", "и")
    return unit


def _digits(number: str, is_whole: bool) -> tuple[str, str] | None:
    """The digits before and after the decimal sign, without the signs between thousands:
    ("1024", "5") of ``1,024.5`` and of ``1.024,5``, ("1024", "") of ``1,024`` bytes.

    None where the number can be read in two ways, as ``1,024`` GiB, which is 1024 or 1.024, and
    where it cannot be read at all, as ``1,02.4``. ``is_whole``: the unit is bytes, which have no
    fractions, so every sign stands between thousands.
    """
    # The points and commas in the number, by the place where each occurs last.
    signs = sorted(set(number) & set(".,"), key=number.rindex)
    if not signs:
        return number, ""
    last_sign = signs[-1]
    *head, tail = number.split(last_sign)
    groups = [*head, tail]
    if len(signs) == 2:
        # ``1,024.5``: the first sign stands between thousands, so the last one is decimal.
        thousands = head[0].split(signs[0])
        if len(head) == 1 and not is_whole and _are_thousands(thousands):
            return "".join(thousands), tail
        return None
    if is_whole or len(head) > 1:  # a sign that occurs twice cannot be decimal
        if _are_thousands(groups):
            return "".join(groups), ""
        return None
    # ``1,024`` may be 1024 in English or 1.024 in French. A point is read as decimal: 1.024 GiB.
    may_be_thousands = last_sign == "," and _are_thousands(groups)
    if not tail or may_be_thousands:
        return None
    return head[0], tail


def _are_thousands(groups: list[str]) -> bool:
    """Whether groups of digits are those of thousands: one to three digits, then three in each."""
    return 1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])


@lru_cache(maxsize=1 << 12)
def printed_size(words: str, unit: str = "") -> int:
    """Bytes of a size as a tool prints it: ``8176 MiB``, ``46.75 GB``; ``unit`` is the unit of a
    bare number. Commas stand between thousands. Raises ValueError saying what was seen.
    """
    size = quantity(words, unit, commas=True)
    if size is None:
        seen = f"{words[:LONGEST_PRINTED]!r} is no size"
        if unit:
            seen += f" in {unit[:20]!r}"  # longer than any unit
        raise ValueError(seen)
    return size.bytes


def _power(letter: str | None) -> int:
    """The power of 1024, or 1000, that a unit's letter stands for: 0 for bytes."""
    if not letter:
        return 0
    return _POWERS[letter.lower()]


def show_bytes(count: int | None) -> str:
    """Bytes as TiB, GiB, MiB or KiB with two decimals, below 1 KiB as plain bytes; ``unknown``
    for None, which is not 0 B.
    """
    if count is None:
        return "unknown"
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} B"


def times_in_words(count: int) -> str:
    """How often: ``once``, ``3 times``."""
    if count == 1:
        return "once"
    return f"{count} times"


def told_apart(size: int, other: int) -> tuple[str, str]:
    """Two sizes in words that differ if the sizes differ. Sizes that show_bytes would write alike
    are both written in MiB, or in KiB where they are alike in MiB, too. In KiB they are alike only
    if they differ by a few bytes.
    """
    words = (show_bytes(size), show_bytes(other))
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size == other or words[0] != words[1]:
            return words
        words = (f"{size / unit:.2f} {name}", f"{other / unit:.2f} {name}")
    return words


def pci_address(text: object) -> str:
    """A PCI address in one form, ``0000:03:00.0``: lower case, a domain of four digits or more.
    Empty for any other text.

    Takes ``03:00.0``, ``3:0.0``, ``00000000:03:00.0`` (nvidia-smi) and ``PCI:0000:03:00``
    (NVRM, which leaves the function out); a domain or function that is left out is 0. ``03:00``,
    with neither a domain nor a function, may be a time of day and is no address.
    """
    match = _PCI.fullmatch(str(text).strip())
    if not match:
        return ""
    domain, bus, device, function = match.groups(default="")
    if not domain and not function:
        return ""
    if not domain:
        domain = "0"
    if not function:
        function = "0"
    place = f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"
    return f"{place}.{function}"


def _bytes_of(size: object) -> float | None:
    """The bytes of a number, or of an object with ``bytes``; None for anything else."""
    value = getattr(size, "bytes", size)
    if isinstance(value, (int, float)):
        return value
    return None


def near(left: object, right: object, share: float = ROUNDED) -> bool:
    """Whether two sizes are one number. Each is a number of bytes, an object with ``bytes``, or
    None, which is near nothing.

    The sizes may differ by the sum of their ``precision_bytes``, which is what rounding hid where a
    size was printed, or by ``share`` of the larger size, whichever is more. With ``share=0`` they
    may differ by rounding alone.
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
    """Bisect between ``passes``, a size for which ``works`` is true, and ``fails``, a size for
    which it is false, until the two are ``step`` apart or less. Returns (passes, fails).
    ``passes`` is the larger one where a card must be large enough, and ``fails`` where a batch must
    be small enough.

    Every size that is tried is a whole number of steps above the smaller one.
    """
    while abs(passes - fails) > step:
        steps = abs(passes - fails) // step
        # At least one step, where the distance is between one step and two.
        middle = min(passes, fails) + max(1, steps // 2) * step
        if works(middle):
            passes = middle
        else:
            fails = middle
    return passes, fails


def plain(text: object, keep: str = "") -> str:
    """Text with each control character, invisible character and lone surrogate spelt out
    (``\\x1b``, ``\\u202e``).

    So a process name cannot move a terminal's cursor, turn the reading direction or break a
    page. Spaces of any kind, such as a no-break space, become a plain space; characters in
    ``keep`` (a newline, a tab) stay.
    """
    text = str(text)
    spelt = {
        ord(char): _spelt(char)
        for char in set(text)
        if not char.isprintable() and char not in keep
    }
    return text.translate(spelt)


def _spelt(char: str) -> str:
    """What ``plain`` writes for a character that cannot be printed."""
    if unicodedata.category(char) == "Zs":  # Unicode's category of spaces
        return " "
    return escaped(ord(char))


def escaped(code: int, as_byte: int = 0x100) -> str:
    """A character, given by its code point, as a string literal spells it: with two digits
    (``\\x1b``) below ``as_byte``, else with four (``\\u202e``) or, above 0xffff, with eight.
    """
    if code < as_byte:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def columns_of(text: str) -> int:
    """Columns that a terminal needs for the text: two for a wide character, none for one that is
    combined with the character before it.
    """
    if text.isascii():
        return len(text)
    columns = 0
    for char in text:
        if unicodedata.combining(char):
            continue
        columns += 1
        # Wide and Fullwidth (Unicode Standard Annex 11) take two.
        if unicodedata.east_asian_width(char) in "WF":
            columns += 1
    return columns


def cut(text: str, columns: int) -> str:
    """The text, or as much of its start as fits into ``columns`` together with an ellipsis."""
    if columns_of(text) <= columns:
        return text
    start = ""
    for char in text:
        if columns_of(start + char) > columns - 1:  # the ellipsis takes one
            break
        start += char
    return start + "…"
