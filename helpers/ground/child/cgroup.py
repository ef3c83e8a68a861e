"""Memory cgroups, and whom the kernel's OOM killer ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from helpers.ground.child.proc import field, text_of


def memory_groups(cgroup: str) -> list[tuple[int, str, str]]:
    """(version, mount, path below it) of each cgroup that may limit a process's memory, by the
    text of its /proc/PID/cgroup, in which a line is ``4:memory:/user.slice`` in version 1 and
    ``0::/user.slice`` in version 2 (cgroups(7)).

    Inside a container the path may be that of the host, of which only the mount is visible;
    "/.." leads out of sight.
    """
    groups = []
    for line in cgroup.splitlines():
        columns = line.split(":", 2)
        if len(columns) < 3:
            continue
        number, controllers, path = columns
        path = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
        if number == "0" and not controllers:
            groups.append((2, "/sys/fs/cgroup", path))
            # On a box with both versions systemd mounts the second one here.
            groups.append((2, "/sys/fs/cgroup/unified", path))
        elif "memory" in controllers.split(","):
            groups.append((1, "/sys/fs/cgroup/memory", path))
    # Version 1 first: where both are mounted, the memory controller belongs to it.
    return sorted(groups, key=lambda group: group[0])


def _own_groups(root: Path) -> list[tuple[Path, Path, bool]]:
    """(folder, mount, whether it is version 2) of each memory cgroup of this process."""
    groups = []
    for version, mount, path in memory_groups(text_of(root / "proc/self/cgroup")):
        top = root / mount.lstrip("/")
        groups.append((top / path, top, version == 2))
    return groups


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this process's cgroup any OOM killer has killed since the group was
    made, or None if no counter can be read. Compare two readings.
    """
    for folder, mount, is_v2 in _own_groups(root):
        # The folder is not there inside a container that mounts its own group alone.
        for group in (folder, mount):
            kills = _kills(group, is_v2)
            if kills is not None:
                return kills
    return None


def _kills(group: Path, is_v2: bool) -> int | None:
    """The counter of a group's folder, or None; both versions have it from Linux 4.13 on."""
    counters = "memory.oom_control"
    if is_v2:
        counters = "memory.events"
    return field(group / counters, "oom_kill")


class Group:
    """A memory cgroup of its own for one child. If none can be made, ``path`` is empty and ``why``
    says why.
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
        """How many processes the kernel's OOM killer has ended: in this group, or, if it could not
        be made, in this process's own. None if no counter can be read.

        The count in /proc/vmstat would prove nothing: it is that of the box with all containers.
        """
        if self.path:
            return _kills(Path(self.path), self._is_v2)
        return oom_kills(self.root)

    def remove(self) -> str:
        """Remove the group. Returns why that failed, or an empty text."""
        if not self.path:
            return ""
        try:
            os.rmdir(self.path)
        except OSError as error:
            return f"its memory group {self.path} is still there: {error.strerror}"
        return ""


def _limit(group: Path, limit_bytes: int, is_v2: bool) -> None:
    """Limit a group's memory, and allow it no swap: otherwise the kernel would swap what is beyond
    the limit, and kill nothing.
    """
    if is_v2:
        memory = group / "memory.max"
        swap = group / "memory.swap.max"
        swap_bytes = 0
    else:
        memory = group / "memory.limit_in_bytes"
        # Version 1 limits the sum of memory and swap.
        swap = group / "memory.memsw.limit_in_bytes"
        swap_bytes = limit_bytes
    memory.write_text(str(limit_bytes))
    if swap.exists():  # not on a kernel that does not account swap
        swap.write_text(str(swap_bytes))
