"""One bounded child process: started, its lines read as they come, its limits of time and
memory, its end in words.

The child gets a session of its own, dies with its parent, leaves no core file, and is the first
that the kernel's OOM killer takes. It is asked to end (SIGTERM) before it is killed: a SIGKILL
in the middle of a driver call is itself a known cause of memory that nobody holds
(sgl-project/sglang issue 30431). A process that waits inside the kernel (state D) outlives even
SIGKILL; it is left behind after a grace and named, never waited for.

Standard library alone, on Python 3.8 too.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
"""What holds helpers, env and notebooks: a checkout, or the folder of an installed package that
is laid out like one.
"""
IN_CHECKOUT = (CHECKOUT / "pyproject.toml").is_file()
_USUAL = f"{CHECKOUT if IN_CHECKOUT else '.'}/outputs"
OUTPUTS = Path(os.environ.get("CASEBOOK_OUTPUTS") or _USUAL).absolute()
"""Where everything that is kept goes: in the checkout, for an installed package below the
folder where a command is typed.
"""
users_umask = -1
"""The umask of whoever typed a command, where it is another than this process's by now: for a
program of the user's; else -1.
"""
LAST_BYTES = 16 << 10
LONGEST_LINE_BYTES = 1 << 20
THREADS_SHOWN = 64
POLL_S = 0.05
CLOSED_POLL_S = 0.005
SAMPLE_S = 0.02
PY_SPY_S = 3.0

# Runs between fork and the program, and becomes it under the same number. preexec_fn may
# deadlock in a threaded parent such as a notebook kernel, so this is a program of its own.
# PR_SET_PDEATHSIG is 1 (prctl(2)); it holds across execve, and is lost if the parent has died
# before. RLIMIT_DATA counts private writable memory (setrlimit(2), since Linux 4.7), so that an
# allocation fails where a cgroup would kill; both hold for all that is started from there.
START = """
import os, resource, signal, sys
parent, data, umask = map(int, sys.argv[1:4])
group, argv = sys.argv[4], sys.argv[5:]
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
if group:
    with open(os.path.join(group, 'cgroup.procs'), 'w') as procs:
        procs.write(str(os.getpid()))
if data:
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
if umask >= 0:
    os.umask(umask)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    os.write(2, f'{argv[0]}: cannot be run: {error.strerror}'.encode())
    os._exit(127)
"""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    ``how``: ``exited`` (see ``exit_code``; 127 where the program could not be run),
    ``signalled`` (see ``signal``), ``timed_out`` (stopped here), or ``stuck`` (stopped here,
    and it lives on in the kernel). ``left_pids`` are the processes of its session, itself
    included, that even SIGKILL did not end. ``last_words`` is the end of its stderr; ``stacks``
    what /proc said of each thread just before it was stopped.
    """

    how: str
    exit_code: int | None
    signal: str
    seconds: float
    last_words: str
    stacks: str
    left_pids: tuple[int, ...]

    @property
    def fate(self) -> str:
        """How it ended, in words that go on after "the child"."""
        if self.how in ("timed_out", "stuck"):
            return "did not end in time" if self.how == "timed_out" else "is stuck in the kernel"
        return f"was ended by {self.signal}" if self.signal else f"ended with code {self.exit_code}"

    @property
    def last_line(self) -> str:
        """The last line of its stderr, cut to what fits a sentence."""
        return last_line(self.last_words)


def last_line(words: str) -> str:
    return (words.strip().splitlines() or ["nothing was printed"])[-1][:300]


def program(python: str, module: str, *arguments: str) -> list[str]:
    """The command line of a program of this checkout, ``main`` of ``module``, under any
    interpreter.

    Its folder, whatever lies there, shadows neither helpers nor a library: sys.path[0] is ''
    under -c.
    """
    path = f"sys.path[:] = [{str(CHECKOUT)!r}, *(p for p in sys.path if p)]"
    return [python, "-c", f"import sys; {path}; from {module} import main; main()", *arguments]


def environment(
    without: Collection[str] = (), more: Mapping[str, str] | None = None, own: bool = True
) -> dict[str, str]:
    """A child's environment: this one's, but for the names in ``without``, and ``more``.

    ``own``: a program of this checkout, which must find it, before any other package called
    helpers; a program of the user's never gets the checkout on its path. No bytecode is written
    beside anybody's sources.
    """
    found = {name: value for name, value in os.environ.items() if name not in without}
    found["PYTHONDONTWRITEBYTECODE"] = "1"
    if own:
        path = [str(CHECKOUT), found.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return {**found, **(more or {})}


def json_row(line: str) -> dict[str, Any]:
    """A line of a child's answers; empty for whatever else a library wrote to the same pipe."""
    try:
        row = json.loads(line) if line.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def start(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    data_bytes: int = 0,
    group: str = "",
    direct: bool = False,
    umask: int = -1,
    **pipes: Any,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that ends with this thread.

    ``pipes``: stdin, stdout and stderr as of Popen.

    ``data_bytes`` limits the private memory of each of its processes, ``group`` is the folder
    of a cgroup to put it in, ``umask`` is the child's where it is not negative. ``direct``:
    without the program before it, which costs a Python's start; then it may outlive this
    thread, and raises OSError where it cannot be run; ``watch`` then kills its group alone and
    does not look for what left it.
    """
    numbers = map(str, (os.getpid(), data_bytes, umask))
    before = [sys.executable, "-I", "-S", "-c", START, *numbers, group]
    command = [*([] if direct else before), *argv]
    return subprocess.Popen(command, env=env, cwd=cwd, start_new_session=True, **pipes)


def watch(
    argv: Sequence[str],
    limit_s: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    on_line: Callable[[str], float | None] | None = None,
    on_data: Callable[[bytes], float | None] | None = None,
    on_start: Callable[[int], None] | None = None,
    stdin: int = subprocess.DEVNULL,
    data_bytes: int = 0,
    group: str = "",
    direct: bool = False,
    umask: int = -1,
    term_s: float = 2.0,
    grace_s: float = 5.0,
) -> Ended:
    """Run ``argv`` for at most ``limit_s`` seconds and say how it ended.

    ``on_start`` gets its number, ``stdin`` is the file descriptor that it reads. ``on_line``
    gets each line of stdout, or ``on_data`` its bytes; a number they return is the seconds that
    the child has from then on. After the limit the child has ``term_s`` seconds to end by
    itself. Whatever it left running in its session is killed, also when this function is
    interrupted, and its end is waited for ``grace_s`` seconds at most. ``data_bytes`` to
    ``umask`` as of ``start``.
    """
    began = time.monotonic()
    pipes: Any = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(argv, env, cwd, data_bytes, group, direct, umask, **pipes)
    reader = _Pipes(process, on_line, on_data, began + limit_s)
    stacks = ""
    late = False
    interrupted = True
    left: tuple[int, ...] = ()
    try:
        if on_start is not None:
            on_start(process.pid)
        while not _has_ended(process.pid):
            if time.monotonic() >= reader.deadline:
                late = True
                stacks = thread_states(process.pid)
                break
            reader.read(min(POLL_S, max(0.0, reader.deadline - time.monotonic())))
        if late:
            signal_group(process.pid, signal.SIGTERM)
            reader.read_until_ended(process.pid, term_s)
        interrupted = False
    finally:
        # Before it is reaped, while its number cannot belong to anybody else: whatever is left
        # of its group.
        signal_group(process.pid, signal.SIGKILL)
        if interrupted:
            reader.on_line = reader.on_data = None
        until = time.monotonic() + grace_s
        reader.read_until_ended(process.pid, grace_s)
        reader.close()
        while not direct and (left := tuple(session_pids(process.pid))):
            if time.monotonic() >= until:
                break
            time.sleep(POLL_S)
        if _has_ended(process.pid):
            process.wait()
    seconds = round(time.monotonic() - began, 3)
    words = reader.last_words()
    if process.returncode is None:
        # Nobody can wait for it: the handle is told that it is done, so that it neither warns
        # nor tries.
        process.returncode = -signal.SIGKILL
        return Ended("stuck", None, "", seconds, words, stacks or thread_states(process.pid), left)
    code = process.returncode
    name = signal_name(-code) if code < 0 else ""
    how = "timed_out" if late else "signalled" if name else "exited"
    return Ended(how, None if late or name else code, name, seconds, words, stacks, left)


@dataclass(frozen=True)
class Transcript:
    """What a program answered in JSON lines, each with the name of its ``event``, in order; and
    how it ended.
    """

    ended: Ended
    rows: tuple[dict[str, Any], ...] = ()

    def last(self, event: str) -> dict[str, Any]:
        """The last line of that event; empty where there is none."""
        return next((row for row in reversed(self.rows) if row["event"] == event), {})


def transcript(
    argv: Sequence[str], start_s: float, then_s: Mapping[str, float], **how: Any
) -> Transcript:
    """Run a program that answers in JSON lines.

    It has ``start_s`` seconds, and from an event of ``then_s`` on those.

    ``how`` as of ``watch``.
    """
    rows: list[dict[str, Any]] = []

    def take(line: str) -> float | None:
        row = json_row(line)
        rows.extend([row] if "event" in row else [])
        return then_s.get(row.get("event", ""))

    return Transcript(watch(argv, start_s, on_line=take, **how), tuple(rows))


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 35`` for a number without a name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves it unreaped, so that its process group's number stays taken until the group
    # has been killed.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Pipes:
    """The child's stdout as lines and the end of its stderr, read without ever waiting for the
    end of either.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        on_line: Callable[[str], float | None] | None,
        on_data: Callable[[bytes], float | None] | None,
        deadline: float,
    ):
        self.on_line = on_line
        self.on_data = on_data
        self.deadline = deadline
        self._stdout = process.stdout
        self._stderr = process.stderr
        self._line = b""
        self._words = b""
        self._selector = selectors.DefaultSelector()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bool:
        """Wait for output up to ``timeout_s`` and take what is there; says whether there was any."""
        if not self._selector.get_map():
            time.sleep(min(timeout_s, CLOSED_POLL_S))
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
        """Read on until the child has ended and its pipes are empty, which a child it left
        behind must not delay.
        """
        until = time.monotonic() + at_most_s
        while time.monotonic() < until and not _has_ended(pid):
            self.read(min(POLL_S, max(0.0, until - time.monotonic())))
        while time.monotonic() < until and self.read(0):
            continue

    def _take(self, data: bytes) -> None:
        *whole, rest = (self._line + data).split(b"\n")
        self._line = rest[-LONGEST_LINE_BYTES:]
        given = [self.on_data(data)] if self.on_data is not None else []
        on_line = self.on_line
        if on_line is not None:
            given += [on_line(line.decode("utf-8", "replace")) for line in whole]
        for seconds in given:
            if seconds is not None:
                self.deadline = time.monotonic() + seconds

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            pipe.close()


# The user's own program, in the user's own terminal.

FORWARDED = [signal.Signals["SIG" + n] for n in "INT TERM HUP QUIT USR1 USR2".split()]


def run_here(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    receivers: Callable[[int], Sequence[int]] = lambda number: (),
    term_s: float = 0.0,
) -> int:
    """Run ``argv`` to its end, with this process's terminal, input and output; its exit code,
    minus n where signal n ended it.

    Its umask is the user's, and there is no limit. Signals of FORWARDED that come meanwhile are
    passed on, where this is the main thread: to the processes that ``receivers`` names for that
    signal, else to the program. ``term_s`` above 0: whoever received SIGTERM has so many
    seconds to end and is killed then. Raises OSError where it cannot be run.
    """
    own = os.umask(users_umask) if users_umask >= 0 else -1
    try:
        process = subprocess.Popen(argv, env=env)
    finally:
        if own >= 0:
            os.umask(own)

    def give(number: int, to: int) -> None:
        for pid in receivers(to) or [process.pid] * (process.returncode is None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop() -> None:
        for _ in range(20):
            give(signal.SIGKILL, signal.SIGTERM)
            time.sleep(POLL_S)

    def forward(number: int, frame: object) -> None:
        # The terminal sends Ctrl-C to the program by itself; a second one would stop its clean-up.
        if number in (signal.SIGINT, signal.SIGQUIT) and _in_foreground():
            return
        give(number, number)
        if number == signal.SIGTERM and term_s and not late.ident:
            late.start()

    before: dict[int, Any] = {}
    late = threading.Timer(term_s, stop)
    late.daemon = True
    if threading.current_thread() is threading.main_thread():
        heard = [one for one in FORWARDED if signal.getsignal(one) != signal.SIG_IGN]
        before = {number: signal.signal(number, forward) for number in heard}
    try:
        code = process.wait()
        while late.is_alive() and receivers(signal.SIGTERM):
            time.sleep(POLL_S)
        return -signal.SIGTERM if late.ident and code == -signal.SIGKILL else code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


# What /proc says of processes.


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
    text = _text(Path(f"{root}{below}/{pid}/stat"), "")
    # The name stands in parentheses and may hold any character, a closing one included.
    name = text.partition("(")[2].rpartition(")")[0]
    words = text.rpartition(")")[2].split()
    if len(words) < 20:
        return Process(pid)
    return Process(pid, name, words[0], int(words[3]), int(words[6]), int(words[19]))


def session_pids(session: int) -> list[int]:
    """The processes of a session that run."""
    found = (process_of(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return sorted(one.pid for one in found if one.session == session and one.running)


def carrying(entry: str) -> list[int]:
    """The other processes whose environment has that entry, NAME=value, since they began their
    program; a zombie has none.
    """
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    return [pid for pid in pids if entry in _text(Path(f"/proc/{pid}/environ"), "").split("\0")]


def thread_states(session: int) -> str:
    """Every thread of a session: its state, and where in the kernel it waits.

    What may not be read says so (root may).
    """
    found = []
    for pid in session_pids(session):
        tasks = Path(f"/proc/{pid}/task").glob("[0-9]*")
        for task in sorted(tasks, key=lambda folder: int(folder.name)):
            one = process_of(int(task.name), below=f"/proc/{pid}/task")
            call = _text(task / "syscall").partition(" ")[0]
            place = _text(task / "wchan")
            who = f"pid {pid} thread {one.pid} {one.name or '?'}: state {one.state or '?'}"
            found.append(f"{who}, waits in {place}, system call {call}")
            found += ["    " + frame for frame in _text(task / "stack").splitlines()[:20]]
    return "\n".join(found[: THREADS_SHOWN * 4])


def stacks_of(session: int, pids: Sequence[int]) -> str:
    """What every thread of a session does now: place in the kernel, and Python stacks where
    py-spy is there.
    """
    said = [thread_states(session)]
    spy = shutil.which("py-spy")
    for pid in pids if spy else ():
        lines: list[str] = []
        ended = watch([str(spy), "dump", "--pid", str(pid)], PY_SPY_S, on_line=lines.append)
        said += [f"py-spy, process {pid}:", *(lines or [f"{ended.fate}: {ended.last_line}"])]
    return "\n".join(said)


def _text(path: Path, none: str = "?") -> str:
    try:
        return path.read_text(errors="replace").strip() or none
    except PermissionError:
        return none and "not-allowed"
    except OSError:
        return none and "not-available"


def field(path: str | Path, name: str) -> int | None:
    """The number beside a name in a file such as /proc/vmstat or memory.events, or None."""
    rows = (line.split() for line in _text(Path(path), "").splitlines() if line.startswith(name))
    return next((int(row[1]) for row in rows if row[0] == name and len(row) > 1), None)


class Sampler(threading.Thread):
    """Peaks of all processes of a session, and what each thread did shortly before
    ``deadline``; ended by ``stop``.

    A peak between two samples is missed: ``rss_anon_bytes`` is a lower bound. ``pids`` are all
    processes seen. ``device_bytes`` is the highest answer of ``used``, which is asked now and
    then (None: it never had one).
    """

    def __init__(self, pid: int, deadline: float, used: Callable[[], int | None] = lambda: None):
        super().__init__(daemon=True)
        self.pid = pid
        self.deadline = deadline
        self.used = used
        self.rss_anon_bytes = self.rss_file_bytes = self.samples = 0
        self.device_bytes: int | None = None
        self.pids: set[int] = {pid}
        self.stacks = ""
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            if self.samples % 5 == 0:
                self.pids.update(session_pids(self.pid))
                answers = (self.device_bytes, self.used())
                self.device_bytes = max((one for one in answers if one is not None), default=None)
            sizes = [_resident(pid) for pid in self.pids]
            self.rss_anon_bytes = max(self.rss_anon_bytes, sum(anon for anon, _ in sizes))
            self.rss_file_bytes = max(self.rss_file_bytes, *(other for _, other in sizes))
            self.samples += 1
            if not self.stacks and time.monotonic() > self.deadline:
                self.stacks = stacks_of(self.pid, sorted(self.pids))

    def stop(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join(PY_SPY_S + 1)


def _resident(pid: int) -> tuple[int, int]:
    """Anonymous memory of a process, and what it holds of files and shared memory."""
    names = ("RssAnon:", "RssFile:", "RssShmem:")
    anon, file, shared = (field(f"/proc/{pid}/status", name) or 0 for name in names)
    return anon * 1024, (file + shared) * 1024


# Memory cgroups, and whom the kernel's OOM killer ended.


def memory_groups(cgroup: str) -> list[tuple[int, str, str]]:
    """(version, mount, path below it) of each memory cgroup by the text of /proc/PID/cgroup.

    Inside a container the path may be that of the host, of which only the mount is visible;
    "/.." leads out of sight.
    """
    found = []
    for line in cgroup.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        path = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
        if number == "0" and not controllers:
            found += [(2, "/sys/fs/cgroup", path), (2, "/sys/fs/cgroup/unified", path)]
        elif "memory" in controllers.split(","):
            found.append((1, "/sys/fs/cgroup/memory", path))
    return sorted(found, key=lambda group: group[0])


def _memory_groups(root: Path) -> list[tuple[Path, Path, bool]]:
    """The memory cgroups of this process: the folder, the top of its mount, and whether it is
    version 2.
    """
    groups = memory_groups(_text(root / "proc/self/cgroup", ""))
    return [
        (root / f"{top[1:]}/{path}", root / top[1:], version == 2) for version, top, path in groups
    ]


def oom_kills(root: Path = Path("/")) -> int | None:
    """How many processes of this cgroup any OOM killer has killed, or None where no counter can
    be read.

    memory.events of cgroup v2 (Linux 4.13), else memory.oom_control of v1. Counters, so compare
    two readings.
    """
    # The second place: inside a container with its own mount.
    places = [(at, v2) for folder, top, v2 in _memory_groups(root) for at in (folder, top)]
    counts = (_kills(at, v2) for at, v2 in places)
    return next((count for count in counts if count is not None), None)


def _kills(group: Path, second: bool) -> int | None:
    return field(group / ("memory.events" if second else "memory.oom_control"), "oom_kill")


class Group:
    """A memory cgroup for one child where one can be made; ``path`` is empty and ``why`` says
    so where not.
    """

    def __init__(self, limit_bytes: int | None, root: Path = Path("/")):
        self.path = ""
        self.why = "no limit was asked for"
        self.root = root
        self._second = True
        if limit_bytes is None:
            return
        self.why = "no memory cgroup of this process is writable"
        for folder, _, self._second in _memory_groups(root):
            mine = folder / f"casebook-{os.getpid()}-{time.monotonic_ns()}"
            try:
                mine.mkdir()
            except OSError:
                continue
            try:
                _limit(mine, limit_bytes, self._second)
            except OSError:
                os.rmdir(mine)
            else:
                self.path = str(mine)
                self.why = ""
                return

    def kills(self) -> int | None:
        """Processes that the kernel's OOM killer ended: in this group, else in this process's own.

        None: nothing says so.

        The box's own count (/proc/vmstat) proves nothing here: it is that of every container.
        """
        return _kills(Path(self.path), self._second) if self.path else oom_kills(self.root)

    def remove(self) -> str:
        """Remove the group; why not, or empty."""
        try:
            if self.path:
                os.rmdir(self.path)
        except OSError as error:
            return f"its memory group {self.path} is still there: {error.strerror}"
        return ""


def _limit(group: Path, limit_bytes: int, second: bool) -> None:
    """Limit a group's memory, and with it its swap: else what is beyond the limit is swapped,
    and nothing ends.
    """
    (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    # The first version counts memory and swap together. Neither file is there on a kernel that
    # does not account swap.
    name, most = ("memory.swap.max", 0) if second else ("memory.memsw.limit_in_bytes", limit_bytes)
    if (group / name).exists():
        (group / name).write_text(str(most))
