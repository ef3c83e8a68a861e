"""A file that should be text, read in bounded memory and time: a log of any size, a device, a FIFO that nobody writes to.

What was left out stands in ``note``, in plain words, when the lines have been read.
"""

from __future__ import annotations

import codecs
import os
import select
import stat
import time
from collections.abc import Iterator

from helpers.units import show_bytes

MIB = 1 << 20
MOST_BYTES, MOST_S, SILENT_S = 512 * MIB, 120.0, 20.0
"""Of one file so many bytes are read, for so long; a FIFO or device that gives nothing for 20 s is left."""
END_BYTES = 32 * MIB
"""Of a file that is too long its last 32 MiB are read too: a failure stands at the end."""
START_BYTES, BLOCK, LONGEST_LINE = 4096, 64 * 1024, 16 * 1024


class TextFile:
    """One file, opened; raises OSError where it cannot be. ``start`` is its first bytes; ``note`` says what was not read.

    ``waits``: nobody hurries it, as standard input, which a program at work may feed for hours.
    """

    def __init__(self, path: str, descriptor: int | None = None, waits: bool = False):
        self.note = ""
        self._own = descriptor is None
        self._fd = (
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            if descriptor is None
            else descriptor
        )
        try:
            kind = os.fstat(self._fd)
            if stat.S_ISDIR(kind.st_mode):
                raise IsADirectoryError(21, "a folder", path)
            self._size = kind.st_size if stat.S_ISREG(kind.st_mode) else None
            self._silent_s = None if waits or self._size is not None else SILENT_S
            self._read = 0
            self._until = None if waits else time.monotonic() + MOST_S
            self.start = b""
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

    def _block(self, most: int = BLOCK) -> bytes:
        """The next bytes, empty at the end or where patience ends. Never blocks beyond ``SILENT_S``."""
        while True:
            ready, _, _ = select.select([self._fd], [], [], self._silent_s)
            if not ready:
                self.note = f"nothing came for {SILENT_S:.0f} s: what came until then was read"
                return b""
            try:
                got = os.read(self._fd, most)
            except BlockingIOError:
                continue
            self._read += len(got)
            return got

    def _blocks(self) -> Iterator[bytes]:
        yield self.start
        at_end = len(self.start) < START_BYTES
        while not at_end:
            over = self._over()
            if over:
                self.note = f"only the first {show_bytes(self._read)} were read{over}"
                yield from self._end()
                return
            block = self._block()
            at_end = not block
            if block:
                yield block

    def _over(self) -> str:
        """Why reading stops here, empty where it goes on."""
        if self._size is not None and self._size - self._read <= END_BYTES:
            return ""
        if self._read >= MOST_BYTES:
            return ", which is the most of one text"
        late = self._until is not None and time.monotonic() > self._until
        return f": after that {MOST_S:.0f} s were over" if late else ""

    def _end(self) -> Iterator[bytes]:
        if self._size is None:
            return
        os.lseek(self._fd, max(self._read, self._size - END_BYTES), os.SEEK_SET)
        self.note += f", and the last {show_bytes(END_BYTES)}"
        left = END_BYTES
        while left > 0:
            block = self._block(min(BLOCK, left))
            if not block:
                return
            left -= len(block)
            yield block

    def lines(self) -> Iterator[str]:
        """The text line by line, a line of more than 16 KiB in pieces; what is no text becomes replacement characters."""
        decoder = codecs.getincrementaldecoder(encoding(self.start))("replace")
        rest = ""
        for block in self._blocks():
            rest += decoder.decode(block)
            *whole, rest = rest.split("\n")
            for line in whole:
                yield from _pieces(line + "\n")
            while len(rest) > LONGEST_LINE:
                yield rest[:LONGEST_LINE]
                rest = rest[LONGEST_LINE:]
        rest += decoder.decode(b"", True)
        yield from _pieces(rest)


def encoding(start: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell redirects in it)."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    odd, even = start[1:400:2], start[0:400:2]
    return (
        "utf-16-le"
        if len(start) > 8 and odd.count(0) * 2 > len(odd) and even.count(0) * 4 < len(even)
        else "utf-8"
    )


def _pieces(line: str) -> Iterator[str]:
    for at in range(0, len(line), LONGEST_LINE):
        yield line[at : at + LONGEST_LINE]
