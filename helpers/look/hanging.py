"""Reads that may hang, done one after another in a forked child process that can be left behind.

A read of sysfs or of /proc/PID/fdinfo can wait for ever inside a driver that has failed, where no
signal reaches it. In a child it costs the capture only its time limit. The parent must hold no
device memory: forking a process that does can itself hang (ROCm/legacy-rocm-build #6630).
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import struct
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

READ_LIMIT_S = 5.0
"""A read takes milliseconds; but a box that swaps may need seconds, and its drivers work."""
GROUP_LIMIT = 2
"""Lost reads of one device after which its others are given up."""
LOST_LIMIT = 8
"""Lost reads after which all others are given up: each costs its time limit."""
GRACE_S = 1.0
GIVEN_UP = "not read: others of its kind hung or died before it"
SIZE = struct.Struct("<I")
"""How an answer of the child begins: with the size of the rest."""
READ_BYTES = 1 << 20

Key = TypeVar("Key")
Value = TypeVar("Value")
if TYPE_CHECKING:
    Frame = tuple[Any, str]
    """An answer of the child: what a read returned, and ""; or None, and why it has no value."""


def read_each(
    keys: Sequence[Key],
    read: Callable[[Key], Value],
    limit_s: float = 0.0,
    group: Callable[[Key], object] | None = None,
) -> Iterator[tuple[Key, Value | None, str]]:
    """Yield ``(key, read(key), "")`` for each key in order, or ``(key, None, why)`` for a read that
    hung, died or raised.

    A read may take ``limit_s`` seconds (0: READ_LIMIT_S), and returns what marshal can write. A
    read that hangs or dies is lost. After GROUP_LIMIT lost reads of one ``group``, the others of
    that group are given up; after LOST_LIMIT lost reads all others.
    """
    if not limit_s:
        limit_s = READ_LIMIT_S
    lost = 0
    lost_of_group: Counter[object] = Counter()
    left = deque(keys)

    def is_given_up(key: Key) -> bool:
        if lost >= LOST_LIMIT:
            return True
        return group is not None and lost_of_group[group(key)] >= GROUP_LIMIT

    # Each child reads all keys that are left, until it is lost with one of them. The counts of lost
    # reads change only between two children, so the loop below skips the keys that a child did not
    # get.
    while left:
        pid, pipe = _fork([key for key in left if not is_given_up(key)], read)
        why = ""
        try:
            frames = _frames(pipe, limit_s)
            while left and not why:
                key = left.popleft()
                if is_given_up(key):
                    yield key, None, GIVEN_UP
                    continue
                frame, why = next(frames)
                if not why:
                    yield key, *frame
        finally:
            os.close(pipe)
            _end(pid)
        if why:
            lost += 1
            if group is not None:
                lost_of_group[group(key)] += 1
            yield key, None, why


def _fork(keys: Sequence[Key], read: Callable[[Key], object]) -> tuple[int, int]:
    """Start a child that reads the keys; returns its process id and the pipe with its answers."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks in a process with threads, such as a Jupyter kernel, whose
        # locks the child might wait for. This one takes none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _serve(keys, read, writer)
    os.close(writer)
    return pid, reader


def _serve(keys: Sequence[Key], read: Callable[[Key], object], pipe: int) -> NoReturn:
    """The child: read each key, and write what it gave to the pipe."""
    try:
        # Ctrl-C goes to the parent, which ends this child.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A child left behind must not keep the user's terminal or pipeline open.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for key in keys:
            try:
                frame: Frame = (read(key), "")
            except Exception as error:  # noqa: BLE001 - a fault in one reading must cost that reading alone
                frame = (None, f"{type(error).__name__}: {error}")
            raw = marshal.dumps(frame)
            data = memoryview(SIZE.pack(len(raw)) + raw)
            while data:
                written = os.write(pipe, data)
                data = data[written:]
    finally:
        os._exit(0)


def _frames(pipe: int, limit_s: float) -> Iterator[tuple[Frame, str]]:
    """Yield (answer, "") for each read of the child, and at its end ((None, ""), why no more come)."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    data = bytearray()
    while True:
        if len(data) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(data)[0]
            if len(data) >= end:
                frame = marshal.loads(bytes(data[SIZE.size : end]))
                del data[:end]
                yield frame, ""
                continue
        if not poll.poll(limit_s * 1000):  # milliseconds
            yield (None, ""), f"hung for {limit_s:g} s"
            return
        more = os.read(pipe, READ_BYTES)
        if not more:
            yield (None, ""), "the process that read it died"
            return
        data += more


def _end(pid: int) -> None:
    """Kill and reap the child; one that waits in the kernel is left behind after GRACE_S."""
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
