"""The machine under the GPUs: kernel, distribution, CPU, RAM and swap, and the memory limits of this process's control group.

All sizes are in bytes; the "kB" of /proc/meminfo is KiB (Documentation/filesystems/proc.rst). Control groups are read from this
process's own up to the root, because a limit of any group above holds too (Documentation/admin-guide: cgroup-v2, cgroup-v1).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .bundle import Bundle
from .files import read
from .reading import KIB, Reading, not_allowed, not_available, seen

_V2 = ("memory.max", "memory.high", "memory.current", "memory.peak", "memory.events", "memory.swap.max", "memory.swap.current")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "memory.oom_control",
       "memory.stat")
_DMI = "/sys/class/dmi/id"
FILES: tuple[str, ...] = (
    "/proc/meminfo", "/proc/cpuinfo", "/proc/version", "/proc/cmdline", "/proc/swaps", "/proc/self/cgroup", "/etc/os-release",
    *("/proc/sys/vm/" + name for name in ("overcommit_memory", "overcommit_ratio", "swappiness", "max_map_count")),
    *(f"{_DMI}/{name}" for name in ("sys_vendor", "product_name", "board_name", "bios_version", "bios_date")),
    "/proc/spl/kstat/zfs/arcstats",
    *("/sys/fs/cgroup/" + name for name in _V2), *("/sys/fs/cgroup/memory/" + name for name in _V1),
)
"""Of control groups the mount's root only, which is a container's own group; ``cgroup_files`` finds the others."""
COMMANDS: tuple[tuple[str, ...], ...] = ()
# v1 writes "no limit" as the largest page count in bytes, a little below 2**63.
_NO_LIMIT_BYTES = 1 << 60
_DEPTH = 32
_NO_GROUP = "no memory control group is visible"


@dataclass(frozen=True)
class Machine:
    """One machine. A limit that is not set reads as not available with the reason "no limit is set"; it is never 0.

    ``kernel`` is the release, ``firmware`` the BIOS version. ``zram_used`` is swap that itself lies in RAM; ``zfs_cache`` is
    RAM that ZFS gives back late and ``ram_available`` does not count; ``huge_pages`` is RAM set aside for them. ``overcommit``
    is vm.overcommit_memory. ``cgroup_oom_kills`` counts since the group was made.
    """

    kernel: Reading
    distribution: Reading
    cpu: Reading
    vendor: Reading
    product: Reading
    firmware: Reading
    cmdline: Reading
    ram_total: Reading
    ram_available: Reading
    swap_total: Reading
    swap_free: Reading
    zram_used: Reading
    zfs_cache: Reading
    huge_pages: Reading
    overcommit: Reading
    page_size: Reading
    cgroup_version: Reading
    cgroup_limit: Reading
    cgroup_high: Reading
    cgroup_used: Reading
    cgroup_peak: Reading
    cgroup_swap_limit: Reading
    cgroup_oom_kills: Reading


def machine(bundle: Bundle) -> Machine:
    """What the captured files say of the machine. Never raises; what is missing says why."""
    memory = _meminfo(bundle)
    group = _Group(bundle)
    v2 = group.version == 2
    return Machine(
        _line(bundle, "/proc/version", r"Linux version (\S{1,100})"), _os_release(bundle),
        _line(bundle, "/proc/cpuinfo", r"(?m)^(?:model name|Hardware|Model)\s*:\s*(\S[^\n]{0,120})"),
        bundle.word(f"{_DMI}/sys_vendor"), bundle.word(f"{_DMI}/product_name"), bundle.word(f"{_DMI}/bios_version"),
        bundle.word("/proc/cmdline"), memory("MemTotal"), memory("MemAvailable"), memory("SwapTotal"), memory("SwapFree"),
        _zram(bundle), _zfs(bundle), memory("Hugetlb"), bundle.number("/proc/sys/vm/overcommit_memory", "count"),
        page_size(bundle), group.kind(),
        group.lowest("memory.max") if v2 else group.lowest("memory.limit_in_bytes", "hierarchical_memory_limit"),
        group.lowest("memory.high") if v2 else group.absent("control groups v1 have no such limit"),
        group.own("memory.current" if v2 else "memory.usage_in_bytes"),
        group.own("memory.peak" if v2 else "memory.max_usage_in_bytes"),
        group.lowest("memory.swap.max") if v2 else group.absent("control groups v1 limit swap and memory together"),
        group.key("memory.events" if v2 else "memory.oom_control", "oom_kill"))


def _line(bundle: Bundle, source: str, pattern: str) -> Reading:
    got = bundle.word(source)
    match = re.search(pattern, str(got.value)) if got.ok else None
    if match:
        return seen(match.group(1).strip(), "text", source, got.item)
    return got if not got.ok else not_available("no such line in it", "text", source, got.item)


def _os_release(bundle: Bundle) -> Reading:
    name = _line(bundle, "/etc/os-release", r"(?m)^PRETTY_NAME=(\S[^\n]{0,120})")
    return seen(str(name.value).strip("\"'"), "text", name.source, name.item) if name.ok else name


def _meminfo(bundle: Bundle) -> Callable[[str], Reading]:
    got = bundle.word("/proc/meminfo")
    values = dict(re.findall(r"(?m)^(\w{1,40}):\s*([0-9]{1,18}) kB", str(got.value or "")))

    def field(name: str) -> Reading:
        if name in values:
            return seen(int(values[name]) * KIB, "bytes", got.source, got.item)
        return _as_bytes(got) if not got.ok else not_available(f"no line {name} in it", "bytes", got.source, got.item)

    return field


def _as_bytes(missing: Reading) -> Reading:
    make = not_allowed if missing.status == "not_allowed" else not_available
    return make(missing.why, "bytes", missing.source, missing.item)


def _zram(bundle: Bundle) -> Reading:
    got = bundle.word("/proc/swaps")
    if not got.ok:
        return _as_bytes(got)
    used = re.findall(r"(?m)^/dev/zram[0-9]{1,3}\s+\S+\s+[0-9]{1,15}\s+([0-9]{1,15})\s", str(got.value) + "\n")
    return seen(sum(map(int, used)) * KIB, "bytes", got.source, got.item)


def _zfs(bundle: Bundle) -> Reading:
    size = _line(bundle, "/proc/spl/kstat/zfs/arcstats", r"(?m)^size\s+[0-9]+\s+([0-9]{1,18})$")
    return seen(int(str(size.value)), "bytes", size.source, size.item) if size.ok else _as_bytes(size)


def page_size(bundle: Bundle) -> Reading:
    """The page size in bytes that the table ``host`` names."""
    item = bundle.read("host").item
    sizes = [row.get("page_size") for row in bundle.table("host")]
    good = [size for size in sizes if isinstance(size, int) and 0 < size <= 1 << 30]
    return seen(good[0], "bytes", "host", item) if good else not_available("not captured", "bytes", "host", item)


class _Group:
    """The memory control group of the captured process, and those above it, nearest first."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle
        self._cgroup = bundle.word("/proc/self/cgroup")
        self.version, self.folders = 0, []
        for version, folder in _folders(str(self._cgroup.value or "")):
            there = any(bundle.read(f"{folder}/{name}").status != "not_available" for name in (_V1 if version == 1 else _V2))
            # On a mixed system the memory controller is in one hierarchy only.
            if there and self.version in (0, version):
                self.version = version
                self.folders.append(folder)

    def absent(self, why: str) -> Reading:
        if not self._cgroup.ok:
            return _as_bytes(self._cgroup)
        return not_available(why, "bytes", "/proc/self/cgroup", self._cgroup.item)

    def kind(self) -> Reading:
        if self.version:
            return seen(f"v{self.version}", "text", "/proc/self/cgroup", self._cgroup.item)
        return not_available(_NO_GROUP, "text", "/proc/self/cgroup", self._cgroup.item)

    def own(self, name: str) -> Reading:
        """The first group's file; the root group has fewer files than the others."""
        return self._bundle.number(f"{self.folders[0]}/{name}") if self.folders else self.absent(_NO_GROUP)

    def lowest(self, name: str, hierarchical: str = "") -> Reading:
        """The lowest limit of this group and of those above; v1 also states it for the groups that are out of sight."""
        found = [self._bundle.number(f"{folder}/{name}") for folder in self.folders]
        if hierarchical and self.folders:
            found.append(self.key("memory.stat", hierarchical))
        limits = [reading for reading in found if reading.ok and int(reading.value or 0) < _NO_LIMIT_BYTES]
        if limits:
            return min(limits, key=lambda reading: int(reading.value or 0))
        for folder in self.folders:
            got = self._bundle.word(f"{folder}/{name}")
            if got.ok:
                return not_available("no limit is set", "bytes", got.source, got.item)
        return found[0] if found else self.absent(_NO_GROUP)

    def key(self, name: str, key: str) -> Reading:
        """The number behind a key, in the first group's file of several lines."""
        unit = "count" if key == "oom_kill" else "bytes"
        if not self.folders:
            return not_available(_NO_GROUP, unit, "/proc/self/cgroup", self._cgroup.item)
        got = self._bundle.word(f"{self.folders[0]}/{name}")
        match = re.search(rf"(?m)^{key} ([0-9]{{1,20}})$", str(got.value or ""))
        if match:
            return seen(int(match.group(1)), unit, got.source, got.item)
        return not_available(got.why or f"no line {key} in it", unit, got.source, got.item)


def _folders(cgroup: str) -> list[tuple[int, str]]:
    """(version, folder) of each memory group from the process's own up to the root of the mount, by /proc/self/cgroup.

    Inside a container the path may be that of the host, of which only the mount's root is visible; "/.." leads out of sight.
    """
    folders = []
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = [(2, "/sys/fs/cgroup"), (2, "/sys/fs/cgroup/unified")]
        elif "memory" in controllers.split(","):
            roots = [(1, "/sys/fs/cgroup/memory")]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")][:_DEPTH]
        for version, top in roots:
            folders += [(version, "/".join([top, *parts[:depth]])) for depth in range(len(parts), -1, -1)]
    return sorted(folders, key=lambda pair: pair[0])


def cgroup_files(root: Path) -> list[str]:
    """The files to capture for the memory limits of this process: those that are there, nearest group first."""
    content, _, _ = read(str(root), "/proc/self/cgroup")
    return [f"{folder}/{name}" for version, folder in _folders((content or b"").decode("utf-8", "replace"))
            for name in (_V1 if version == 1 else _V2) if os.path.exists(f"{str(root).rstrip('/')}{folder}/{name}")]


def collect_host(root: Path) -> list[dict[str, Any]]:
    """The one row of the table host. Under another ``root`` the kernel's names come from its files, the rest from here."""
    here = os.uname()
    live = str(root) == "/"

    def words(source: str) -> str:
        return (read(str(root), source)[0] or b"").decode("utf-8", "replace").strip()

    return [{"system": here.sysname, "release": words("/proc/sys/kernel/osrelease") or (here.release if live else ""),
             "version": words("/proc/sys/kernel/version") or (here.version if live else ""), "machine": here.machine,
             "python": platform.python_version(), "page_size": os.sysconf("SC_PAGE_SIZE"),
             "clock_ticks": os.sysconf("SC_CLK_TCK"), "boot_id": words("/proc/sys/kernel/random/boot_id"),
             "now": datetime.now(timezone.utc).isoformat(timespec="seconds")}]
