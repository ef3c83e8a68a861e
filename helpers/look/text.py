"""Any text: a file that should be one, read in bounded memory and time, and the plain words
under a log.

A file may be a log of any size, a device or a FIFO that nobody writes to; what was left out of
it stands in ``note``, in plain words. Under a log lies its text without colours, the prefixes
of others and line wraps, from whatever it came as.
"""

from __future__ import annotations

import codecs
import itertools
import json
import math
import os
import re
import select
import stat
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice, takewhile
from typing import Any

from helpers.ground.shapes import NOT_ALLOWED, NOT_AVAILABLE, Reading
from helpers.ground.tables import data
from helpers.ground.units import MIB, printed_size, show_bytes

from .bundle import Row, Text, rows

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
COLOUR = re.compile(r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]")
_PREFIX = re.compile("|".join(data("look/text")["prefixes"]))
_PIECE = re.compile("[^\\s|│┃`*\u200b\ufeff]+")
_ASCII_LOWER = {code: code + 32 for code in range(65, 91)}


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
        block = self._head
        whole = len(self._head) >= START_BYTES
        while block:
            yield block
            over = self._over() if whole else ""
            if over:
                first = show_bytes(self._read)
                last = self._end()
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
        """The text line by line, a line of more than 16 KiB in pieces; what is no text becomes
        replacement characters.
        """
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
    """A text at hand, or where it is too long its beginning and its end; and a note of what was
    left out, as of a file.
    """
    if len(text) <= MOST_BYTES + END_BYTES:
        return text, ""
    note = f"only the first {MOST_BYTES:,} and the last {END_BYTES:,} characters of {len(text):,} were read"
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
    odd = start[1:400:2]
    even = start[0:400:2]
    wide = odd.count(0) * 2 > len(odd) and even.count(0) * 4 < len(even)
    return "utf-16-le" if len(start) > 8 and wide else "utf-8"


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


def lowered(text: str) -> str:
    """The text in lower case, each character at its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def prefix(line: str) -> int:
    """Where a line begins behind the times, ranks, levels and quoting marks that others put
    before it.
    """
    at = 0
    for _ in range(8):
        match = _PREFIX.match(line, at)
        if not match:
            break
        at = match.end()
    return at


class Squeezed:
    """A stretch of a text without colours, prefixes and blanks, in lower case: ``flat``, which
    knows where each word stood.
    """

    def __init__(self, text: str, start: int = 0, stop: int | None = None):
        self._start = start
        plain = COLOUR.sub(lambda match: " " * len(match.group()), text[start:stop])
        self._rows = plain.splitlines(keepends=True)
        words = (word for row in self._rows for word in _PIECE.findall(row, prefix(row)))
        self.flat = lowered("".join(words))

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """Where each word begins in ``flat`` and in the text; most stretches of a long log are
        never asked for it.
        """
        flat = []
        text = []
        length = 0
        line = self._start
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


# What vendor tools print, read with care: JSON among warnings, sizes in their units, and why
# there is no answer.

STDERR_MARK = "--- stderr ---"
LONGEST_WHY = 300
MOST_STARTS = 50
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_MEASURED = (
    "n/a|unknown|none|not supported|not available|not found|unknown error|gpu is lost|".split("|")
)
_REFUSED = ("insufficient permissions", "permission denied", "no permission")


def plain(text: str) -> str:
    """The text without terminal colours (rocminfo prints them into a pipe too)."""
    return _COLOUR.sub("", text)


def stdout_of(text: Text) -> str:
    """What went to stdout, without colours."""
    return ("\n" + plain(text.text)).split("\n" + STDERR_MARK)[0][1:]


def failures() -> dict[str, dict[str, Any]]:
    """What each tool prints where it fails (helpers/ground/tool_failures.json): status -> phrases, the
    more telling first.
    """
    phrases: dict[str, dict[str, Any]] = data("ground/tool_failures")
    return phrases


def why_nothing(text: Text, tool: str, expected: str) -> Text:
    """A text that held no answer, with why: the tool's own lines that hold a phrase of its
    failures, or what became of it.

    The first phrase decides the status; the lines of all are quoted, because a tool often says
    the reason in its second line.
    """
    lines = [" ".join(line.split()) for line in plain(text.text).splitlines()]
    signs = failures().get(tool, {})
    phrases = [(s, phrase) for s in (NOT_ALLOWED, NOT_AVAILABLE) for phrase in signs.get(s, ())]
    found = [(s, line) for s, p in phrases for line in lines if p.lower() in line.lower()]
    if found:
        status = found[0][0]
        why = "; ".join(dict.fromkeys(line for _, line in found))[:LONGEST_WHY]
    elif not text.ok:
        status = text.status
        why = text.why or text.status
    else:
        words = next((line for line in lines if line and line != STDERR_MARK), "")
        status = NOT_AVAILABLE
        why = f"it printed no {expected}; it begins: {words[:120]}"
        why = why if words else "it printed nothing"
    return replace(text, status=status, why=why)


def find_object(text: Text) -> Row:
    """The first JSON object in a tool's stdout, or an empty one; of an array its first."""
    answer = find_json(stdout_of(text))
    return next(iter(rows([answer])), None) or next(iter(rows(answer)), Row())


def find_json(text: str) -> Any:
    """The first JSON object or array that begins a line, or None.

    amd-smi prints "WARNING: User is missing the following required groups: render" on stdout
    before its JSON (amdsmi_helpers.py, check_required_groups), and libraries under a tool print
    lines of their own.
    """
    decoder = json.JSONDecoder(parse_int=_int, object_hook=Row)
    starts = re.finditer(r"^[ \t]*(?=[\[{])", text, re.MULTILINE)
    for start in itertools.islice(starts, MOST_STARTS):
        try:
            return decoder.raw_decode(text, start.end())[0]
        except (ValueError, RecursionError):
            continue  # a line such as "[drm] ..." begins like JSON and is none: a later one may
    return None


def _int(digits: str) -> int | float:
    # Before Python 3.11 a number of a million digits would cost minutes.
    return int(digits) if len(digits) < 20 else float(digits)


def size(raw: object, text: Text, unit: str = "") -> Reading:
    """Bytes from a tool's number, ``"8176 MiB"`` or ``{"value": 8176, "unit": "MB"}``; ``unit``
    where it names none.

    "N/A", "UNKNOWN" and their like read as not available (it was not measured: that is no
    zero); "[Insufficient Permissions]" as not allowed.
    """
    if isinstance(raw, dict):
        unit = str(raw.get("unit") or unit)
        raw = raw.get("value")
    return _read(raw, text, "bytes", lambda words: printed_size(words, unit))


def count(raw: object, text: Text) -> Reading:
    """A whole number, or why there is none; the same words as for ``size``."""
    return _read(raw, text, "count", _whole)


def word(raw: object, text: Text) -> Reading:
    """A name or version as printed, or why there is none."""
    return _read(None if isinstance(raw, (dict, list)) else raw, text, "text", str)


def _read(raw: object, text: Text, unit: str, read: Callable[[str], int | str]) -> Reading:
    words = _words(raw)
    if words.lower() in _REFUSED:
        return text.refused(NOT_ALLOWED, words, unit)
    if raw is None or words.lower() in _NOT_MEASURED:
        why = f"not {'reported' if unit == 'text' else 'measured'} ({words})"
        return text.refused("", why if words else "no such field", unit)
    try:
        return text.seen(read(words), unit)
    except ValueError as error:
        return text.refused("", str(error), unit)


def _whole(words: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", words):
        raise ValueError(f"{words[:60]!r} is no whole number")
    return int(words)


def _words(raw: object) -> str:
    """The value as text, without the brackets that nvidia-smi puts around what is no value:
    ``[N/A]``.
    """
    words = " ".join(str(raw).split()) if raw is not None else ""
    bracketed = isinstance(raw, str) and words.startswith("[") and words.endswith("]")
    return words[1:-1].strip() if bracketed else words
