"""Any text: a file that should be one, read in bounded memory and time, and the plain words under a log.

A file may be a log of any size, a device or a FIFO that nobody writes to; what was left out of it stands in ``note``, in plain
words. Under a log lies its text without colours, the prefixes of others and line wraps, from whatever it came as.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import select
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice, takewhile

from helpers.grammar import data
from helpers.units import MIB, show_bytes

MOST_BYTES, END_BYTES = 1 * MIB, 3 * MIB
"""Of a text that is longer than both, its first and its last bytes are read: a few seconds of work, and a failure stands at the end."""
STREAM_BYTES, MOST_S, SILENT_S, DEVICE_S = 512 * MIB, 120.0, 20.0, 1.0
"""What has no end to jump to is passed over as far as this, for so long; a FIFO that gives nothing for 20 s is left, a device
after one."""
START_BYTES, BLOCK, LONGEST_LINE = 4096, 64 * 1024, 16 * 1024
COLOUR = re.compile(r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]")
_PREFIX = re.compile("|".join(data("look/text")["prefixes"]))
_PIECE = re.compile("[^\\s|│┃`*\u200b\ufeff]+")
_ASCII_LOWER = {code: code + 32 for code in range(65, 91)}


class TextFile:
    """One file, opened; raises OSError where it cannot be. ``start`` is its first bytes; ``note`` says what was not read.

    ``waits``: nobody hurries it, as standard input, which a program at work may feed for hours.
    """

    def __init__(self, path: str, descriptor: int | None = None, waits: bool = False):
        self.note, self.start, self._head, self._read = "", b"", b"", 0
        how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        own = descriptor is None
        self._file = open(
            os.open(path, how) if descriptor is None else descriptor, "rb", 0, closefd=own
        )
        kind = os.fstat(self._file.fileno())
        # A file of /proc or /sys is a regular one without a size, and may wait as a pipe does.
        self._size = kind.st_size or None if stat.S_ISREG(kind.st_mode) else None
        written = stat.S_ISFIFO(kind.st_mode) or stat.S_ISSOCK(kind.st_mode) or self._file.isatty()
        patience = SILENT_S if written else DEVICE_S  # a device has what it has
        self._silent_s = None if waits or self._size is not None else patience
        self._until = time.monotonic() + (math.inf if waits else MOST_S)
        while len(self._head) < START_BYTES:
            more = self._block()  # a record of /dev/kmsg comes whole or not at all
            if not more:
                break
            self._head += more
        self.start = self._head[:START_BYTES]

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _block(self) -> bytes:
        """The next bytes, empty at the end or where patience ends. Never blocks beyond its silence."""
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
        block, whole = self._head, len(self._head) >= START_BYTES
        while block:
            yield block
            over = self._over() if whole else ""
            if over:
                first, last = show_bytes(self._read), self._end()
                held = show_bytes(sum(map(len, last)))
                self.note = f"only the first {first} and the last {held} were read{over}"
                yield from last
            block = b"" if over or not whole else self._block()

    def _over(self) -> str:
        """Why reading stops here, empty where it goes on."""
        if self._size is not None and self._size - self._read <= END_BYTES:
            return ""
        if self._read >= MOST_BYTES:
            return ", which is the most of one text"
        return f": after that {MOST_S:.0f} s were over" * (time.monotonic() > self._until)

    def _end(self) -> list[bytes]:
        """The last bytes of what is too long, or of as much of a stream as patience reaches."""
        blocks = iter(self._block, b"")
        if self._size is not None:
            self._file.seek(self._size - END_BYTES)
            return list(islice(blocks, END_BYTES // BLOCK))  # it may grow meanwhile
        go_on = lambda _: self._read < STREAM_BYTES and time.monotonic() < self._until  # noqa: E731
        return list(deque(takewhile(go_on, blocks), END_BYTES // BLOCK))

    def lines(self) -> Iterator[str]:
        """The text line by line, a line of more than 16 KiB in pieces; what is no text becomes replacement characters."""
        decoder = codecs.getincrementaldecoder(encoding(self.start))("replace")
        rest = ""
        for block in self._blocks():
            *whole, rest = (rest + decoder.decode(block)).split("\n")
            for line in whole:
                yield from cut(line + "\n", LONGEST_LINE)
            *long, rest = cut(rest, LONGEST_LINE) or [""]
            yield from long
        yield from cut(rest + decoder.decode(b"", True), LONGEST_LINE)


def ends(text: str) -> tuple[str, str]:
    """A text at hand, or where it is too long its beginning and its end; and a note of what was left out, as of a file."""
    if len(text) <= MOST_BYTES + END_BYTES:
        return text, ""
    note = f"only the first {MOST_BYTES:,} and the last {END_BYTES:,} characters of {len(text):,} were read"
    return f"{text[:MOST_BYTES]}\n{text[-END_BYTES:]}", note


def cut(text: str, most: int) -> list[str]:
    """The text in pieces of at most so many characters."""
    return [text[at : at + most] for at in range(0, len(text), most)]


def encoding(start: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell redirects in it)."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    odd, even = start[1:400:2], start[0:400:2]
    wide = odd.count(0) * 2 > len(odd) and even.count(0) * 4 < len(even)
    return "utf-16-le" if len(start) > 8 and wide else "utf-8"


def pieces_of(source: object, most: int) -> Iterator[str]:
    """A text, bytes, or an iterable of lines of either, in pieces of at most so many characters. Raises TypeError."""
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


def lowered(text: str) -> str:
    """The text in lower case, each character at its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def prefix(line: str) -> int:
    """Where a line begins behind the times, ranks, levels and quoting marks that others put before it."""
    at = 0
    for _ in range(8):
        match = _PREFIX.match(line, at)
        if not match:
            break
        at = match.end()
    return at


class Squeezed:
    """A stretch of a text without colours, prefixes and blanks, in lower case: ``flat``, which knows where each word stood."""

    def __init__(self, text: str, start: int = 0, stop: int | None = None):
        self._start = start
        plain = COLOUR.sub(lambda match: " " * len(match.group()), text[start:stop])
        self._rows = plain.splitlines(keepends=True)
        words = (word for row in self._rows for word in _PIECE.findall(row, prefix(row)))
        self.flat = lowered("".join(words))

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Where each word begins in ``flat`` and in the text; most stretches of a long log are never asked for it."""
        flat, text, length, line = [], [], 0, self._start
        for row in self._rows:
            for match in _PIECE.finditer(row, prefix(row)):
                flat.append(length)
                text.append(line + match.start())
                length += match.end() - match.start()
            line += len(row)
        return flat, text

    def _place(self, at: int) -> int:
        flat, text = self._places
        word = bisect_right(flat, at) - 1
        return text[word] + at - flat[word]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text a stretch of ``flat`` stands."""
        return self._place(start), self._place(max(end - 1, start)) + 1
