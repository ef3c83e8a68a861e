"""Are the memory parameters on a kernel command line, or in a modprobe.d file, spelt right, in
the right module and unit?
"""

from __future__ import annotations

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
"""Units that people write sizes in, the likelier mistake first."""
LEAST_BYTES = 1 << 30
MOST_BYTES = 16 << 40
"""No pool that people ask for is smaller or larger; where the RAM is known, than 1/64 or twice
of that.
"""
ALIKE = 0.72
ROWS = {f"{row.module}.{row.name}": row for row in PARAMETERS}


def audit_kernel(bundle: Bundle) -> tuple[Finding, ...]:
    """Findings on the parameters that a box has in modprobe.d files and on its kernel command
    line.
    """
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

    ``ram_bytes`` is the RAM left to Linux. A size of a pool that is implausible for it, and
    plausible in another unit, is a mistake in the unit. Pages are 4 KiB (x86).
    """
    in_modprobe = [row[1:] for row in parse_modprobe(text)]
    return _audit_parameters([*parse_cmdline(text), *in_modprobe], ram_bytes)


def _audit_parameters(
    parameters: Iterable[tuple[str, str, str]], ram_bytes: int | None
) -> tuple[Finding, ...]:
    findings = [
        _parameter(module, name, value, ram_bytes)
        for module, name, value in parameters
        if module in MODULES
    ]
    return sort(finding for finding in findings if finding is not None)


def _parameter(
    module: str, name: str, value: str, ram_bytes: int | None
) -> Finding | None:
    key = f"{module}.{name}"
    if key in ROWS:
        return _implausible_size(ROWS[key], value, ram_bytes) or _usual(
            ROWS[key], value
        )
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
    """What the parameter does; one that is dangerous and switched off does nothing."""
    verdict = row.verdict
    if verdict == "dangerous" and value.upper() in ("0", "N"):
        verdict = "ineffective"
    return Finding(f"{row.module}.{row.name}", value, verdict, row.says, row.source)


def _nearest(module: str, name: str) -> str:
    """The parameter of this name in another module, else one spelt nearly so in this module,
    else in any; or nothing.
    """
    in_any_module = {row.name: key for key, row in reversed(ROWS.items())}
    if name in in_any_module:
        return in_any_module[name]
    in_this_module = {
        row.name: key for key, row in ROWS.items() if row.module == module
    }
    for keys in (in_this_module, in_any_module):
        nearest = nearest_name(name, keys, ALIKE)
        if nearest:
            return keys[nearest]
    return ""


def _implausible_size(
    row: Parameter, value: str, ram_bytes: int | None
) -> Finding | None:
    """A finding where a size cannot be meant as it is written."""
    if not row.unit:
        return None
    key = f"{row.module}.{row.name}"
    try:
        count = int(value[:LONGEST], 0)
    except ValueError:
        return finding("no number", key, value, given=value[:LONGEST], row=row)
    if not row.pool or count <= 0:
        return None
    least = LEAST_BYTES
    most = MOST_BYTES
    if ram_bytes:
        least = ram_bytes // 64
        most = 2 * ram_bytes
    plausible = [factor for factor in UNITS.values() if least <= count * factor <= most]
    unit = UNITS[row.unit]
    if not plausible or unit in plausible:
        return None
    size = count * plausible[0]
    return finding(
        "unit",
        key,
        value,
        row=row,
        count=count,
        read=show_bytes(count * unit),
        size=show_bytes(size),
        meant=-(-size // unit),
    )
