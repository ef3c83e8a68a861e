"""How much of the host's memory this process may still take."""

from __future__ import annotations

import resource
from pathlib import Path


def host_available_bytes(root: str = "") -> int:
    """The smallest of MemAvailable, its cgroups' rest and RLIMIT_AS's rest.

    ``root`` is the folder that /proc and /sys lie in.
    """
    fields = {}
    for line in lines_of(root + "/proc/meminfo") + lines_of("/proc/self/status"):
        name, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            fields[name] = int(value.split()[0]) * 1024
    left = [fields["MemAvailable"]]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        left.append(limit - fields["VmSize"])
    groups = Path(root + "/sys/fs/cgroup")
    for line in lines_of(root + "/proc/self/cgroup"):
        controllers, path = (line.split(":", 2) + ["", ""])[1:3]
        if not controllers:
            left += _left_in(groups, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            limit_name = "memory.limit_in_bytes"
            left += _left_in(groups / "memory", path, limit_name, "memory.usage_in_bytes")
    return max(0, min(left))


def _left_in(top: Path, path: str, limit_name: str, usage_name: str) -> list[int]:
    """The rest of a cgroup's limit and of each group above it.

    A group with no limit, or none to be seen, has none.
    """
    group = top / path.lstrip("/")
    left = []
    for folder in (group, *group.parents):
        limit = " ".join(lines_of(folder / limit_name))
        usage = " ".join(lines_of(folder / usage_name))
        if limit.isdigit() and usage.isdigit():
            left.append(int(limit) - int(usage))
    return left


def lines_of(path: str | Path) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
