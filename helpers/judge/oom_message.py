"""What failures does a text name, and which numbers does each give? Any text: a pasted line, a log of 100 MB, or binary noise.

Reading streams, in linear time and bounded memory. Colours, quoting marks, log prefixes and line wraps are looked through.
Nothing raises: what could not be used is said.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from helpers.judge.oom_arithmetic import Arithmetic as Arithmetic
from helpers.judge.oom_arithmetic import arithmetic as arithmetic
from helpers.judge.oom_fields import Found, OomMessage, Quantity
from helpers.judge.oom_forms import FORMS, TORCH_ANCHORS, messages_in

MESSAGES_LIMIT = 200
WORDS_LIMIT = 400
_BLOCK = 1 << 20
_BEFORE, _AFTER = 400, 3200
_KEPT = 8192
_ANCHORS = tuple(sorted({anchor for form in FORMS for anchor in form.anchors} | set(TORCH_ANCHORS) | {"killed"}))
_ASCII_LOWER = {code: code + 32 for code in range(65, 91)}
_COLOUR = re.compile(r"(?:\x1b|\\x1b|\\u001b|\\033)\[[0-9;?]{0,24}[A-Za-z]|\[[0-9;]{1,12}m|\\[nrt]")
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_PREFIX = re.compile(
    r"[ \t>|#│┃]{1,80}"
    r"|\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?[:,]?"
    r"|\[?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?\]?"
    r"|\[ {0,12}[0-9]{1,9}\.[0-9]{1,9}\]"
    r"|\[(?:[Rr]ank ?)?[0-9]{1,5}(?:,[0-9]{1,5})?\](?:<std[a-z]{3}>)?:?"
    r"|[Rr]ank ?[0-9]{1,5} ?[:|]|\([A-Za-z][\w .=-]{0,60}pid=[0-9]{1,10}[^)\n]{0,60}\)"
    r"|\[?(?:ERROR|INFO|WARNING|WARN|CRITICAL|FATAL|DEBUG)\]?(?=[ :|\]])[:|]?"
    r"|[EWIF][0-9]{4} [0-9:.]{8,18} {1,8}[0-9]{1,9} [\w./-]{1,80}:[0-9]{1,6}\]"
    r"|std(?:err|out) [FP](?= )|[\w.-]{1,40} {1,8}\|"
    rf"|(?:{_MONTHS}) {{1,2}}[0-9]{{1,2}} [0-9:]{{8}} [\w.-]{{1,64}} [\w./-]{{1,64}}(?:\[[0-9]{{1,10}}\])?:", re.IGNORECASE)
_PIECE = re.compile("[^\\s|│┃`*\u200b\ufeff]+")
_KILLED = re.compile(r"(?im)^[ \t]{0,40}(?:zsh: |[^\n:]{1,80}: line [0-9]{1,6}: {1,8}[0-9]{1,9} )?"
                     r"killed(?:[ \t]{2,40}[^\n]{0,200})?$")


@dataclass(frozen=True)
class MessageReading:
    """The failures of a text in its order. ``unused`` says in one line what could not be used, and is empty where all was.

    ``truncated``: the source or a message broke off, or there were over MESSAGES_LIMIT different messages.
    """

    messages: tuple[OomMessage, ...]
    unused: str
    truncated: bool


class _Notes:
    def __init__(self) -> None:
        self.not_text = self.repeats = self.over = self.bare = 0
        self.unread: dict[str, None] = {}
        self.stopped = ""
        self.cut = False
        self.characters = 0

    def line(self, found: bool) -> str:
        says = [f"stopped reading: {self.stopped}"] if self.stopped else []
        if self.not_text:
            says.append(f"{self.not_text} characters are not text")
        if self.unread:
            shown = ", ".join(list(self.unread)[:4])
            says.append(f"{len(self.unread)} sizes are ambiguous or say \"not measured\": {shown}")
        if self.bare:
            says.append(f"{self.bare} more mentions of out of memory without a number")
        if self.repeats:
            says.append(f"{self.repeats} repeats of the same message")
        if self.over:
            says.append(f"{self.over} more messages after the first {MESSAGES_LIMIT}")
        if self.cut:
            says.append("the text ends inside a message")
        if not found:
            says.append("nothing in it names a failure known here" if self.characters else "the text is empty")
        return "; ".join(says)


def read_message(text: str | bytes | Iterable[str]) -> MessageReading:
    """Every failure that a text names, each distinct one once. Never raises; ``text`` may be a stream of lines."""
    notes = _Notes()
    kept: dict[tuple[object, ...], OomMessage] = {}
    buffer, base, covered = "", 0, 0
    blocks = _blocks(text, notes)
    block = next(blocks, "")
    while block:
        following = next(blocks, "")
        buffer += block
        limit = len(buffer) - _KEPT if following else len(buffer)
        if limit > 0:
            covered = max(covered, _scan(buffer, base, limit, covered, kept, notes, not following))
            cut = max(buffer.rfind("\n", max(0, limit - _KEPT), limit) + 1, limit - _BEFORE) if following else limit
            base, buffer = base + cut, buffer[cut:]
        block = following
    messages = tuple(kept.values())
    numbered = any(message.kind == "oom" and message.numbers for message in messages)
    if numbered:
        bare = [message for message in messages if message.kind == "oom" and not message.numbers]
        notes.bare = len(bare)
        messages = tuple(message for message in messages if message not in bare)
    return MessageReading(tuple(sorted(messages, key=lambda message: message.start)), notes.line(bool(messages)),
                          bool(notes.stopped or notes.over or notes.cut))


def _blocks(source: object, notes: _Notes) -> Iterator[str]:
    """The text in pieces of about a MiB, whatever it came as."""
    pending: list[str] = []
    size = 0
    try:
        for piece in _pieces(source):
            notes.characters += len(piece)
            notes.not_text += piece.count("\ufffd") + piece.count("\x00")
            pending.append(piece)
            size += len(piece)
            if size >= _BLOCK:
                yield "".join(pending)
                pending, size = [], 0
    except Exception as error:  # noqa: BLE001 - the source is the caller's, a file or a generator; what it gave so far counts
        notes.stopped = f"{type(error).__name__}: {str(error)[:120]}"
    if pending:
        yield "".join(pending)


def _pieces(source: object) -> Iterator[str]:
    if isinstance(source, str):
        for at in range(0, len(source), _BLOCK):
            yield source[at:at + _BLOCK]
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield from _decoded(bytes(source))
    elif isinstance(source, Iterable):
        for line in source:
            if isinstance(line, (bytes, bytearray)):
                line = bytes(line).decode("utf-8", "replace")
            if isinstance(line, str):
                yield from _pieces(line)
                if not line.endswith("\n"):
                    yield "\n"
    else:
        raise TypeError(f"expected text, saw {type(source).__name__}")


def _decoded(data: bytes) -> Iterator[str]:
    """UTF-8, or UTF-16 where a byte order mark or every second byte says so (PowerShell redirects in it)."""
    name = "utf-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        name = "utf-16"
    elif len(data) > 8 and data[1:400:2].count(0) * 2 > len(data[1:400:2]) > data[0:400:2].count(0) * 4:
        name = "utf-16-le"
    decoder = codecs.getincrementaldecoder(name)("replace")
    for at in range(0, len(data), _BLOCK):
        yield decoder.decode(data[at:at + _BLOCK])
    yield decoder.decode(b"", True)


def _scan(buffer: str, base: int, limit: int, covered: int, kept: dict[tuple[object, ...], OomMessage], notes: _Notes,
          last: bool) -> int:
    """Adds the messages that begin before ``limit``; returns where the last one ends, counted from the text's beginning."""
    lower = _lower(buffer)
    for start, stop in _regions(lower):
        pieces, squeezed = _squeeze(buffer, start, stop)
        starts = [begin for begin, _ in pieces]
        flat = _lower(squeezed)
        found = list(messages_in(flat))
        found += [Found(-1 - match.start() - start, match.end() + start, {"kind": "host_killed"})
                  for match in (_KILLED.finditer(buffer[start:stop]) if "killed" in flat else ())]
        for one in found:
            begin = -1 - one.start if one.start < 0 else _raw(pieces, starts, one.start)
            end = one.end if one.start < 0 else _raw(pieces, starts, max(one.end - 1, one.start)) + 1
            if begin >= limit or begin + base < covered:
                continue
            covered = end + base
            notes.unread.update(dict.fromkeys(one.unread[:50]) if len(notes.unread) < 50 else ())
            key = tuple(one.values.items())
            if key in kept:
                notes.repeats += 1
            elif len(kept) >= MESSAGES_LIMIT:
                notes.over += 1
            else:
                words = _words(buffer[begin:min(end, begin + 4 * WORDS_LIMIT)])
                kept[key] = message = OomMessage(start=begin + base, words=words, **one.values)
                rest = flat[one.end:] if one.start >= 0 else ""
                notes.cut = (last and stop == len(buffer) and message.framework == "torch" and message.allocated is None
                             and message.capacity is not None and 0 < len(rest.strip(".")) < 60 and rest[-1:] not in ".)")
    return covered


def _lower(text: str) -> str:
    lower = text.lower()
    return lower if len(lower) == len(text) else text.translate(_ASCII_LOWER)


def _regions(lower: str) -> list[tuple[int, int]]:
    """The stretches around words that a known failure has; the rest of a log is not looked at again."""
    hits: list[int] = []
    for anchor in _ANCHORS:
        at = lower.find(anchor)
        while at >= 0:
            hits.append(at)
            at = lower.find(anchor, at + _AFTER // 2)
    regions: list[tuple[int, int]] = []
    for hit in sorted(hits):
        start, stop = max(0, hit - _BEFORE), min(len(lower), hit + _AFTER)
        if regions and start <= regions[-1][1]:
            regions[-1] = (regions[-1][0], max(stop, regions[-1][1]))
        else:
            regions.append((start, stop))
    return regions


def _squeeze(buffer: str, start: int, stop: int) -> tuple[list[tuple[int, int]], str]:
    """(place in the squeezed text, place in the buffer) of each word, and the words joined without blanks."""
    text = _COLOUR.sub(lambda match: " " * len(match.group()), buffer[start:stop])
    pieces, words, length, line = [], [], 0, 0
    for row in text.splitlines(keepends=True):
        at = 0
        for _ in range(8):
            match = _PREFIX.match(row, at)
            if not match:
                break
            at = match.end()
        for match in _PIECE.finditer(row, at):
            pieces.append((length, start + line + match.start()))
            words.append(match.group())
            length += match.end() - match.start()
        line += len(row)
    return pieces, "".join(words)


def _raw(pieces: list[tuple[int, int]], starts: list[int], at: int) -> int:
    squeezed, raw = pieces[bisect_right(starts, at) - 1]
    return raw + at - squeezed


def _words(text: str) -> str:
    words = " ".join(_COLOUR.sub(" ", text).split())
    return words if len(words) <= WORDS_LIMIT else words[:WORDS_LIMIT - 1] + "…"


__all__ = ["Arithmetic", "MessageReading", "OomMessage", "Quantity", "arithmetic", "read_message"]
