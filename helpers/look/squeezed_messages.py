"""Finds the failures in a squeezed text (helpers/look/squeezed.py), and reads the fields of each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from helpers.ground.tables import JsonRow, data, lazy
from helpers.ground.units import NOT_MEASURED_BYTES, Quantity, quantity
from helpers.look.wordings import SIZES, WHOLE, Template, WordingRow, rows_among

if TYPE_CHECKING:
    Span = tuple[int, int]
    Match = tuple[re.Match[str], Template]

# Distances in letters of squeezed text, chosen so that the longest messages of messages.json fit
# and the next message of a log is not taken for a part of this one.
LONGEST_MESSAGE = 1600
LONGEST_REACH = 320
"""From one clause of a message to the next."""
ADVICE_REACH = 420
"""From a message to the advice that its program prints below it, which names settings and backends.
"""
REPEAT_REACH = 120
"""From a message to the same message in other words."""
BACKEND_BEFORE = 60
BACKEND_BEHIND = 20
"""Before and behind a message, where a word names its backend if it does not itself."""
EXCEPTION_LETTERS = 80
"""At the start of a message, where the name of an exception stands."""
FILLER = "\x1f"
"""A letter of no message, in place of each letter of a program's advice."""
_WORDS = data("look/message_words")
_BACKENDS: dict[str, re.Pattern[str]] = {
    name: lazy(form) for name, form in _WORDS["backends"].items()
}
_ELEMENT_BYTES: dict[str, int] = _WORDS["element bytes"]


class FoundRow(NamedTuple):
    """A message in a squeezed text: its place, its row of messages.json, the form that it has, the
    values of its fields by their names, and sizes that could not be read.
    """

    start: int
    end: int
    row: WordingRow
    values: JsonRow
    unread: tuple[str, ...]
    template: Template


class Claims:
    """The stretches of a text that belong to a message, no two of which overlap."""

    def __init__(self, spans: Iterable[Span] = ()):
        self._spans = sorted(spans)

    def add(self, start: int, end: int) -> None:
        insort(self._spans, (start, end))

    def are_free_of(self, start: int, end: int) -> bool:
        """Whether a stretch overlaps none of them."""
        index = bisect_left(self._spans, (start, end))
        if index > 0 and self._spans[index - 1][1] > start:
            return False
        return index == len(self._spans) or self._spans[index][0] >= end


def messages_in(flat: str) -> tuple[FoundRow, ...]:
    """Every failure in a squeezed text, in its order. What two rows claim belongs to the first one
    in the table.
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
    """(start, end, row) of the advice that programs print under every failure, and of code that a
    traceback shows: they tell nothing about this failure. ``rows`` are the rows_among the text.
    """
    advice = []
    for row in rows:
        if row.event == "footer":
            advice += [(*match.span(), row) for match, _ in _matches(row.forms, flat)]
    return sorted(advice, key=lambda footer: footer[:2])


def blanked(text: str, spans: Iterable[Span], filler: str = " ") -> str:
    """The text with ``filler`` in place of each character of the stretches, except line breaks. The
    stretches are sorted and may overlap.
    """
    parts = []
    done = 0
    for start, end in spans:
        if end > done:
            start = max(done, start)
            parts.append(text[done:start])
            parts.append(re.sub(r"[^\n]", filler, text[start:end]))
            done = end
    return "".join([*parts, text[done:]])


def _hints_near(
    message: FoundRow, advice: list[tuple[int, int, WordingRow]]
) -> list[str]:
    """The hints of the advice within a message, and below it within ADVICE_REACH."""
    places = [start for start, _, _ in advice]
    first = bisect_left(places, message.start)
    last = bisect_right(places, message.end + ADVICE_REACH)
    hints: list[str] = []
    for _, _, footer in advice[first:last]:
        hints += footer.hints
    return hints


def _messages_of_row(row: WordingRow, flat: str, claims: Claims) -> Iterator[FoundRow]:
    """The messages of one row, whose stretches are added to ``claims``. A message goes on to the
    start of the next one at most.
    """
    clauses = {clause.text for clause in row.clauses}
    matches = _matches(row.forms, flat)
    # A form that is also a clause may continue a message, so it does not end one.
    starts = [match.start() for match, form in matches if form.text not in clauses]
    previous: FoundRow | None = None
    for match, template in matches:
        if not claims.are_free_of(*match.span()):
            continue
        claims.add(*match.span())
        if previous is not None and _only_repeats(row, template, match, previous):
            continue
        stop = min(match.start() + LONGEST_MESSAGE, len(flat))
        next_start = bisect_left(starts, match.end())
        if next_start < len(starts):
            stop = min(stop, starts[next_start])
        previous = _with_clauses(row, template, match, flat[:stop], claims)
        yield previous


def _only_repeats(
    row: WordingRow, template: Template, match: re.Match[str], previous: FoundRow
) -> bool:
    """Whether a match says in other words what ``previous``, just before it, said: with another
    form and no new value. The same form again is another failure.
    """
    if match.start() - previous.end >= REPEAT_REACH or template is previous.template:
        return False
    fields = _Fields(row)
    fields.take(template, match)
    return all(
        previous.values.get(name) == value for name, value in fields.values.items()
    )


def _matches(templates: Iterable[Template], flat: str) -> list[Match]:
    """The matches of templates in the order of the text; of two at one place the longer first."""
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
    """The message that begins with ``match``, with the fields of the clauses that follow it in
    ``flat``, which ends where the message must end.
    """
    start, end = match.span()
    fields = _Fields(row)
    fields.take(template, match)
    for clause, clause_template in _matches(row.clauses, flat[start:]):
        clause_start = start + clause.start()
        clause_end = start + clause.end()
        if clause_start - end > LONGEST_REACH:
            break
        if clause_start < match.end():  # a part of the form itself
            continue
        is_free = claims.are_free_of(clause_start, clause_end)
        if is_free and fields.take(clause_template, clause):
            claims.add(clause_start, clause_end)
            end = max(end, clause_end)
    fields.take_array_size()
    return FoundRow(start, end, row, fields.values, tuple(fields.unread), template)


class _Fields:
    """The values of a message's fields by their names, and the sizes in it that could not be read."""

    def __init__(self, row: WordingRow):
        self.row = row
        self.values: JsonRow = {}
        self.unread: list[str] = []

    def take(self, template: Template, match: re.Match[str]) -> bool:
        """Add the fields of a match; those that are there already keep their values. Returns
        whether there was anything new.
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
        is_new = len(self.values) + len(self.unread) > before
        if other is not None:
            self._append("others", other)
        # The numbers and the sizes of other processes belong together in their order: without a
        # size that could be read, the number is left out, too.
        lacks_size = other is None and "{other" in template.text
        if pid is not None and not lacks_size:
            self._append("pids", pid)
        has_no_fields = not template.groups
        return has_no_fields or is_new or other is not None or pid is not None

    def take_array_size(self) -> None:
        """Replace an array's shape and element type with the size that was requested for it."""
        shape = self.values.pop("shape", "")
        dtype = self.values.pop("dtype", "")
        if not shape or dtype not in _ELEMENT_BYTES:
            return
        size = _ELEMENT_BYTES[dtype]
        for side in filter(None, shape.split(",")):
            # The sides of a hostile text would make a number of a million digits.
            size = min(size * int(side), NOT_MEASURED_BYTES - 1)
        self.values["requested"] = Quantity(size, 0, f"[{shape}] of {dtype}")

    def _size(self, text: str, unit: str) -> Quantity | None:
        """A size; None if it cannot be read or stands for "not measured", which is then noted."""
        size = quantity(text, unit, retyped=self.row.retyped, decimal=self.row.decimal)
        if size is None or size.bytes >= NOT_MEASURED_BYTES:
            self.unread.append(text + unit)
            return None
        return size

    def _keep(self, name: str, value: object) -> None:
        """Set a field that has no value yet. A card of 0 bytes was not measured."""
        if name == "capacity" and isinstance(value, Quantity) and not value.bytes:
            self.unread.append(f"a capacity of {value.text}")
        elif value is not None:
            self.values.setdefault(name, value)

    def _append(self, name: str, value: object) -> None:
        self.values[name] = (*self.values.get(name, ()), value)


def _plain(name: str, text: str, unit: str) -> int | float | str:
    """The value of a field that is no size: a share from 0 to 1, a whole number, or text."""
    if name == "share":
        share = float(text.replace(",", "."))
        if unit == "%":
            share /= 100
        return share
    if name == "device" and text < "\t":
        return ord(text)  # torch 2.3 printed the index as a character
    if name in WHOLE:
        return int(text.replace(",", ""))
    return text


def _backend(flat: str, message: FoundRow) -> str:
    """The backend of the row; else the one that the message or the advice below it names; else one
    that is named beside it.
    """
    row = message.row
    if row.backend:
        return row.backend
    exception = flat[message.start : message.start + EXCEPTION_LETTERS]
    named = re.search("(cuda|hip|xpu)outofmemory", exception)
    if named:
        return named[1]
    end = message.end
    if row.clauses:
        end += ADVICE_REACH
    backend = backend_of(flat[message.start : end])
    # A refused option is a warning in a line of its own: words beside it are of another message.
    if backend or row.event == "option-refused":
        return backend
    before = max(0, message.start - BACKEND_BEFORE)
    return backend_of(flat[before : message.end + BACKEND_BEHIND])


def backend_of(words: str) -> str:
    """The backend that words in lower case name, such as ``hip`` or ``cuda``; empty if they name
    none.

    HIP is the first in the table: a ROCm build says "CUDA error: HIPBLAS_...".
    """
    for name, pattern in _BACKENDS.items():
        if pattern.search(words):
            return name
    return ""
