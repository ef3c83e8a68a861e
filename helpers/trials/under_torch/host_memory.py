"""How much of the host's memory this process may still take."""

from __future__ import annotations

import resource
from pathlib import Path

from helpers.ground.child.cgroup import memory_groups
from helpers.ground.child.proc import field, text_of
from helpers.trials.under_torch.frame import own_bytes

NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
"""The files with the limit and the usage of a cgroup, by its version (cgroups(7))."""


def host_available_bytes(root: Path = Path("/")) -> int:
    """The least of three: the memory that the kernel counts as available, what is left of the
    limits of this process's cgroups, and of its own limit (RLIMIT_AS).

    ``root`` is the folder that has /proc and /sys. If the kernel does not say, it is 0.
    """
    available_kib = field(root / "proc/meminfo", "MemAvailable:")
    if available_kib is None:
        return 0
    left = [available_kib * 1024]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - own_bytes("VmSize"))
    for version, mount, path in memory_groups(text_of(root / "proc/self/cgroup")):
        folder = root / mount.strip("/") / path
        for group in (folder, *folder.parents):  # the limit of a parent holds as well
            # Without a limit version 2 has the word "max" there, and version 1 a huge number.
            limit_text, usage_text = (text_of(group / name) for name in NAMES[version])
            if limit_text.isdigit() and usage_text.isdigit():
                left.append(int(limit_text) - int(usage_text))
    return max(0, min(left))
