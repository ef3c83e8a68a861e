"""Are the memory parameters on a kernel command line, or in a modprobe.d file, spelt right, in the right module and unit?"""

from __future__ import annotations

import difflib
from dataclasses import replace

from helpers.look.bundle import Bundle
from helpers.look.machine import machine
from helpers.look.reading import show_bytes
from helpers.look.ttm import parse_cmdline, parse_modprobe, settings
from helpers.settings.rules import Finding, finding, sort
from helpers.settings.table import OTHER_PARAMETERS, PARAMETERS, Parameter

UNITS = {"bytes": 1, "pages": 4096, "MiB": 1 << 20, "GiB": 1 << 30, "KiB": 1 << 10}
"""Units that people write sizes in, the likelier mistake first."""
LEAST_BYTES, MOST_BYTES = 1 << 30, 16 << 40
"""No pool that people ask for is smaller or larger; where the RAM is known, than 1/64 or twice of that."""
IGNORED = "the kernel logs it as unknown and ignores it"
ALIKE, LONGEST = 0.72, 80


def audit_kernel(bundle: Bundle) -> tuple[Finding, ...]:
    """Findings on the parameters that a box has in modprobe.d files and on its kernel command line."""
    ram = machine(bundle).ram_total
    ram_bytes = int(ram.value or 0) if ram.ok else None
    given = [one for place in settings(bundle) for one in place]
    found = [_judge(one.module, one.name, one.value, ram_bytes) for one in given]
    return sort(one for one in found if one is not None)


def audit_cmdline(text: str, ram_bytes: int | None = None) -> tuple[Finding, ...]:
    """Findings on the memory parameters of amdgpu and TTM in a kernel command line or in lines of modprobe.d.

    ``ram_bytes`` is the RAM left to Linux. A size of a pool that is implausible for it, and plausible in another unit, is a
    mistake in the unit. Pages are 4 KiB (x86).
    """
    given = [*parse_cmdline(text), *(row[1:] for row in parse_modprobe(text))]
    modules = {row.module for row in PARAMETERS}
    found = [_judge(*one, ram_bytes) for one in given if one[0] in modules]
    return sort(one for one in found if one is not None)


def _judge(module: str, name: str, value: str, ram_bytes: int | None) -> Finding | None:
    shown = f"{module}.{name}"
    row = next((p for p in PARAMETERS if (p.module, p.name) == (module, name)), None)
    if row is not None:
        return _size(row, value, ram_bytes) or _as_it_is(row, shown, value)
    own = [p.name for p in PARAMETERS if p.module == module]
    if name in OTHER_PARAMETERS.get(module, ()):
        return None
    elsewhere = [f"{p.module}.{p.name}" for p in PARAMETERS if p.name == name]
    near = difflib.get_close_matches(name[:LONGEST], own, 1, ALIKE)
    near = [f"{module}.{near[0]}"] if near else []
    if not elsewhere and not near:
        names = {p.name: f"{p.module}.{p.name}" for p in reversed(PARAMETERS)}
        near = [names[n] for n in difflib.get_close_matches(name[:LONGEST], names, 1, ALIKE)]
    right = (elsewhere or near or [""])[0]
    if not right:
        says = f"no such parameter of {module} is known here; where the module lacks it, {IGNORED}"
        return finding(shown, value, "unknown", says, "the table of settings")
    says = f"{module} has no such parameter: {IGNORED}; {right} was meant"
    source = next(p.source for p in PARAMETERS if f"{p.module}.{p.name}" == right)
    return replace(finding(shown, value, "misspelt", says, source), right=right)


def _as_it_is(row: Parameter, shown: str, value: str) -> Finding:
    off = row.verdict == "dangerous" and value.upper() in ("0", "N")
    return finding(shown, value, "ineffective" if off else row.verdict, row.says, row.source)


def _size(row: Parameter, value: str, ram_bytes: int | None) -> Finding | None:
    """A finding where a size cannot be meant as it is written."""
    if not row.unit:
        return None
    shown = f"{row.module}.{row.name}"
    try:
        count = int(value[:LONGEST], 0)
    except ValueError:
        says = f"{value[:LONGEST]!r} is no whole number of {row.unit}: the module refuses it"
        return finding(shown, value, "misspelt", says, row.source)
    meant = [factor for factor in UNITS.values() if _plausible(count * factor, ram_bytes)]
    if not row.pool or count <= 0 or not meant or UNITS[row.unit] in meant:
        return None
    size = count * meant[0]
    right = -(-size // UNITS[row.unit])
    says = (
        f"it counts in {row.unit}: {count} would be {show_bytes(count * UNITS[row.unit])}; "
        f"{show_bytes(size)} were meant, which is {right} {row.unit}"
    )
    return replace(finding(shown, value, "misspelt", says, row.source), right=f"{shown}={right}")


def _plausible(size: int, ram_bytes: int | None) -> bool:
    least, most = (ram_bytes // 64, 2 * ram_bytes) if ram_bytes else (LEAST_BYTES, MOST_BYTES)
    return least <= size <= most
