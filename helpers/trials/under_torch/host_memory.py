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
"""The limit and the usage of a cgroup, by its version."""


def host_available_bytes(root: Path = Path("/")) -> int:
    """The smallest of MemAvailable, its cgroups' rest and RLIMIT_AS's rest.

    ``root`` is the folder that /proc and /sys lie in.
    """
    left = [(field(root / "proc/meminfo", "MemAvailable:") or 0) * 1024]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        left.append(limit - own_bytes("VmSize"))
    for version, mount, path in memory_groups(text_of(root / "proc/self/cgroup")):
        folder = root / mount.strip("/") / path
        for group in (folder, *folder.parents):  # a limit above holds as well
            limit_text, usage_text = (text_of(group / name) for name in NAMES[version])
            if limit_text.isdigit() and usage_text.isdigit():
                left.append(int(limit_text) - int(usage_text))
    return max(0, min(left))
