"""Readings that may hang, made one after another in a forked child that can be left behind.

A read of sysfs or of /proc/PID/fdinfo can wait inside a sick driver for ever, where no signal
reaches it. Made in a child it costs its limit, not the capture. The parent must hold no device
memory: forking a process that does can itself hang (ROCm/legacy-rocm-build #6630).
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
"""A box that swaps is slow without being sick."""
GROUP_LIMIT = 2
LOST_LIMIT = 8
GRACE_S = 1.0
GIVEN_UP = "not read: others of its kind hung or died before it"

Key = TypeVar("Key")
Value = TypeVar("Value")
if TYPE_CHECKING:
    Frame = tuple[Any, str]
    """What a read gave, or None and why it gave nothing."""


def read_each(
    keys: Sequence[Key],
    read: Callable[[Key], Value],
    limit_s: float = 0.0,
    group: Callable[[Key], object] | None = None,
) -> Iterator[tuple[Key, Value | None, str]]:
    """Yield ``(key, read(key), "")`` in order; ``(key, None, why)`` for a read that gave nothing.

    A read may take ``limit_s`` seconds (READ_LIMIT_S by default); its result is made of what
    marshal carries. One that hangs, dies or raises costs itself alone. After GROUP_LIMIT reads of
    one ``group`` hung or died, the rest of that group is not tried; after LOST_LIMIT of any group,
    nothing more is.
    """
    limit_s = limit_s or READ_LIMIT_S
    lost: list[Key] = []
    lost_of_group: Counter[object] = Counter()
    left = deque(keys)

    def is_given_up(key: Key) -> bool:
        if len(lost) >= LOST_LIMIT:
            return True
        return group is not None and lost_of_group[group(key)] >= GROUP_LIMIT

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
            lost.append(key)
            if group is not None:
                lost_of_group[group(key)] += 1
            yield key, None, why


def _fork(keys: Sequence[Key], read: Callable[[Key], object]) -> tuple[int, int]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Inside a Jupyter kernel there are threads; the child takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _serve(keys, read, writer)
    os.close(writer)
    return pid, reader


def _serve(keys: Sequence[Key], read: Callable[[Key], object], pipe: int) -> NoReturn:
    try:
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
            data = memoryview(struct.pack("<I", len(raw)) + raw)
            while data:
                data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _frames(pipe: int, limit_s: float) -> Iterator[tuple[Frame, str]]:
    """What the child answers, one frame a read; last an empty one, and why no more come."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    data = bytearray()
    while True:
        if len(data) >= 4:
            size = 4 + struct.unpack_from("<I", data)[0]
            if len(data) >= size:
                frame = marshal.loads(bytes(data[4:size]))
                del data[:size]
                yield frame, ""
                continue
        if not poll.poll(limit_s * 1000):
            yield (None, ""), f"hung for {limit_s:g} s"
            return
        more = os.read(pipe, 1 << 20)
        if not more:
            yield (None, ""), "the process that read it died"
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
