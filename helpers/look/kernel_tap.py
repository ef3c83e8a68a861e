"""The kernel log of this boot and the one before, cut down to what bears on GPUs and memory before it is kept.

journalctl is tried first, because only it has the boot before; then dmesg, then /dev/kmsg, which needs no program. Without the
right to read the log (kernel.dmesg_restrict, or no membership of systemd-journal or adm) the item says not allowed.
``split_time`` takes the time off a line of any of these forms, and of those that people post.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from typing import NamedTuple, Optional

from . import commands, files

LIMIT_BYTES = 20 << 20
LIMIT_S = 15.0
LINE_LIMIT_BYTES = 2048
_JOURNAL = ("journalctl", "-k", "--no-pager", "--no-hostname", "-o", "short-monotonic", "-b")
_WORDS = (
    b"amdgpu|[drm|kfd|ttm|radeon|nvidia|nvrm|nouveau|i915| xe |gpu|out of memory|oom-kill|oom_|killed process|"
    b"memory cgroup|page allocation failure|aer: |pcie bus error|dpc: |linux version|command line:|memory: |"
    b"iommu|dmar|amd-vi|thermal|hardware error|blocked for more than|soft lockup|unknown parameter|dxgk|"
    b"vmalloc|memory.oom.group|no killable"
).split(b"|")
_LEVEL = re.compile(r"(?:<[0-9]{1,3}>|[a-z]{3,8} {1,3}:[a-z]{3,7} {0,3}: )")
_MONOTONIC = re.compile(r"\[ {0,8}([0-9]{1,10}\.[0-9]{1,9})\](?:\[ {0,6}[TC][0-9]{1,9}\])? ?")
_KMSG = re.compile(r"[0-9]{1,4},[0-9]{1,10},([0-9]{1,17}),[^;]{1,40};")
_WALL = tuple(
    re.compile(form)
    for form in (
        r"\[([^\[\]]{4,30} [0-9]{1,2}:[0-9]{2}:[0-9]{2} [0-9]{4})\] ?",
        r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?) {1,2}",
        r"(\S{1,12} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?) {1,2}",
        r"([0-9]{9,11}\.[0-9]{3,6}) ",
        r"([0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?) {1,2}",
    )
)
_HOST = re.compile(r"(?:[^\s:]{1,64} )?kernel: ?")
# Priority and facility in one number: 0 to 7 is the kernel; sequence, microseconds.
_RECORD = re.compile(rb"[0-7],[^,;]*,([0-9]{1,17})(?:,[^;]*)?;([^\n]*)")
_REFUSED = re.compile(
    "(?i)insufficient permissions|permission denied|not permitted|not seeing messages from other"
)


class LogItem(NamedTuple):
    """One source of log lines, in the words of BundleWriter.add. ``content`` None means there is no text; ``why`` says why."""

    source: str
    content: Optional[bytes]  # noqa: UP045 - evaluated when the class is made, also on Python 3.8
    status: str
    why: str


class Sieve:
    """Keeps the lines that matter out of a stream, ``limit_bytes`` of them: a quarter from its start, the rest from its end.

    A line is cut at LINE_LIMIT_BYTES, so that a line of any length costs no memory.
    """

    def __init__(self, limit_bytes: int):
        self._head_left, self._tail_left = limit_bytes // 4, limit_bytes - limit_bytes // 4
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
        if len(self._line) < LINE_LIMIT_BYTES:
            self._line += part[: LINE_LIMIT_BYTES - len(self._line)]

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
        gap = [b"--- %d lines left out ---" % self.left_out] if self.left_out else []
        return b"".join(line + b"\n" for line in [*self._head, *gap, *self._tail])


def collect(limit_bytes: int = LIMIT_BYTES) -> list[LogItem]:
    """The running kernel's log as items for a bundle, ``limit_bytes`` at most in all; never raises for what is refused."""
    now, before = (_command((*_JOURNAL, boot), limit_bytes // 2) for boot in ("0", "-1"))
    items = [now, before]
    if not now.content:
        items.append(_command(("dmesg",), limit_bytes // 2))
        if not items[-1].content:
            items.append(_kmsg(limit_bytes // 2))
    return items


def _command(argv: tuple[str, ...], limit_bytes: int) -> LogItem:
    sieve = Sieve(limit_bytes)
    ended = commands.run(argv, LIMIT_S, feed=sieve.feed)
    if ended.status in ("not_available", "not_allowed"):
        return LogItem(" ".join(argv), None, ended.status, ended.why)
    said = ended.stderr.decode("utf-8", "replace")
    return _item(" ".join(argv), sieve, said, ended.why if ended.status == "timeout" else "")


def _item(source: str, sieve: Sieve, said: str = "", cut: str = "") -> LogItem:
    kept = sieve.text()
    if sieve.lines == 0:
        # journalctl leaves with 0 and nothing but a hint when it may not read the system's journal.
        status = "not_allowed" if _REFUSED.search(said) else "not_available"
        last = "".join(said.strip().splitlines()[-1:])
        return LogItem(source, None, status, cut or last[:200] or "no lines")
    if sieve.left_out:
        left_out = f"{sieve.left_out} lines left out of its middle"
        cut = f"{cut}; {left_out}" if cut else left_out
    return LogItem(source, kept, "truncated" if cut else "ok", cut)


def _kmsg(limit_bytes: int) -> LogItem:
    """The kernel's buffer by /dev/kmsg, without waiting for new lines (Documentation/ABI/testing/dev-kmsg)."""
    source, deadline = "/dev/kmsg", time.monotonic() + LIMIT_S
    sieve = Sieve(limit_bytes)
    try:
        opened = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while time.monotonic() < deadline:
                try:
                    record = os.read(opened, 1 << 13)
                except BlockingIOError:
                    break
                except BrokenPipeError:
                    # Records were overwritten while we read; the next read goes on behind them.
                    continue
                sieve.feed(kmsg_line(record))
        finally:
            os.close(opened)
    except OSError as error:
        return LogItem(source, None, *files.fault(error))
    return _item(source, sieve)


def kmsg_line(record: bytes) -> bytes:
    """A record of /dev/kmsg ("6,339,5140900,-;text") as dmesg prints it; empty for one that is not the kernel's own."""
    kernel = _RECORD.match(record)
    if not kernel:
        return b""
    seconds, micro = divmod(int(kernel.group(1)), 1000000)
    return b"[%5d.%06d] %s\n" % (seconds, micro, kernel.group(2))


def split_time(line: str) -> tuple[float | str | None, str]:
    """The time of a line and its message: seconds since boot, a wall clock time as text, or None where it carries none.

    Takes dmesg in all its forms (plain, -T in any language, -x, --time-format iso, with callers), journalctl's short forms with
    or without a host name, syslog and raw /dev/kmsg. Seconds since boot are preferred where both are there.
    """
    level = _LEVEL.match(line)
    rest = line[level.end() :] if level else line
    raw = _KMSG.match(rest)
    if raw:
        return int(raw.group(1)) / 1e6, rest[raw.end() :].strip()
    when: float | str | None = None
    for form in _WALL:
        match = form.match(rest)
        if match:
            when, rest = match.group(1), rest[match.end() :]
            break
    for form in (_MONOTONIC, _HOST, _MONOTONIC):
        match = form.match(rest)
        if match:
            rest = rest[match.end() :]
            when = float(match.group(1)) if form is _MONOTONIC else when
    return when, rest.strip()
