"""A small spreadsheet: rules.json evaluated for one program, release and set of inputs; each
figure keeps its source.

A name is what was given, else the first of its rows that is for the program's family and holds.
A row of three formulas is a range, of which a sheet takes one end: ``low``, ``likely`` or
``high``. A name that nothing gives raises ``Missing``.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pkgutil import get_data
from types import CodeType
from typing import Any

from helpers.ground.units import GIB, MIB

LOW, LIKELY, HIGH = ENDS = ("low", "likely", "high")
MOST = 1 << 62
NEWEST = 999912


@dataclass
class Given:
    """What is known of a server: the ``inputs`` and ``tags`` of a sheet, in words what is
    ``missing`` and what to say beside it (``notes``), and of a log the ``printed`` results
    and how it ended (``fits``).
    """

    program: str
    inputs: dict[str, Any]
    tags: Sequence[str] = ()
    version: str = ""
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    printed: dict[str, Any] = field(default_factory=dict)
    fits: bool | None = None


class Missing(Exception):
    """A name that neither the inputs nor a rule gives; ``why`` where a rule says that there is
    no bound.
    """

    def __init__(self, name: str, why: str = ""):
        self.name = name
        self.why = why


@lru_cache(8)
def table(name: str = "rules") -> dict[str, Any]:
    """What the file NAME.json of this folder holds, with its sources.

    It is shared, so nobody changes it.
    """
    return dict(json.loads(get_data(__name__, f"{name}.json") or b"{}"))


@lru_cache(None)
def compiled(formula: str) -> CodeType:
    """A formula of the table.

    Only the project's own table is ever compiled, and it sees no name but a sheet's.
    """
    return compile(formula, "rules.json", "eval")


@lru_cache(64)
def family_of(program: str) -> str:
    """The family whose rules a program follows; empty where none is known."""
    found = (family for family, names in table()["families"] if re.search(names, program.lower()))
    return str(next(found, ""))


@lru_cache(64)
def date_of(version: str, family: str) -> int:
    """A release as the month it came out in (202511): as written, by build or release number;
    the newest where nothing says so.

    ``before 2025-05`` is the month before; a year alone is its end.
    """
    text = version.lower()
    dates = table()["dates"]
    found = NEWEST
    for word, year in re.findall(r"\b([a-z]{3})[a-z]*[. -]{1,2}(20\d\d)", text):
        text += f" {year}-{dates['words'].get(word, 0):02d}"
    build = re.search(r"\bb(?:uild )?(\d{3,5})\b", text)
    number = build or (family in dates and re.search(r"\b(\d+\.\d+(?:\.\d+)?)", text))
    if month := re.search(r"(20\d\d)-(0[1-9]|1[0-2])", text):
        found = int(month[1] + month[2])
    elif number:
        rows = dates["build" if build else family]
        asked = [*map(int, number[1].split("."))]
        known = [at for one, at in rows if [*map(int, one.split("."))] <= asked]
        found = int([rows[0][1], *known][-1].replace("-", ""))
    elif year := re.search(r"\b20\d\d\b", text):
        found = int(year[0] + "12")
    return found - 1 if "before" in text else found


def listed(value: Any) -> list[float]:
    """One figure or one for each card, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def checked(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are known, of the right kind.

    Raises ValueError in one line for a figure that cannot be one.
    """
    found = {}
    of = table()["inputs"]
    used = {**table()["rules"], **table()["words"]}
    for name, value in inputs.items():
        least = int(name in of["from one"])
        most = 1 if name in of["shares"] else MOST
        figures = value if isinstance(value, list) and value and name in of["lists"] else [value]
        is_word = isinstance(value, str) and name in of["words"]
        if is_word or all(isinstance(n, (int, float)) and least <= n <= most for n in figures):
            found[name] = value.lower() if is_word and name.startswith("kv_type") else value
        elif value is not None and name in used:
            expected = f"expected {least} to {most}, or null where it is not known"
            raise ValueError(f"inputs: {name[:40]!r} is {value!r:.40}; {expected}")
    return found


def element_bytes(kind: str) -> float:
    """Bytes of an element of a cache of that type. Raises Missing."""
    known = table()["element_bytes"]
    if kind not in known:
        raise Missing(kind, f"type of the cache {kind[:40]!r}: not known, {', '.join(known)} are")
    return float(known[kind])


def layers_in(cards: Any, fixed: float, first: float, one: float, last: float, count: int) -> int:
    """How many of ``count`` layers of a size, and of a last one, cards hold beside what is
    fixed on each and on the first.
    """
    rooms = [max(0, size - fixed - first * (at == 0)) for at, size in enumerate(listed(cards))]
    held = sum(int(room // one) for room in rooms)
    lost = min(int(room // one) - (room - last) // one for room in rooms)
    return count + (held - lost >= count) if held >= count else held


def fullest_card(cards: Any, shares: Any, fixed: float, one: float, count: int, off: int) -> float:
    """What layers of a size leave on the fullest card, were its count ``off`` less.

    Raises TypeError.

    A layer goes to the first card whose share, added up, passes the layer's place among all.
    """
    ends = [at / sum(shares) for at in accumulate(shares)]
    held = Counter(bisect_right(ends[:-1], at / count) for at in range(count))
    return min(cards[at] - fixed - max(0, n - off) * one for at, n in held.items())


FUNCTIONS: dict[str, Any] = {
    "b": element_bytes,
    "longest": lambda sizes, of: sum(n for n, m in zip(sizes, of, strict=True) if m == max(of)),
    "up": lambda size, step: -(-size // step),
    "pad": lambda size, step: -(-size // step) * step,
    **{one.__name__: one for one in (layers_in, fullest_card, listed, len, max, min, sum, int)},
    **{"GIB": GIB, "MIB": MIB},
}
"""What formulas may use beside names."""


class Sheet:
    """The figures of one program, release and set of inputs, at one end of their ranges."""

    def __init__(
        self, program: str, version: str, inputs: dict[str, Any], tags: Any = (), end: str = LIKELY
    ):
        self.program = program.lower()
        self.version = version
        self.inputs = dict(inputs)
        self.tags = tuple(tags)
        self.end = end
        first = family_of(program)
        date = date_of(version, first)
        since, later = table()["becomes"].get(first, (date, first))
        self.family = later if date >= since else first
        self._open = list[str]()
        self.sources = dict[str, str]()
        own = {"given": self._given, "may": lambda name: self.lacks(name) is None, "date": date}
        own.update(program=self.program, family=self.family, tags=self.tags, version=version)
        self._made: dict[str, Any] = {**FUNCTIONS, **own}

    def at(self, changed: Mapping[str, Any]) -> Sheet:
        """The same sheet with other inputs."""
        asked = {"n_ctx_asked": self.value("n_ctx"), **self.inputs}
        return Sheet(self.program, self.version, {**asked, **changed}, self.tags, self.end)

    def __getitem__(self, name: str) -> Any:
        """The value of a name. Raises Missing."""
        if self._given(name):
            return self.inputs[name]
        if name not in self._made:
            self._made[name] = self._ruled(name)
        return self._made[name]

    def value(self, formula: str) -> Any:
        """The value of a name or a formula, None where nothing gives it."""
        return None if self.lacks(formula) else self._evaluated(formula)

    def lacks(self, formula: str) -> Missing | None:
        """What nothing gives and a formula needs."""
        try:
            self._evaluated(formula)
        except Missing as missing:
            return missing
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return Missing(formula)  # a word where a figure belongs, or nothing to divide by
        return None

    def _given(self, name: str) -> bool:
        return self.inputs.get(name) is not None

    def _ruled(self, name: str) -> Any:
        if name in self._open:
            raise Missing(name)
        self._open.append(name)
        try:
            for row in table()["rules"].get(name, ()):
                mine = row.get("for", self.family) == self.family
                if mine and ("when" not in row or self._evaluated(row["when"])):
                    self.sources[name] = row["source"]
                    ends = row["is"] if isinstance(row["is"], list) else [row["is"]] * len(ENDS)
                    if (formula := ends[ENDS.index(self.end)]) is None:
                        raise Missing(name, row["source"])
                    return self._evaluated(formula)
            raise Missing(name)
        finally:
            self._open.pop()

    def _evaluated(self, formula: str) -> Any:
        found = eval(compiled(formula), {"__builtins__": {}}, self)  # type: ignore[arg-type]
        if isinstance(found, float) and not math.isfinite(found):
            raise Missing(formula)
        return found
