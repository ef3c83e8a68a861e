"""A file that should be text, read in bounded memory and time.

It may be a log of any size, a device or a FIFO that somebody writes to. Of a text that is too long
its beginning and its end are read: a failure stands at the end.
"""

from __future__ import annotations

import io
import math
import os
import select
import stat
import time
from contextlib import suppress
from typing import NamedTuple

from helpers.ground.units import MIB, show_bytes

MOST_BYTES = 1 * MIB
END_BYTES = 3 * MIB
"""Of a text that is longer than both, its first and its last bytes are read: a few seconds of
work.
"""
STREAM_BYTES = 512 * MIB
MOST_S = 120.0
SILENT_S = 20.0
DEVICE_S = 1.0
"""A stream is read up to this many bytes and for this long. A FIFO that gives nothing for 20 s is
left, a device after one.
"""
START_BYTES = 4096
BLOCK = 64 * 1024


class TextFile(NamedTuple):
    """What was read of one file: its first bytes as they are, its text, and in ``note``, in
    plain words, what was not read.
    """

    start: bytes
    text: str
    note: str


def read_text(path: str, descriptor: int | None = None) -> TextFile:
    """The text of a file, or of an open ``descriptor``, which nobody hurries: a program at work
    may feed standard input for hours.

    Raises OSError where it cannot be opened.
    """
    source: str | int = path
    if descriptor is not None:
        source = descriptor
    with open(source, "rb", 0, closefd=descriptor is None, opener=_opener) as file:
        state = os.fstat(file.fileno())
        # A file of /proc or /sys is a regular one without a size, and may wait as a pipe does.
        if stat.S_ISREG(state.st_mode) and state.st_size:
            return _of_file(file, state.st_size)
        stream = _Stream(file)
        if descriptor is None:
            is_fifo = stat.S_ISFIFO(state.st_mode)
            if is_fifo:
                stream.begin()
            stream.silent_s = DEVICE_S  # it has what it has
            if is_fifo or stat.S_ISSOCK(state.st_mode) or file.isatty():
                stream.silent_s = SILENT_S
            stream.until = time.monotonic() + MOST_S
        return stream.read()


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _of_file(raw: io.FileIO, size: int) -> TextFile:
    file = io.BufferedReader(raw)
    first = file.read(MOST_BYTES)
    if size <= MOST_BYTES + END_BYTES:
        return _text_file(first + file.read(END_BYTES), b"", "")
    file.seek(size - END_BYTES)
    return _text_file(first, file.read(END_BYTES), ", which is the most of one text")


def _text_file(first: bytes, last: bytes, why: str) -> TextFile:
    """The two ends as a text; ``last`` is empty where ``first`` is all of it."""
    coding = encoding(first)
    text = first.decode(coding, "replace")
    note = ""
    if last:
        text += "\n" + last.decode(coding, "replace")
        read = f"only the first {show_bytes(len(first))} and the last {show_bytes(len(last))}"
        note = f"{read} were read{why}"
    return TextFile(first[:START_BYTES], text, note)


class _Stream:
    """A pipe or a device: read until its end, or as far as patience reaches."""

    def __init__(self, file: io.FileIO):
        self.file = file
        self.silent_s: float | None = None
        self.until = math.inf
        self.first = bytearray()
        self.last = bytearray()
        self.bytes = 0

    def begin(self) -> None:
        """Read from a FIFO. Raises OSError where nobody has opened it to write (fifo(7))."""
        block = self.file.read(1)
        if block == b"":
            raise OSError(0, "a pipe that nobody writes to", str(self.file.name))
        if block is not None:  # None: somebody has opened it and written nothing yet
            self._keep(block)

    def read(self) -> TextFile:
        why = ""
        while self.bytes < STREAM_BYTES:
            if not select.select([self.file], [], [], self.silent_s)[0]:
                why = (
                    f"nothing came for {self.silent_s:.0f} s: what came before was read"
                )
                break
            # BrokenPipeError: the kernel's log went on faster than it was read.
            with suppress(BrokenPipeError):
                block = self.file.read(BLOCK)
                if block is None:
                    continue  # there was something, and somebody else took it
                if not block:
                    break
                self._keep(block)
            if time.monotonic() > self.until:
                why = f"after {MOST_S:.0f} s reading stopped: what came before was read"
                break
        first = bytes(self.first)
        last = bytes(self.last[-END_BYTES:])
        if self.bytes <= MOST_BYTES + END_BYTES:
            first += last
            last = b""
        read = _text_file(first, last, "")
        return read._replace(note="; ".join(filter(None, (why, read.note))))

    def _keep(self, block: bytes) -> None:
        self.bytes += len(block)
        if len(self.first) < MOST_BYTES:
            self.first += block
            return
        self.last += block
        if len(self.last) > 2 * END_BYTES:
            del self.last[:-END_BYTES]


def ends(text: str) -> tuple[str, str]:
    """A text at hand, or where it is too long its beginning and its end; and a note of what was
    left out, as of a file.
    """
    if len(text) <= MOST_BYTES + END_BYTES:
        return text, ""
    note = (
        f"only the first {MOST_BYTES:,} and the last {END_BYTES:,} characters "
        f"of {len(text):,} were read"
    )
    return f"{text[:MOST_BYTES]}\n{text[-END_BYTES:]}", note


def encoding(start: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell
    redirects in it).
    """
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    even = start[0:400:2]
    odd = start[1:400:2]
    is_wide = odd.count(0) * 2 > len(odd) and even.count(0) * 4 < len(even)
    if is_wide and len(start) > 8:
        return "utf-16-le"
    return "utf-8"
