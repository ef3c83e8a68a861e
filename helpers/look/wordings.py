"""The table of failure messages (messages.json): its rows, and the compiler of their forms.

A form (helpers/ground/grammar.py has the language) is read on squeezed text (lower case, no
blanks), so a message wrapped at any column reads like a whole one. Every pattern is bounded, and
what follows a gap is the first place that fits, so no text makes the reading slow. A pattern is
compiled when its row's longest words stand in a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from re import Pattern
from typing import Any

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
from helpers.ground.tables import data, lazy

SIZES = frozenset(
    "requested capacity free allowed process allocated reserved_unallocated reserved_total "
    "private_pools non_torch used weights cache buffer other".split()
)
WHOLE = frozenset("device pid tokens fits_tokens layers rank code".split())
FIELDS = SIZES | WHOLE | {"name", "shape", "dtype", "share"}
UNIT = (
    r"(?:bytes?|octets?|байт|[kmgt]i?b(?:ytes?)?|[kmgt]io|[кмгт]и?б|b(?![a-z])"
    r"|[kmgt]i(?![a-z])|[kmgt](?![a-z]))"
)
NUMBER = r"[0-9][0-9.,']{0,30}(?![0-9.,']{0,30}e[+-]?[0-9])"
"""A number as programs print a size: 1e99 is none, and its 1 is not the size."""
SHORTEST = 3
"""Letters of the shortest words that a form may be looked for by."""
_WHOLE_NUMBER = "[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,12}"
_NUMBERS = {
    **dict.fromkeys(WHOLE, _WHOLE_NUMBER),
    # torch 2.3 printed the index as a character, so device 0 is a NUL that most pages drop.
    "device": r"[0-9]{1,3}|[\x00-\x08]",
    "share": "[0-9]{1,9}(?:[.,][0-9]{1,9})?",
    "shape": "[0-9][0-9,]{0,60}",
}


class Template:
    """One form, compiled when it is first needed.

    ``groups``, which ``pattern`` fills: the field and the unit of each group of the pattern; empty
    for the group of a gap.
    """

    def __init__(self, text: str):
        self.text = text
        self.groups: dict[str, tuple[str, str]] = {}

    @property
    def nodes(self) -> list[Node]:
        return parsed(self.text, FIELDS)

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """Squeezed words of which one stands in every text that fits."""
        outer = outer_anchor(self.text)
        if len(outer) >= SHORTEST:
            return (outer,)
        return anchors(self.nodes)

    @cached_property
    def pattern(self) -> Pattern[str]:
        """Raises ValueError for a text that is no form, or has no words that every such message
        has.
        """
        if max(map(len, self.anchors), default=0) < SHORTEST:
            raise ValueError(
                f"form {self.text!r}: no words that every such message has"
            )
        nodes = self.nodes
        expression = self._sequence(nodes)
        if isinstance(nodes[0], Field) and nodes[0].name in SIZES:
            # Not from the middle of a number on.
            expression = "(?<![0-9])(?<![0-9]e)" + expression
        return re.compile(expression, re.DOTALL)

    def among(self, text: str) -> bool:
        """Whether a squeezed text can hold it at all."""
        return any(map(text.__contains__, self.anchors))

    def _sequence(self, nodes: list[Node]) -> str:
        """The expression of nodes; what follows a gap is looked for at its first place alone."""
        expression = ""
        gap = 0
        behind_gap = ""
        for node in nodes:
            if isinstance(node, Gap):
                expression += self._with_gap(gap, behind_gap)
                gap = node.characters
                behind_gap = ""
            else:
                behind_gap += self._expression(node, is_last=node is nodes[-1])
        if gap and not behind_gap:
            return f"{expression}.{{0,{gap}}}?"
        return expression + self._with_gap(gap, behind_gap)

    def _with_gap(self, characters: int, behind: str) -> str:
        """A gap and what stands behind it, as an atomic group, which is not tried again at a later
        place. Python has these from 3.11 on; before, a lookahead and what it saw is one.
        """
        if not characters or not behind:
            return behind
        name = f"gap_{len(self.groups)}"
        self.groups[name] = ("", "")
        return f"(?=(?P<{name}>.{{0,{characters}}}?{behind}))(?P={name})"

    def _expression(self, node: Node, is_last: bool) -> str:
        if isinstance(node, Field):
            return self._field(node, is_last)
        if isinstance(node, Alternatives):
            expression = f"(?:{'|'.join(map(self._sequence, node.branches))})"
            if node.optional:
                expression += "?"
            return expression
        # A wrapped line that begins with one of these has lost it: there it is a quoting mark.
        words = re.escape(squeeze(str(node)))
        return words.replace(">", ">?").replace(r"\#", r"\#?")

    def _field(self, field: Field, is_last: bool) -> str:
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
    """A row of the table: ``program``, whose memory it is about (``side``), and what happened
    (``event``).
    """

    def __init__(self, columns: Mapping[str, Any]):
        self.id: str = columns["id"]
        self.program: str = columns["program"]
        self.side: str = columns["side"]
        self.event: str = columns["event"]


class WordingRow(Entry):
    """A row of wordings: ``forms`` begin a message, ``clauses`` are looked for behind one."""

    def __init__(self, columns: Mapping[str, Any]):
        super().__init__(columns)
        self.hints: tuple[str, ...] = tuple(columns.get("hints", ()))
        self.backend: str = columns.get("backend", "")
        self.retyped: bool = columns.get("retyped", False)
        self.decimal: bool = columns.get("decimal", False)
        self.forms = tuple(map(Template, _forms(columns)))
        self.clauses = tuple(map(Template, columns.get("clauses", ())))


class Line(Entry):
    """A row that is a regular expression for one raw line: the kernel's, or a line that stands
    alone.
    """

    def __init__(self, columns: Mapping[str, Any]):
        super().__init__(columns)
        self.kind: str = columns.get("kind", "")
        self.literal: str = columns["literal"]
        self.detail: str = columns.get("detail", "")
        self.pattern = lazy(columns["pattern"], re.IGNORECASE)


def table() -> tuple[dict[str, Any], ...]:
    """Every row of messages.json as it is written."""
    return tuple(data("look/messages"))


@lru_cache(1)
def _columns() -> dict[str, dict[str, Any]]:
    return {columns["id"]: columns for columns in table()}


def meaning(row_id: str) -> str:
    """What the message of a row means, one plain sentence; empty for a row that is not there."""
    return str(_columns().get(row_id, {}).get("says", ""))


def form_of(row_id: str, flat: str) -> list[Node]:
    """The form of a row that a squeezed text has, else its first, as its program prints it; empty
    for a row that has none.
    """
    forms = list(map(Template, _forms(_columns().get(row_id, {}))))
    for template in forms:
        if template.pattern.search(flat):
            return template.nodes
    for template in forms:
        return template.nodes
    return []


def remedy_of_row(row_id: str) -> str:
    """The remedy (helpers/judge/failures.json) that the program of a row asks for; empty where
    the failure's own will do.
    """
    return str(_columns().get(row_id, {}).get("remedy", ""))


@lru_cache(1)
def rows() -> tuple[WordingRow, ...]:
    """The wordings, the more telling first; the footers among them."""
    return tuple(WordingRow(columns) for columns in table() if "pattern" not in columns)


def rows_among(flat: str) -> Iterator[WordingRow]:
    """The wordings of which one form can stand in a squeezed text, the more telling first."""
    for row in rows():
        if any(form.among(flat) for form in row.forms):
            yield row


def _forms(columns: Mapping[str, Any]) -> list[str]:
    """The forms of a row; none of a row whose message is read by a pattern."""
    form = columns.get("form", [])
    if isinstance(form, str):
        return [form]
    return list(form)


@lru_cache(2)
def lines(log: bool) -> tuple[Line, ...]:
    """The rows for raw lines: those of the kernel's log, or the others."""
    return tuple(
        Line(columns)
        for columns in table()
        if "pattern" in columns and columns.get("log", False) is log
    )


@lru_cache(1)
def plain_anchors() -> tuple[str, ...]:
    """Words in lower case, blanks and all, one of which stands in every text that holds a message
    unwrapped. Of two words that contain each other the shorter is enough.
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
    return " ".join(text.lower().split())
