"""The Jupyter kernel of a run as a process: how it starts, why it died, and how all that it started
is ended.

Nothing that is imported at the top needs more than the standard library: ``main`` runs inside the
kernel, before anything else of the project.
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
"""The variable that gives the kernel the path of the file for its Python stacks."""
# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Under -c sys.path[0] is '', the folder of the run: files there would shadow helpers and the
# standard library.
START = "import sys; sys.path[:] = [p for p in sys.path if p]; from helpers.batch.kernel_process import main; main()"
ARGV = [sys.executable, "-c", START, "-f", "{connection_file}"]
OWN_FAULTS = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP")
"""Signals that a process causes by its own fault: its last words may say which."""
LAST_WORDS_BYTES = 8000
"""The end of a process's output that is kept: room for the stacks of a few dozen threads."""
SOCKET_PLACES = ("/tmp", "/dev/shm", "/var/tmp")
"""Folders to try for sockets where that of TMPDIR is too long or cannot be written."""
LONGEST_PLACE_BYTES = 70
"""The path of a unix socket may have 107 bytes (unix(7)); Jupyter's file names need the rest."""


def main() -> None:
    """Run the kernel in this process. It dies with its parent, and writes its Python stacks to a
    file on a fault and on SIGUSR2.
    """
    # jupyter_client sets JPY_PARENT_PID for the kernels that it starts.
    die_with_parent(signal.SIGKILL, int(os.environ["JPY_PARENT_PID"]))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    stacks = os.open(os.environ.pop(STACKS), flags, 0o644)
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True, chain=False)
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()


def die_with_parent(signum: int, parent: int) -> None:
    """Have the system send ``signum`` to this process when the thread that started it ends
    (prctl(2)); ``parent`` is the process of that thread.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call, so no signal will come
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose parent ends, so that ``sweep`` finds
    them in any session (prctl(2), Linux 3.4).
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def short_folder(mark: str) -> Path:
    """A new private folder for the sockets of the run with this mark, short enough for the path of
    a unix socket. Raises OSError.
    """
    for place in _places():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_socket_prefix(mark), dir=place))
    raise OSError(
        f"no folder for sockets: none of {', '.join(_places())} can be "
        "written; set TMPDIR to a short path that can"
    )


def _socket_prefix(mark: str) -> str:
    """How the names of a run's socket folders begin: 32 bits of its mark tell it from other
    runs.
    """
    return f"cb-{mark[:8]}-"


def _places() -> list[str]:
    """Folders whose paths are short enough for sockets, the user's own first."""
    places = (tempfile.gettempdir(), *SOCKET_PLACES)
    return [place for place in places if len(os.fsencode(place)) <= LONGEST_PLACE_BYTES]


def how_it_ended(
    returncode: int, ooms_before: int | None, ooms_now: int | None, words: str = ""
) -> tuple[str, str]:
    """(how a process ended, in words; the name of the signal that killed it, or empty).

    ``returncode`` is as of subprocess.Popen: the exit status, or minus the number of the signal.
    ``ooms_before`` and ``ooms_now`` are the OOM kills
    that the cgroup had counted at its start and now, ``words`` its last words. The kernel log is
    not read.
    """
    if returncode >= 0:
        return f"ended by itself with exit status {returncode}", ""
    name = signal_name(-returncode)
    kills = kills_since(ooms_before, ooms_now)
    if kills == 1:
        why = "the cgroup counted 1 OOM kill"
    elif kills:
        why = f"the cgroup counted {kills} OOM kills"
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
    """OOM kills between two counts of them; None if one of the counts is not known."""
    if before is None or now is None:
        return None
    return max(0, now - before)  # a lower count is that of another cgroup


def last_words(path: Path) -> str:
    """The end of the file with a process's stdout and stderr; empty if it cannot be read."""
    try:
        with opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_WORDS_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def write_threads(folder: Path, pids: list[int]) -> None:
    """Write to stacks/threads.txt where in the system each thread of these processes waits, as
    /proc tells it.
    """
    stacks = [child.stacks_of(pid, [pid]) for pid in pids]
    with contextlib.suppress(OSError):
        (folder / "stacks").mkdir(exist_ok=True)
        (folder / "stacks" / "threads.txt").write_text("\n".join(stacks) + "\n")


def where_it_stood(stacks: Path) -> list[str]:
    """The frames of the notebook's own code when faulthandler wrote the file last, innermost first:
    those within IPython's call of the cell. Empty if there is no file, or no such call in it.
    """
    # faulthandler's heading of the thread that was running, in the last of its dumps.
    _, _, of_thread = last_words(stacks).rpartition("Current thread")
    lines = [line.strip() for line in of_thread.splitlines()]
    frames = [line for line in lines if line.startswith("File ")]
    for number, frame in enumerate(frames):
        if "/IPython/core/interactiveshell.py" in frame:
            return frames[:number]
    return []


def sweep(mark: str, adopted: bool = False) -> tuple[list[str], list[str]]:
    """Kill the processes that a run left behind and remove the folders of its sockets; returns
    (processes that were killed, processes that SIGKILL does not end), each as "name (pid)".

    A process belongs to the run if it has the mark in its environment, or, with ``adopted``, if it
    is a descendant of this process (``adopt_orphans``).
    """
    ended, deaf = child.sweep(lambda: _left_behind(mark, adopted))
    for place in _places():
        for folder in Path(place).glob(f"{_socket_prefix(mark)}*"):
            shutil.rmtree(folder, ignore_errors=True)
    return ended, deaf


def _left_behind(mark: str, adopted: bool) -> list[int]:
    """The ids of the processes that belong to a run (``sweep``)."""
    pids = set(carrying(f"{MARK}={mark}"))
    if adopted:
        import psutil

        below = [process.pid for process in psutil.Process().children(recursive=True)]
        pids |= {pid for pid in below if process_of(pid).running}
    return sorted(pids)
