"""Are the memory parameters on a kernel command line, or in a modprobe.d file, spelt right, in the right module and unit?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from helpers.look.bundle import Bundle
from helpers.look.machine import machine
from helpers.look.ttm import MODULES, parse_cmdline, parse_modprobe, settings
from helpers.settings import table
from helpers.settings.table import LONGEST, OTHER_PARAMETERS, PARAMETERS, Finding, finding
from helpers.units import show_bytes

UNITS = {"bytes": 1, "pages": 4096, "MiB": 1 << 20, "GiB": 1 << 30, "KiB": 1 << 10}
"""Units that people write sizes in, the likelier mistake first."""
LEAST_BYTES, MOST_BYTES = 1 << 30, 16 << 40
"""No pool that people ask for is smaller or larger; where the RAM is known, than 1/64 or twice of that."""
ALIKE = 0.72
ROWS = {f"{row.module}.{row.name}": row for row in PARAMETERS}


def audit_kernel(bundle: Bundle) -> tuple[Finding, ...]:
    """Findings on the parameters that a box has in modprobe.d files and on its kernel command line."""
    ram = machine(bundle).ram_total
    given = [(one.module, one.name, one.value) for place in settings(bundle) for one in place]
    return _audit(given, int(ram.value or 0) if ram.ok else None)


def audit_cmdline(text: str, ram_bytes: int | None = None) -> tuple[Finding, ...]:
    """Findings on the memory parameters of amdgpu and TTM in a kernel command line or in lines of modprobe.d.

    ``ram_bytes`` is the RAM left to Linux. A size of a pool that is implausible for it, and plausible in another unit, is a
    mistake in the unit. Pages are 4 KiB (x86).
    """
    return _audit([*parse_cmdline(text), *(row[1:] for row in parse_modprobe(text))], ram_bytes)


def _audit(given: Iterable[tuple[str, str, str]], ram_bytes: int | None) -> tuple[Finding, ...]:
    found = (_judge(*one, ram_bytes) for one in given if one[0] in MODULES)
    return table.sort(one for one in found if one is not None)


def _judge(module: str, name: str, value: str, ram_bytes: int | None) -> Finding | None:
    shown = f"{module}.{name}"
    if shown in ROWS:
        row = ROWS[shown]
        off = row.verdict == "dangerous" and value.upper() in ("0", "N")
        usual = Finding(shown, value, "ineffective" if off else row.verdict, row.says, row.source)
        return _size(row, shown, value, ram_bytes) or usual
    if name in OTHER_PARAMETERS.get(module, ()):
        return None
    near = _nearest(module, name[:LONGEST])
    if not near:
        return finding("strange parameter", shown, value, module=module)
    source = ROWS[near].source
    return finding("near parameter", shown, value, module=module, near=near, source=source)


def _nearest(module: str, name: str) -> str:
    """The parameter of this name in another module, else one spelt nearly so in this module, else in any; or nothing."""
    every = {row.name: key for key, row in reversed(ROWS.items())}
    own = {row.name: key for key, row in ROWS.items() if row.module == module}
    near = [
        names[n] for names in (own, every) for n in difflib.get_close_matches(name, names, 1, ALIKE)
    ]
    return every.get(name) or (near[0] if near else "")


def _size(row: table.Parameter, shown: str, value: str, ram_bytes: int | None) -> Finding | None:
    """A finding where a size cannot be meant as it is written."""
    if not row.unit:
        return None
    try:
        count = int(value[:LONGEST], 0)
    except ValueError:
        return finding("no number", shown, value, given=value[:LONGEST], row=row)
    least, most = (ram_bytes // 64, 2 * ram_bytes) if ram_bytes else (LEAST_BYTES, MOST_BYTES)
    meant = [factor for factor in UNITS.values() if least <= count * factor <= most]
    unit = UNITS[row.unit]
    if not row.pool or count <= 0 or not meant or unit in meant:
        return None
    size = count * meant[0]
    sizes = {"read": show_bytes(count * unit), "size": show_bytes(size), "meant": -(-size // unit)}
    return finding("unit", shown, value, row=row, count=count, **sizes)
