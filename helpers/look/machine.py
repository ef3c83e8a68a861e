"""The machine under the GPUs: kernel, distribution, CPU, RAM and swap, and the memory limits of
this process's control group.

All sizes are in bytes; the "kB" of /proc/meminfo is KiB (Documentation/filesystems/proc.rst).
Control groups are read from this process's own up to the root, because a limit of any group
above holds too (Documentation/admin-guide: cgroup-v2, cgroup-v1).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ground.child import memory_groups
from helpers.ground.shapes import Reading
from helpers.ground.units import KIB
from helpers.look.bundle import Bundle

from .files import boot_id, sources, text

FILES = sources("files", "machine")
_TOPS = {1: "/sys/fs/cgroup/memory/", 2: "/sys/fs/cgroup/"}
_GROUPS = {
    version: [path[len(top) :] for path in FILES if path.startswith(top + "memory.")]
    for version, top in _TOPS.items()
}
# v1 writes "no limit" as the largest page count in bytes, a little below 2**63.
_NO_LIMIT_BYTES = 1 << 60
_DEPTH = 32
_MEMINFO = "MemTotal MemAvailable SwapTotal SwapFree Hugetlb".split()
_CPU = r"(?m)^(?:model name|Hardware|Model)\s*:\s*(\S[^\n]{0,120})"


@dataclass(frozen=True)
class Machine:
    """One machine.

    A limit that is not set reads as not available with the reason "no limit is set"; it is
    never 0.

    ``kernel`` is the release. ``zram_used`` is swap that itself lies in RAM; ``zfs_cache`` is
    RAM that ZFS gives back late and ``ram_available`` does not count; ``huge_pages`` is RAM set
    aside for them. ``cgroup_oom_kills`` counts since the group was made.
    """

    kernel: Reading
    distribution: Reading
    cpu: Reading
    cmdline: Reading
    ram_total: Reading
    ram_available: Reading
    swap_total: Reading
    swap_free: Reading
    huge_pages: Reading
    zram_used: Reading
    zfs_cache: Reading
    cgroup_limit: Reading
    cgroup_high: Reading
    cgroup_used: Reading
    cgroup_oom_kills: Reading


def machine(bundle: Bundle) -> Machine:
    """What the captured files say of the machine. Never raises; what is missing says why."""
    group = _Group(bundle)
    read = bundle.read
    v2 = group.version == 2
    limit = ("memory.max", "") if v2 else ("memory.limit_in_bytes", "hierarchical_memory_limit")
    no_high = "control groups v1 have no such limit"
    arcstats = r"(?m)^size\s+[0-9]+\s+([0-9]{1,18})$"
    ram, available, swap, swap_free, huge = (_meminfo(bundle, name) for name in _MEMINFO)
    return Machine(
        read("/proc/version").find(r"Linux version (\S{1,100})"),
        read("/etc/os-release").find(r"(?m)^PRETTY_NAME=[\"']?([^\s\"'][^\n\"']{0,120})"),
        read("/proc/cpuinfo").find(_CPU),
        bundle.word("/proc/cmdline"),
        ram,
        available,
        swap,
        swap_free,
        huge,
        _zram(bundle),
        read("/proc/spl/kstat/zfs/arcstats").find(arcstats, unit="bytes", scale=1),
        group.lowest(*limit),
        group.lowest("memory.high") if v2 else group.absent(no_high),
        group.own("memory.current" if v2 else "memory.usage_in_bytes"),
        group.key("memory.events" if v2 else "memory.oom_control", "oom_kill"),
    )


def _meminfo(bundle: Bundle, name: str) -> Reading:
    pattern = rf"(?m)^{name}:\s*([0-9]{{1,18}}) kB"
    return bundle.read("/proc/meminfo").find(pattern, f"no line {name} in it", "bytes", KIB)


def _zram(bundle: Bundle) -> Reading:
    got = bundle.read("/proc/swaps")
    if not got.text.strip():
        return got.missing("the file is empty", "bytes")
    form = r"(?m)^/dev/zram[0-9]{1,3}\s+\S+\s+[0-9]{1,15}\s+([0-9]{1,15})\s"
    used = re.findall(form, got.text + "\n")
    return got.seen(sum(map(int, used)) * KIB, "bytes")


def page_size(bundle: Bundle) -> Reading:
    """The page size in bytes that the table ``host`` names."""
    at = bundle.read("host")
    sizes = (row.number("page_size") for row in bundle.table("host"))
    good = next((size for size in sizes if size is not None and 0 < size <= 1 << 30), None)
    return at.missing("not captured", "bytes") if good is None else at.seen(good, "bytes")


class _Group:
    """The memory control group of the captured process, and those above it, nearest first."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle
        self._cgroup = bundle.read("/proc/self/cgroup")
        self.version = 0
        self.folders = []
        for version, folder in _folders(self._cgroup.text):
            files = (bundle.read(f"{folder}/{name}") for name in _GROUPS[version])
            # On a mixed system the memory controller is in one hierarchy only.
            if self.version in (0, version) and any(f.status != "not_available" for f in files):
                self.version = version
                self.folders.append(folder)

    def absent(
        self, why: str = "no memory control group is visible", unit: str = "bytes"
    ) -> Reading:
        return self._cgroup.missing(why, unit)

    def own(self, name: str) -> Reading:
        """The first group's file; the root group has fewer files than the others."""
        return self._bundle.number(f"{self.folders[0]}/{name}") if self.folders else self.absent()

    def lowest(self, name: str, hierarchical: str = "") -> Reading:
        """The lowest limit of this group and of those above; v1 also states it for the groups
        that are out of sight.
        """
        found = [self._bundle.number(f"{folder}/{name}") for folder in self.folders]
        if hierarchical and self.folders:
            found.append(self.key("memory.stat", hierarchical, "bytes"))
        limits = [reading for reading in found if reading.ok and reading.bytes < _NO_LIMIT_BYTES]
        if limits:
            return min(limits, key=lambda reading: reading.bytes)
        for folder in self.folders:
            got = self._bundle.read(f"{folder}/{name}")
            if got.text.strip():
                return got.missing("no limit is set", "bytes")
        return found[0] if found else self.absent()

    def key(self, name: str, key: str, unit: str = "count") -> Reading:
        """The number behind a key, in the first group's file of several lines."""
        if not self.folders:
            return self.absent(unit=unit)
        got = self._bundle.read(f"{self.folders[0]}/{name}")
        return got.find(rf"(?m)^{key} ([0-9]{{1,20}})$", f"no line {key} in it", unit, 1)


def _folders(cgroup: str) -> list[tuple[int, str]]:
    """(version, folder) of each memory group from the process's own up to the root of the
    mount, by /proc/self/cgroup.
    """
    return [
        (version, "/".join([top, *parts[:depth]]))
        for version, top, path in memory_groups(cgroup)
        for parts in [list(filter(None, path.split("/")))[:_DEPTH]]
        for depth in range(len(parts), -1, -1)
    ]


def cgroup_files(root: Path) -> list[str]:
    """The files to capture for the memory limits of this process: those that are there, nearest
    group first.
    """
    top = str(root).rstrip("/")
    return [
        f"{folder}/{name}"
        for version, folder in _folders(text(str(root), "/proc/self/cgroup"))
        for name in _GROUPS[version]
        if os.path.exists(f"{top}{folder}/{name}")
    ]


def collect_host(root: Path) -> list[dict[str, Any]]:
    """The one row of the table host: the page size here, and when the tree's kernel started."""
    return [{"page_size": os.sysconf("SC_PAGE_SIZE"), "boot_id": boot_id(str(root))}]
