"""Readings that may hang, made one after another in a forked child that can be left behind.

A read of sysfs or of /proc/PID/fdinfo can wait inside a sick driver for ever, where no signal
reaches it. Made in a child it costs its limit, not the capture. The parent must hold no device
memory: forking a process that does can itself hang (ROCm/legacy-rocm-build #6630).
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import select
import shutil
import signal
import struct
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from helpers.ground import child

# A box that swaps is slow without being sick.
READ_LIMIT_S = 5.0
GROUP_LIMIT = 2
LOST_LIMIT = 8
GRACE_S = 1.0
SHARE_CHARACTERS = 250_000
MOST_SHARES = 8
SHARE_LIMIT_S = 600.0

Key = TypeVar("Key")


def each(
    keys: Sequence[Key],
    read: Callable[[Key], Any],
    limit_s: float = 0.0,
    group: Callable[[Key], Any] = lambda key: None,
) -> Iterator[tuple[Key, Any, str]]:
    """Yield ``(key, read(key), "")`` in order; ``(key, None, why)`` for a read that hung, died
    or raised.

    A read may take ``limit_s`` (READ_LIMIT_S by default); its result is made of what marshal
    carries. After GROUP_LIMIT reads of one ``group`` that hung or died the rest of that group
    is not tried, after LOST_LIMIT of any group nothing more is.
    """
    limit_s = limit_s or READ_LIMIT_S
    lost: Counter[Any] = Counter()
    at = 0

    def shut(key: Key) -> bool:
        own = 0 if group(key) is None else lost[group(key)]
        return own >= GROUP_LIMIT or sum(lost.values()) >= LOST_LIMIT

    while at < len(keys):
        pid, pipe = _fork([key for key in keys[at:] if not shut(key)], read)
        try:
            frames = _frames(pipe, limit_s)
            while at < len(keys):
                if shut(keys[at]):
                    yield keys[at], None, "not read: others of its kind hung or died before it"
                else:
                    frame, end = next(frames)
                    if end:
                        break
                    yield keys[at], frame[0], frame[1]
                at += 1
            else:
                return
        finally:
            os.close(pipe)
            _end(pid)
        lost[group(keys[at])] += 1
        hung = f"hung for {limit_s:g} s"
        yield keys[at], None, hung if end == "hung" else "the process that read it died"
        at += 1


def spread(keys: Sequence[Key], read: Callable[[Key], Any], size: int) -> list[Any]:
    """``read`` of each key, in order, by a process for each processor and each SHARE_CHARACTERS
    of ``size``, this one among them.

    A result is made of what pickle carries. What no child answers is read here; all is where
    threads or torch make a fork unsafe.
    """
    count = min(len(os.sched_getaffinity(0)), max(1, size // SHARE_CHARACTERS), MOST_SHARES)
    count = 1 if threading.active_count() > 1 or "torch" in sys.modules else count
    results = [None] * len(keys)
    children = {}
    with contextlib.suppress(OSError):  # no process is left
        for at in range(1, count):
            children[at] = _fork([keys[at::count]], lambda of: pickle.dumps([*map(read, of)], 4))
    try:
        for at in range(count):
            frame = next(_frames(children[at][1], SHARE_LIMIT_S))[0] if at in children else None
            there = frame and frame[0]
            results[at::count] = pickle.loads(there) if there else [*map(read, keys[at::count])]
    finally:
        for pid, pipe in children.values():
            os.close(pipe)
            _end(pid)
    return results


def _fork(keys: Sequence[Key], read: Callable[[Key], Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Inside a Jupyter kernel there are threads; the child takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _serve(keys, read, writer)
    os.close(writer)
    return pid, reader


def _serve(keys: Sequence[Key], read: Callable[[Key], Any], pipe: int) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A child left behind must not keep the user's terminal or pipeline open.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for key in keys:
            try:
                frame = (read(key), "")
            except Exception as error:  # noqa: BLE001 - a fault in one reading must cost that reading alone
                frame = (None, f"{type(error).__name__}: {error}")
            raw = marshal.dumps(frame)
            data = memoryview(struct.pack("<I", len(raw)) + raw)
            while data:
                data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _frames(pipe: int, limit_s: float) -> Iterator[tuple[Any, str]]:
    """What the child answers, one frame a read; last a frame with ``hung`` or ``died``."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    data = bytearray()
    while True:
        size = 4 + struct.unpack_from("<I", data)[0] if len(data) >= 4 else 4
        if len(data) >= size > 4:
            frame = marshal.loads(bytes(data[4:size]))
            del data[:size]
            yield frame, ""
            continue
        if not poll.poll(limit_s * 1000):
            yield None, "hung"
            return
        more = os.read(pipe, 1 << 20)
        if not more:
            yield None, "died"
            return
        data += more


def _end(pid: int) -> None:
    """Kill and reap the child; one that waits in the kernel is left to init after a grace."""
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)


# What a command printed within its limits of time and output: without a shell, with stdin
# closed, found where GPU tools lie.
#
# And a Python program run so under some interpreter, answering in JSON lines; it may hang, die,
# or not start.

COMMAND_LIMIT_S = 10.0
COMMAND_LIMIT_BYTES = 4 << 20
TERM_S = 0.2
LAST_WORDS_LINES = 3
_COLOURING = ("LANGUAGE", "SYSTEMD_COLORS", "SYSTEMD_LESS")
TOOL_FOLDERS = (
    "/opt/rocm/bin /usr/local/cuda/bin /usr/lib/wsl/lib /usr/sbin /sbin /usr/bin /bin".split()
)


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    ``status`` is a bundle item's; ``exit`` is None where a signal ended it (``why`` names it),
    where it was stopped at a limit, or never ran. ``stderr`` is the end of what it printed
    there.
    """

    stdout: bytes
    stderr: str
    status: str
    exit: int | None
    seconds: float
    why: str

    @property
    def text(self) -> bytes:
        """stdout, and stderr under a line of its own where there is any."""
        if not self.stderr:
            return self.stdout
        gap = b"" if not self.stdout or self.stdout.endswith(b"\n") else b"\n"
        return self.stdout + gap + f"--- stderr ---\n{self.stderr}\n".encode()


def search_path() -> str:
    """PATH with the folders that GPU tools live in, and without relative ones, which would run
    whatever lies in a folder.
    """
    folders = [f for f in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(f)]
    return os.pathsep.join(folders + [f for f in TOOL_FOLDERS if f not in folders])


def run(
    argv: Sequence[str],
    limit_s: float = 0.0,
    limit_bytes: int = COMMAND_LIMIT_BYTES,
    feed: Callable[[bytes], None] | None = None,
) -> Outcome:
    """Run a command.

    At a limit (COMMAND_LIMIT_S by default) it and its children are ended, and so is what it
    leaves behind.

    With ``feed`` its stdout goes there piece by piece, without a limit of its own, and is not
    kept. Never raises for what the command does. One that cannot even be killed (state D) is
    left behind after a grace.
    """
    limit_s = limit_s or COMMAND_LIMIT_S
    path = search_path()
    out = bytearray()
    program = shutil.which(argv[0], path=path)
    if program is None:
        there = shutil.which(argv[0], mode=os.F_OK, path=path)
        why = (
            "the program is there, and this user may not execute it" if there else "no such program"
        )
        return Outcome(b"", "", "not_allowed" if there else "not_available", None, 0.0, why)

    def keep(data: bytes) -> float | None:
        if feed:
            feed(data)
        elif len(out) <= limit_bytes:
            out.extend(data)
        return 0.0 if len(out) > limit_bytes else None

    env = child.environment(_COLOURING, {"PATH": path, "LC_ALL": "C", "TERM": "dumb"}, own=False)
    how: Any = {"env": env, "cwd": "/", "direct": True, "term_s": TERM_S, "grace_s": GRACE_S}
    try:
        ended = child.watch([program, *argv[1:]], limit_s, on_data=keep, **how)
    except OSError as error:
        status = "not_allowed" if isinstance(error, PermissionError) else "not_available"
        why = f"{program} does not start: {error.strerror or error}"
        return Outcome(b"", "", status, None, 0.0, why)
    words = ended.last_words
    code = ended.exit_code
    status = "ok"
    why = f"killed by {ended.signal}" if ended.signal else ""
    if len(out) > limit_bytes:
        status = "truncated"
        why = f"stopped after {limit_bytes >> 10} KiB of output"
        code = None
    elif ended.how in ("timed_out", "stuck"):
        status = "timeout"
        why = f"stopped after {limit_s:g} s"
    elif not why and program != shutil.which(argv[0]):
        why = f"ran {program}"
    if ended.how == "stuck":
        why += "; it could not be killed and was left behind (it waits inside the kernel)"
    return Outcome(bytes(out[:limit_bytes]), words, status, code, ended.seconds, why)


def ask(
    python: str, program: bytes, options: tuple[str, ...], limit_s: float
) -> list[dict[str, Any]]:
    """The rows that a Python program prints as JSON lines under ``python``, or one row
    ``{status, why}`` about its end.

    A program that died after it answered is not believed: the row then holds its end, its
    signal and its last words.
    """
    ended = run([python, "-c", program.decode("utf-8"), *options], limit_s)
    printed = ended.stdout.decode("utf-8", "replace").split("\n")
    rows = list(filter(None, map(child.json_row, printed)))
    if rows and ended.status == "ok" and ended.exit == 0:
        return rows
    how = ended.why
    if ended.status == "ok" and ended.exit is not None:
        how = f"ended with exit status {ended.exit} and no answer"
    lines = [" ".join(line.split()) for line in ended.stderr.splitlines() if line.strip()]
    words = " / ".join(lines[-LAST_WORDS_LINES:])[-300:]
    why = f"{python}: {how}" + (f"; its last words: {words}" if words else "")
    status = "not_allowed" if ended.status == "not_allowed" else "not_available"
    return [{"status": status, "why": why}]
