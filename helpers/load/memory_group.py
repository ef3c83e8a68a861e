"""A memory cgroup around one trial, where this process may make one, and whom the kernel's OOM killer ended."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Group:
    """A memory cgroup for one trial where one can be made; ``path`` is empty and ``why`` says so where not."""

    def __init__(self, limit_bytes: int | None):
        self.path, self.why = "", "no limit was asked for"
        if limit_bytes is not None:
            self.why = "no memory cgroup of this process is writable"
        for folder, name in _groups() if limit_bytes is not None else ():
            mine = folder / f"casebook-{os.getpid()}-{time.monotonic_ns()}"
            try:
                mine.mkdir()
                try:
                    (mine / name).write_text(str(limit_bytes))
                    self.path, self.why = str(mine), ""
                    return
                except OSError:
                    mine.rmdir()
            except OSError:
                continue

    def kills(self) -> int:
        """Processes that the kernel's OOM killer ended: in this group, else on the whole box (/proc/vmstat, Linux 4.13)."""
        places = [f"{self.path}/memory.events", f"{self.path}/memory.oom_control"] if self.path else ["/proc/vmstat"]
        return sum(field(place, "oom_kill") or 0 for place in places)

    def remove(self) -> str:
        """Remove the group; why not, or empty."""
        try:
            if self.path:
                os.rmdir(self.path)
        except OSError as error:
            return f"its memory group {self.path} is still there: {error.strerror}"
        return ""


def _groups() -> list[tuple[Path, str]]:
    found = []
    for line in lines("/proc/self/cgroup"):
        controllers, path = (line.split(":", 2) + ["", ""])[1:3]
        if "memory" in controllers.split(","):
            found.append((Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"))
        elif not controllers:
            found.append((Path("/sys/fs/cgroup" + path), "memory.max"))
    return found


def lines(path: str) -> list[str]:
    """The lines of a file; none where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def field(path: str, name: str) -> int | None:
    """The number beside a name in a file such as /proc/vmstat, or None."""
    rows = (line.split() for line in lines(path) if line.startswith(name))
    return next((int(words[1]) for words in rows if words[0] == name and len(words) > 1), None)
