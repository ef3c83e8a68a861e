"""One bounded child process: its lines read as they come, its limits of time and memory, its end
in words.

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
from typing import Any

from helpers.ground.child.launch import start
from helpers.ground.child.proc import session_pids, thread_states

LAST_BYTES = 16 << 10
LONGEST_LINE_BYTES = 1 << 20
POLL_S = 0.05
CLOSED_POLL_S = 0.005


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
    return lines[-1][:300]


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
            reader.on_line = None
            reader.on_data = None
        until = time.monotonic() + grace_s
        reader.read_until_ended(process.pid, grace_s)
        reader.close()
        if not direct:
            left = _left_of_session(process.pid, until)
        if _has_ended(process.pid):
            process.wait()
    how = _how_it_ended(process, late)
    if how == "stuck":
        stacks = stacks or thread_states(process.pid)
        # Nobody can wait for it: the handle is told that it is done, so that it neither warns
        # nor tries.
        process.returncode = -signal.SIGKILL
    code = process.returncode
    return Ended(
        how=how,
        exit_code=code if how == "exited" else None,
        signal=signal_name(-code) if how != "stuck" and code < 0 else "",
        seconds=round(time.monotonic() - began, 3),
        last_words=reader.last_words(),
        stacks=stacks,
        left_pids=left,
    )


def _how_it_ended(process: subprocess.Popen[bytes], late: bool) -> str:
    if process.returncode is None:
        return "stuck"
    if late:
        return "timed_out"
    return "signalled" if process.returncode < 0 else "exited"


def _left_of_session(session: int, until: float) -> tuple[int, ...]:
    """The processes of a killed session that still run when the time is up."""
    left = tuple(session_pids(session))
    while left and time.monotonic() < until:
        time.sleep(POLL_S)
        left = tuple(session_pids(session))
    return left


def json_row(line: str) -> dict[str, Any]:
    """A line of a child's answers; empty for whatever else a library wrote to the same pipe."""
    if not line.startswith("{"):
        return {}
    try:
        row: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row


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
    argv: Sequence[str], start_s: float, then_s: Mapping[str, float], **how: object
) -> Transcript:
    """Run a program that answers in JSON lines.

    It has ``start_s`` seconds, and from an event of ``then_s`` on those. ``how`` as of ``watch``.
    """
    options: dict[str, Any] = how
    rows: list[dict[str, Any]] = []

    def take(line: str) -> float | None:
        row = json_row(line)
        if "event" not in row:
            return None
        rows.append(row)
        return then_s.get(row["event"])

    ended = watch(argv, start_s, on_line=take, **options)
    return Transcript(ended, tuple(rows))


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
        """Wait for output up to ``timeout_s`` and take it; says whether there was any."""
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
        if self.on_data is not None:
            self._extend(self.on_data(data))
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-LONGEST_LINE_BYTES:]
        for line in lines:
            if self.on_line is not None:
                self._extend(self.on_line(line.decode("utf-8", "replace")))

    def _extend(self, seconds: float | None) -> None:
        if seconds is not None:
            self.deadline = time.monotonic() + seconds

    def last_words(self) -> str:
        return self._words.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._stdout, self._stderr):
            assert pipe is not None
            pipe.close()
