"""What failures does a text name, and which numbers does each give?

Any text: a pasted line, a log of 100 MB, or binary noise.

Which wording means what is the table of helpers/ground/messages.json. Reading streams, in linear time
and bounded memory. Colours, quoting marks, log prefixes and line wraps are looked through; what
programs print as standing advice is taken out first; lines of the kernel are read by the reader
of its log. Nothing raises: what could not be used is said.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.ground import grammar
from helpers.ground.grammar import Row, Template
from helpers.ground.tables import data, lazy
from helpers.ground.units import NOT_MEASURED_BYTES, Quantity, quantity
from helpers.look.text import COLOUR, Squeezed, lowered, pieces_of, prefix

if TYPE_CHECKING:
    from helpers.look.kernel_log import Event

    Spans = list[tuple[int, int]]

MESSAGES_LIMIT = 200
MENTIONS_LIMIT = 2000
"""Different messages that are kept, and mentions after which only the end of a text is still
looked at.
"""
WORDS_LIMIT = 400
REFUSALS = ("refused", "refused-by-limit", "workspace", "collective", "driver-refused")
"""Events in which somebody asked for memory and did not get it."""
_BLOCK = 1 << 18
_WHOLE = 1 << 16
_BEFORE = 400
_AFTER = 3200
NOTHING_KNOWN = "nothing in it names a failure known here"
_KEPT = 8192
_SPAN = 1600
_REACH = 320
_ADVICE = 420
_AGAIN = 120
_LINE = 200
"""Squeezed characters: what a message may take, from one of its clauses to the next, behind it
to the advice on it, and to the same thing in other words. And what of a long line is quoted
on either side of a message.
"""
_KNOWN = data("look/message_words")
_BACKENDS = {name: lazy(form) for name, form in _KNOWN["backends"].items()}
_ELEMENT_BYTES: dict[str, int] = _KNOWN["element bytes"]
_FACTS: dict[str, str] = _KNOWN["sizes of the kernel's log"]
"""What a message calls a size that the reader of the kernel's log gives."""
_FILLER = "\x1f"
_LINE = 2048


@dataclass(frozen=True)
class Message:
    """One failure found in a text. A number that the text does not give is None.

    ``row`` is the id of the table's row, ``side`` whose memory it is about, ``event`` what
    happened (helpers/ground/grammar.py has both lists). ``allocated`` of torch counts what tensors
    hold plus, where ``private_pools`` is given, the idle blocks of private pools: torch adds
    them (CUDACachingAllocator.cpp, get_size_block over the pools' free blocks).
    ``reserved_unallocated`` is also what torch 1.0 to 1.3 called "cached". ``requested`` of
    torch is a segment, not the tensor. ``pids`` goes with ``others``, entry by entry; NVML
    gives host numbers, so in a container one of them may be this process itself. ``words`` is
    the message as it stands, ``start`` where.
    """

    row: str
    program: str = ""
    side: str = "none"
    event: str = "note"
    backend: str = ""
    device: int | None = None
    requested: Quantity | None = None
    capacity: Quantity | None = None
    free: Quantity | None = None
    allowed: Quantity | None = None
    process: Quantity | None = None
    allocated: Quantity | None = None
    reserved_unallocated: Quantity | None = None
    reserved_total: Quantity | None = None
    private_pools: Quantity | None = None
    non_torch: Quantity | None = None
    used: Quantity | None = None
    weights: Quantity | None = None
    cache: Quantity | None = None
    buffer: Quantity | None = None
    others: tuple[Quantity, ...] = ()
    pids: tuple[int, ...] = ()
    tokens: int | None = None
    fits_tokens: int | None = None
    layers: int | None = None
    rank: int | None = None
    code: int | None = None
    share: float | None = None
    name: str = ""
    hints: tuple[str, ...] = ()
    words: str = ""
    start: int = 0

    @property
    def numbers(self) -> tuple[Quantity, ...]:
        """Every size that the message gives."""
        own = (getattr(self, field.name) for field in fields(self))
        return (*(value for value in own if isinstance(value, Quantity)), *self.others)


@dataclass(frozen=True)
class MessageReading:
    """The failures of a text in its order.

    ``unused`` says in one line what could not be used, and is empty where all was.

    ``truncated``: the source or a message broke off, or there were over MESSAGES_LIMIT
    different messages.
    """

    messages: tuple[Message, ...]
    unused: str
    truncated: bool


class Found(NamedTuple):
    """A row found in a squeezed text: from where to where, the fields it gives, and sizes that
    could not be read.
    """

    start: int
    end: int
    row: Row
    values: dict[str, Any]
    unread: tuple[str, ...]
    template: Template


def of_device(one: Message | Row | grammar.Line) -> bool:
    """Whether it says that memory of a GPU was refused: by its driver, or a limit; a warning
    about a workspace does not.
    """
    warns = "workspace_warning" in getattr(one, "hints", ())
    return one.event in REFUSALS and one.side == "device" and not warns


def of_host(one: Message | Row | grammar.Line) -> bool:
    """Whether it says that the host's memory ran out, or that a process was killed for it or by
    nobody knows whom.
    """
    refused = one.event in REFUSALS and one.side in ("host", "commit", "cgroup")
    return refused or one.event in ("killed", "sigkill")


# -- one squeezed text


def messages_in(flat: str) -> tuple[Found, ...]:
    """Every failure in a squeezed text, in its order; what two rows claim belongs to the first
    of them in the table.
    """
    advice = _footers(flat)
    places = [start for start, _, _ in advice]
    flat = _blanked(flat, [(start, end) for start, end, _ in advice], lambda _: _FILLER)
    claims: Spans = []
    found: list[Found] = []
    for row in grammar.rows():
        if row.event == "footer" or not any(form.among(flat) for form in row.forms):
            continue
        for one in _of_row(row, flat, claims):
            near = advice[bisect_left(places, one.start) : bisect_right(places, one.end + _ADVICE)]
            hints = [hint for _, _, footer in near for hint in footer.hints]
            one.values["hints"] = tuple(dict.fromkeys((*row.hints, *hints)))
            one.values["backend"] = row.backend or _backend(row, flat, one)
            found.append(one)
    return tuple(sorted(found, key=lambda one: one.start))


def _of_row(row: Row, flat: str, claims: Spans) -> Iterator[Found]:
    """The messages of one row; ``claims`` grows by what they take.

    A message ends where the next one begins.
    """
    parts = {clause.text for clause in row.clauses}
    matches = _matches(row.forms, flat)
    heads = [one.start() for one, form in matches if form.text not in parts]
    before: Found | None = None
    for match, template in matches:
        if not _free(claims, match.start(), match.end()):
            continue
        insort(claims, (match.start(), match.end()))
        near = before is not None and match.start() - before.end < _AGAIN
        if before is not None and near and _adds_nothing(row, template, match, before):
            continue
        following = bisect_left(heads, match.end())
        stop = min(match.start() + _SPAN, heads[following] if following < len(heads) else len(flat))
        before = _read(row, template, match, flat, stop, claims)
        yield before


def _adds_nothing(row: Row, template: Template, match: Any, before: Found) -> bool:
    """Whether a program says in other words what it has just said: none of it new, and not the
    same words again.
    """
    values: dict[str, Any] = {}
    _take(row, template, match, values, [])
    same = all(before.values.get(name) == value for name, value in values.items())
    return same and template is not before.template


def _matches(templates: Iterable[Template], flat: str) -> list[tuple[Any, Template]]:
    """Where the templates fit, in the text's order, the longer first where two begin together."""
    known = (template for template in templates if template.among(flat))
    pairs = [(match, template) for template in known for match in template.pattern.finditer(flat)]
    return sorted(pairs, key=lambda one: (one[0].start(), -one[0].end()))


def _free(claims: Spans, start: int, end: int) -> bool:
    at = bisect_left(claims, (start, end))
    before = at > 0 and claims[at - 1][1] > start
    return not before and (at == len(claims) or claims[at][0] >= end)


def _read(row: Row, template: Template, match: Any, flat: str, stop: int, claims: Spans) -> Found:
    """The fields of a message: its form's, then those of the clauses that follow it, each at
    its first place.
    """
    start, end = match.span()
    unread: list[str] = []
    values: dict[str, Any] = {}
    _take(row, template, match, values, unread)
    for clause, one in _matches(row.clauses, flat[start:stop]):
        first = clause.start() + start
        last = clause.end() + start
        if first - end > _REACH:
            break
        own = first >= match.end() and _free(claims, first, last)
        if own and _take(row, one, clause, values, unread):
            insort(claims, (first, last))
            end = max(end, last)
    shape = values.pop("shape", "")
    dtype = values.pop("dtype", "")
    if shape and dtype in _ELEMENT_BYTES:
        size = _ELEMENT_BYTES[dtype]
        for side in shape.split(","):
            size = min(size * int(side or 1), NOT_MEASURED_BYTES - 1)
        values["requested"] = Quantity(size, 0, f"[{shape}] of {dtype}")
    return Found(start, end, row, values, tuple(unread), template)


def _take(
    row: Row, template: Template, match: Any, values: dict[str, Any], unread: list[str]
) -> bool:
    """Adds what the groups of a match give; whether any of it is new.

    Another process's memory goes with its number.
    """
    before = len(values), len(unread)
    pid: int | None = None
    other: Quantity | None = None
    for group, text in match.groupdict().items():
        name, unit = template.groups[group]
        if not name or text is None:
            continue
        if name in grammar.SIZES:
            size = quantity(text, unit, retyped=row.retyped, decimal=row.decimal)
            if size is None or size.bytes >= NOT_MEASURED_BYTES:
                unread.append(text + unit)
            elif name == "other":
                other = size
            else:
                values.setdefault(name, size)
        elif name == "pid":
            pid = int(text.replace(",", ""))
        else:
            values.setdefault(name, _plain(name, text, unit))
    new = not template.groups or before != (len(values), len(unread))
    if other is not None:
        values["others"] = (*values.get("others", ()), other)
    if pid is not None and (other is not None or "{other" not in template.text):
        values["pids"] = (*values.get("pids", ()), pid)
    return new or other is not None or pid is not None


def _plain(name: str, text: str, unit: str) -> int | float | str:
    if name == "share":
        return float(text.replace(",", ".")) / (100 if unit == "%" else 1)
    if name == "device" and text[0] < "\t":
        return ord(text)
    return int(text.replace(",", "")) if name in grammar.WHOLE else text


def _backend(row: Row, flat: str, one: Found) -> str:
    near = flat[one.start : one.end + _ADVICE]
    named = re.search("(cuda|hip|xpu)outofmemory", near[:80])
    if named:
        return named.group(1)
    found = backend_of(near if row.clauses else flat[one.start : one.end])
    if found or row.event == "option-refused":
        return found
    return backend_of(flat[max(0, one.start - 60) : one.end + 20])


def backend_of(words: str) -> str:
    """``hip``, ``cuda`` or nothing, from the names in a message.

    HIP first: a ROCm build says "CUDA error: HIPBLAS_...".
    """
    return next((name for name, pattern in _BACKENDS.items() if pattern.search(words)), "")


def _footers(flat: str) -> list[tuple[int, int, Row]]:
    """What programs print under every failure, and code that a traceback shows: nothing of it
    happened here.
    """
    footers = [row for row in grammar.rows() if row.event == "footer"]
    found = [(*match.span(), row) for row in footers for match, _ in _matches(row.forms, flat)]
    return sorted(found, key=lambda one: one[:2])


def _blanked(text: str, spans: Spans, filler: Callable[[str], str]) -> str:
    """The text with each character of the stretches replaced by what ``filler`` makes of it."""
    parts = []
    at = 0
    for start, end in spans:
        if end > at:
            start = max(at, start)
            parts += [text[at:start], "".join(map(filler, text[start:end]))]
            at = end
    return "".join([*parts, text[at:]]) if parts else text


@lru_cache(16)
def without_footers(text: str) -> str:
    """The text with the standing advice of its programs blanked: it stands under every failure
    and says nothing of this one.

    Its length and its line breaks stay. Also for texts of any size that no message is read from.
    """
    squeezed = Squeezed(text)
    spans = [squeezed.span(start, end) for start, end, _ in _footers(squeezed.flat)]
    return _blanked(text, spans, lambda character: "\n" if character == "\n" else " ")


# -- any text


def read_message(text: str | bytes | Iterable[str]) -> MessageReading:
    """Every failure that a text names, each distinct one once.

    Never raises; ``text`` may be a stream of lines.
    """
    reader = _Reader()
    blocks = reader.blocks(text)
    block = next(blocks, "")
    while block:
        following = next(blocks, "")
        reader.feed(block, not following)
        block = following
    numbered = {message.row for message in reader.kept.values() if message.numbers}

    def bare(one: Message) -> bool:
        refused = one.event == "refused" and one.side == "device"
        return refused and one.row in numbered and not one.numbers

    told = [message for message in reader.kept.values() if not bare(message)]
    messages = tuple(sorted(told, key=lambda one: one.start))
    broken = bool(reader.stopped or reader.over or reader.cut)
    return MessageReading(messages, reader.unused(len(messages)), broken)


class _Reader:
    """Reads block by block, and counts what cannot be used.

    A message may reach over two blocks: the end of each is read again with the next.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Message] = {}
        self.buffer = self.stopped = ""
        self.base = self.covered = self.not_text = self.repeats = self.over = self.characters = 0
        self.passed = 0
        self.unread: dict[str, None] = {}
        self.cut = False

    def unused(self, count: int) -> str:
        """What could not be used, in one line, where ``count`` messages are given."""
        shown = ", ".join(list(self.unread)[:4])
        bare = len(self.kept) - count
        nothing = NOTHING_KNOWN if self.characters else "the text is empty"
        says = (
            (self.stopped, f"stopped reading: {self.stopped}"),
            (self.not_text, f"{self.not_text} characters are not text"),
            (shown, f'{len(self.unread)} sizes are ambiguous or say "not measured": {shown}'),
            (bare, f"{bare} more mentions of out of memory without a number"),
            (self.repeats, f"{self.repeats} repeats of the same message"),
            (self.over, f"{self.over} more messages after the first {MESSAGES_LIMIT}"),
            (self.passed, f"{self.passed} characters before its end, after so many messages"),
            (self.cut, "the text ends inside a message"),
            (not count, nothing),
        )
        return "; ".join(words for so, words in says if so)

    def blocks(self, source: object) -> Iterator[str]:
        """The text in pieces of 256 KiB, whatever it came as."""
        pending: list[str] = []
        size = 0
        try:
            for piece in pieces_of(source, _BLOCK):
                self.not_text += piece.count("\ufffd") + piece.count("\x00")
                pending.append(piece)
                size += len(piece)
                if size >= _BLOCK:
                    yield "".join(pending)
                    self.characters += size
                    pending = []
                    size = 0
        except Exception as error:  # noqa: BLE001 - the source is the caller's, a file or a generator; what it gave so far counts
            self.stopped = f"{type(error).__name__}: {str(error)[:120]}"
        self.characters += size
        if pending:
            yield "".join(pending)

    def feed(self, block: str, last: bool) -> None:
        if not last and len(self.kept) + self.repeats + self.over > MENTIONS_LIMIT:
            self.passed += len(self.buffer)
            self.base = self.base + len(self.buffer)
            self.buffer = block
            return
        self.buffer += block
        limit = len(self.buffer) if last else len(self.buffer) - _KEPT
        if limit > 0:
            self._scan(limit, last)
            line = self.buffer.rfind("\n", max(0, limit - _KEPT), limit) + 1
            cut = limit if last else max(line, limit - _BEFORE)
            self.base = self.base + cut
            self.buffer = self.buffer[cut:]

    def _scan(self, limit: int, last: bool) -> None:
        """Keeps the messages that begin before ``limit`` and behind what earlier ones cover."""
        covered = self.covered
        buffer = self.buffer
        whole = last and not self.base and len(buffer) <= _WHOLE
        for start, stop in [(0, len(buffer))] if whole else _regions(lowered(buffer)):
            squeezed = Squeezed(buffer, start, stop)
            events = list(self._events(buffer[start:stop], start))
            spans = sorted((begin, end) for begin, end, _ in events)
            read = [(*squeezed.span(one.start, one.end), one) for one in messages_in(squeezed.flat)]
            read = [one for one in read if _free(spans, one[0], one[0] + 1)]
            spans = sorted([*spans, *((begin, end) for begin, end, _ in read)])
            alone = (one for one in _lines(buffer[start:stop], start) if _free(spans, *one[:2]))
            found: list[tuple[int, int, dict[str, Any], Found | None]] = [
                *((begin, end, {**_head(one.row), **one.values}, one) for begin, end, one in read),
                *((*one, None) for one in (*events, *alone)),
            ]
            for begin, end, values, message in sorted(found, key=lambda row: row[:2]):
                if begin < limit and begin + self.base >= covered:
                    self.covered = max(self.covered, end + self.base)
                    self._keep(begin, end, values, message.unread if message else ())
                    if message is not None and last and stop == len(buffer):
                        self._note_cut(message, squeezed.flat)

    def _keep(self, begin: int, end: int, values: dict[str, Any], unread: tuple[str, ...]) -> None:
        if len(self.unread) < 50:
            self.unread.update(dict.fromkeys(unread[:50]))
        key = repr(sorted(pair for pair in values.items() if pair[1] not in (None, (), "")))
        if key in self.kept:
            self.repeats += 1
        elif len(self.kept) >= MESSAGES_LIMIT:
            self.over += 1
        else:
            place = (begin, min(end, begin + 4 * WORDS_LIMIT))
            text = f"{self.buffer}\n"
            if not any(isinstance(one, Quantity) for one in values.values()):
                first = max(text.rfind("\n", 0, begin) + 1, begin - _LINE)
                place = first, min(text.find("\n", end), end + _LINE)  # its line is all it says
            words = _words(self.buffer[slice(*place)])
            self.kept[key] = Message(start=begin + self.base, words=words, **values)

    def _note_cut(self, one: Found, flat: str) -> None:
        rest = flat[one.end :]
        values = one.values
        open_end = one.row.clauses and "capacity" in values and "allocated" not in values
        self.cut = bool(open_end and 0 < len(rest.strip(".")) < 60 and rest[-1:] not in ".)")

    def _events(self, text: str, base: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The lines of a kernel, read by the reader of its log."""
        lower = lowered(text)
        if not any(line.literal in lower for line in grammar.lines(True)):
            return
        # It takes longer to load than a message to read, and few texts need it.
        from helpers.look import kernel_log

        places = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
        lines = [line[prefix(line) :] for line in text.split("\n")]
        # A terminal wraps the kernel's long lines anywhere: else each line is read with the
        # next one behind it.
        wrapped = map("".join, zip(lines, [*lines[1:], ""]))
        for event in kernel_log.parse("\n".join(lines)) or kernel_log.parse("\n".join(wrapped)):
            row = kernel_log.rule(event.row)
            if row.event != "note":
                self.repeats += event.count - 1
                at = min(event.line, len(places) - 1)
                end = min(places[at] - 1, len(text))
                yield base + places[at - 1], base + end, _of_event(event, row)


def _head(row: Row | grammar.Line) -> dict[str, Any]:
    return {"row": row.id, "program": row.program, "side": row.side, "event": row.event}


def _lines(text: str, base: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """What a line says that stands alone, such as a shell's."""
    lower = lowered(text)
    for line in grammar.lines(False):
        at = lower.find(line.literal)
        while at >= 0:
            start = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            end = end if end >= 0 else len(text)
            alone = text[start : min(end, start + _LINE)]
            behind = prefix(alone)
            if line.pattern.search(alone[behind:]):
                yield base + start + behind, base + end, _head(line)
            at = lower.find(line.literal, end)


def _of_event(event: Event, row: grammar.Line) -> dict[str, Any]:
    values = _head(row)
    for fact, size in event.facts.items():
        name = _FACTS.get(fact[:-6], fact[:-6]) if fact.endswith("_bytes") else ""
        if name in grammar.SIZES and isinstance(size, int):
            values[name] = Quantity(size, 0, f"{size} bytes")
    if event.pid is not None:
        values["pids"] = (event.pid,)
    if event.kind == "xid" and event.detail.isdigit():
        values["code"] = int(event.detail)
    values["name"] = event.process or event.detail
    values["backend"] = "cuda" if event.kind == "xid" else backend_of(event.text.lower())
    return values


def _regions(lower: str) -> Spans:
    """The stretches around words that a known failure has; the rest of a log is not looked at
    again.
    """
    hits: list[int] = []
    for anchor in grammar.plain_anchors():
        at = lower.find(anchor)
        while at >= 0:
            hits.append(at)
            at = lower.find(anchor, at + _AFTER // 2)
    regions: Spans = []
    for hit in sorted(hits):
        start = max(0, hit - _BEFORE)
        stop = min(len(lower), hit + _AFTER)
        if regions and start <= regions[-1][1]:
            regions[-1] = (regions[-1][0], max(stop, regions[-1][1]))
        else:
            regions.append((start, stop))
    return regions


def _words(text: str) -> str:
    words = " ".join(COLOUR.sub(" ", text).split())
    return words if len(words) <= WORDS_LIMIT else words[: WORDS_LIMIT - 1] + "…"
