"""The contracts of the core: what a reading, a verdict and an answer about TTM hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Dict,
    List,
    Literal,
    Optional,
    Union,
    get_args,
)

from helpers.ground.contract import FIRST, LAST, SCHEMA_VERSION, Shape
from helpers.ground.tables import data
from helpers.ground.units import cut, plain, show_bytes

OK = "ok"
NOT_AVAILABLE = "not_available"
NOT_ALLOWED = "not_allowed"
STATUSES = (OK, NOT_AVAILABLE, NOT_ALLOWED)
UNITS = ("bytes", "pages", "count", "text")


@lru_cache(maxsize=None)
def causes() -> Dict[str, Dict[str, str]]:
    """Each cause in a reader's words (causes.json): ``says`` is a sentence, ``name`` stands in
    a cell of a table.
    """
    rows: Dict[str, Dict[str, str]] = data("ground/causes")
    return rows


if TYPE_CHECKING:
    Cause = str
else:  # what causes.json names, which is also what a JSON Schema and a reader of JSON are told
    Cause = Literal[tuple(name for name in causes() if name != "healthy")]
CAUSES: tuple[str, ...] = get_args(Cause)
Confidence = Literal["confirmed", "likely", "weak"]
State = Literal["", "healthy", "aside"]
Layer = Literal[
    "carveout",
    "ram",
    "ttm",
    "gtt",
    "kfd_bank",
    "kfd_limit",
    "hsa_pool",
    "hip_total",
    "fraction",
    "cgroup",
    "ulimit",
]
Outcome = Literal["ok", "oom", "crashed", "hung", "stuck", "host_oom"]
VERDICT_MIME = "application/vnd.casebook.verdict+json"
"""Under which a notebook emits its verdict."""


@dataclass(frozen=True)
class Reading:
    """A value with its unit and source.

    ``value`` is None exactly when ``status`` is not ``ok``; then ``why`` says why.

    ``source`` is what a person would look at (a path or a command line); ``item`` is the id of
    the evidence item it came from.
    """

    __pydantic_config__ = {"extra": "forbid"}

    value: Union[int, float, str, None]
    unit: str
    status: str
    why: str
    source: str
    item: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(
                "unit {!r}: expected one of {}".format(self.unit, ", ".join(UNITS))
            )
        if self.status not in STATUSES:
            raise ValueError(
                f"status {self.status!r}: expected one of {', '.join(STATUSES)}"
            )
        if (self.value is None) is (self.status == OK):
            raise ValueError(
                f"status {self.status!r} does not go with value {self.value!r}"
            )
        if self.status != OK and not self.why:
            raise ValueError(f"a reading without a value says why ({self.source})")

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def bytes(self) -> int:
        """The value as a whole number, 0 where there is none."""
        return (
            int(self.value) if self.ok and isinstance(self.value, (int, float)) else 0
        )

    def show(self) -> str:
        """The reading as a person reads it: ``62.54 GiB``, ``not available: no such file``."""
        if self.status == NOT_AVAILABLE:
            return f"not available: {self.why}"
        if self.status == NOT_ALLOWED:
            return f"not allowed: {self.why}"
        if self.unit == "bytes":
            return show_bytes(self.bytes)
        return f"{self.value} pages" if self.unit == "pages" else str(self.value)


def seen(value: int | float | str, unit: str, source: str, item: str = "") -> Reading:
    """A value that was read; a true zero included."""
    return Reading(value, unit, OK, "", source, item)


def not_available(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: the file, tool or field does not exist, or cannot be read as a value."""
    return Reading(None, unit, NOT_AVAILABLE, why, source, item)


def not_allowed(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: it exists and this process may not read it."""
    return Reading(None, unit, NOT_ALLOWED, why, source, item)


def absent(status: object, why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: not allowed where ``status`` says so, whatever wrote it; else not available."""
    if status == NOT_ALLOWED:
        return not_allowed(why, unit, source, item)
    return not_available(why, unit, source, item)


def sum_of(parts: Sequence[Reading]) -> Reading:
    """The sizes together, in bytes; one part without a value leaves the whole without one."""
    for part in parts:
        if not part.ok:
            return part
    if len(parts) == 1:
        return parts[0]
    source = " + ".join(dict.fromkeys(part.source for part in parts))
    return seen(sum(part.bytes for part in parts), "bytes", source, parts[0].item)


@dataclass(frozen=True)
class Evidence(Shape):
    """One reading and what it says for or against a cause."""

    id: str
    reading: Reading
    says: str


BESIDE = "beside-"
SUM = "sum-"
"""How the id of evidence begins that was seen and has another cause, and of arithmetic on a
message.
"""
LONGEST_TITLE = 140
LONGEST_NAME = 56
"""Letters of an answer, and of one that has no name in a cell of a table."""


def in_words(label: str) -> str:
    """A cause's code as its name, ``ttm-gtt-cap (likely)`` with how sure it is; any other text
    as it is.
    """
    code, _, confidence = label.partition(" ")
    if code not in causes() or confidence not in (
        "",
        "(confirmed)",
        "(likely)",
        "(weak)",
    ):
        return label
    name = causes()[code]["name"]
    if code in ("healthy", "cannot-tell") or not confidence:
        return name
    return f"{name} {confidence}"


@dataclass(frozen=True)
class Missing(Shape):
    """A reading that would decide, and how to take it."""

    reading: str
    how: str


@dataclass(frozen=True)
class NextStep(Shape):
    """The one first choice.

    ``command`` is printed, never run; what it needs and what it may harm stand beside it.

    ``reboot`` says that it takes effect at the next boot, ``check`` how to see that it did,
    ``undo`` how to take it back.
    """

    what: str
    command: str = ""
    precondition: str = ""
    blast_radius: str = "none"
    reboot: bool = False
    check: str = ""
    undo: str = ""


@dataclass(frozen=True)
class Alternative(Shape):
    """A cause that the evidence leaves open."""

    cause: Cause
    confidence: Confidence


@dataclass(frozen=True)
class Verdict(Shape):
    """A cause with its evidence, what speaks against it, and what is missing.

    ``state`` is ``healthy`` where nothing wrong was seen, and ``aside`` where it answers a
    notebook's own question (which fix helps, what a pattern would do) and not why the box
    fails. ``title`` is the answer in a few words, or empty; ``error`` is the line in which the
    program said that it failed, as it was printed.
    """

    cause: Cause
    confidence: Confidence
    next_step: NextStep = field(metadata=LAST)
    schema_version: int = field(default=SCHEMA_VERSION, metadata=FIRST)
    state: State = ""
    title: str = ""
    error: str = ""
    summary: str = ""
    alternatives: List[Alternative] = field(default_factory=list)
    evidence: List[Evidence] = field(default_factory=list)
    against: List[Evidence] = field(default_factory=list)
    missing: List[Missing] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Its code in data: the cause's, or ``healthy`` where nothing is wrong.

        A reader is shown ``short``.
        """
        return "healthy" if self.state == "healthy" else self.cause

    @property
    def headline(self) -> str:
        """The answer in words: its own title, else the cause's words; outside the list the
        first clause of its summary.
        """
        title = self.title.strip()
        if not title and self.cause == "other":
            title = re.split(r"[.:;]\s", " ".join(self.summary.split()))[0]
        title = plain(" ".join(title.split())).rstrip(".")
        return cut(title, LONGEST_TITLE) or causes()[self.cause]["says"]

    @property
    def name(self) -> str:
        """The answer in a few words: the cause's name, of one outside the list its title."""
        return (
            cut(self.headline, LONGEST_NAME)
            if self.label == "other"
            else in_words(self.label)
        )

    @property
    def short(self) -> str:
        """Its name and how sure that is, as in a cell of a table."""
        if self.label == "other":
            return f"{self.name} ({self.confidence})"
        return in_words(f"{self.label} ({self.confidence})")


@dataclass(frozen=True)
class Ceiling(Shape):
    """One layer's limit on memory; ``pending_bytes`` where configuration and live value differ."""

    layer: Layer
    bytes: Optional[int]
    source: str
    status: Literal["ok", "not_available", "not_allowed"]
    pending_bytes: Optional[int] = None


@dataclass(frozen=True)
class TtmPlan(Shape):
    """What to do about the TTM limit, in pages of the box."""

    action: Literal["set", "leave", "remove"]
    pages_limit: Optional[int]
    bytes: Optional[int]
    reserve_bytes: Optional[int]
    why: str


@dataclass(frozen=True)
class TtmCommand(Shape):
    """What a person would run on one system, how to undo it, how to verify it after the reboot."""

    system: str
    run: str
    undo: str
    verify: str


@dataclass(frozen=True)
class Ttm(Shape):
    """Every ceiling between the RAM and torch, and the safe way to raise it."""

    box: str
    ceilings: List[Ceiling]
    binding: Optional[Layer]
    binding_bytes: Optional[int]
    plan: TtmPlan
    schema_version: int = field(default=SCHEMA_VERSION, metadata=FIRST)
    commands: List[TtmCommand] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
