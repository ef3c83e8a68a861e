"""The machine around the GPUs: kernel, distribution, CPU, RAM and swap, and the memory limits of
this process's control group.

All sizes are in bytes; the "kB" of /proc/meminfo is KiB (Documentation/filesystems/proc.rst).
Control groups are read from this process's own up to the root, because the limit of every group
above applies, too (Documentation/admin-guide: cgroup-v2, cgroup-v1).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import memory_groups
from helpers.ground.shapes import Reading
from helpers.ground.units import GIB, KIB
from helpers.look.bundle import Bundle, JsonRow

from .files import boot_id, sources, text

FILES = sources("files", "machine")
_TOPS = {1: "/sys/fs/cgroup/memory/", 2: "/sys/fs/cgroup/"}


def _group_files(top: str) -> list[str]:
    """The names of the files, such as memory.max, that sources.json has for a group's folder."""
    return [path[len(top) :] for path in FILES if path.startswith(f"{top}memory.")]


_GROUPS = {version: _group_files(top) for version, top in _TOPS.items()}
"""Those names for each version of control groups."""
# Version 1 has for "no limit" the largest number of pages in bytes, a little less than 2**63.
_NO_LIMIT_BYTES = 1 << 60
_DEPTH = 32
"""Levels of groups that are read: more than systemd and Kubernetes make; somebody may make more."""
_DISTRIBUTION = r"(?m)^PRETTY_NAME=[\"']?([^\s\"'][^\n\"']{0,120})"
_STALL = r"(?m)^full avg10=([0-9]{1,3}\.[0-9]{1,2})\b"
_CPU = r"(?m)^(?:model name|Hardware|Model)\s*:\s*(\S[^\n]{0,120})"
"""The line of a CPU's name on x86 and on two generations of Arm."""
_ZFS_CACHE = r"(?m)^size\s+[0-9]+\s+([0-9]{1,18})$"
"""The line of the cache's size in arcstats, whose columns are name, type and value."""


@dataclass(frozen=True)
class Machine:
    """One machine.

    A limit that is not set reads as not available with the reason "no limit is set"; it is
    never 0.

    ``kernel`` is the release. ``zram_used`` is swap that is compressed in RAM; ``zfs_cache`` is
    RAM that ZFS gives back late and that ``ram_available`` does not include; ``huge_pages`` is
    RAM reserved for them. ``memory_stall`` is the percentage of the last 10 s in which no process
    could run because all waited for memory (Documentation/accounting/psi.rst). ``overcommit`` is
    vm.overcommit_memory; ``committed`` is the memory that the kernel has promised, at most
    ``commit_limit`` (Documentation/mm/overcommit-accounting.rst). ``cgroup_oom_kills`` counts
    since the group was made.
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
    """The machine of a bundle. Never raises; a value that is missing says why."""
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
        zfs_cache=arcstats.find(_ZFS_CACHE, unit="bytes", scale=1),
        memory_stall=bundle.read("/proc/pressure/memory").find(_STALL),
        overcommit=bundle.word("/proc/sys/vm/overcommit_memory"),
        commit_limit=_meminfo(bundle, "CommitLimit"),
        committed=_meminfo(bundle, "Committed_AS"),
        cgroup_limit=group.limit(),
        cgroup_used=group.used(),
        cgroup_oom_kills=group.oom_kills(),
    )


def _meminfo(bundle: Bundle, name: str) -> Reading:
    """The bytes of a line of /proc/meminfo."""
    pattern = rf"(?m)^{name}:\s*([0-9]{{1,18}}) kB"
    return bundle.read("/proc/meminfo").find(
        pattern, f"no line {name} in it", "bytes", KIB
    )


def _zram(bundle: Bundle) -> Reading:
    """The bytes in use of all zram devices in /proc/swaps, whose columns are file name, type, size
    and use in KiB, and priority.
    """
    swaps = bundle.read("/proc/swaps")
    if not swaps.text.strip():
        return swaps.missing("the file is empty", "bytes")
    form = r"(?m)^/dev/zram[0-9]{1,3}\s+\S+\s+[0-9]{1,15}\s+([0-9]{1,15})\s"
    used_kib = re.findall(form, swaps.text + "\n")
    return swaps.seen(sum(map(int, used_kib)) * KIB, "bytes")


def page_size(bundle: Bundle) -> Reading:
    """The page size in bytes, by the table ``host``."""
    table = bundle.read("host")
    for row in bundle.table("host"):
        size = row.number("page_size")
        if size is not None and 0 < size <= GIB:  # anything else is no page size
            return table.seen(size, "bytes")
    return table.missing("not captured", "bytes")


def up_s(bundle: Bundle) -> int | None:
    """How many seconds the kernel had run when the box was captured; None if that is not known."""
    for row in bundle.table("host"):
        return row.number("up_s")
    return None


def memory_group(bundle: Bundle) -> str:
    """The path of the capturing process's memory control group; empty for the root group."""
    for _, _, path in memory_groups(bundle.read("/proc/self/cgroup").text):
        if path.strip("/"):
            return path
    return ""


class _Group:
    """The memory control group of the capturing process. ``folders`` are its own and those of the
    groups above it, the nearest first; empty if none could be read.
    """

    def __init__(self, bundle: Bundle):
        self._bundle = bundle
        self._cgroup = bundle.read("/proc/self/cgroup")
        self.version = 0
        self.folders: list[str] = []
        for version, folder in _folders(self._cgroup.text):
            # Where both versions are mounted, the memory controller belongs to one of them only.
            if self.version not in (0, version):
                continue
            files = [bundle.read(f"{folder}/{name}") for name in _GROUPS[version]]
            if any(file.status != "not_available" for file in files):
                self.version = version
                self.folders.append(folder)

    def limit(self) -> Reading:
        """The lowest limit of the process's group and of those above it."""
        if self.version == 2:
            return self._lowest("memory.max")
        # Version 1 gives here the lowest of all groups above, also of those outside a container.
        lowest_above = self._line("memory.stat", "hierarchical_memory_limit", "bytes")
        return self._lowest("memory.limit_in_bytes", lowest_above)

    def used(self) -> Reading:
        """The memory that the process's group uses."""
        if not self.folders:
            return self._absent()
        name = "memory.usage_in_bytes"
        if self.version == 2:
            name = "memory.current"
        return self._bundle.number(f"{self.folders[0]}/{name}")

    def oom_kills(self) -> Reading:
        """How many processes of the process's group the OOM killer has ended."""
        name = "memory.oom_control"
        if self.version == 2:
            name = "memory.events"
        return self._line(name, "oom_kill", "count")

    def _absent(self, unit: str = "bytes") -> Reading:
        return self._cgroup.missing("no memory control group is visible", unit)

    def _lowest(self, name: str, *more: Reading) -> Reading:
        """The lowest limit in the file of that name in all folders, and of ``more``."""
        if not self.folders:
            return self._absent()
        numbers = [self._bundle.number(f"{folder}/{name}") for folder in self.folders]
        limits = [n for n in (*numbers, *more) if n.ok and n.bytes < _NO_LIMIT_BYTES]
        if limits:
            return min(limits, key=lambda limit: limit.bytes)
        # No limit is set if a file could be read. The root group does not have the file, so its
        # absence alone means nothing.
        for folder in self.folders:
            text = self._bundle.read(f"{folder}/{name}")
            if text.text.strip():
                return text.missing("no limit is set", "bytes")
        return numbers[0]

    def _line(self, name: str, key: str, unit: str) -> Reading:
        """The number behind a key, in a file of the process's group with a key in each line."""
        if not self.folders:
            return self._absent(unit)
        text = self._bundle.read(f"{self.folders[0]}/{name}")
        return text.find(
            rf"(?m)^{key} ([0-9]{{1,20}})$", f"no line {key} in it", unit, 1
        )


def _folders(cgroup: str) -> list[tuple[int, str]]:
    """(version, folder) of each memory group from the process's own up to the root of its mount, by
    the text of /proc/self/cgroup.
    """
    groups = []
    for version, top, path in memory_groups(cgroup):
        parts = [part for part in path.split("/") if part][:_DEPTH]
        for depth in range(len(parts), -1, -1):
            groups.append((version, "/".join([top, *parts[:depth]])))
    return groups


def cgroup_files(root: Path) -> list[str]:
    """The files with the memory limits of this process's groups that exist in the file tree
    ``root``, those of the nearest group first.
    """
    top = str(root).rstrip("/")
    paths = []
    for version, folder in _folders(text(str(root), "/proc/self/cgroup")):
        for name in _GROUPS[version]:
            if os.path.exists(f"{top}{folder}/{name}"):
                paths.append(f"{folder}/{name}")
    return paths


def collect_host(root: Path) -> list[JsonRow]:
    """The table ``host``: one row with this machine's page size, the boot id in the file tree
    ``root``, and, for this machine, how long its kernel has run, by the clock of the kernel's log.
    """
    row = {"page_size": os.sysconf("SC_PAGE_SIZE"), "boot_id": boot_id(str(root))}
    if str(root) == "/":
        row["up_s"] = int(time.monotonic())
    return [row]
