"""The table of what tools print about memory (figures.json): its rows, and their forms compiled.

The language of forms is helpers/ground/grammar.py's. Case does not matter and a blank stands for
any white space. Fields are sizes (``total used free limit wanted reserved``; ``{free@ram}`` is of
another pool than the row's), ``{device}`` an index, and what is passed over: ``{gap}`` up to 24
characters without a digit, ``{_}`` the punctuation between a key and its value, ``{word}``,
``{pid}``, ``{share}`` and ``{other}``. Sizes that a tool prints with KB, MB or GB are binary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from re import Pattern
from typing import Any, NamedTuple

from helpers.ground.grammar import (
    Alternatives,
    Field,
    Gap,
    Node,
    anchors,
    parsed,
)
from helpers.ground.tables import data

SIZES = ("total", "used", "free", "limit", "wanted", "reserved")
_NUMBER = (
    r"[\[\"'(]{0,3}(?P<@printed>(?P<@>-?\d{1,20}(?:,\d{3}){0,6}(?:\.\d{1,9})?) ?"
    r"(?P<@unit>[kmgt](?:i?b(?:ytes?)?|i)?|bytes?|b|pages)?(?![\w%]|\.\d)"
    r"|\[?n/a\]?|not supported)[\]\"']{0,2}"
)
_PASSED_OVER = {
    "gap": r"[^\d\n]{0,24}?",
    "_": r"[\s\"':,={\[>-]{0,60}",
    "word": r"\"?[\w:./-]{1,40}\"?",
    "device": r"(?P<device>\d{1,3})",
    "pid": r"\b\d{1,9}\b",
    "share": r"[\d.]{1,12}",
    "other": r"\d[\w.]{0,20}",
}
FIELDS = frozenset((*SIZES, *_PASSED_OVER))


class Size(NamedTuple):
    """A size of a form: the group of its number, its measure (one of SIZES), and of which pool it is."""

    group: str
    measure: str
    pool: str


class FigureForm:
    """A row of figures.json.

    ``each``: the first match is of device 0, the next of device 1.
    """

    def __init__(self, row: Mapping[str, Any]):
        self.id: str = row["id"]
        self.form: str = row["form"]
        self.pool: str = row["pool"]
        self.unit: str = row.get("unit", "")
        self.sources: tuple[str, ...] = tuple(
            word.lower() for word in row.get("of", ())
        )
        self.each: bool = row.get("each", False)
        self.inside: bool = row.get("inside", False)
        self.sizes: list[Size] = []
        self._nodes = parsed(self.form, FIELDS)
        self._anchors = anchors(self._nodes, _longest_word)

    def among(self, lower: str) -> bool:
        """Whether a text in lower case can hold the form at all."""
        return not self._anchors or any(map(lower.__contains__, self._anchors))

    def is_of(self, source: str) -> bool:
        """Whether the row is for a source of that name: a word of it, or with ``=`` the whole
        name.
        """
        for word in self.sources:
            if word.startswith("="):
                is_named = source == word[1:]
            else:
                is_named = word in source
            if is_named:
                return True
        return not self.sources

    @cached_property
    def pattern(self) -> Pattern[str]:
        """The compiled form; sets ``sizes``."""
        before = ""
        if self.form[0].isalnum() and not self.inside:
            before = r"(?<![\w.-])"
        elif self.form[0] == "{":
            before = r"(?<![\w.,-])"
        return re.compile(before + self._sequence(self._nodes), re.IGNORECASE)

    def _sequence(self, nodes: list[Node]) -> str:
        return "".join(map(self._expression, nodes))

    def _expression(self, node: Node) -> str:
        if isinstance(node, Gap):
            character = r"[\s\S]" if node.over_lines else r"[^\n]"
            return f"{character}{{0,{node.characters}}}?"
        if isinstance(node, Field):
            return _PASSED_OVER.get(node.name) or self._size(node)
        if isinstance(node, Alternatives):
            expression = f"(?:{'|'.join(map(self._sequence, node.branches))})"
            if node.optional:
                expression += "?"
            return expression
        return r"\s{0,40}".join(map(re.escape, re.split(" +", node)))

    def _size(self, field: Field) -> str:
        size = Size(f"size{len(self.sizes)}", field.name, field.pool or self.pool)
        self.sizes.append(size)
        return _NUMBER.replace("@", size.group)


def _longest_word(text: str) -> str:
    return max(text.lower().split(), key=len, default="")


def rows() -> tuple[Mapping[str, Any], ...]:
    """The table as it is written: id, form, pool, unit, example, reads, source."""
    return tuple(data("look/figures"))


@lru_cache(maxsize=1)
def figure_forms() -> tuple[FigureForm, ...]:
    """Every row, in the table's order: a number belongs to the first that takes it."""
    return tuple(map(FigureForm, rows()))
