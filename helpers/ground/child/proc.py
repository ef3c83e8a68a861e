"""What /proc says of processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MOST_LINES = 256
"""Of what is said about the threads of a session; a thread has one line and its kernel stack."""
DEEPEST_STACK = 20
"""Frames of a kernel stack that are shown, the innermost first."""


@dataclass(frozen=True)
class Process:
    """A process or thread as its file ``stat`` describes it (proc(5)).

    ``state`` is the kernel's letter, such as Z for a zombie; empty if there is no such process.
    ``start_ticks``, its start in clock ticks since boot, tells it from a later process with the
    same number.
    """

    pid: int
    name: str = ""
    state: str = ""
    session: int = 0
    flags: int = 0
    start_ticks: int = 0

    @property
    def running(self) -> bool:
        """Whether it exists, and is neither a zombie nor dead (X)."""
        return self.state not in ("", "Z", "X")


def process_of(pid: int, root: str = "", below: str = "/proc") -> Process:
    """A process by its number, in the file tree ``root``; or a thread, ``below`` /proc/PID/task.
    Without a state if there is none.
    """
    text = text_of(Path(f"{root}{below}/{pid}/stat"))
    # The name is in parentheses and may contain any character, also a closing parenthesis.
    name = text.partition("(")[2].rpartition(")")[0]
    words = text.rpartition(")")[2].split()
    if len(words) < 20:
        return Process(pid)
    # The first word behind the name is field 3 of proc_pid_stat(5): session is field 6, flags 9,
    # starttime 22.
    return Process(
        pid=pid,
        name=name,
        state=words[0],
        session=int(words[3]),
        flags=int(words[6]),
        start_ticks=int(words[19]),
    )


def session_pids(session: int) -> list[int]:
    """The numbers of the running processes of a session, in order."""
    processes = [process_of(pid) for pid in _pids()]
    return sorted(
        process.pid
        for process in processes
        if process.session == session and process.running
    )


def carrying(entry: str) -> list[int]:
    """The other processes whose environment had that entry, NAME=value, when they began their
    program; a zombie has no environment.
    """
    own_pid = os.getpid()
    carriers = []
    for pid in _pids():
        entries = text_of(Path(f"/proc/{pid}/environ")).split("\0")
        if entry in entries and pid != own_pid:
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
    return "\n".join(lines[:MOST_LINES])


def _thread_lines(pid: int, task: Path) -> list[str]:
    """What a thread does, in a line, and its kernel stack; ``task`` is /proc/PID/task/THREAD.

    ``?`` for its name and its state if it has ended meanwhile.
    """
    thread = process_of(int(task.name), below=f"/proc/{pid}/task")
    if not thread.state:
        thread = Process(thread.pid, name="?", state="?")
    kernel_function = text_or_why(task / "wchan")
    call = text_or_why(task / "syscall").partition(" ")[0]
    lines = [
        f"pid {pid} thread {thread.pid} {thread.name}: state {thread.state}, "
        f"waits in {kernel_function}, system call {call}"
    ]
    for frame in text_or_why(task / "stack").splitlines()[:DEEPEST_STACK]:
        lines.append("    " + frame)
    return lines


def text_of(path: Path) -> str:
    """The text of a file without the white space around it; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def text_or_why(path: Path) -> str:
    """The text of a file; ``not-allowed`` or ``not-available`` if it cannot be read, ``?`` if it
    is empty.
    """
    try:
        text = path.read_text(errors="replace").strip()
    except PermissionError:
        return "not-allowed"
    except OSError:
        return "not-available"
    if not text:
        return "?"
    return text


def field(path: str | Path, name: str) -> int | None:
    """The number behind a name in a file such as /proc/vmstat or memory.events, or None."""
    for line in text_of(Path(path)).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None
