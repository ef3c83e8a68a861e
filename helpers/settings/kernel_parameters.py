"""Are the memory parameters on a kernel command line, or in a modprobe.d file, spelt right, in
the right module and unit?
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from helpers.ground.units import show_bytes
from helpers.look.bundle import Bundle
from helpers.look.machine import machine
from helpers.look.ttm import MODULES, parse_cmdline, parse_modprobe, settings
from helpers.settings.audit import nearest_name
from helpers.settings.table import (
    LONGEST,
    OTHER_PARAMETERS,
    PARAMETERS,
    Finding,
    Parameter,
    finding,
    sort,
)

UNITS = {"bytes": 1, "pages": 4096, "MiB": 1 << 20, "GiB": 1 << 30, "KiB": 1 << 10}
"""Bytes of the units that people write sizes in, the more frequent mistake first. A page has 4 KiB
on x86, the only machines with such pools.
"""
LEAST_BYTES = 1 << 30
MOST_BYTES = 16 << 40
"""Between these lies each pool that people ask for, where the RAM is not known. The bounds are
wide, as other units differ by factors of 256 and more.
"""
LEAST_PART_OF_RAM = 64
MOST_TIMES_RAM = 2
"""The same bounds where the RAM is known: from a 64th of it to twice of it."""
ALIKE = 0.72
"""How like a known parameter an unknown one must be spelt to count as misspelt, as difflib's
ratio: these names are short, so one wrong letter weighs more than in a variable's.
"""
ROWS = {f"{row.module}.{row.name}": row for row in PARAMETERS}
"""Rows of the table by MODULE.NAME, as a kernel command line spells a parameter."""


def audit_kernel(bundle: Bundle) -> tuple[Finding, ...]:
    """Findings on the parameters in the modprobe.d files and the kernel command line of a box."""
    ram = machine(bundle).ram_total
    parameters = []
    for place in settings(bundle):
        parameters += [
            (setting.module, setting.name, setting.value) for setting in place
        ]
    return _audit_parameters(parameters, ram.bytes or None)


def audit_cmdline(text: str, ram_bytes: int | None = None) -> tuple[Finding, ...]:
    """Findings on the memory parameters of amdgpu and TTM in a kernel command line or in lines
    of modprobe.d.

    ``ram_bytes`` is the RAM left to Linux, None where it is not known. A size of a pool that is
    implausible for it, and plausible in another unit, is a mistake in the unit.
    """
    parameters = list(parse_cmdline(text))
    for _line, module, name, value in parse_modprobe(text):
        parameters.append((module, name, value))
    return _audit_parameters(parameters, ram_bytes)


def _audit_parameters(
    parameters: Iterable[tuple[str, str, str]], ram_bytes: int | None
) -> tuple[Finding, ...]:
    """The findings on (module, name, value) triples, of the modules that have to do with memory."""
    findings = [
        _parameter(module, name, value, ram_bytes)
        for module, name, value in parameters
        if module in MODULES
    ]
    return sort(finding for finding in findings if finding is not None)


def _parameter(
    module: str, name: str, value: str, ram_bytes: int | None
) -> Finding | None:
    """The finding on one parameter; None where it has nothing to do with memory. One that is in
    the table has an implausible size or does what it usually does; one that is not is misspelt,
    or strange where no known name is near.
    """
    key = f"{module}.{name}"
    if key in ROWS:
        implausible = _implausible_size(ROWS[key], value, ram_bytes)
        if implausible is not None:
            return implausible
        return _usual(ROWS[key], value)
    if name in OTHER_PARAMETERS.get(module, ()):
        return None
    nearest = _nearest(module, name[:LONGEST])
    if not nearest:
        return finding("strange parameter", key, value, module=module)
    return finding(
        "near parameter",
        key,
        value,
        module=module,
        near=nearest,
        source=ROWS[nearest].source,
    )


def _usual(row: Parameter, value: str) -> Finding:
    """What the parameter does; one that is dangerous does nothing where it is switched off."""
    verdict = row.verdict
    if verdict == "dangerous" and value.upper() in ("0", "N"):  # false for the kernel
        verdict = "ineffective"
    return Finding(f"{row.module}.{row.name}", value, verdict, row.says, row.source)


def _nearest(module: str, name: str) -> str:
    """The key in ROWS that was meant: the same name in another module, else a name spelt nearly
    so in this module, else one in any module; or "".
    """
    in_any_module: dict[str, str] = {}
    in_this_module: dict[str, str] = {}
    for key, row in ROWS.items():
        in_any_module.setdefault(row.name, key)
        if row.module == module:
            in_this_module[row.name] = key
    # As in amdgpu.pages_limit: the name is right, the module is not.
    if name in in_any_module:
        return in_any_module[name]
    for keys in (in_this_module, in_any_module):
        nearest = nearest_name(name, keys, ALIKE)
        if nearest:
            return keys[nearest]
    return ""


def _implausible_size(
    row: Parameter, value: str, ram_bytes: int | None
) -> Finding | None:
    """The finding on a size that is no number, or whose number makes sense only in another unit;
    None where there is no such mistake.
    """
    if not row.unit:
        return None
    key = f"{row.module}.{row.name}"
    try:
        count = int(value[:LONGEST], 0)  # decimal, 0x or 0o
    except ValueError:
        return finding("no number", key, value, given=value[:LONGEST], row=row)
    # A size that is no pool may be of any magnitude; 0 and -1 leave the size to the driver.
    if not row.pool or count <= 0:
        return None
    least = LEAST_BYTES
    most = MOST_BYTES
    if ram_bytes:
        least = ram_bytes // LEAST_PART_OF_RAM
        most = ram_bytes * MOST_TIMES_RAM
    sizes = [count * unit for unit in UNITS.values()]
    plausible = [size for size in sizes if least <= size <= most]
    unit_bytes = UNITS[row.unit]
    # Right in the parameter's own unit, or in none: then no unit was mistaken for another.
    if not plausible or count * unit_bytes in plausible:
        return None
    meant_bytes = plausible[0]
    return finding(
        "unit",
        key,
        value,
        row=row,
        count=count,
        read=show_bytes(count * unit_bytes),
        size=show_bytes(meant_bytes),
        meant=math.ceil(meant_bytes / unit_bytes),
    )
