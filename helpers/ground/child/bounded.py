"""One bounded child process: its output is read as it comes, it has limits of time and memory, and
its end is told in words.

The child gets a session of its own, dies with its parent, leaves no core file, and is the first
that the kernel's OOM killer takes. It is asked to end (SIGTERM) before it is killed: a SIGKILL
in the middle of a driver call is itself a known cause of memory that nobody holds
(sgl-project/sglang issue 30431). A process that waits inside the kernel (state D) outlives even
SIGKILL; it is left behind after a grace and named, never waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child.launch import start
from helpers.ground.child.proc import session_pids, thread_states
from helpers.ground.tables import JsonRow

LAST_BYTES = 16 << 10
"""Of the child's stderr the end that is kept: room for a Python traceback."""
LAST_LINE_LETTERS = 300
"""Of the last line of stderr the letters that a sentence quotes."""
LONGEST_LINE_BYTES = 1 << 20
"""Of a line without an end the part that is kept, so that binary noise does not fill the RAM."""
READ_BYTES = 1 << 16
"""The capacity of a pipe (pipe(7)), so one read empties it."""
POLL_S = 0.05
"""How often to look whether the child has ended."""
CLOSED_POLL_S = 0.005
"""The same once its output is closed: then its end is near."""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    ``how``: ``exited`` (then ``exit_code`` is given; 127 if the program could not be run),
    ``signalled`` (then ``signal`` names the signal), ``timed_out`` (it was stopped at its time
    limit), or ``stuck`` (it was, and lives on in the kernel). ``left_pids`` are the processes of
    its session, itself included, that even SIGKILL did not end. ``last_words`` is the end of its
    stderr; ``stacks`` says what each thread did just before the child was stopped.
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
        """How it ended, as the end of a sentence that begins with "the child"."""
        if self.how == "timed_out":
            return "did not end in time"
        if self.how == "stuck":
            return "is stuck in the kernel"
        if self.signal:
            return f"was ended by {self.signal}"
        return f"ended with code {self.exit_code}"

    @property
    def last_line(self) -> str:
        """The last line of its stderr, cut to what fits a sentence."""
        return last_line(self.last_words)


def last_line(words: str) -> str:
    """The last line of a text, cut to what fits a sentence."""
    lines = words.strip().splitlines()
    if not lines:
        return "nothing was printed"
    return lines[-1][:LAST_LINE_LETTERS]


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

    ``on_start`` is called with its process id; ``stdin`` is the file descriptor that it reads.
    ``on_line`` is called with each line of stdout, or ``on_data`` with its bytes; if they return
    a number, the child has that many seconds from then on. At the limit the child is asked to
    end, and has ``term_s`` seconds to do so. Then whatever runs in its session is killed, also
    when this function is interrupted; ``grace_s`` is how long it waits for their end.
    ``data_bytes``, ``group``, ``direct`` and ``umask`` are those of ``start``.
    """
    began = time.monotonic()
    process = start(
        argv,
        env,
        cwd,
        data_bytes=data_bytes,
        group=group,
        direct=direct,
        umask=umask,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    pipes = _Pipes(process, on_line, on_data, began + limit_s)
    stacks = ""
    left_pids: tuple[int, ...] = ()
    try:
        if on_start is not None:
            on_start(process.pid)
        is_late = not pipes.read_until_deadline(process.pid)
        if is_late:
            stacks = thread_states(process.pid)
            signal_group(process.pid, signal.SIGTERM)
            pipes.read_until_ended(process.pid, term_s)
    except BaseException:
        pipes.stop_listening()
        raise
    finally:
        # Before the child is reaped: until then no other process gets its number, which is also
        # that of its group.
        signal_group(process.pid, signal.SIGKILL)
        until = time.monotonic() + grace_s
        pipes.read_until_ended(process.pid, grace_s)
        pipes.close()
        if not direct:
            left_pids = _left_of_session(process.pid, until)
        if _has_ended(process.pid):
            process.wait()
    how = _how_it_ended(process, is_late)
    exit_code = None
    signal_of_end = ""
    if how == "stuck":
        if not stacks:
            stacks = thread_states(process.pid)
        # Popen would wait for it and warn at its own end: this tells it that all is done.
        process.returncode = -signal.SIGKILL
    elif how == "exited":
        exit_code = process.returncode
    elif process.returncode < 0:
        signal_of_end = signal_name(-process.returncode)
    return Ended(
        how=how,
        exit_code=exit_code,
        signal=signal_of_end,
        seconds=round(time.monotonic() - began, 3),
        last_words=pipes.last_words(),
        stacks=stacks,
        left_pids=left_pids,
    )


def _how_it_ended(process: subprocess.Popen[bytes], is_late: bool) -> str:
    """One of the words of ``Ended.how``; ``is_late``: it was stopped at its time limit."""
    if process.returncode is None:  # it was not reaped
        return "stuck"
    if is_late:
        return "timed_out"
    if process.returncode < 0:
        return "signalled"
    return "exited"


def _left_of_session(session: int, until: float) -> tuple[int, ...]:
    """The processes of a killed session that still run at the time ``until``."""
    left_pids = session_pids(session)
    while left_pids and time.monotonic() < until:
        time.sleep(POLL_S)
        left_pids = session_pids(session)
    return tuple(left_pids)


def json_row(line: str) -> JsonRow:
    """The JSON object of a line; empty for any other line, since libraries write to the same pipe
    as the program.
    """
    if not line.startswith("{"):
        return {}
    try:
        row: JsonRow = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row


@dataclass(frozen=True)
class Transcript:
    """The JSON lines that a program answered in their order, each with the key ``event``, and how
    the program ended.
    """

    ended: Ended
    rows: tuple[JsonRow, ...] = ()

    def last(self, event: str) -> JsonRow:
        """The last line of that event; empty if there is none."""
        for row in reversed(self.rows):
            if row["event"] == event:
                return row
        return {}


def transcript(
    argv: Sequence[str],
    start_s: float,
    then_s: Mapping[str, float],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    umask: int = -1,
) -> Transcript:
    """Run a program that answers in JSON lines.

    It has ``start_s`` seconds; at an event that ``then_s`` names, it gets that event's seconds from
    then on. ``env``, ``cwd`` and ``umask`` are those of ``watch``.
    """
    rows: list[JsonRow] = []

    def keep(line: str) -> float | None:
        row = json_row(line)
        if "event" not in row:
            return None
        rows.append(row)
        return then_s.get(row["event"])

    ended = watch(argv, start_s, on_line=keep, env=env, cwd=cwd, umask=umask)
    return Transcript(ended, tuple(rows))


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 35`` for a number without a name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it is there and belongs to this user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _has_ended(pid: int) -> bool:
    # WNOWAIT leaves it unreaped, so that its process group's number stays taken until the group
    # has been killed.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class _Pipes:
    """The child's stdout as lines, and the end of its stderr. Neither is read to its end, which
    never comes where a grandchild keeps the pipe open. ``deadline`` is when the child's time is
    up, which its answers may move.
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
        self._open_line = b""  # what came of stdout since its last line break
        self._last_words = b""
        self._selector = selectors.DefaultSelector()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def read(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for output and take it; returns whether there was any."""
        if not self._selector.get_map():  # both pipes are closed
            time.sleep(min(timeout_s, CLOSED_POLL_S))
            return False
        any_output = False
        for key, _ in self._selector.select(timeout_s):
            try:
                data = os.read(key.fd, READ_BYTES)
            except BlockingIOError:
                continue
            if not data:  # closed
                self._selector.unregister(key.fileobj)
                continue
            any_output = True
            if key.fileobj is self._stderr:
                self._last_words = (self._last_words + data)[-LAST_BYTES:]
            else:
                self._take(data)
        return any_output

    def read_until_deadline(self, pid: int) -> bool:
        """Read until the child has ended, or the deadline is over; returns whether it ended."""
        while not _has_ended(pid):
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.read(min(POLL_S, left_s))
        return True

    def read_until_ended(self, pid: int, at_most_s: float) -> None:
        """Read until the child has ended and its pipes are empty, but at most so many seconds: a
        process that the child left behind may go on writing.
        """
        until = time.monotonic() + at_most_s
        while time.monotonic() < until and not _has_ended(pid):
            self.read(min(POLL_S, max(0.0, until - time.monotonic())))
        while time.monotonic() < until and self.read(0):
            continue

    def stop_listening(self) -> None:
        """Read the output from now on without calling ``on_line`` or ``on_data``."""
        self.on_line = None
        self.on_data = None

    def _take(self, data: bytes) -> None:
        """Hand on a piece of stdout, and the lines that it completes."""
        if self.on_data is not None:
            self._extend(self.on_data(data))
        *lines, rest = (self._open_line + data).split(b"\n")
        self._open_line = rest[-LONGEST_LINE_BYTES:]
        for line in lines:
            if self.on_line is not None:
                self._extend(self.on_line(line.decode("utf-8", "replace")))

    def _extend(self, seconds: float | None) -> None:
        """Give the child so many seconds from now on; None changes nothing."""
        if seconds is not None:
            self.deadline = time.monotonic() + seconds

    def last_words(self) -> str:
        """The end of the child's stderr."""
        return self._last_words.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            pipe.close()
