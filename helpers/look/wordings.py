"""The table of failure messages (messages.json): its rows, and the compiler of their forms.

helpers/ground/grammar.py has the language of forms. They are looked for in squeezed text (lower
case, no blanks), so a message that was wrapped at any column reads like a whole one. Every pattern
is bounded, and only the first place that fits is tried behind a gap, so no text makes the reading
slow. A pattern is compiled once the longest words of its form are in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from re import Pattern

from helpers.ground.grammar import (
    Alternatives,
    Field,
    Gap,
    Node,
    anchors,
    outer_anchor,
    parsed,
    squeeze,
)
from helpers.ground.tables import JsonRow, data, lazy

SIZES = frozenset(
    "requested capacity free allowed process allocated reserved_unallocated reserved_total "
    "private_pools non_torch used weights cache buffer other".split()
)
"""The fields that are sizes; ``other`` is what another process holds."""
WHOLE = frozenset("device pid tokens fits_tokens layers rank code".split())
"""The fields that are whole numbers."""
FIELDS = SIZES | WHOLE | {"name", "shape", "dtype", "share"}
UNIT = (
    r"(?:bytes?|octets?|байт|[kmgt]i?b(?:ytes?)?|[kmgt]io|[кмгт]и?б|b(?![a-z])"
    r"|[kmgt]i(?![a-z])|[kmgt](?![a-z]))"
)
NUMBER = r"[0-9][0-9.,']{0,30}(?![0-9.,']{0,30}e[+-]?[0-9])"
"""A number as programs print a size; not the 1 of 1e99."""
SHORTEST = 3
"""Letters of the shortest anchor that a form may have; shorter ones are in most texts."""
_WHOLE_NUMBER = "[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,12}"
_NUMBERS = {
    **dict.fromkeys(WHOLE, _WHOLE_NUMBER),
    # torch 2.3 printed the index as a character, so device 0 is a NUL that most pages drop.
    "device": r"[0-9]{1,3}|[\x00-\x08]",
    "share": "[0-9]{1,9}(?:[.,][0-9]{1,9})?",
    "shape": "[0-9][0-9,]{0,60}",
}


class Template:
    """One form, which is compiled when it is first needed.

    ``groups`` has (field, unit) for each group of ``pattern``, which fills it; both are empty for
    the group of a gap.
    """

    def __init__(self, text: str):
        self.text = text
        self.groups: dict[str, tuple[str, str]] = {}

    @property
    def nodes(self) -> list[Node]:
        return parsed(self.text, FIELDS)

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """Squeezed words of which every text with the form contains one (see grammar.anchors)."""
        outer = outer_anchor(self.text)
        if len(outer) >= SHORTEST:
            return (outer,)
        return anchors(self.nodes)

    @cached_property
    def pattern(self) -> Pattern[str]:
        """The regular expression for squeezed text. Raises ValueError for a text that is no form,
        or has no anchor.
        """
        if max(map(len, self.anchors), default=0) < SHORTEST:
            raise ValueError(
                f"form {self.text!r}: no words that every such message has"
            )
        nodes = self.nodes
        expression = self._sequence(nodes)
        if isinstance(nodes[0], Field) and nodes[0].name in SIZES:
            # It does not begin in the middle of a number.
            expression = "(?<![0-9])(?<![0-9]e)" + expression
        return re.compile(expression, re.DOTALL)

    def among(self, text: str) -> bool:
        """Whether a squeezed text can contain the form at all: a fast test before the slow one."""
        return any(map(text.__contains__, self.anchors))

    def _sequence(self, nodes: list[Node]) -> str:
        """The expression of parts of a form, which are divided at the gaps."""
        expression = ""
        gap = 0  # the letters of the last gap
        behind_gap = ""
        for node in nodes:
            if isinstance(node, Gap):
                expression += self._with_gap(gap, behind_gap)
                gap = node.characters
                behind_gap = ""
            else:
                behind_gap += self._expression(node, is_last=node is nodes[-1])
        if gap and not behind_gap:  # the form ends with a gap
            return f"{expression}.{{0,{gap}}}?"
        return expression + self._with_gap(gap, behind_gap)

    def _with_gap(self, characters: int, behind: str) -> str:
        """A gap and the expression behind it as an atomic group: if what follows does not fit, no
        later place is tried. Python has atomic groups from 3.11 on; before, a lookahead with a
        reference to what it matched is one.
        """
        if not characters or not behind:
            return behind
        name = f"gap_{len(self.groups)}"
        self.groups[name] = ("", "")
        return f"(?=(?P<{name}>.{{0,{characters}}}?{behind}))(?P={name})"

    def _expression(self, node: Node, is_last: bool) -> str:
        """The expression of one part of a form that is no gap."""
        if isinstance(node, Field):
            return self._field(node, is_last)
        if isinstance(node, Alternatives):
            expression = f"(?:{'|'.join(map(self._sequence, node.branches))})"
            if node.optional:
                expression += "?"
            return expression
        # A wrapped line that begins with one of these has lost it, since it may be a mark of
        # quoting.
        words = re.escape(squeeze(str(node)))
        return words.replace(">", ">?").replace(r"\#", r"\#?")

    def _field(self, field: Field, is_last: bool) -> str:
        """The expression of a field, whose group is added to ``groups``. A name ends where the next
        part of the form begins; the last part takes all that it can.
        """
        group = f"{field.name}__{len(self.groups)}"
        self.groups[group] = (field.name, field.unit)
        if field.name in _NUMBERS:
            expression = _NUMBERS[field.name]
        elif field.name not in SIZES:
            expression = r"[\w.:/@+-]{1,80}"
            if not is_last:
                expression += "?"
        elif field.unit:
            expression = NUMBER
        else:
            expression = f"{NUMBER}{UNIT}?"
        return f"(?P<{group}>{expression})"


class Entry:
    """A row of the table: the program that prints it, whose memory it is about (``side``), and what
    happened (``event``).
    """

    def __init__(self, columns: JsonRow):
        self.id: str = columns["id"]
        self.program: str = columns["program"]
        self.side: str = columns["side"]
        self.event: str = columns["event"]


class WordingRow(Entry):
    """A row with forms: one of ``forms`` begins a message, ``clauses`` may follow it.

    ``hints`` are words for what the message means besides. ``decimal``: the program's KB, MB and GB
    are decimal; ``retyped``: it prints none of them, so a person typed them.
    """

    def __init__(self, columns: JsonRow):
        super().__init__(columns)
        self.hints: tuple[str, ...] = tuple(columns.get("hints", ()))
        self.backend: str = columns.get("backend", "")
        self.retyped: bool = columns.get("retyped", False)
        self.decimal: bool = columns.get("decimal", False)
        self.forms = tuple(map(Template, _forms(columns)))
        self.clauses = tuple(map(Template, columns.get("clauses", ())))


class Line(Entry):
    """A row with a regular expression for one line as it is, of the kernel's log or another.

    ``literal`` is a part of every such line, in lower case. ``kind`` and ``detail`` are those of a
    kernel_log.Event.
    """

    def __init__(self, columns: JsonRow):
        super().__init__(columns)
        self.kind: str = columns.get("kind", "")
        self.literal: str = columns["literal"]
        self.detail: str = columns.get("detail", "")
        self.pattern = lazy(columns["pattern"], re.IGNORECASE)


def table() -> tuple[JsonRow, ...]:
    """Every row of messages.json."""
    return tuple(data("look/messages"))


@lru_cache(1)
def _columns() -> dict[str, JsonRow]:
    """The rows of messages.json by their ids."""
    return {columns["id"]: columns for columns in table()}


def meaning(row_id: str) -> str:
    """The meaning of a row's message as a sentence; empty if there is no such row."""
    return str(_columns().get(row_id, {}).get("says", ""))


def form_of(row_id: str, flat: str) -> list[Node]:
    """The parts of the form of a row that a squeezed text has, or of the row's first form; empty
    for a row without forms.
    """
    forms = list(map(Template, _forms(_columns().get(row_id, {}))))
    for template in forms:
        if template.pattern.search(flat):
            return template.nodes
    if forms:
        return forms[0].nodes
    return []


def remedy_of_row(row_id: str) -> str:
    """The remedy (helpers/judge/failures.json) for a message of this row; empty if the one for all
    messages of its failure is right.
    """
    return str(_columns().get(row_id, {}).get("remedy", ""))


@lru_cache(1)
def rows() -> tuple[WordingRow, ...]:
    """The rows with forms, footers included, the most specific first."""
    return tuple(WordingRow(columns) for columns in table() if "pattern" not in columns)


def rows_among(flat: str) -> Iterator[WordingRow]:
    """The rows of which a squeezed text can contain a form, the most specific first."""
    for row in rows():
        if any(form.among(flat) for form in row.forms):
            yield row


def _forms(columns: JsonRow) -> list[str]:
    """The forms of a row; empty for a row with a regular expression."""
    form = columns.get("form", [])
    if isinstance(form, str):
        return [form]
    return list(form)


@lru_cache(2)
def lines(log: bool) -> tuple[Line, ...]:
    """The rows with regular expressions, of the kernel's log if ``log``, else the others."""
    return tuple(
        Line(columns)
        for columns in table()
        if "pattern" in columns and columns.get("log", False) is log
    )


@lru_cache(1)
def plain_anchors() -> tuple[str, ...]:
    """Words in lower case with their blanks, of which every text with a message that is not wrapped
    contains one. Words that contain a shorter one of them are left out.
    """
    words = {line.literal for line in (*lines(log=True), *lines(log=False))}
    for row in rows():
        if row.event != "footer":
            for template in (*row.forms, *row.clauses):
                words.update(anchors(template.nodes, _unwrapped))
    needed: list[str] = []
    for word in sorted(words, key=lambda word: (len(word), word)):
        if not any(shorter in word for shorter in needed):
            needed.append(word)
    return tuple(needed)


def _unwrapped(text: str) -> str:
    """A form's text as it is in a text that is not squeezed."""
    return " ".join(text.lower().split())
