"""What /proc says of processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

THREADS_SHOWN = 64


@dataclass(frozen=True)
class Process:
    """A process or thread as its file ``stat`` has it (proc(5)): ``state`` is the kernel's
    letter, Z for one nobody has waited for, empty where there is none; ``start_ticks`` since
    boot tells it from a later one of the same number.
    """

    pid: int
    name: str = ""
    state: str = ""
    session: int = 0
    flags: int = 0
    start_ticks: int = 0

    @property
    def running(self) -> bool:
        return self.state not in ("", "Z", "X")


def process_of(pid: int, root: str = "", below: str = "/proc") -> Process:
    """A process by its number, in the tree ``root``; or a thread, ``below`` /proc/PID/task."""
    text = text_of(Path(f"{root}{below}/{pid}/stat"))
    # The name stands in parentheses and may hold any character, a closing one included.
    name = text.partition("(")[2].rpartition(")")[0]
    words = text.rpartition(")")[2].split()
    if len(words) < 20:
        return Process(pid)
    return Process(
        pid=pid,
        name=name,
        state=words[0],
        session=int(words[3]),
        flags=int(words[6]),
        start_ticks=int(words[19]),
    )


def session_pids(session: int) -> list[int]:
    """The processes of a session that run."""
    processes = [process_of(pid) for pid in _pids()]
    return sorted(
        process.pid
        for process in processes
        if process.session == session and process.running
    )


def carrying(entry: str) -> list[int]:
    """The other processes whose environment has that entry, NAME=value, since they began their
    program; a zombie has none.
    """
    own_pid = os.getpid()
    carriers = []
    for pid in _pids():
        if pid != own_pid and entry in text_of(Path(f"/proc/{pid}/environ")).split(
            "\0"
        ):
            carriers.append(pid)
    return carriers


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def thread_states(session: int) -> str:
    """Every thread of a session: its state, and where in the kernel it waits.

    ``not-allowed`` stands in place of what only root may read.
    """
    lines = []
    for pid in session_pids(session):
        tasks = Path(f"/proc/{pid}/task").glob("[0-9]*")
        for task in sorted(tasks, key=lambda folder: int(folder.name)):
            lines += _thread_lines(pid, task)
    return "\n".join(lines[: THREADS_SHOWN * 4])


def _thread_lines(pid: int, task: Path) -> list[str]:
    thread = process_of(int(task.name), below=f"/proc/{pid}/task")
    call = text_or_why(task / "syscall").partition(" ")[0]
    name = thread.name or "?"
    state = thread.state or "?"
    first = (
        f"pid {pid} thread {thread.pid} {name}: state {state}, "
        f"waits in {text_or_why(task / 'wchan')}, system call {call}"
    )
    frames = text_or_why(task / "stack").splitlines()[:20]
    return [first, *("    " + frame for frame in frames)]


def text_of(path: Path) -> str:
    """The text of a file without the white space around it; "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def text_or_why(path: Path) -> str:
    """The text of a file; ``not-allowed`` or ``not-available`` where it cannot be read, ``?``
    where it is empty.
    """
    try:
        text = path.read_text(errors="replace").strip()
    except PermissionError:
        return "not-allowed"
    except OSError:
        return "not-available"
    return text or "?"


def field(path: str | Path, name: str) -> int | None:
    """The number beside a name in a file such as /proc/vmstat or memory.events, or None."""
    for line in text_of(Path(path)).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None
