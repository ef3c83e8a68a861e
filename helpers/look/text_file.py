"""A file that should be text, read in bounded memory and time.

It may be a log of any size, a device or a FIFO that nobody writes to; what was left out of it
stands in ``note``, in plain words.
"""

from __future__ import annotations

import codecs
import math
import os
import select
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from helpers.ground.units import MIB, show_bytes

MOST_BYTES = 1 * MIB
END_BYTES = 3 * MIB
"""Of a text that is longer than both, its first and its last bytes are read: a few seconds of
work, and a failure stands at the end.
"""
STREAM_BYTES = 512 * MIB
MOST_S = 120.0
SILENT_S = 20.0
DEVICE_S = 1.0
"""What has no end to jump to is passed over as far as this, for so long; a FIFO that gives
nothing for 20 s is left, a device after one.
"""
START_BYTES = 4096
BLOCK = 64 * 1024
LONGEST_LINE = 16 * 1024


class TextFile:
    """One file, opened; raises OSError where it cannot be.

    ``start`` is its first bytes; ``note`` says what was not read.

    ``waits``: nobody hurries it, as standard input, which a program at work may feed for hours.
    """

    def __init__(self, path: str, descriptor: int | None = None, waits: bool = False):
        self.note = ""
        self.start = b""
        self._head = b""
        self._read = 0
        is_opened_here = descriptor is None
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        self._file = open(descriptor, "rb", 0, closefd=is_opened_here)
        state = os.fstat(descriptor)
        self._size: int | None = None
        # A file of /proc or /sys is a regular one without a size, and may wait as a pipe does.
        if stat.S_ISREG(state.st_mode) and state.st_size:
            self._size = state.st_size
        self._silent_s = None if waits else self._patience_s(state.st_mode)
        self._until = math.inf if waits else time.monotonic() + MOST_S
        while len(self._head) < START_BYTES:
            more = self._block()  # a record of /dev/kmsg comes whole or not at all
            if not more:
                break
            self._head += more
        self.start = self._head[:START_BYTES]

    def _patience_s(self, mode: int) -> float | None:
        """How long nothing may come; None where the file has an end."""
        if self._size is not None:
            return None
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or self._file.isatty():
            return SILENT_S
        return DEVICE_S  # a device has what it has

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _block(self) -> bytes:
        """The next bytes, empty at the end or where patience ends.

        Never blocks beyond its silence.
        """
        while True:
            if not select.select([self._file], [], [], self._silent_s)[0]:
                self.note = f"nothing came for {self._silent_s:.0f} s: what came before was read"
                return b""
            with suppress(BrokenPipeError):  # the kernel's log went on faster than it was read
                block = self._file.read(BLOCK)
                if block is not None:  # there was something, and somebody else took it
                    self._read += len(block)
                    return block

    def _blocks(self) -> Iterator[bytes]:
        yield self._head
        if len(self._head) < START_BYTES:
            return
        why = self._stops_because()
        while not why:
            block = self._block()
            if not block:
                return
            yield block
            why = self._stops_because()
        first = show_bytes(self._read)
        end = self._end()
        last = show_bytes(sum(map(len, end)))
        self.note = f"only the first {first} and the last {last} were read{why}"
        yield from end

    def _stops_because(self) -> str:
        """Why reading goes on from the end of the file, empty where it simply goes on."""
        if self._size is not None and self._size - self._read <= END_BYTES:
            return ""
        if self._read >= MOST_BYTES:
            return ", which is the most of one text"
        if time.monotonic() > self._until:
            return f": after that {MOST_S:.0f} s were over"
        return ""

    def _end(self) -> list[bytes]:
        """The last bytes of what is too long, or of as much of a stream as patience reaches."""
        if self._size is not None:
            self._file.seek(self._size - END_BYTES)
            return list(islice(iter(self._block, b""), END_BYTES // BLOCK))  # it may grow meanwhile
        blocks: deque[bytes] = deque(maxlen=END_BYTES // BLOCK)
        block = self._block()
        while block and self._read < STREAM_BYTES and time.monotonic() < self._until:
            blocks.append(block)
            block = self._block()
        return list(blocks)

    def lines(self) -> Iterator[str]:
        """The text line by line, a line of more than 16 KiB in pieces; what is no text becomes
        replacement characters.
        """
        decoder = codecs.getincrementaldecoder(encoding(self.start))("replace")
        rest = ""
        for block in self._blocks():
            *ended, rest = (rest + decoder.decode(block)).split("\n")
            for line in ended:
                yield from cut(line + "\n", LONGEST_LINE)
            *pieces, rest = cut(rest, LONGEST_LINE) or [""]
            yield from pieces
        yield from cut(rest + decoder.decode(b"", True), LONGEST_LINE)


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


def cut(text: str, most: int) -> list[str]:
    """The text in pieces of at most so many characters."""
    return [text[at : at + most] for at in range(0, len(text), most)]


def encoding(start: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell
    redirects in it).
    """
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    even = start[0:400:2]
    odd = start[1:400:2]
    is_wide = odd.count(0) * 2 > len(odd) and even.count(0) * 4 < len(even)
    return "utf-16-le" if is_wide and len(start) > 8 else "utf-8"


def pieces_of(source: object, most: int) -> Iterator[str]:
    """A text, bytes, or an iterable of lines of either, in pieces of at most so many characters.

    Raises TypeError.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        decoder = codecs.getincrementaldecoder(encoding(bytes(source[:400])))("replace")
        for at in range(0, len(source), most):
            yield decoder.decode(bytes(source[at : at + most]))
        yield decoder.decode(b"", True)
    elif isinstance(source, str):
        yield from cut(source, most)
    elif isinstance(source, Iterable):
        for line in source:
            if isinstance(line, (bytes, bytearray)):
                line = bytes(line).decode("utf-8", "replace")
            if isinstance(line, str):
                yield from cut(line, most)
                if not line.endswith("\n"):
                    yield "\n"
    else:
        raise TypeError(f"expected text, saw {type(source).__name__}")
