"""Reads a file that should be text, within limits of memory and time.

It may be a log of any size, a device, or a FIFO into which a program writes. Of a text that is too
long the beginning and the end are read, since a failure is at the end.
"""

from __future__ import annotations

import codecs
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
"""If a text is longer than both together, so many of its first and of its last bytes are read: they
take a few seconds to examine.
"""
STREAM_BYTES = 512 * MIB
MOST_S = 120.0
"""How much of a stream is read, and for how long."""
SILENT_S = 20.0
DEVICE_S = 1.0
"""How long a FIFO, a socket or a terminal may give nothing, and how long any other device."""
START_BYTES = 4096
"""For a caller that tells kinds of files apart by their first bytes."""
BLOCK_BYTES = 64 * 1024
ENCODING_BYTES = 400
"""By which the encoding is told."""


class TextFile(NamedTuple):
    """What was read of one file: its first bytes, undecoded; its text; and a ``note`` that says
    what was not read, or is empty.
    """

    start: bytes
    text: str
    note: str


def read_text(path: str, descriptor: int | None = None) -> TextFile:
    """The text of a file; or of an open ``descriptor``, such as standard input, without a limit of
    time, since a program may write into it for hours. Raises OSError if it cannot be opened.
    """
    source: str | int = path
    if descriptor is not None:
        source = descriptor
    with open(source, "rb", 0, closefd=descriptor is None, opener=_opener) as file:
        state = os.fstat(file.fileno())
        # A file of /proc or /sys is a regular one of size 0, and may have to be waited for.
        if stat.S_ISREG(state.st_mode) and state.st_size:
            return _of_file(file, state.st_size)
        stream = _Stream(file)
        if descriptor is None:  # opened by its path here, so nobody waits for hours
            is_fifo = stat.S_ISFIFO(state.st_mode)
            if is_fifo:
                stream.begin()
            stream.silent_s = DEVICE_S
            if is_fifo or stat.S_ISSOCK(state.st_mode) or file.isatty():
                stream.silent_s = SILENT_S
            stream.until = time.monotonic() + MOST_S
        return stream.read()


def _opener(path: str, flags: int) -> int:
    """Open without waiting for a FIFO's writer, and without making a terminal this process's own."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _of_file(raw: io.FileIO, size_bytes: int) -> TextFile:
    """The text of a regular file."""
    file = io.BufferedReader(raw)
    first = file.read(MOST_BYTES)
    if size_bytes <= MOST_BYTES + END_BYTES:
        return _text_file(first + file.read(END_BYTES), b"", "")
    file.seek(size_bytes - END_BYTES)
    return _text_file(first, file.read(END_BYTES), ", which is the most of one text")


def _text_file(first: bytes, last: bytes, why: str) -> TextFile:
    """The text of its beginning and its end, with a note if there is something between them, which
    is so if ``last`` is not empty. ``why`` is added to the note.
    """
    coding = encoding(first)
    text = first.decode(coding, "replace")
    note = ""
    if last:
        text += "\n" + last.decode(coding, "replace")
        read = f"only the first {show_bytes(len(first))} and the last {show_bytes(len(last))}"
        note = f"{read} were read{why}"
    return TextFile(first[:START_BYTES], text, note)


class _Stream:
    """A pipe or a device, which is read until its end, or until a limit: ``silent_s`` seconds
    without anything (None: no limit), the time ``until``, or STREAM_BYTES. ``bytes`` counts all
    that came.
    """

    def __init__(self, file: io.FileIO):
        self.file = file
        self.silent_s: float | None = None
        self.until = math.inf
        self.first = bytearray()
        self.last = bytearray()
        self.bytes = 0

    def begin(self) -> None:
        """Read from a FIFO. Raises OSError if no program has opened it to write (fifo(7))."""
        block = self.file.read(1)
        if block == b"":
            raise OSError(0, "a pipe that nobody writes to", str(self.file.name))
        if block is not None:  # None: a program has opened it and written nothing yet
            self._keep(block)

    def read(self) -> TextFile:
        """Read the stream, and return its beginning and its end."""
        why = ""
        while self.bytes < STREAM_BYTES:
            has_input, _, _ = select.select([self.file], [], [], self.silent_s)
            if not has_input:
                why = (
                    f"nothing came for {self.silent_s:.0f} s: what came before was read"
                )
                break
            # BrokenPipeError: the kernel's log went on faster than it was read.
            with suppress(BrokenPipeError):
                block = self.file.read(BLOCK_BYTES)
                if block is None:  # another reader of the pipe took it
                    continue
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
        text_file = _text_file(first, last, "")
        notes = filter(None, (why, text_file.note))
        return text_file._replace(note="; ".join(notes))

    def _keep(self, block: bytes) -> None:
        """Add a block to the beginning until that is full, then to the end."""
        self.bytes += len(block)
        if len(self.first) < MOST_BYTES:
            self.first += block
            return
        self.last += block
        # Shortened only now and then, because that moves all of it.
        if len(self.last) > 2 * END_BYTES:
            del self.last[:-END_BYTES]


def ends(text: str) -> tuple[str, str]:
    """A text and an empty note; or, if it is too long, its beginning and its end, and a note that
    says what was left out.
    """
    if len(text) <= MOST_BYTES + END_BYTES:
        return text, ""
    note = (
        f"only the first {MOST_BYTES:,} and the last {END_BYTES:,} characters "
        f"of {len(text):,} were read"
    )
    return f"{text[:MOST_BYTES]}\n{text[-END_BYTES:]}", note


def encoding(start: bytes) -> str:
    """The encoding of a text by its first bytes: UTF-8, or UTF-16, in which PowerShell redirects."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without that mark: in UTF-16 every second byte of Latin letters is 0.
    even = start[0:ENCODING_BYTES:2]
    odd = start[1:ENCODING_BYTES:2]
    is_wide = odd.count(0) > len(odd) / 2 and even.count(0) < len(even) / 4
    if is_wide and len(start) > 8:  # fewer bytes prove nothing
        return "utf-16-le"
    return "utf-8"
