"""What failures does a text name, and which numbers does each give? Any text: a pasted line, a log of 100 MB, or binary noise.

Which wording means what is the table of helpers/messages.json. Reading streams, in linear time and bounded memory. Colours,
quoting marks, log prefixes and line wraps are looked through; what programs print as standing advice is taken out first; lines
of the kernel are read by the reader of its log. Nothing raises: what could not be used is said.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers import grammar
from helpers.grammar import Row, Template
from helpers.look.message_text import (
    BLOCK,
    COLOUR,
    lowered,
    pieces_of,
    prefix,
    raw_place,
    squeezed,
)

if TYPE_CHECKING:
    from helpers.look.kernel_log import Event

MESSAGES_LIMIT = 200
WORDS_LIMIT = 400
UNMEASURED_BYTES = 1 << 62
"""NVML says 2**64 - 1 for "not available"; torch prints it as 17179869184.00 GiB."""
REFUSALS = ("refused", "refused-by-limit", "workspace", "collective", "driver-refused")
"""Events in which somebody asked for memory and did not get it."""
_WHOLE = 1 << 16
_BEFORE, _AFTER = 400, 3200
NOTHING_KNOWN = "nothing in it names a failure known here"
_KEPT = 8192
_SPAN, _REACH, _ADVICE = 1600, 320, 420
_AGAIN = 120
"""Squeezed characters: what a message may take, from one of its clauses to the next, behind it to the advice on it, and to
the same thing in other words."""
_ELEMENT_BYTES = {
    **dict.fromkeys(("float", "float32", "int32", "uint32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("double", "float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    "complex128": 16,
}
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "к": 1, "м": 2, "г": 3, "т": 4}
_SIZE_PARTS = grammar.lazy(rf"({grammar.NUMBER})({grammar.UNIT})?")
_FILLER = "\x1f"
_LINE = 2048


@dataclass(frozen=True)
class Quantity:
    """A size as it was printed. The true one lies within ``precision_bytes`` of ``bytes``: half of the last printed digit."""

    bytes: int
    precision_bytes: int
    text: str


@dataclass(frozen=True)
class Message:
    """One failure found in a text. A number that the text does not give is None.

    ``row`` is the id of the table's row, ``side`` whose memory it is about, ``event`` what happened (helpers/grammar.py has
    both lists). ``allocated`` of torch counts what tensors hold plus, where ``private_pools`` is given, the idle blocks of
    private pools: torch adds them (CUDACachingAllocator.cpp, get_size_block over the pools' free blocks).
    ``reserved_unallocated`` is also what torch 1.0 to 1.3 called "cached". ``requested`` of torch is a segment, not the tensor.
    ``pids`` goes with ``others``, entry by entry; NVML gives host numbers, so in a container one of them may be this process
    itself. ``words`` is the message as it stands, ``start`` where.
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
    """The failures of a text in its order. ``unused`` says in one line what could not be used, and is empty where all was.

    ``truncated``: the source or a message broke off, or there were over MESSAGES_LIMIT different messages.
    """

    messages: tuple[Message, ...]
    unused: str
    truncated: bool


class Found(NamedTuple):
    """A row found in a squeezed text: from where to where, the fields it gives, and sizes that could not be read."""

    start: int
    end: int
    row: Row
    values: dict[str, Any]
    unread: tuple[str, ...]
    template: Template


def of_device(one: Message | Row | grammar.Line) -> bool:
    """Whether it says that memory of a GPU was refused: by its driver, or a limit; a warning about a workspace does not."""
    return (
        one.event in REFUSALS
        and one.side == "device"
        and "workspace_warning" not in getattr(one, "hints", ())
    )


def of_host(one: Message | Row | grammar.Line) -> bool:
    """Whether it says that the host's memory ran out, or that a process was killed for it or by nobody knows whom."""
    return one.event in ("killed", "sigkill") or (
        one.event in REFUSALS and one.side in ("host", "commit", "cgroup")
    )


def quantity(text: str, retyped: bool = False, decimal: bool = False) -> Quantity | None:
    """A size such as ``1.41gib``, ``1,41 GiB``, ``1,073,741,824 bytes`` or ``512``; None where it is ambiguous or not measured.

    KB, MB and GB are binary, as nearly every program prints them; ``decimal``: this one does not. ``retyped``: the program
    never prints them, so a person did, and the decimal meaning lies within the precision too.
    """
    match = _SIZE_PARTS.fullmatch("".join(text.lower().split()))
    if not match:
        return None
    number, unit = match.group(1).rstrip(".,'"), match.group(2) or "bytes"
    binary = "i" in unit or "и" in unit
    power = _POWERS.get(unit[0], 0)
    scale = 1000**power if decimal and not binary else 1024**power
    parts = _digits(number.replace("'", ""), scale == 1)
    if parts is None:
        return None
    whole, decimals = parts
    value, divisor = int(whole + decimals) * scale, 10 ** len(decimals)
    size = value // divisor
    precision = 0 if scale == 1 or value == 0 else scale // (2 * divisor)
    if retyped and scale > 1 and not binary:
        precision += size - size * 1000**power // scale
    name = (
        unit
        if scale == 1
        else unit[0].upper() + unit[1:-1] + unit[-1:].upper()
        if len(unit) < 4
        else unit
    )
    return Quantity(size, precision, f"{number} {name}") if size < UNMEASURED_BYTES else None


def _digits(number: str, whole: bool) -> tuple[str, str] | None:
    """Digits before and after the decimal sign, or None where the sign may as well part thousands."""
    marks = [char for char in number if char in ".,"]
    if not marks:
        return number, ""
    last = marks[-1]
    head, tail = number.rsplit(last, 1)
    other = "," if last == "." else "."
    if len(set(marks)) == 2:
        groups = head.split(other)
        fits = (
            marks.count(last) == 1
            and all(len(group) == 3 for group in groups[1:])
            and 1 <= len(groups[0]) <= 3
        )
        return ("".join(groups), tail) if fits and not whole else None
    groups = number.split(last)
    thousands = all(len(group) == 3 for group in groups[1:]) and 1 <= len(groups[0]) <= 3
    if len(marks) > 1 or whole:
        return ("".join(groups), "") if thousands else None
    if last == "," and thousands:
        return None
    return (head, tail) if tail else None


# -- one squeezed text


def messages_in(flat: str) -> tuple[Found, ...]:
    """Every failure in a squeezed text, in its order; what two rows claim belongs to the first of them in the table."""
    advice = _footers(flat)
    places = [start for start, _, _ in advice]
    flat = _blanked(flat, [(start, end) for start, end, _ in advice])
    taken: list[tuple[int, int]] = []
    found: list[Found] = []
    for row in grammar.rows():
        if row.event == "footer" or not any(form.among(flat) for form in row.forms):
            continue
        for one in _of_row(row, flat, taken):
            near = advice[bisect_left(places, one.start) : bisect_right(places, one.end + _ADVICE)]
            hints = [hint for _, _, footer in near for hint in footer.hints]
            one.values["hints"] = tuple(dict.fromkeys((*row.hints, *hints)))
            one.values["backend"] = row.backend or _backend(row, flat, one)
            found.append(one)
    return tuple(sorted(found, key=lambda one: one.start))


def _of_row(row: Row, flat: str, taken: list[tuple[int, int]]) -> Iterator[Found]:
    """The messages of one row; ``taken`` grows by what they claim. A message ends where the next one begins."""
    parts = {clause.text for clause in row.clauses}
    matches = sorted(_matches(row.forms, flat), key=lambda one: (one[0].start(), -one[0].end()))
    heads = [one.start() for one, form in matches if form.text not in parts]
    before: Found | None = None
    for match, template in matches:
        if not _free(taken, match.start(), match.end()):
            continue
        insort(taken, (match.start(), match.end()))
        near = before is not None and match.start() - before.end < _AGAIN
        if before is not None and near and _adds_nothing(row, template, match, before):
            continue
        following = bisect_left(heads, match.end())
        stop = min(match.start() + _SPAN, heads[following] if following < len(heads) else len(flat))
        before = _read(row, template, match, flat, stop, taken)
        yield before


def _adds_nothing(row: Row, template: Template, match: Any, before: Found) -> bool:
    """Whether a program says in other words what it has just said: none of it new, and not the same words again."""
    values: dict[str, Any] = {}
    _take(row, template, match, values, [])
    return template is not before.template and all(
        before.values.get(name) == value for name, value in values.items()
    )


def _matches(
    templates: Iterable[Template], flat: str, start: int = 0, stop: int | None = None
) -> Iterator[Any]:
    for template in templates:
        if template.among(flat):
            for match in template.pattern.finditer(
                flat, start, len(flat) if stop is None else stop
            ):
                yield match, template


def _free(taken: list[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_left(taken, (start, end))
    return not (at > 0 and taken[at - 1][1] > start) and (at == len(taken) or taken[at][0] >= end)


def _read(
    row: Row, template: Template, match: Any, flat: str, stop: int, taken: list[tuple[int, int]]
) -> Found:
    """The fields of a message: its form's, then those of the clauses that follow it, each at its first place."""
    start, end = match.span()
    unread: list[str] = []
    values: dict[str, Any] = {}
    _take(row, template, match, values, unread)
    if row.clauses:
        window = flat[start:stop]
        clauses = sorted(
            _matches(row.clauses, window), key=lambda one: (one[0].start(), -one[0].end())
        )
        for clause, one in clauses:
            first, last = clause.start() + start, clause.end() + start
            if first - end > _REACH:
                break
            if (
                first >= match.end()
                and _free(taken, first, last)
                and _take(row, one, clause, values, unread)
            ):
                insort(taken, (first, last))
                end = max(end, last)
    shape, dtype = values.pop("shape", ""), values.pop("dtype", "")
    if shape and dtype in _ELEMENT_BYTES:
        size = _ELEMENT_BYTES[dtype]
        for side in shape.split(","):
            size = min(size * int(side or 1), UNMEASURED_BYTES - 1)
        values["requested"] = Quantity(size, 0, f"[{shape}] of {dtype}")
    return Found(start, end, row, values, tuple(unread), template)


def _take(
    row: Row, template: Template, match: Any, values: dict[str, Any], unread: list[str]
) -> bool:
    """Adds what the groups of a match give; whether any of it is new. Another process's memory goes with its number."""
    new = not template.groups
    pid: int | None = None
    other: Quantity | None = None
    for group, text in match.groupdict().items():
        name, unit = template.groups[group]
        if not name or text is None:
            continue
        if name in grammar.SIZES:
            size = quantity(text + unit.lower(), row.retyped, row.decimal)
            if size is None:
                unread.append(text + unit)
                new = True
            elif name == "other":
                other = size
            elif name not in values:
                values[name] = size
                new = True
        elif name == "pid":
            pid = int(text.replace(",", ""))
        elif name not in values:
            new = True
            values[name] = _plain(name, text, unit)
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
    """``hip``, ``cuda`` or nothing, from the names in a message. HIP first: a ROCm build says "CUDA error: HIPBLAS_..."."""
    hip = r"hip(?:blas|error|solver|sparse|fft|graph|outof|malloc|gpu|failure|_)|rocm|rocblas|hsa_|miopen|rccl|amd|kfd|tensile"
    if re.search(hip, words):
        return "hip"
    return (
        "cuda"
        if re.search(r"cuda|cublas|cudnn|cufft|cusolver|cusparse|nvml|nvidia|nccl", words)
        else ""
    )


def _footers(flat: str) -> list[tuple[int, int, Row]]:
    """What programs print under every failure, and code that a traceback shows: nothing of it happened here."""
    found: list[tuple[int, int, Row]] = []
    for row in grammar.rows():
        if row.event == "footer":
            found += [(match.start(), match.end(), row) for match, _ in _matches(row.forms, flat)]
    return sorted(found, key=lambda one: one[:2])


def _blanked(text: str, spans: Iterable[tuple[int, int]], filler: str = _FILLER) -> str:
    parts, at = [], 0
    for start, end in spans:
        if end > at:
            parts += [text[at : max(at, start)], filler * (end - max(at, start))]
            at = end
    return "".join([*parts, text[at:]]) if parts else text


@lru_cache(16)
def without_footers(text: str) -> str:
    """The text with the standing advice of its programs blanked: it stands under every failure and says nothing of this one.

    Its length and its line breaks stay. Also for texts of any size that no message is read from.
    """
    pieces, flat = squeezed(text, 0, len(text))
    starts = [begin for begin, _ in pieces]
    raw = [
        (raw_place(pieces, starts, start), raw_place(pieces, starts, end - 1) + 1)
        for start, end, _ in _footers(lowered(flat))
    ]
    parts, at = [], 0
    for start, end in raw:
        if end > at:
            start = max(at, start)
            parts += [text[at:start], re.sub(r"[^\n]", " ", text[start:end])]
            at = end
    return "".join([*parts, text[at:]])


# -- any text


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
            says.append(f'{len(self.unread)} sizes are ambiguous or say "not measured": {shown}')
        if self.bare:
            says.append(f"{self.bare} more mentions of out of memory without a number")
        if self.repeats:
            says.append(f"{self.repeats} repeats of the same message")
        if self.over:
            says.append(f"{self.over} more messages after the first {MESSAGES_LIMIT}")
        if self.cut:
            says.append("the text ends inside a message")
        if not found:
            says.append(NOTHING_KNOWN if self.characters else "the text is empty")
        return "; ".join(says)


def read_message(text: str | bytes | Iterable[str]) -> MessageReading:
    """Every failure that a text names, each distinct one once. Never raises; ``text`` may be a stream of lines."""
    notes = _Notes()
    reader = _Reader(notes)
    blocks = _blocks(text, notes)
    block = next(blocks, "")
    while block:
        following = next(blocks, "")
        reader.feed(block, not following)
        block = following
    messages = tuple(reader.kept.values())
    numbered = {message.row for message in messages if message.numbers}
    bare = [
        m
        for m in messages
        if m.event == "refused" and m.side == "device" and m.row in numbered and not m.numbers
    ]
    notes.bare = len(bare)
    messages = tuple(
        sorted((m for m in messages if m not in bare), key=lambda message: message.start)
    )
    return MessageReading(
        messages, notes.line(bool(messages)), bool(notes.stopped or notes.over or notes.cut)
    )


class _Reader:
    """Reads block by block. A message may reach over two blocks: the end of each is read again with the next."""

    def __init__(self, notes: _Notes):
        self.notes = notes
        self.kept: dict[str, Message] = {}
        self.buffer = ""
        self.base = self.covered = 0

    def feed(self, block: str, last: bool) -> None:
        self.buffer += block
        limit = len(self.buffer) if last else len(self.buffer) - _KEPT
        if limit > 0:
            self._scan(limit, last)
            cut = (
                limit
                if last
                else max(self.buffer.rfind("\n", max(0, limit - _KEPT), limit) + 1, limit - _BEFORE)
            )
            self.base, self.buffer = self.base + cut, self.buffer[cut:]

    def _scan(self, limit: int, last: bool) -> None:
        """Keeps the messages that begin before ``limit`` and behind what earlier ones cover."""
        covered = self.covered
        buffer = self.buffer
        whole = last and not self.base and len(buffer) <= _WHOLE
        for start, stop in [(0, len(buffer))] if whole else _regions(lowered(buffer)):
            pieces, joined = squeezed(buffer, start, stop)
            starts = [begin for begin, _ in pieces]
            flat = lowered(joined)
            found: list[tuple[int, int, dict[str, Any], Found | None]] = [
                (
                    raw_place(pieces, starts, one.start),
                    raw_place(pieces, starts, max(one.end - 1, one.start)) + 1,
                    _values(one),
                    one,
                )
                for one in messages_in(flat)
            ]
            events = list(_events(buffer[start:stop], start, self.notes))
            spans = sorted((begin, end) for begin, end, _ in events)
            found = [one for one in found if _free(spans, one[0], one[0] + 1)]
            spans = sorted([*spans, *((one[0], one[1]) for one in found)])
            alone = [
                one for one in _lines(buffer[start:stop], start) if _free(spans, one[0], one[1])
            ]
            found += [(begin, end, values, None) for begin, end, values in (*events, *alone)]
            for begin, end, values, one in sorted(found, key=lambda row: row[:2]):
                if begin < limit and begin + self.base >= covered:
                    self.covered = max(self.covered, end + self.base)
                    self._keep(begin, end, values, one)
                    if one is not None and last and stop == len(buffer):
                        self._note_cut(one, flat)

    def _keep(self, begin: int, end: int, values: dict[str, Any], one: Found | None) -> None:
        notes = self.notes
        if one is not None:
            notes.unread.update(dict.fromkeys(one.unread[:50]) if len(notes.unread) < 50 else ())
        key = repr(sorted(pair for pair in values.items() if pair[1] not in (None, (), "")))
        if key in self.kept:
            notes.repeats += 1
        elif len(self.kept) >= MESSAGES_LIMIT:
            notes.over += 1
        else:
            words = _words(self.buffer[begin : min(end, begin + 4 * WORDS_LIMIT)])
            self.kept[key] = Message(start=begin + self.base, words=words, **values)

    def _note_cut(self, one: Found, flat: str) -> None:
        rest = flat[one.end :]
        values = one.values
        open_end = one.row.clauses and "capacity" in values and "allocated" not in values
        self.notes.cut = bool(open_end and 0 < len(rest.strip(".")) < 60 and rest[-1:] not in ".)")


def _values(one: Found) -> dict[str, Any]:
    row = one.row
    return {
        "row": row.id,
        "program": row.program,
        "side": row.side,
        "event": row.event,
        **one.values,
    }


def _lines(text: str, base: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """What a line says that stands alone, such as a shell's."""
    lower = lowered(text)
    for line in grammar.lines(False):
        values = {"row": line.id, "program": line.program, "side": line.side, "event": line.event}
        at = lower.find(line.literal)
        while at >= 0:
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            end = end if end >= 0 else len(text)
            alone = text[start : min(end, start + _LINE)]
            behind = prefix(alone)
            if line.pattern.search(alone[behind:]):
                yield base + start + behind, base + end, dict(values)
            at = lower.find(line.literal, end)


def _events(text: str, base: int, notes: _Notes) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The lines of a kernel, read by the reader of its log."""
    lower = lowered(text)
    if not any(line.literal in lower for line in grammar.lines(True)):
        return
    # It takes longer to load than a message to read, and few texts need it.
    from helpers.look import kernel_log

    places = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1]
    bare = "\n".join(line[prefix(line) :] for line in text.split("\n"))
    for event in kernel_log.parse(bare) or kernel_log.parse(_joined(bare)):
        row = kernel_log.rule(event.row)
        if row.event != "note":
            notes.repeats += event.count - 1
            at = min(event.line, len(places) - 1)
            yield (
                base + places[at - 1],
                base + min(places[at] - 1, len(text)),
                _of_event(event, row),
            )


def _joined(text: str) -> str:
    """Each line with the next one behind it: a terminal wraps the kernel's long lines anywhere."""
    lines = text.split("\n")
    return "\n".join(one + two for one, two in zip(lines, [*lines[1:], ""]))


def _of_event(event: Event, row: grammar.Line) -> dict[str, Any]:
    values: dict[str, Any] = {
        "row": row.id,
        "program": row.program,
        "side": row.side,
        "event": row.event,
    }
    names = {
        "anon_rss": "process",
        "size": "capacity",
        "gtt": "capacity",
        "ttm": "allowed",
        "usage": "used",
        "limit": "allowed",
    }
    for fact, size in event.facts.items():
        name = names.get(fact[:-6], fact[:-6]) if fact.endswith("_bytes") else ""
        if name in grammar.SIZES and isinstance(size, int):
            values[name] = Quantity(size, 0, f"{size} bytes")
    if event.pid is not None:
        values["pids"] = (event.pid,)
    if event.kind == "xid" and event.detail.isdigit():
        values["code"] = int(event.detail)
    values["name"] = event.process or event.detail
    values["backend"] = "cuda" if event.kind == "xid" else backend_of(event.text.lower())
    return values


def _blocks(source: object, notes: _Notes) -> Iterator[str]:
    """The text in pieces of about a MiB, whatever it came as."""
    pending: list[str] = []
    size = 0
    try:
        for piece in pieces_of(source):
            notes.characters += len(piece)
            notes.not_text += piece.count("\ufffd") + piece.count("\x00")
            pending.append(piece)
            size += len(piece)
            if size >= BLOCK:
                yield "".join(pending)
                pending, size = [], 0
    except Exception as error:  # noqa: BLE001 - the source is the caller's, a file or a generator; what it gave so far counts
        notes.stopped = f"{type(error).__name__}: {str(error)[:120]}"
    if pending:
        yield "".join(pending)


def _regions(lower: str) -> list[tuple[int, int]]:
    """The stretches around words that a known failure has; the rest of a log is not looked at again."""
    hits: list[int] = []
    for anchor in grammar.plain_anchors():
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


def _words(text: str) -> str:
    words = " ".join(COLOUR.sub(" ", text).split())
    return words if len(words) <= WORDS_LIMIT else words[: WORDS_LIMIT - 1] + "…"
