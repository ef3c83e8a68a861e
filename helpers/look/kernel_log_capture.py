"""Where the kernel's log comes from: what of it a capture keeps.

The log of this boot and the one before is cut down to what bears on GPUs and memory before it
is kept. journalctl is tried first, because only it has the boot before; then dmesg, then
/dev/kmsg, which needs no program. Without the right to read the log (kernel.dmesg_restrict, or
no membership of systemd-journal or adm) the item says not allowed.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from helpers.ground.tables import data
from helpers.look import commands, files
from helpers.look.kernel_line import LINE_LIMIT

LIMIT_S = 15.0
JOURNAL = (
    "journalctl",
    "-k",
    "--no-pager",
    "--no-hostname",
    "-o",
    "short-monotonic",
    "-b",
)
_WORDS = [word.encode() for word in data("look/kernel_log")["kept"]]
# Priority and facility in one number: 0 to 7 is the kernel; sequence, microseconds.
_RECORD = re.compile(rb"[0-7],[^,;]*,([0-9]{1,17})(?:,[^;]*)?;([^\n]*)")
_REFUSED = re.compile(
    "(?i)insufficient permissions|permission denied|not permitted|not seeing messages from other"
)


class Sieve:
    """Keeps the lines that matter out of a stream, ``limit_bytes`` of them: a quarter from its
    start, the rest from its end.

    A line is cut at LINE_LIMIT, so that a line of any length costs no memory.
    """

    def __init__(self, limit_bytes: int):
        self._head_left = limit_bytes // 4
        self._tail_left = limit_bytes - limit_bytes // 4
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._line = bytearray()
        self.lines = self.left_out = 0

    def feed(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._grow(part)
            self._end()
        self._grow(rest)

    def _grow(self, part: bytes) -> None:
        if len(self._line) < LINE_LIMIT:
            self._line += part[: LINE_LIMIT - len(self._line)]

    def _end(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        # journalctl's own remarks begin with two dashes.
        if not line or line.startswith(b"-- "):
            return
        self.lines += 1
        low = line.lower()
        if not any(word in low for word in _WORDS):
            return
        if not self._tail and len(line) < self._head_left:
            self._head_left -= len(line) + 1
            self._head.append(line)
            return
        self._tail.append(line)
        self._tail_left -= len(line) + 1
        while self._tail_left < 0 and self._tail:
            self._tail_left += len(self._tail.popleft()) + 1
            self.left_out += 1

    def text(self) -> bytes:
        """What was kept, with a line that says where lines were left out."""
        self._end()
        gap = []
        if self.left_out:
            gap.append(b"--- %d lines left out ---" % self.left_out)
        return b"".join(line + b"\n" for line in [*self._head, *gap, *self._tail])


class TriedSource(NamedTuple):
    """A place that was tried: what it gave, or None and why."""

    name: str
    content: bytes | None
    status: str
    why: str


def collect(limit_bytes: int) -> list[TriedSource]:
    """The running kernel's log, ``limit_bytes`` at most: each place that was tried.

    Never raises for what is refused.
    """
    running = _command(" ".join((*JOURNAL, "0")), limit_bytes // 2)
    before = _command(" ".join((*JOURNAL, "-1")), limit_bytes // 2)
    if running.content:
        return [running, before]
    dmesg = _command("dmesg", limit_bytes // 2)
    if dmesg.content:
        return [running, before, dmesg]
    return [running, before, dmesg, _kmsg("/dev/kmsg", limit_bytes // 2)]


def _command(command: str, limit_bytes: int) -> TriedSource:
    sieve = Sieve(limit_bytes)
    ended = commands.run(command.split(), LIMIT_S, feed=sieve.feed)
    if ended.status in ("not_available", "not_allowed"):
        return TriedSource(command, None, ended.status, ended.why)
    cut = ended.why if ended.status == "timeout" else ""
    return _kept(command, sieve, ended.stderr, cut)


def _kept(source: str, sieve: Sieve, stderr: str, cut: str) -> TriedSource:
    """What a sieve kept of a source; ``cut`` says why the source broke off."""
    kept = sieve.text()
    if sieve.lines == 0:
        # journalctl leaves with 0 and nothing but a hint when it may not read the system's journal.
        status = "not_allowed" if _REFUSED.search(stderr) else "not_available"
        last_line = "".join(stderr.strip().splitlines()[-1:])
        return TriedSource(source, None, status, cut or last_line[:200] or "no lines")
    reasons = [cut] if cut else []
    if sieve.left_out:
        reasons.append(f"{sieve.left_out} lines left out of its middle")
    return TriedSource(
        source, kept, "truncated" if reasons else "ok", "; ".join(reasons)
    )


def _kmsg(source: str, limit_bytes: int) -> TriedSource:
    sieve = Sieve(limit_bytes)
    try:
        for record in kmsg_records(source, LIMIT_S):
            sieve.feed(kmsg_line(record))
    except OSError as error:
        return TriedSource(source, None, *files.fault(error))
    return _kept(source, sieve, "", "")


def kmsg_records(path: str, limit_s: float) -> Iterator[bytes]:
    """The records of /dev/kmsg, or of a copy of it, for so long at most and without waiting for
    new ones. Raises OSError.

    Source: Documentation/ABI/testing/dev-kmsg.
    """
    until = time.monotonic() + limit_s
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while time.monotonic() < until:
            try:
                # One record of the device; more of a copy of it.
                data = os.read(log, 1 << 13)
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on behind it
            except BlockingIOError:
                return  # the end of the log
            if not data:
                return
            yield from data.split(b"\n")
    finally:
        os.close(log)


def kmsg_line(record: bytes) -> bytes:
    """A record of /dev/kmsg ("6,339,5140900,-;text") as dmesg prints it; empty for one that is
    not the kernel's own.
    """
    kernel = _RECORD.match(record)
    if not kernel:
        return b""
    seconds, micro = divmod(int(kernel.group(1)), 1000000)
    return b"[%5d.%06d] %s\n" % (seconds, micro, kernel.group(2))
