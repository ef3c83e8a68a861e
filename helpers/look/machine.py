"""The machine under the GPUs: kernel, distribution, CPU, RAM and swap, and the memory limits of
this process's control group.

All sizes are in bytes; the "kB" of /proc/meminfo is KiB (Documentation/filesystems/proc.rst).
Control groups are read from this process's own up to the root, because a limit of any group
above holds too (Documentation/admin-guide: cgroup-v2, cgroup-v1).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import memory_groups
from helpers.ground.shapes import Reading
from helpers.ground.units import KIB
from helpers.look.bundle import Bundle, JsonRow

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
_DISTRIBUTION = r"(?m)^PRETTY_NAME=[\"']?([^\s\"'][^\n\"']{0,120})"
_STALL = r"(?m)^full avg10=([0-9]{1,3}\.[0-9]{1,2})\b"
_CPU = r"(?m)^(?:model name|Hardware|Model)\s*:\s*(\S[^\n]{0,120})"


@dataclass(frozen=True)
class Machine:
    """One machine.

    A limit that is not set reads as not available with the reason "no limit is set"; it is
    never 0.

    ``kernel`` is the release. ``zram_used`` is swap that itself lies in RAM; ``zfs_cache`` is
    RAM that ZFS gives back late and ``ram_available`` does not count; ``huge_pages`` is RAM set aside
    for them. ``memory_stall`` is in how many percent of 10 s everything that could run waited
    for memory (Documentation/accounting/psi.rst). ``overcommit`` is vm.overcommit_memory; of
    ``commit_limit``, ``committed`` is promised (Documentation/mm/overcommit-accounting.rst).
    ``cgroup_oom_kills`` counts since the group was made.
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
    memory_stall: Reading
    overcommit: Reading
    commit_limit: Reading
    committed: Reading
    cgroup_limit: Reading
    cgroup_used: Reading
    cgroup_oom_kills: Reading


def machine(bundle: Bundle) -> Machine:
    """What the captured files say of the machine. Never raises; what is missing says why."""
    group = _Group(bundle)
    arcstats = bundle.read("/proc/spl/kstat/zfs/arcstats")
    return Machine(
        kernel=bundle.read("/proc/version").find(r"Linux version (\S{1,100})"),
        distribution=bundle.read("/etc/os-release").find(_DISTRIBUTION),
        cpu=bundle.read("/proc/cpuinfo").find(_CPU),
        cmdline=bundle.word("/proc/cmdline"),
        ram_total=_meminfo(bundle, "MemTotal"),
        ram_available=_meminfo(bundle, "MemAvailable"),
        swap_total=_meminfo(bundle, "SwapTotal"),
        swap_free=_meminfo(bundle, "SwapFree"),
        huge_pages=_meminfo(bundle, "Hugetlb"),
        zram_used=_zram(bundle),
        zfs_cache=arcstats.find(
            r"(?m)^size\s+[0-9]+\s+([0-9]{1,18})$", unit="bytes", scale=1
        ),
        memory_stall=bundle.read("/proc/pressure/memory").find(_STALL),
        overcommit=bundle.word("/proc/sys/vm/overcommit_memory"),
        commit_limit=_meminfo(bundle, "CommitLimit"),
        committed=_meminfo(bundle, "Committed_AS"),
        cgroup_limit=group.limit(),
        cgroup_used=group.used(),
        cgroup_oom_kills=group.oom_kills(),
    )


def _meminfo(bundle: Bundle, name: str) -> Reading:
    pattern = rf"(?m)^{name}:\s*([0-9]{{1,18}}) kB"
    return bundle.read("/proc/meminfo").find(
        pattern, f"no line {name} in it", "bytes", KIB
    )


def _zram(bundle: Bundle) -> Reading:
    swaps = bundle.read("/proc/swaps")
    if not swaps.text.strip():
        return swaps.missing("the file is empty", "bytes")
    form = r"(?m)^/dev/zram[0-9]{1,3}\s+\S+\s+[0-9]{1,15}\s+([0-9]{1,15})\s"
    used = re.findall(form, swaps.text + "\n")
    return swaps.seen(sum(map(int, used)) * KIB, "bytes")


def page_size(bundle: Bundle) -> Reading:
    """The page size in bytes that the table ``host`` names."""
    table = bundle.read("host")
    for row in bundle.table("host"):
        size = row.number("page_size")
        if size is not None and 0 < size <= 1 << 30:
            return table.seen(size, "bytes")
    return table.missing("not captured", "bytes")


def up_s(bundle: Bundle) -> int | None:
    """How many seconds the kernel had run when the box was captured; None where nobody says."""
    for row in bundle.table("host"):
        return row.number("up_s")
    return None


def memory_group(bundle: Bundle) -> str:
    """The control group of the captured process, as the kernel names it; "" for the root."""
    paths = (
        path for _, _, path in memory_groups(bundle.read("/proc/self/cgroup").text)
    )
    return next((path for path in paths if path.strip("/")), "")


class _Group:
    """The memory control group of the captured process, and those above it, nearest first."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle
        self._cgroup = bundle.read("/proc/self/cgroup")
        self.version = 0
        self.folders: list[str] = []
        for version, folder in _folders(self._cgroup.text):
            files = (bundle.read(f"{folder}/{name}") for name in _GROUPS[version])
            # On a mixed system the memory controller is in one hierarchy only.
            if self.version in (0, version) and any(
                f.status != "not_available" for f in files
            ):
                self.version = version
                self.folders.append(folder)

    def limit(self) -> Reading:
        """The lowest limit of this group and of those above."""
        if self.version == 2:
            return self._lowest("memory.max")
        # Version 1 also states it for the groups that are out of sight.
        return self._lowest(
            "memory.limit_in_bytes",
            self._line("memory.stat", "hierarchical_memory_limit", "bytes"),
        )

    def used(self) -> Reading:
        """What the first group uses."""
        if not self.folders:
            return self._absent()
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return self._bundle.number(f"{self.folders[0]}/{name}")

    def oom_kills(self) -> Reading:
        """How often the first group killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._line(name, "oom_kill", "count")

    def _absent(self, unit: str = "bytes") -> Reading:
        return self._cgroup.missing("no memory control group is visible", unit)

    def _lowest(self, name: str, *more: Reading) -> Reading:
        """The lowest of a file's numbers in this group and those above, and of ``more``; the root
        group has fewer files than the others.
        """
        if not self.folders:
            return self._absent()
        numbers = [self._bundle.number(f"{folder}/{name}") for folder in self.folders]
        limits = [n for n in (*numbers, *more) if n.ok and n.bytes < _NO_LIMIT_BYTES]
        if limits:
            return min(limits, key=lambda limit: limit.bytes)
        for folder in self.folders:
            text = self._bundle.read(f"{folder}/{name}")
            if text.text.strip():
                return text.missing("no limit is set", "bytes")
        return numbers[0]

    def _line(self, name: str, key: str, unit: str) -> Reading:
        """The number behind a key, in the first group's file of several lines."""
        if not self.folders:
            return self._absent(unit)
        text = self._bundle.read(f"{self.folders[0]}/{name}")
        return text.find(
            rf"(?m)^{key} ([0-9]{{1,20}})$", f"no line {key} in it", unit, 1
        )


def _folders(cgroup: str) -> list[tuple[int, str]]:
    """(version, folder) of each memory group from the process's own up to the root of the
    mount, by /proc/self/cgroup.
    """
    groups = []
    for version, top, path in memory_groups(cgroup):
        parts = [part for part in path.split("/") if part][:_DEPTH]
        for depth in range(len(parts), -1, -1):
            groups.append((version, "/".join([top, *parts[:depth]])))
    return groups


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


def collect_host(root: Path) -> list[JsonRow]:
    """The one row of the table host: the page size here, which boot of the tree's kernel it is,
    and how long that ran, by the clock of its log.
    """
    row = {"page_size": os.sysconf("SC_PAGE_SIZE"), "boot_id": boot_id(str(root))}
    if str(root) == "/":
        row["up_s"] = int(time.monotonic())
    return [row]
