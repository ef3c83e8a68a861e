"""The plain text under a log: without colours, prefixes of others and line wraps, from whatever it came as."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

BLOCK = 1 << 20
COLOUR = re.compile(r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_PREFIX = re.compile(
    r"[ \t>|#│┃]{1,80}"
    r"|\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?[:,]?"
    r"|\[?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?\]?"
    r"|\[ {0,12}[0-9]{1,9}\.[0-9]{1,9}\]"
    r"|\[[Rr]ank ?[0-9]{1,5}\]:?|\[[0-9]{1,5}(?:,[0-9]{1,5})?\](?:<std[a-z]{3}>)?:|\[[0-9]{1,5}\](?: |$)"
    r"|[Rr]ank ?[0-9]{1,5} ?[:|]|\([A-Za-z][\w .=-]{0,60}pid=[0-9]{1,10}[^)\n]{0,60}\)"
    r"|\[?(?:ERROR|INFO|WARNING|WARN|CRITICAL|FATAL|DEBUG)\]?(?=[ :|\]])[:|]?"
    r"|[EWIF][0-9]{4} [0-9:.]{8,18} {1,8}[0-9]{1,9} [\w./-]{1,80}:[0-9]{1,6}\]"
    r"|std(?:err|out) [FP](?= )|[A-Za-z][\w.-]{0,40} {1,8}\|"
    rf"|(?:{_MONTHS}) {{1,2}}[0-9]{{1,2}} [0-9:]{{8}} [\w.-]{{1,64}} [\w./-]{{1,64}}(?:\[[0-9]{{1,10}}\])?:"
)
_PIECE = re.compile("[^\\s|│┃`*\u200b\ufeff]+")
_ASCII_LOWER = {code: code + 32 for code in range(65, 91)}


def lowered(text: str) -> str:
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def squeezed(buffer: str, start: int, stop: int) -> tuple[list[tuple[int, int]], str]:
    """(place in the squeezed text, place in the buffer) of each word, and the words joined without blanks."""
    text = COLOUR.sub(lambda match: " " * len(match.group()), buffer[start:stop])
    pieces, words, length, line = [], [], 0, 0
    for row in text.splitlines(keepends=True):
        for match in _PIECE.finditer(row, prefix(row)):
            pieces.append((length, start + line + match.start()))
            words.append(match.group())
            length += match.end() - match.start()
        line += len(row)
    return pieces, "".join(words)


def prefix(line: str) -> int:
    """Where a line begins behind the times, ranks, levels and quoting marks that others put before it."""
    at = 0
    for _ in range(8):
        match = _PREFIX.match(line, at)
        if not match:
            break
        at = match.end()
    return at


def raw_place(pieces: list[tuple[int, int]], starts: list[int], at: int) -> int:
    begin, raw = pieces[bisect_right(starts, at) - 1]
    return raw + at - begin


def pieces_of(source: object) -> Iterator[str]:
    if isinstance(source, str):
        for at in range(0, len(source), BLOCK):
            yield source[at : at + BLOCK]
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield from _decoded(bytes(source))
    elif isinstance(source, Iterable):
        for line in source:
            if isinstance(line, (bytes, bytearray)):
                line = bytes(line).decode("utf-8", "replace")
            if isinstance(line, str):
                yield from pieces_of(line)
                if not line.endswith("\n"):
                    yield "\n"
    else:
        raise TypeError(f"expected text, saw {type(source).__name__}")


def _decoded(data: bytes) -> Iterator[str]:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell redirects in it)."""
    name = "utf-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        name = "utf-16"
    elif (
        len(data) > 8
        and data[1:400:2].count(0) * 2 > len(data[1:400:2]) > data[0:400:2].count(0) * 4
    ):
        name = "utf-16-le"
    decoder = codecs.getincrementaldecoder(name)("replace")
    for at in range(0, len(data), BLOCK):
        yield decoder.decode(data[at : at + BLOCK])
    yield decoder.decode(b"", True)
