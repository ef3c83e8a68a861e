"""Captures the kernel's log of this boot and of the one before: the lines about GPUs and memory.

journalctl is tried first, because only it has the boot before; then dmesg, then /dev/kmsg, which
needs no program. If this user may not read the log (kernel.dmesg_restrict, or no membership of
systemd-journal or adm), the item says not allowed.
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
"""journalctl reads a journal of gigabytes from the disk."""
LONGEST_ERROR = 200
"""Letters of a program's last line on stderr that a reason quotes."""
JOURNAL = (
    "journalctl",
    "-k",
    "--no-pager",
    "--no-hostname",
    "-o",
    "short-monotonic",
    "-b",
)
"""The command without its last word, which is the boot."""
_WORDS = [word.encode() for word in data("look/kernel_log")["kept"]]
# The first number is the priority, plus 8 times the facility, which is 0 for the kernel's own.
# Groups: microseconds, the text.
_RECORD = re.compile(rb"[0-7],[^,;]*,([0-9]{1,17})(?:,[^;]*)?;([^\n]*)")
RECORD_BYTES = 1 << 13
"""More than a record of /dev/kmsg can have (PRINTK_MESSAGE_MAX in kernel/printk/internal.h: 2048).
"""
_REFUSED = re.compile(
    "(?i)insufficient permissions|permission denied|not permitted|not seeing messages from other"
)


class Sieve:
    """Keeps the lines of a log that have one of the words of kernel_log.json, in at most
    ``limit_bytes``: a quarter from the start of the log, where the boot is, and the rest from its
    end.

    A line is cut off at LINE_LIMIT, so that a line of any length costs no memory. ``lines`` counts
    all lines, ``left_out`` those that had a word and no room.
    """

    def __init__(self, limit_bytes: int):
        self._head_left_bytes = limit_bytes // 4
        self._tail_left_bytes = limit_bytes - limit_bytes // 4
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._line = bytearray()
        self.lines = 0
        self.left_out = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of the log, which may end within a line."""
        *ends_of_lines, rest = data.split(b"\n")
        for part in ends_of_lines:
            self._grow(part)
            self._end_line()
        self._grow(rest)

    def _grow(self, part: bytes) -> None:
        if len(self._line) < LINE_LIMIT:
            self._line += part[: LINE_LIMIT - len(self._line)]

    def _end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        # journalctl's own remarks begin with two dashes.
        if not line or line.startswith(b"-- "):
            return
        self.lines += 1
        lower = line.lower()
        if any(word in lower for word in _WORDS):
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        """Put a line into the head while that has room, then into the tail, which drops its first
        lines.
        """
        size = len(line) + len(b"\n")
        if not self._tail and size <= self._head_left_bytes:
            self._head_left_bytes -= size
            self._head.append(line)
            return
        self._tail.append(line)
        self._tail_left_bytes -= size
        while self._tail_left_bytes < 0 and self._tail:
            self._tail_left_bytes += len(self._tail.popleft()) + len(b"\n")
            self.left_out += 1

    def text(self) -> bytes:
        """The lines that were kept, and one that says where others were left out."""
        self._end_line()
        gap = []
        if self.left_out:
            gap.append(b"--- %d lines left out ---" % self.left_out)
        return b"".join(line + b"\n" for line in [*self._head, *gap, *self._tail])


class TriedSource(NamedTuple):
    """A command or a file that was tried: its content, or None and why. ``status`` is one of
    helpers.look.bundle.Status.
    """

    name: str
    content: bytes | None
    status: str
    why: str


def collect(limit_bytes: int) -> list[TriedSource]:
    """The logs of the running boot and the one before, at most ``limit_bytes`` together: each
    source that was tried. Never raises.
    """
    limit_of_boot = limit_bytes // 2
    running = _command(" ".join((*JOURNAL, "0")), limit_of_boot)
    before = _command(" ".join((*JOURNAL, "-1")), limit_of_boot)
    if running.content:
        return [running, before]
    dmesg = _command("dmesg", limit_of_boot)
    if dmesg.content:
        return [running, before, dmesg]
    return [running, before, dmesg, _kmsg("/dev/kmsg", limit_of_boot)]


def _command(command: str, limit_bytes: int) -> TriedSource:
    """The log that a command prints."""
    sieve = Sieve(limit_bytes)
    ended = commands.run(command.split(), LIMIT_S, feed=sieve.feed)
    if ended.status in ("not_available", "not_allowed"):
        return TriedSource(command, None, ended.status, ended.why)
    why_cut = ""
    if ended.status == "timeout":
        why_cut = ended.why
    return _kept(command, sieve, ended.stderr, why_cut)


def _kept(source: str, sieve: Sieve, stderr: str, why_cut: str) -> TriedSource:
    """The lines of a source that a sieve kept; ``why_cut`` says why its end is missing, or is
    empty.
    """
    kept = sieve.text()
    if sieve.lines == 0:
        # If journalctl may not read the system's journal, it only prints a hint and exits with 0.
        status = "not_available"
        if _REFUSED.search(stderr):
            status = "not_allowed"
        why = why_cut
        errors = stderr.strip().splitlines()
        if not why and errors:
            why = errors[-1][:LONGEST_ERROR]
        elif not why:
            why = "no lines"
        return TriedSource(source, None, status, why)
    reasons = []
    if why_cut:
        reasons.append(why_cut)
    if sieve.left_out:
        reasons.append(f"{sieve.left_out} lines left out of its middle")
    status = "ok"
    if reasons:
        status = "truncated"
    return TriedSource(source, kept, status, "; ".join(reasons))


def _kmsg(source: str, limit_bytes: int) -> TriedSource:
    """The log in /dev/kmsg."""
    sieve = Sieve(limit_bytes)
    try:
        for record in kmsg_records(source, LIMIT_S):
            sieve.feed(kmsg_line(record))
    except OSError as error:
        return TriedSource(source, None, *files.fault(error))
    return _kept(source, sieve, "", "")


def kmsg_records(path: str, limit_s: float) -> Iterator[bytes]:
    """The records that are in /dev/kmsg, or in a copy of it, read for at most ``limit_s`` seconds.
    Raises OSError. Source: Documentation/ABI/testing/dev-kmsg.
    """
    until = time.monotonic() + limit_s
    log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while time.monotonic() < until:
            try:
                # The device gives one record for each read, a copy of it several.
                data = os.read(log, RECORD_BYTES)
            except BrokenPipeError:
                continue  # the next record was overwritten: the read after it gets the first left
            except BlockingIOError:
                return  # the end of the log
            if not data:
                return
            yield from data.split(b"\n")
    finally:
        os.close(log)


def kmsg_line(record: bytes) -> bytes:
    """A record of /dev/kmsg ("6,339,5140900,-;text") as dmesg prints it ("[    5.140900] text"); empty
    for a record that a program wrote.
    """
    kernel = _RECORD.match(record)
    if not kernel:
        return b""
    seconds, microseconds = divmod(int(kernel[1]), 1_000_000)
    return b"[%5d.%06d] %s\n" % (seconds, microseconds, kernel[2])
