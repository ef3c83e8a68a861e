"""Which failures stand in a squeezed text, and which fields does each give?"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers.ground.tables import data, lazy
from helpers.ground.units import NOT_MEASURED_BYTES, Quantity, quantity
from helpers.look.wordings import SIZES, WHOLE, Template, WordingRow, rows_among

if TYPE_CHECKING:
    Span = tuple[int, int]
    Match = tuple[re.Match[str], Template]

# Squeezed characters.
LONGEST_MESSAGE = 1600
LONGEST_REACH = 320
"""From one clause of a message to the next."""
ADVICE_REACH = 420
"""From a message to the standing advice on it, which names settings and backends."""
REPEAT_REACH = 120
"""From a message to the same thing in other words."""
FILLER = "\x1f"
"""Stands where standing advice was taken out."""
_WORDS = data("look/message_words")
_BACKENDS: dict[str, re.Pattern[str]] = {
    name: lazy(form) for name, form in _WORDS["backends"].items()
}
_ELEMENT_BYTES: dict[str, int] = _WORDS["element bytes"]


class FoundRow(NamedTuple):
    """A row found in a squeezed text: from where to where, the fields it gives, and sizes that
    could not be read.
    """

    start: int
    end: int
    row: WordingRow
    values: dict[str, Any]
    unread: tuple[str, ...]
    template: Template


class Claims:
    """The stretches of a text that messages have taken, no two of which overlap."""

    def __init__(self, spans: Iterable[Span] = ()):
        self._spans = sorted(spans)

    def add(self, start: int, end: int) -> None:
        insort(self._spans, (start, end))

    def are_free_of(self, start: int, end: int) -> bool:
        at = bisect_left(self._spans, (start, end))
        if at > 0 and self._spans[at - 1][1] > start:
            return False
        return at == len(self._spans) or self._spans[at][0] >= end


def messages_in(flat: str) -> tuple[FoundRow, ...]:
    """Every failure in a squeezed text, in its order; what two rows claim belongs to the first
    of them in the table.
    """
    rows = list(rows_among(flat))
    advice = footers(flat, rows)
    flat = blanked(flat, [(start, end) for start, end, _ in advice], FILLER)
    claims = Claims()
    messages: list[FoundRow] = []
    for row in rows:
        if row.event != "footer":
            messages += _messages_of_row(row, flat, claims)
    for message in messages:
        hints = [*message.row.hints, *_hints_near(message, advice)]
        message.values["hints"] = tuple(dict.fromkeys(hints))
        message.values["backend"] = _backend(flat, message)
    return tuple(sorted(messages, key=lambda message: message.start))


def footers(flat: str, rows: Iterable[WordingRow]) -> list[tuple[int, int, WordingRow]]:
    """What programs print under every failure, and code that a traceback shows: nothing of it
    happened here. From where to where, and its row.

    ``rows``: rows_among the text.
    """
    advice = []
    for row in rows:
        if row.event == "footer":
            advice += [(*match.span(), row) for match, _ in _matches(row.forms, flat)]
    return sorted(advice, key=lambda footer: footer[:2])


def blanked(text: str, spans: Iterable[Span], filler: str = " ") -> str:
    """The text with ``filler`` for each character of the stretches but line breaks."""
    parts = []
    at = 0
    for start, end in spans:
        if end > at:
            start = max(at, start)
            parts.append(text[at:start])
            parts.append(re.sub(r"[^\n]", filler, text[start:end]))
            at = end
    return "".join([*parts, text[at:]])


def _hints_near(
    message: FoundRow, advice: list[tuple[int, int, WordingRow]]
) -> list[str]:
    places = [start for start, _, _ in advice]
    first = bisect_left(places, message.start)
    last = bisect_right(places, message.end + ADVICE_REACH)
    hints: list[str] = []
    for _, _, footer in advice[first:last]:
        hints += footer.hints
    return hints


def _messages_of_row(row: WordingRow, flat: str, claims: Claims) -> Iterator[FoundRow]:
    """The messages of one row; ``claims`` grows by what they take.

    A message ends where the next one begins.
    """
    clauses = {clause.text for clause in row.clauses}
    matches = _matches(row.forms, flat)
    heads = [match.start() for match, form in matches if form.text not in clauses]
    previous: FoundRow | None = None
    for match, template in matches:
        if not claims.are_free_of(*match.span()):
            continue
        claims.add(*match.span())
        if previous is not None and _only_repeats(row, template, match, previous):
            continue
        stop = min(match.start() + LONGEST_MESSAGE, len(flat))
        next_head = bisect_left(heads, match.end())
        if next_head < len(heads):
            stop = min(stop, heads[next_head])
        previous = _with_clauses(row, template, match, flat[:stop], claims)
        yield previous


def _only_repeats(
    row: WordingRow, template: Template, match: re.Match[str], previous: FoundRow
) -> bool:
    """Whether a program says in other words what it has just said: none of it new, and not the
    same words again.
    """
    if match.start() - previous.end >= REPEAT_REACH or template is previous.template:
        return False
    fields = _Fields(row)
    fields.take(template, match)
    return all(
        previous.values.get(name) == value for name, value in fields.values.items()
    )


def _matches(templates: Iterable[Template], flat: str) -> list[Match]:
    """Where the templates fit, in the text's order, the longer first where two begin together."""
    matches = []
    for template in templates:
        if template.among(flat):
            matches += [(match, template) for match in template.pattern.finditer(flat)]
    return sorted(matches, key=lambda pair: (pair[0].start(), -pair[0].end()))


def _with_clauses(
    row: WordingRow,
    template: Template,
    match: re.Match[str],
    flat: str,
    claims: Claims,
) -> FoundRow:
    """The fields of a message: its form's, then those of the clauses that follow it, each at
    its first place.
    """
    start, end = match.span()
    fields = _Fields(row)
    fields.take(template, match)
    for clause, clause_template in _matches(row.clauses, flat[start:]):
        clause_start = start + clause.start()
        clause_end = start + clause.end()
        if clause_start - end > LONGEST_REACH:
            break
        if clause_start < match.end():
            continue
        is_free = claims.are_free_of(clause_start, clause_end)
        if is_free and fields.take(clause_template, clause):
            claims.add(clause_start, clause_end)
            end = max(end, clause_end)
    fields.take_array_size()
    return FoundRow(start, end, row, fields.values, tuple(fields.unread), template)


class _Fields:
    """What a message of one row gives, and the sizes in it that could not be read."""

    def __init__(self, row: WordingRow):
        self.row = row
        self.values: dict[str, Any] = {}
        self.unread: list[str] = []

    def take(self, template: Template, match: re.Match[str]) -> bool:
        """Adds what the groups of a match give; whether any of it is new.

        Another process's memory goes with its number.
        """
        before = len(self.values) + len(self.unread)
        pid: int | None = None
        other: Quantity | None = None
        for group, text in match.groupdict().items():
            name, unit = template.groups[group]
            if not name or text is None:
                continue
            if name == "other":
                other = self._size(text, unit)
            elif name == "pid":
                pid = int(text.replace(",", ""))
            elif name in SIZES:
                self._keep(name, self._size(text, unit))
            else:
                self._keep(name, _plain(name, text, unit))
        is_new = not template.groups or len(self.values) + len(self.unread) > before
        if other is not None:
            self._append("others", other)
        # A process whose memory the form gives, too, is kept where that could be read.
        if pid is not None and (other is not None or "{other" not in template.text):
            self._append("pids", pid)
        return is_new or other is not None or pid is not None

    def take_array_size(self) -> None:
        """What was asked for, where a message gives an array's shape and element type."""
        shape = self.values.pop("shape", "")
        dtype = self.values.pop("dtype", "")
        if not shape or dtype not in _ELEMENT_BYTES:
            return
        size = _ELEMENT_BYTES[dtype]
        for side in shape.split(","):
            size = min(size * int(side or 1), NOT_MEASURED_BYTES - 1)
        self.values["requested"] = Quantity(size, 0, f"[{shape}] of {dtype}")

    def _size(self, text: str, unit: str) -> Quantity | None:
        size = quantity(text, unit, retyped=self.row.retyped, decimal=self.row.decimal)
        if size is None or size.bytes >= NOT_MEASURED_BYTES:
            self.unread.append(text + unit)
            return None
        return size

    def _keep(self, name: str, value: object) -> None:
        if name == "capacity" and isinstance(value, Quantity) and not value.bytes:
            self.unread.append(f"a capacity of {value.text}")
        elif value is not None:
            self.values.setdefault(name, value)

    def _append(self, name: str, value: object) -> None:
        self.values[name] = (*self.values.get(name, ()), value)


def _plain(name: str, text: str, unit: str) -> int | float | str:
    """The value of a field that is no size."""
    if name == "share":
        share = float(text.replace(",", "."))
        return share / 100 if unit == "%" else share
    if name == "device" and text < "\t":
        return ord(text)  # torch 2.3 printed the index as a character
    if name in WHOLE:
        return int(text.replace(",", ""))
    return text


def _backend(flat: str, message: FoundRow) -> str:
    """The row's own backend, else the one that the message names, else one just beside it."""
    row = message.row
    if row.backend:
        return row.backend
    exception = flat[message.start : message.start + 80]
    named = re.search("(cuda|hip|xpu)outofmemory", exception)
    if named:
        return named[1]
    end = message.end
    if row.clauses:
        end += ADVICE_REACH
    backend = backend_of(flat[message.start : end])
    if backend or row.event == "option-refused":
        return backend
    return backend_of(flat[max(0, message.start - 60) : message.end + 20])


def backend_of(words: str) -> str:
    """``hip``, ``cuda`` or nothing, from the names in a message.

    HIP first: a ROCm build says "CUDA error: HIPBLAS_...".
    """
    for name, pattern in _BACKENDS.items():
        if pattern.search(words):
            return name
    return ""
