"""Reads any text (a pasted line, a long log, binary noise): which failures does it name, and which
numbers does each give?

helpers/look/messages.json has the wordings of failures. Reading takes linear time: a long text is
read in stretches. Colours, quoting marks, log prefixes and line wraps do not matter; the advice
that programs print under every failure is taken out first; lines of the kernel are read by the
reader of its log. Nothing raises; a remark says what could not be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from helpers.ground.tables import JsonRow, data
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
"""Messages, repeats included, after which only the end of a text is read."""
WORDS_LIMIT = 400
"""Letters of a message that are quoted."""
QUOTED_BESIDE = 200
"""Letters that are quoted on either side of a message in a longer line."""
LONGEST_ALONE = 2048
"""Letters that are read of a line for a row that has a regular expression."""
UNREAD_LIMIT = 50
"""Different sizes that could not be read, of which the remark names UNREAD_SHOWN."""
UNREAD_SHOWN = 4
NOTHING_KNOWN = "nothing in it names a failure known here"
PARTS_WITHOUT_ROOM = ("no-room-for-model", "no-room-for-cache", "no-room-for-scratch")
"""Events in which a program says which of its parts found no room, below the refusal itself."""
_STRETCH = 1 << 16
"""Letters of a long text that are read at once."""
_READ_ON = 8192
_READ_BEFORE = 400
"""Letters behind and before a stretch that are read with it, since a message may begin or end
there.
"""
_KERNEL_SIZES: dict[str, str] = data("look/message_words")["sizes of the kernel's log"]
"""The field of a message for each size that the reader of the kernel's log gives."""


def read_message(text: str) -> MessageReading:
    """Every failure that a text names; equal ones once. Never raises."""
    reader = _Reader(text)
    for start in range(0, len(text), _STRETCH):
        reader.read(start, min(start + _STRETCH, len(text)))
    return reader.reading()


@lru_cache(16)
def without_footers(text: str) -> str:
    """The text with blanks in place of the advice that programs print under every failure, which
    says nothing about this one. Its length and its line breaks stay.
    """
    squeezed = Squeezed(text)
    advice = footers(squeezed.flat, rows_among(squeezed.flat))
    spans = [squeezed.span(start, end) for start, end, _ in advice]
    return blanked(text, spans)


_OWN_NOTE = re.compile(
    r"^(casebook|python3 -m helpers):(?: .*(?:\n {2}\S.*)*|\n(?:.*\n){0,120}?(?=\1: ))",
    re.MULTILINE,
)
"""A note of this workbook, with the lines into which it was wrapped (commands/signs.py); or, if the
name stands alone in a line, its answer up to the next note.
"""


def without_own_notes(text: str) -> str:
    """The text with blanks in place of what this workbook printed into it: a rehearsal's note about
    memory is no evidence. Its length and its line breaks stay.
    """
    spans = [note.span() for note in _OWN_NOTE.finditer(text)]
    return blanked(text, spans)


class _Placed(NamedTuple):
    """A failure and its place in the text. ``values`` are fields of a Message by their names;
    ``squeezed`` is None for a line that was read without squeezing the text.
    """

    start: int
    end: int
    values: JsonRow
    squeezed: FoundRow | None = None


class _Reader:
    """Reads a text stretch by stretch.

    ``kept`` are the different messages by their values, and ``read_until`` the place where the
    last one ends. It counts ``repeats`` of messages, those ``over`` MESSAGES_LIMIT, and the letters
    ``passed`` over; ``unread`` are sizes that could not be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.kept: dict[str, Message] = {}
        self.read_until = 0
        self.repeats = 0
        self.over = 0
        self.passed = 0
        self.unread: dict[str, None] = {}

    def reading(self) -> MessageReading:
        """The messages so far. A refusal without a number is left out if another one has the same
        wording and numbers: it is a mention of that one.
        """
        numbered = {message.row for message in self.kept.values() if message.numbers}
        messages = []
        for message in self.kept.values():
            is_refusal = (message.event, message.side) == ("refused", "device")
            is_mention = is_refusal and not message.numbers and message.row in numbered
            if not is_mention:
                messages.append(message)
        messages.sort(key=lambda message: message.start)
        return MessageReading(
            messages=tuple(_with_buffers(messages)),
            unused=self.unused(len(messages)),
        )

    def unused(self, count: int) -> str:
        """What could not be used, in one line; ``count`` is the number of messages."""
        remarks = []
        # What a decoder puts in place of bytes that are no text, and NULs.
        not_text = self.text.count("\ufffd") + self.text.count("\x00")
        if not_text:
            remarks.append(f"{not_text} characters are not text")
        if self.unread:
            shown = ", ".join(list(self.unread)[:UNREAD_SHOWN])
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
        """Keep the messages that begin in a stretch of the text, and behind the last one so far."""
        is_last = stop == len(self.text)
        mentions = len(self.kept) + self.repeats + self.over
        # The end is read in any case, since a failure is often there.
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
            # Others begin in the margins of the stretch, or within a message that was kept.
            if not max(start, self.read_until) <= failure.start < stop:
                continue
            self.read_until = max(self.read_until, failure.end)
            self._keep(failure)

    def _failures(self, squeezed: Squeezed, text: str, base: int) -> list[_Placed]:
        """The failures that one part of the text names, in its order; ``base`` is where the part
        begins. What two readers claim belongs to the reader of the kernel's log, then to the forms
        on squeezed text, then to the rows for single lines.
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
        """Keep a failure, or count it as a repeat or as one too many."""
        if failure.squeezed is not None and len(self.unread) < UNREAD_LIMIT:
            unread = failure.squeezed.unread[:UNREAD_LIMIT]
            self.unread.update(dict.fromkeys(unread))
        values = failure.values
        non_empty = [item for item in values.items() if item[1] not in (None, (), "")]
        key = repr(sorted(non_empty))
        if key in self.kept:
            self.repeats += 1
        elif len(self.kept) >= MESSAGES_LIMIT:
            self.over += 1
        else:
            words = _quoted(self.text, failure)
            self.kept[key] = Message(start=failure.start, words=words, **values)

    def _events(self, text: str, base: int) -> Iterator[_Placed]:
        """The failures in lines of the kernel's log."""
        lower = lowered(text)
        if not any(line.literal in lower for line in lines(log=True)):
            return
        # It takes longer to load than a message to read, and few texts need it.
        from helpers.look import kernel_log

        # Line n, counted from 1, is from line_starts[n - 1] to before line_starts[n] - 1.
        line_breaks = re.finditer("\n", text)
        line_starts = [0, *(match.end() for match in line_breaks), len(text) + 1]
        bare = [line[prefix(line) :] for line in text.split("\n")]
        events = kernel_log.parse("\n".join(bare))
        if not events:
            # A terminal wraps the kernel's long lines anywhere: each is read with the next one.
            wrapped = [line + after for line, after in zip(bare, [*bare[1:], ""])]
            events = kernel_log.parse("\n".join(wrapped))
        for event in events:
            row = kernel_log.rule(event.row)
            if row.event == "note":  # no failure, such as the start of a boot
                continue
            self.repeats += event.count - 1
            number = min(event.line, len(line_starts) - 1)
            start = line_starts[number - 1]
            end = min(line_starts[number] - 1, len(text))
            yield _Placed(base + start, base + end, _of_event(event, row))


def _with_buffers(messages: list[Message]) -> Iterator[Message]:
    """The messages; one of PARTS_WITHOUT_ROOM gets as its ``buffer`` the size that its program was
    refused in a line above, and that line's device.
    """
    refusals: dict[str, Message] = {}  # the last one of each program
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
    """Whether a stretch of a long log has words of a known failure: a fast test, and most have
    none.
    """
    lower = lowered(text)
    return any(map(lower.__contains__, plain_anchors()))


def _head(row: WordingRow | Line) -> JsonRow:
    """The fields of a Message that every row has."""
    return {"row": row.id, "program": row.program, "side": row.side, "event": row.event}


def _lines_alone(text: str, base: int) -> Iterator[_Placed]:
    """The failures that a line names by itself, such as a shell's "Killed"; ``base`` is where
    ``text`` begins in the whole text.
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


def _of_event(event: Event, row: Line) -> JsonRow:
    """The fields of a Message about an event of the kernel's log."""
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
    values["name"] = event.process
    if not event.process:
        values["name"] = event.detail
    values["backend"] = backend_of(event.text.lower())
    if event.kind == "xid":
        values["backend"] = "cuda"
        if event.detail.isdigit():
            values["code"] = int(event.detail)
    return values


def _quoted(text: str, failure: _Placed) -> str:
    """The words of a failure as they are quoted: if it has numbers, from its start on; else its
    whole line, or, if that is long, the part around it.
    """
    start = failure.start
    end = failure.end
    if any(isinstance(value, Quantity) for value in failure.values.values()):
        # Before blanks and colours are taken out, which may be most of the text.
        words = _words(text[start : min(end, start + 4 * WORDS_LIMIT)])
    else:
        words = _words(_in_its_line(text, start, end, LONGEST_ALONE))
        if len(words) > WORDS_LIMIT:
            words = _words(_in_its_line(text, start, end, QUOTED_BESIDE))
    if len(words) <= WORDS_LIMIT:
        return words
    return words[: WORDS_LIMIT - 1] + "…"


def _in_its_line(text: str, start: int, end: int, beside: int) -> str:
    """A stretch of a text with at most ``beside`` letters of its line on either side."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    if line_end < 0:
        line_end = len(text)
    return text[max(line_start, start - beside) : min(line_end, end + beside)]


def _words(text: str) -> str:
    """The text without colours, in one line."""
    return " ".join(undecorated(text).split())
