"""The kernel process of a run: how it is started, why it died, and what it must not leave behind.

Only the standard library is imported at the top: ``main`` runs inside the kernel, before
anything else of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from helpers.ground import child
from helpers.ground.child import CHECKOUT, carrying, oom_kills, process_of, signal_name
from helpers.ground.workbook_process import MARK, environment
from helpers.look.files import opened

__all__ = ["CHECKOUT", "environment", "oom_kills"]
STACKS = "CASEBOOK_STACKS"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
# sys.path[0] is '' under -c: the kernel's folder must not be able to shadow helpers or the
# standard library.
START = "import sys; sys.path[:] = [p for p in sys.path if p]; from helpers.batch.kernel_process import main; main()"
ARGV = [sys.executable, "-c", START, "-f", "{connection_file}"]
OWN_FAULTS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP")
LAST_WORDS_BYTES = 8000
SOCKET_PLACES = ("/tmp", "/dev/shm", "/var/tmp")
LONGEST_PLACE_BYTES = 70
"""Of the 107 bytes that the path of a unix socket may have (unix(7))."""


def main() -> None:
    """The kernel itself: dies with its parent, writes its Python stacks to a file on a fault
    and on SIGUSR2.
    """
    die_with_parent(signal.SIGKILL, int(os.environ["JPY_PARENT_PID"]))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    stacks = os.open(os.environ.pop(STACKS), flags, 0o644)
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=False)
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()


def die_with_parent(signum: int, parent: int) -> None:
    """Have the system send ``signum`` to this process when the thread that started it ends
    (prctl(2)).
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, also of those in a session
    of their own (Linux 3.4).
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def short_folder(mark: str) -> Path:
    """A new private folder whose sockets fit into the path that a unix socket may have.

    Raises OSError.
    """
    for place in _places():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"cb-{mark[:8]}-", dir=place))
    raise OSError(
        f"no folder for sockets: none of {', '.join(_places())} can be "
        "written; set TMPDIR to a short path that can"
    )


def _places() -> list[str]:
    places = (tempfile.gettempdir(), *SOCKET_PLACES)
    return [place for place in places if len(os.fsencode(place)) <= LONGEST_PLACE_BYTES]


def how_it_ended(
    returncode: int, ooms_before: int | None, ooms_now: int | None, words: str = ""
) -> tuple[str, str]:
    """(what ended a process, in words; its signal, or nothing).

    The cause is unknown where nothing proves one; the kernel log is not read.
    """
    if returncode >= 0:
        return f"ended by itself with exit status {returncode}", ""
    name = signal_name(-returncode)
    kills = kills_since(ooms_before, ooms_now)
    if kills:
        count = "1 OOM kill" if kills == 1 else f"{kills} OOM kills"
        why = f"the cgroup counted {count}"
    elif name in OWN_FAULTS and words:
        why = "see its last words"
    elif name in OWN_FAULTS:
        why = "cause unknown; it left no last words"
    elif kills is None:
        why = "cause unknown; no OOM counter can be read here"
    else:
        why = "cause unknown"
    return f"killed by {name}; {why}", name


def kills_since(before: int | None, now: int | None) -> int | None:
    """The OOM kills from one count to another; None where one of the two is not known."""
    if before is None or now is None:
        return None
    return max(0, now - before)


def last_words(path: Path) -> str:
    """The end of what a process wrote to fd 1 and 2, or nothing."""
    try:
        with opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_WORDS_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def write_threads(folder: Path, pids: list[int]) -> None:
    """Write to stacks/threads.txt where in the system each thread of these processes waits."""
    stacks = [child.stacks_of(pid, [pid]) for pid in pids]
    with contextlib.suppress(OSError):
        (folder / "stacks").mkdir(exist_ok=True)
        (folder / "stacks" / "threads.txt").write_text("\n".join(stacks) + "\n")


def where_it_stood(stacks: Path) -> list[str]:
    """The frames of the notebook's own code at the end, innermost first, from what faulthandler
    wrote.
    """
    frames = last_words(stacks).rpartition("Current thread")[2].splitlines()[1:]
    files = [line.strip() for line in frames if line.strip().startswith("File ")]
    for number, line in enumerate(files):
        if "/IPython/core/interactiveshell.py" in line:
            return files[:number]
    return []


def sweep(mark: str, adopted: bool = False) -> tuple[list[str], list[str]]:
    """End what a run left behind; returns (ended, still there) as "name (pid)".

    Recognised by the mark in the environment that its kernel was started with, whatever session
    it moved to, and with ``adopted`` also as a descendant of this process (``adopt_orphans``),
    whatever its environment. The folders of its sockets are removed.
    """
    ended, deaf = child.sweep(lambda: _left_behind(mark, adopted))
    for place in _places():
        for folder in Path(place).glob(f"cb-{mark[:8]}-*"):
            shutil.rmtree(folder, ignore_errors=True)
    return ended, deaf


def _left_behind(mark: str, adopted: bool) -> list[int]:
    pids = set(carrying(f"{MARK}={mark}"))
    if adopted:
        import psutil

        below = [process.pid for process in psutil.Process().children(recursive=True)]
        pids |= {pid for pid in below if process_of(pid).running}
    return sorted(pids)
