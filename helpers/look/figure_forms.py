"""The forms in which tools print sizes of memory (figures.json), compiled to regular expressions.

helpers/ground/grammar.py has the language of forms. Here case does not matter, and a blank stands
for any white space. Fields are sizes (``total used free limit wanted reserved``; ``{free@ram}`` is
about another pool than the row's), ``{device}`` is an index, and others are matched and not used:
``{gap}`` up to 24 characters without a digit, ``{_}`` the punctuation between a key and its value,
``{word}``, ``{pid}``, ``{share}`` and ``{other}``. Sizes in KB, MB or GB are binary.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from re import Pattern
from typing import NamedTuple

from helpers.ground.grammar import (
    Alternatives,
    Field,
    Gap,
    Node,
    anchors,
    parsed,
)
from helpers.ground.tables import JsonRow, data

SIZES = ("total", "used", "free", "limit", "wanted", "reserved")
# A number with its unit, perhaps in quotes or brackets, or the words for "not measured". Each @ is
# replaced with the name of the size's group: @printed has all of it, @ the number, @unit the unit.
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
"""The expressions of the fields that are no sizes."""
FIELDS = frozenset((*SIZES, *_PASSED_OVER))


class Size(NamedTuple):
    """A size of a form: the group of its number in the expression, its measure (one of SIZES), and
    its pool of memory.
    """

    group: str
    measure: str
    pool: str


class FigureForm:
    """A row of figures.json.

    ``unit`` is that of a number without one, ``sources`` are the tools whose output may have the
    form. ``each``: the form has no index, its first match is about device 0, the next about device
    1. ``inside``: it may begin within a word.
    """

    def __init__(self, row: JsonRow):
        self.id: str = row["id"]
        self.form: str = row["form"]
        self.pool: str = row["pool"]
        self.unit: str = row.get("unit", "")
        self.sources = tuple(map(str.lower, row.get("of", ())))
        self.each: bool = row.get("each", False)
        self.inside: bool = row.get("inside", False)
        self.sizes: list[Size] = []
        self._nodes = parsed(self.form, FIELDS)
        self._anchors = anchors(self._nodes, _longest_word)

    def among(self, lower: str) -> bool:
        """Whether a text in lower case can contain the form at all: a fast test before the slow
        one.
        """
        return not self._anchors or any(map(lower.__contains__, self._anchors))

    def is_of(self, source: str) -> bool:
        """Whether the row is for a source with that name in lower case: one of ``sources`` is a
        part of the name, or, if it begins with ``=``, the whole name.
        """
        if not self.sources or f"={source}" in self.sources:
            return True
        return any(word in source for word in self.sources)

    @cached_property
    def pattern(self) -> Pattern[str]:
        """The compiled form; ``sizes`` is filled meanwhile."""
        # A form does not begin in the middle of a word or of a number.
        before = ""
        if self.form[0].isalnum() and not self.inside:
            before = r"(?<![\w.-])"
        elif self.form[0] == "{":
            before = r"(?<![\w.,-])"
        return re.compile(before + self._sequence(self._nodes), re.IGNORECASE)

    def _sequence(self, nodes: list[Node]) -> str:
        return "".join(map(self._expression, nodes))

    def _expression(self, node: Node) -> str:
        """The regular expression of one part of the form."""
        if isinstance(node, Gap):
            character = r"[^\n]"
            if node.over_lines:
                character = r"[\s\S]"
            return f"{character}{{0,{node.characters}}}?"
        if isinstance(node, Field):
            if node.name in _PASSED_OVER:
                return _PASSED_OVER[node.name]
            return self._size(node)
        if isinstance(node, Alternatives):
            expression = f"(?:{'|'.join(map(self._sequence, node.branches))})"
            if node.optional:
                expression += "?"
            return expression
        words = map(re.escape, re.split(" +", node))
        return r"\s{0,40}".join(words)  # tools pad their columns

    def _size(self, field: Field) -> str:
        """The expression of a size, which it adds to ``sizes``."""
        pool = field.pool
        if not pool:
            pool = self.pool
        size = Size(f"size{len(self.sizes)}", field.name, pool)
        self.sizes.append(size)
        return _NUMBER.replace("@", size.group)


def _longest_word(text: str) -> str:
    return max(text.lower().split(), key=len, default="")


def rows() -> tuple[JsonRow, ...]:
    """The table figures.json, with the keys id, form, pool, unit, of, each, inside, example, reads
    and source.
    """
    return tuple(data("look/figures"))


@lru_cache(maxsize=1)
def figure_forms() -> tuple[FigureForm, ...]:
    """Every row in the table's order, the most specific form first: a number belongs to the first
    form that it fits.
    """
    return tuple(map(FigureForm, rows()))
