"""One child program, watched: its lines as they come, a time limit, its last words, and what /proc said before it was stopped.

The child gets a session of its own, dies with its parent, leaves no core file, and is the first that the kernel's OOM killer
takes. It is asked to end (SIGTERM) before it is killed: a SIGKILL in the middle of a driver call is itself a known cause of
memory that nobody holds (sgl-project/sglang issue 30431). A process that waits inside the kernel (state D) outlives even
SIGKILL; it is left behind after a grace and named, never waited for.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LAST_BYTES = 16 << 10
LONGEST_LINE_BYTES = 1 << 20
THREADS_SHOWN = 64
POLL_S = 0.05

# Runs between fork and the program. preexec_fn may deadlock in a threaded parent such as a notebook kernel, so this is a
# program of its own. PR_SET_PDEATHSIG is 1 (prctl(2)); it holds across execve, and is lost if the parent has died before.
START = """
import os, resource, signal, sys
parent, argv = int(sys.argv[1]), sys.argv[2:]
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
except (ImportError, OSError, AttributeError):
    pass  # no ctypes in this Python: the child then ends by its time limit alone
if os.getppid() != parent:
    os._exit(125)
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
try:
    with open('/proc/self/oom_score_adj', 'w') as adjust:
        adjust.write('800')
except OSError:
    pass  # no such file in this sandbox
try:
    os.execvp(argv[0], argv)
except OSError as error:
    os.write(2, f'{argv[0]}: cannot be run: {error.strerror}'.encode())
    os._exit(127)
"""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    ``how``: ``exited`` (see ``exit_code``; 127 where the program could not be run), ``signalled`` (see ``signal``),
    ``timed_out`` (stopped here), or ``stuck`` (stopped here, and it lives on in the kernel). ``left_pids`` are the processes of
    its session, itself included, that even SIGKILL did not end. ``last_words`` is the end of its stderr; ``stacks`` what /proc
    said of each thread just before it was stopped.
    """

    how: str
    exit_code: int | None
    signal: str
    seconds: float
    last_words: str
    stacks: str
    left_pids: tuple[int, ...]


def watch(argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
          on_line: Callable[[str], float | None] | None = None, term_s: float = 2.0, grace_s: float = 5.0) -> Ended:
    """Run ``argv`` for at most ``limit_s`` seconds and say how it ended.

    ``on_line`` gets each line of stdout; a number it returns is the seconds that the child has from then on. After the limit
    the child has ``term_s`` seconds to end by itself. Whatever it left running in its session is killed, also when this
    function is interrupted, and its end is waited for ``grace_s`` seconds at most.
    """
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", START, str(os.getpid()), *argv], env=env, cwd=cwd,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    pipes = _Pipes(process, on_line, began + limit_s)
    stacks, late, interrupted = "", False, True
    left: tuple[int, ...] = ()
    try:
        while not _has_ended(process.pid):
            if time.monotonic() >= pipes.deadline:
                late = True
                stacks = thread_states(process.pid)
                break
            pipes.read(min(POLL_S, max(0.0, pipes.deadline - time.monotonic())))
        if late:
            signal_group(process.pid, signal.SIGTERM)
            pipes.read_until_ended(process.pid, term_s)
        interrupted = False
    finally:
        # Before it is reaped, while its number cannot belong to anybody else: whatever is left of its group.
        signal_group(process.pid, signal.SIGKILL)
        if interrupted:
            pipes.on_line = None
        until = time.monotonic() + grace_s
        pipes.read_until_ended(process.pid, grace_s)
        pipes.close()
        while (left := tuple(_session(process.pid))) and time.monotonic() < until:
            time.sleep(POLL_S)
        if _has_ended(process.pid):
            process.wait()
    seconds = round(time.monotonic() - began, 3)
    if process.returncode is None:
        # Nobody can wait for it: the handle is told that it is done, so that it neither warns nor tries.
        process.returncode = -signal.SIGKILL
        return Ended("stuck", None, "", seconds, pipes.last_words(), stacks or thread_states(process.pid), left)
    code = process.returncode
    name = signal_name(-code) if code < 0 else ""
    if late:
        return Ended("timed_out", None, name, seconds, pipes.last_words(), stacks, left)
    return Ended("signalled" if name else "exited", None if name else code, name, seconds, pipes.last_words(), "", left)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 35`` for a number without a name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def thread_states(session: int) -> str:
    """Every thread of a session: its state, and where in the kernel it waits. What may not be read says so (root may)."""
    lines = []
    for pid in _session(session):
        for task in sorted(Path(f"/proc/{pid}/task").glob("[0-9]*"), key=lambda folder: int(folder.name)):
            state = (_text(task / "stat").rpartition(")")[2].split() or ["?"])[0]
            lines.append(f"pid {pid} thread {task.name} {_text(task / 'comm')}: state {state}, "
                         f"waits in {_text(task / 'wchan')}, system call {_text(task / 'syscall').partition(' ')[0]}")
            lines += ["    " + frame for frame in _text(task / "stack").splitlines()[:20]]
    return "\n".join(lines[:THREADS_SHOWN * 4])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "?"
    except PermissionError:
        return "not-allowed"
    except OSError:
        return "not-available"


def _session(session: int) -> list[int]:
    """Live processes of a session; the session's number is the sixth field of /proc/PID/stat (proc(5))."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        words = _text(folder / "stat").rpartition(")")[2].split()
        if len(words) > 3 and words[0] != "Z" and words[3] == str(session):
            found.append(int(folder.name))
    return sorted(found)


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves it unreaped, so that its process group's number stays taken until the group has been killed.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


class _Pipes:
    """The child's stdout as lines and the end of its stderr, read without ever waiting for the end of either."""

    def __init__(self, process: subprocess.Popen[bytes], on_line: Callable[[str], float | None] | None, deadline: float):
        self.on_line, self.deadline = on_line, deadline
        self._stdout, self._stderr = process.stdout, process.stderr
        self._line, self._words = b"", b""
        self._selector = selectors.DefaultSelector()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bool:
        """Wait for output up to ``timeout_s`` and take what is there; says whether there was any."""
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return False
        any_output = False
        for key, _ in self._selector.select(timeout_s):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            any_output = any_output or bool(data)
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fileobj is self._stderr:
                self._words = (self._words + data)[-LAST_BYTES:]
            else:
                self._take(data)
        return any_output

    def read_until_ended(self, pid: int, at_most_s: float) -> None:
        """Read on until the child has ended and its pipes are empty, which a child it left behind must not delay."""
        until = time.monotonic() + at_most_s
        while time.monotonic() < until and not _has_ended(pid):
            self.read(min(POLL_S, max(0.0, until - time.monotonic())))
        while time.monotonic() < until and self.read(0):
            continue

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-LONGEST_LINE_BYTES:]
        for line in lines:
            if self.on_line is not None:
                seconds = self.on_line(line.decode("utf-8", "replace"))
                if seconds is not None:
                    self.deadline = time.monotonic() + seconds

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            pipe.close()
