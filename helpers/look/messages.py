"""What failures does a text name, and which numbers does each give?

Any text: a pasted line, a long log, or binary noise.

Which wording means what is the table of helpers/look/messages.json. Reading takes linear time:
a long text is read in stretches. Colours, quoting marks, log prefixes and line wraps are looked through; what
programs print as standing advice is taken out first; lines of the kernel are read by the reader
of its log. Nothing raises: what could not be used is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.ground.tables import data
from helpers.ground.units import Quantity
from helpers.look.message import Message, MessageReading
from helpers.look.squeezed import Squeezed, lowered, prefix, undecorated
from helpers.look.squeezed_messages import (
    Claims,
    FoundRow,
    backend_of,
    blanked,
    footers,
    messages_in,
)
from helpers.look.wordings import (
    SIZES,
    Line,
    WordingRow,
    lines,
    plain_anchors,
    rows_among,
)

if TYPE_CHECKING:
    from helpers.look.kernel_log import Event

MESSAGES_LIMIT = 200
"""Different messages that are kept."""
MENTIONS_LIMIT = 2000
"""Mentions after which only the end of a text is still looked at."""
WORDS_LIMIT = 400
"""Characters of a message that are quoted."""
QUOTED_BESIDE = 200
"""Of a line longer than that, what is quoted on either side of a message."""
LONGEST_ALONE = 2048
"""Characters of a line that stands alone which are looked at."""
NOTHING_KNOWN = "nothing in it names a failure known here"
PARTS_WITHOUT_ROOM = ("no-room-for-model", "no-room-for-cache", "no-room-for-scratch")
_STRETCH = 1 << 16
"""Characters of a long text that are read at once."""
_READ_ON = 8192
_READ_BEFORE = 400
"""Behind and before a stretch, read with it: a message may reach over its ends."""
_KERNEL_SIZES: dict[str, str] = data("look/message_words")["sizes of the kernel's log"]
"""What a message calls a size that the reader of the kernel's log gives."""


def read_message(text: str) -> MessageReading:
    """Every failure that a text names, each distinct one once. Never raises."""
    reader = _Reader(text)
    for start in range(0, len(text), _STRETCH):
        reader.read(start, min(start + _STRETCH, len(text)))
    return reader.reading()


@lru_cache(16)
def without_footers(text: str) -> str:
    """The text with the standing advice of its programs blanked: it stands under every failure
    and says nothing of this one.

    Its length and its line breaks stay. Also for texts of any size that no message is read from.
    """
    squeezed = Squeezed(text)
    advice = footers(squeezed.flat, rows_among(squeezed.flat))
    spans = [squeezed.span(start, end) for start, end, _ in advice]
    return blanked(text, spans)


_OWN_NOTE = re.compile(
    r"^(casebook|python3 -m helpers):(?: .*(?:\n {2}\S.*)*|\n(?:.*\n){0,120}?(?=\1: ))",
    re.MULTILINE,
)
"""A note of this workbook with the lines that it is wrapped to (commands/signs.py), or its answer
under that name, up to the next note.
"""


def without_own_notes(text: str) -> str:
    """The text with what this workbook printed into it blanked: a rehearsal's notes are no
    evidence of what they say. Its length and its line breaks stay.
    """
    spans = [note.span() for note in _OWN_NOTE.finditer(text)]
    return blanked(text, spans)


class _Placed(NamedTuple):
    """A failure and its place in the text; ``squeezed`` is None for a line read by itself."""

    start: int
    end: int
    values: dict[str, Any]
    squeezed: FoundRow | None = None


class _Reader:
    """Reads a text stretch by stretch, and counts what cannot be used."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kept: dict[str, Message] = {}
        self.covered = 0  # characters up to the end of the last message
        self.repeats = 0
        self.over = 0
        self.passed = 0
        self.unread: dict[str, None] = {}

    def reading(self) -> MessageReading:
        numbered = {message.row for message in self.kept.values() if message.numbers}
        messages = [
            message
            for message in self.kept.values()
            if message.numbers
            or message.row not in numbered
            or (message.event, message.side) != ("refused", "device")
        ]
        messages.sort(key=lambda message: message.start)
        return MessageReading(
            messages=tuple(_with_buffers(messages)),
            unused=self.unused(len(messages)),
        )

    def unused(self, count: int) -> str:
        """What could not be used, in one line, where ``count`` messages are given."""
        remarks = []
        not_text = self.text.count("\ufffd") + self.text.count("\x00")
        if not_text:
            remarks.append(f"{not_text} characters are not text")
        if self.unread:
            shown = ", ".join(list(self.unread)[:4])
            remarks.append(
                f'{len(self.unread)} sizes are ambiguous or say "not measured": {shown}'
            )
        if len(self.kept) > count:
            remarks.append(
                f"{len(self.kept) - count} more mentions of out of memory without a number"
            )
        if self.repeats:
            remarks.append(f"{self.repeats} repeats of the same message")
        if self.over:
            remarks.append(
                f"{self.over} more messages after the first {MESSAGES_LIMIT}"
            )
        if self.passed:
            remarks.append(
                f"{self.passed} characters before its end, after so many messages"
            )
        if not self.text:
            remarks.append("the text is empty")
        elif not count:
            remarks.append(NOTHING_KNOWN)
        return "; ".join(remarks)

    def read(self, start: int, stop: int) -> None:
        """Keeps the messages that begin in a stretch and behind what earlier ones cover."""
        is_last = stop == len(self.text)
        mentions = len(self.kept) + self.repeats + self.over
        if mentions > MENTIONS_LIMIT and not is_last:
            self.passed += stop - start
            return
        first = max(0, start - _READ_BEFORE)
        last = min(stop + _READ_ON, len(self.text))
        is_whole_text = last - first == len(self.text)
        if not is_whole_text and not _may_hold_a_message(self.text[first:last]):
            return
        squeezed = Squeezed(self.text, first, last)
        for failure in self._failures(squeezed, self.text[first:last], first):
            if not max(start, self.covered) <= failure.start < stop:
                continue
            self.covered = max(self.covered, failure.end)
            self._keep(failure)

    def _failures(self, squeezed: Squeezed, text: str, base: int) -> list[_Placed]:
        """What one region names, in its order. A line of the kernel's belongs to the reader of
        its log, a line that stands alone to whoever names more of it.
        """
        failures = list(self._events(text, base))
        claims = Claims((event.start, event.end) for event in failures)
        for message in messages_in(squeezed.flat):
            start, end = squeezed.span(message.start, message.end)
            if claims.are_free_of(start, start + 1):
                values = {**_head(message.row), **message.values}
                failures.append(_Placed(start, end, values, message))
        claims = Claims((failure.start, failure.end) for failure in failures)
        for line in _lines_alone(text, base):
            if claims.are_free_of(line.start, line.end):
                failures.append(line)
        return sorted(failures, key=lambda failure: (failure.start, failure.end))

    def _keep(self, failure: _Placed) -> None:
        if failure.squeezed is not None and len(self.unread) < 50:
            self.unread.update(dict.fromkeys(failure.squeezed.unread[:50]))
        values = failure.values
        key = repr(
            sorted(item for item in values.items() if item[1] not in (None, (), ""))
        )
        if key in self.kept:
            self.repeats += 1
        elif len(self.kept) >= MESSAGES_LIMIT:
            self.over += 1
        else:
            words = _quoted(self.text, failure)
            self.kept[key] = Message(start=failure.start, words=words, **values)

    def _events(self, text: str, base: int) -> Iterator[_Placed]:
        """The lines of a kernel, read by the reader of its log."""
        lower = lowered(text)
        if not any(line.literal in lower for line in lines(log=True)):
            return
        # It takes longer to load than a message to read, and few texts need it.
        from helpers.look import kernel_log

        starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
        bare = [line[prefix(line) :] for line in text.split("\n")]
        events = kernel_log.parse("\n".join(bare))
        if not events:
            # A terminal wraps the kernel's long lines anywhere: each is read with the next one.
            wrapped = [
                line + following for line, following in zip(bare, [*bare[1:], ""])
            ]
            events = kernel_log.parse("\n".join(wrapped))
        for event in events:
            row = kernel_log.rule(event.row)
            if row.event == "note":
                continue
            self.repeats += event.count - 1
            number = min(event.line, len(starts) - 1)
            end = min(starts[number] - 1, len(text))
            yield _Placed(base + starts[number - 1], base + end, _of_event(event, row))


def _with_buffers(messages: list[Message]) -> Iterator[Message]:
    """The messages, those of a part that found no room with the buffer that its program was
    refused in a line above.
    """
    refusals: dict[str, Message] = {}
    for message in messages:
        refusal = refusals.get(message.program)
        if message.event == "refused":
            refusals[message.program] = message
        elif refusal and message.event in PARTS_WITHOUT_ROOM and not message.numbers:
            message = replace(message, buffer=refusal.requested)
            if refusal.device is not None:
                message = replace(message, device=refusal.device)
        yield message


def _may_hold_a_message(text: str) -> bool:
    """Whether words of a known failure stand in a stretch of a long log; most hold none."""
    lower = lowered(text)
    return any(map(lower.__contains__, plain_anchors()))


def _head(row: WordingRow | Line) -> dict[str, Any]:
    return {"row": row.id, "program": row.program, "side": row.side, "event": row.event}


def _lines_alone(text: str, base: int) -> Iterator[_Placed]:
    """What a line says that stands alone, such as a shell's.

    ``base`` is where ``text`` begins in the text that is read.
    """
    lower = lowered(text)
    for row in lines(log=False):
        position = lower.find(row.literal)
        while position >= 0:
            start = text.rfind("\n", 0, position) + 1
            end = text.find("\n", position)
            if end < 0:
                end = len(text)
            line = text[start : min(end, start + LONGEST_ALONE)]
            prefix_length = prefix(line)
            if row.pattern.search(line[prefix_length:]):
                yield _Placed(base + start + prefix_length, base + end, _head(row))
            position = lower.find(row.literal, end)


def _of_event(event: Event, row: Line) -> dict[str, Any]:
    """The fields of a message about something that the kernel logged."""
    values = _head(row)
    for fact, size in event.facts.items():
        if not fact.endswith("_bytes") or not isinstance(size, int):
            continue
        fact = fact[: -len("_bytes")]
        name = _KERNEL_SIZES.get(fact, fact)
        if name in SIZES:
            values[name] = Quantity(size, 0, f"{size} bytes")
    if event.pid is not None:
        values["pids"] = (event.pid,)
    values["name"] = event.process or event.detail
    values["backend"] = backend_of(event.text.lower())
    if event.kind == "xid":
        values["backend"] = "cuda"
        if event.detail.isdigit():
            values["code"] = int(event.detail)
    return values


def _quoted(text: str, failure: _Placed) -> str:
    """The words of a failure: from its start on where it has numbers, else its whole line; of a
    long line what stands beside it.
    """
    start = failure.start
    end = failure.end
    if any(isinstance(value, Quantity) for value in failure.values.values()):
        words = _words(text[start : min(end, start + 4 * WORDS_LIMIT)])
    else:
        words = _words(_in_its_line(text, start, end, LONGEST_ALONE))
        if len(words) > WORDS_LIMIT:
            words = _words(_in_its_line(text, start, end, QUOTED_BESIDE))
    if len(words) <= WORDS_LIMIT:
        return words
    return words[: WORDS_LIMIT - 1] + "…"


def _in_its_line(text: str, start: int, end: int, beside: int) -> str:
    """A stretch of a text with at most so many characters of its line on either side."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    if line_end < 0:
        line_end = len(text)
    return text[max(line_start, start - beside) : min(line_end, end + beside)]


def _words(text: str) -> str:
    return " ".join(undecorated(text).split())
