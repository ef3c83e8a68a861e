"""Any text: a file that should be one, read in bounded memory and time, and the plain words under a log.

A file may be a log of any size, a device or a FIFO that nobody writes to; what was left out of it stands in ``note``, in plain
words. Under a log lies its text without colours, the prefixes of others and line wraps, from whatever it came as.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from helpers.grammar import data
from helpers.units import MIB, show_bytes

MOST_BYTES, MOST_S, SILENT_S = 512 * MIB, 120.0, 20.0
"""Of one file so many bytes are read, for so long; a FIFO or device that gives nothing for 20 s is left."""
END_BYTES = 32 * MIB
"""Of a file that is too long its last 32 MiB are read too: a failure stands at the end."""
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
        self.note, self.start = "", b""
        self._own = descriptor is None
        how = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
        self._fd = os.open(path, how) if descriptor is None else descriptor
        try:
            kind = os.fstat(self._fd)
            if stat.S_ISDIR(kind.st_mode):
                raise IsADirectoryError(21, "a folder", path)
            self._size = kind.st_size if stat.S_ISREG(kind.st_mode) else None
            self._silent_s = None if waits or self._size is not None else SILENT_S
            self._read = 0
            self._until = None if waits else time.monotonic() + MOST_S
            while len(self.start) < START_BYTES:
                more = self._block(START_BYTES - len(self.start))
                if not more:
                    break
                self.start += more
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._own and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _block(self, most: int) -> bytes:
        """The next bytes, empty at the end or where patience ends. Never blocks beyond ``SILENT_S``."""
        while True:
            if not select.select([self._fd], [], [], self._silent_s)[0]:
                self.note = f"nothing came for {SILENT_S:.0f} s: what came until then was read"
                return b""
            try:
                block = os.read(self._fd, most)
            except BlockingIOError:
                continue
            self._read += len(block)
            return block

    def _blocks(self) -> Iterator[bytes]:
        block, whole = self.start, len(self.start) == START_BYTES
        while block:
            yield block
            over = self._over() if whole else ""
            if over:
                self.note = f"only the first {show_bytes(self._read)} were read{over}"
            if over and self._size is not None:
                os.lseek(self._fd, max(self._read, self._size - END_BYTES), os.SEEK_SET)
                self.note += f", and the last {show_bytes(END_BYTES)}"
                self._read = self._size - END_BYTES
            block = b"" if not whole or over and self._size is None else self._block(BLOCK)

    def _over(self) -> str:
        """Why reading stops here, empty where it goes on."""
        if self._size is not None and self._size - self._read <= END_BYTES:
            return ""
        if self._read >= MOST_BYTES:
            return ", which is the most of one text"
        late = self._until is not None and time.monotonic() > self._until
        return f": after that {MOST_S:.0f} s were over" if late else ""

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
        self._places: list[tuple[int, int]] = []
        self._starts: list[int] = []
        words, length, line = [], 0, start
        plain = COLOUR.sub(lambda match: " " * len(match.group()), text[start:stop])
        for row in plain.splitlines(keepends=True):
            for match in _PIECE.finditer(row, prefix(row)):
                self._starts.append(length)
                self._places.append((length, line + match.start()))
                words.append(match.group())
                length += match.end() - match.start()
            line += len(row)
        self.flat = lowered("".join(words))

    def _place(self, at: int) -> int:
        begin, place = self._places[bisect_right(self._starts, at) - 1]
        return place + at - begin

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text a stretch of ``flat`` stands."""
        return self._place(start), self._place(max(end - 1, start)) + 1
