"""Sizes, PCI addresses, and when two figures are one: the ground floor under every other room.

The rule of sizes, written here once. A size that a person types means what its unit says: GB is 10^9
bytes, GiB is 2^30, and a bare K, M, G or T is binary. A size that a tool prints is binary whatever the
unit is called: amd-smi divides by 1024 * 1024 and prints "MB" (amdsmi_commands.py), rocminfo divides by
1024 and prints "KB" (rocminfo.cc), amd-ttm computes GiB and prints "GB", /proc prints KiB as "kB".
"""

from __future__ import annotations

import re
from typing import Any

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
ROUNDED = 0.015
"""Totals of two layers that differ by no more than this share are one number: torch rounds to MiB, KFD to 2 MiB."""
_LETTERS = "kmgt"
_TYPED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)
_PRINTED = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,9}))?\s*([A-Za-z]*)")
_UNIT = re.compile(r"(?:b|bytes?|([kmgt])(?:i?b)?)?", re.IGNORECASE)
_PCI = re.compile(
    r"(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([01]?[0-9a-f])(?:\.([0-7]))?", re.IGNORECASE
)


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


def printed_unit(name: str) -> int | None:
    """Bytes of a unit as a tool prints it ("", "B", "kB", "MiB", "GB"): binary; None for another word."""
    match = _UNIT.fullmatch(name)
    return 1024 ** _power(match.group(1) or "") if match else None


def printed_size(words: str, unit: str = "") -> int:
    """Bytes of a size as a tool prints it: ``8176 MiB``, ``46.75 GB``; ``unit`` where it names none.

    Commas part thousands. Raises ValueError saying what was seen.
    """
    match = _PRINTED.fullmatch(words.replace(",", ""))
    if not match:
        raise ValueError(f"{words[:60]!r} is no size")
    whole, fraction, named = match.groups()
    scale = printed_unit(named or unit)
    if scale is None:
        raise ValueError(f"{words[:60]!r}: the unit {(named or unit)[:20]!r} is unknown")
    return int(whole) * scale + (round(float("0." + fraction) * scale) if fraction else 0)


def _power(letter: str) -> int:
    return _LETTERS.index(letter.lower()) + 1 if letter else 0


def show_bytes(count: int) -> str:
    """Bytes as TiB, GiB, MiB or KiB with two decimals, or as plain bytes below 1 KiB."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size} B"


def pci_address(text: object) -> str:
    """A PCI address in one form, ``0000:03:00.0``: lower case, a domain of four digits or more; or empty.

    Takes ``03:00.0``, ``3:0.0``, ``00000000:03:00.0`` (nvidia-smi) and ``PCI:0000:03:00`` (NVRM, which
    leaves the function out). A time of day is none.
    """
    match = _PCI.fullmatch(str(text).strip())
    if not match or not (match.group(1) or match.group(4)):
        return ""
    domain, bus, device, function = match.groups()
    return (
        f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"
    )


def near(left: Any, right: Any, share: float = ROUNDED, slack_bytes: int = 0) -> bool:
    """Whether two sizes are one number; None is near nothing.

    They may differ by what their last printed digits hide (``precision_bytes`` of a printed size), by
    ``slack_bytes``, and by ``share`` of the larger one, whichever is most. ``share=0``: as printed.
    """
    one, other = getattr(left, "bytes", left), getattr(right, "bytes", right)
    if one is None or other is None:
        return False
    hidden = getattr(left, "precision_bytes", 0) + getattr(right, "precision_bytes", 0)
    return bool(abs(one - other) <= max(hidden, slack_bytes, share * max(abs(one), abs(other))))
