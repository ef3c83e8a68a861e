"""Memory cgroups, and whom the kernel's OOM killer ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from helpers.ground.child.proc import field, text_of


def memory_groups(cgroup: str) -> list[tuple[int, str, str]]:
    """(version, mount, path below it) of each memory cgroup by the text of /proc/PID/cgroup.

    Inside a container the path may be that of the host, of which only the mount is visible;
    "/.." leads out of sight.
    """
    groups = []
    for line in cgroup.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        path = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
        if number == "0" and not controllers:
            groups.append((2, "/sys/fs/cgroup", path))
            groups.append((2, "/sys/fs/cgroup/unified", path))
        elif "memory" in controllers.split(","):
            groups.append((1, "/sys/fs/cgroup/memory", path))
    return sorted(groups, key=lambda group: group[0])


def _own_groups(root: Path) -> list[tuple[Path, Path, bool]]:
    """The memory cgroups of this process: the folder, the top of its mount, and whether it is
    version 2.
    """
    groups = []
    for version, mount, path in memory_groups(text_of(root / "proc/self/cgroup")):
        top = root / mount[1:]
        groups.append((top / path, top, version == 2))
    return groups


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this cgroup any OOM killer has killed, or None where no counter can
    be read.

    memory.events of cgroup v2 (Linux 4.13), else memory.oom_control of v1. Counters, so compare
    two readings.
    """
    for folder, top, is_v2 in _own_groups(root):
        for place in (folder, top):  # the second: inside a container with its own mount
            kills = _kills(place, is_v2)
            if kills is not None:
                return kills
    return None


def _kills(group: Path, is_v2: bool) -> int | None:
    counters = "memory.events" if is_v2 else "memory.oom_control"
    return field(group / counters, "oom_kill")


class Group:
    """A memory cgroup for one child where one can be made; ``path`` is empty and ``why`` says
    so where not.
    """

    def __init__(self, limit_bytes: int | None, root: Path = Path("/")):
        self.path = ""
        self.why = "no limit was asked for"
        self.root = root
        self._is_v2 = True
        if limit_bytes is None:
            return
        self.why = "no memory cgroup of this process is writable"
        for parent, _, is_v2 in _own_groups(root):
            self._is_v2 = is_v2
            folder = parent / f"casebook-{os.getpid()}-{time.monotonic_ns()}"
            try:
                folder.mkdir()
                _limit(folder, limit_bytes, is_v2)
            except OSError:
                with suppress(OSError):  # it may not have been made
                    folder.rmdir()
                continue
            self.path = str(folder)
            self.why = ""
            return

    def kills(self) -> int | None:
        """Processes that the kernel's OOM killer ended: in this group, else in this process's own.

        None: nothing says so.

        The box's own count (/proc/vmstat) proves nothing here: it is that of every container.
        """
        if self.path:
            return _kills(Path(self.path), self._is_v2)
        return oom_kills(self.root)

    def remove(self) -> str:
        """Remove the group; why not, or empty."""
        if not self.path:
            return ""
        try:
            os.rmdir(self.path)
        except OSError as error:
            return f"its memory group {self.path} is still there: {error.strerror}"
        return ""


def _limit(group: Path, limit_bytes: int, is_v2: bool) -> None:
    """Limit a group's memory, and with it its swap: else what is beyond the limit is swapped,
    and nothing ends.
    """
    # The first version counts memory and swap together. Neither file of swap is there on a
    # kernel that does not account swap.
    if is_v2:
        memory = group / "memory.max"
        swap = group / "memory.swap.max"
        swap_bytes = 0
    else:
        memory = group / "memory.limit_in_bytes"
        swap = group / "memory.memsw.limit_in_bytes"
        swap_bytes = limit_bytes
    memory.write_text(str(limit_bytes))
    if swap.exists():
        swap.write_text(str(swap_bytes))
