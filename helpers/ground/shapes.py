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
"""Of a reading's value; ``count`` is a number without a unit."""


@lru_cache(maxsize=None)
def causes() -> Dict[str, Dict[str, str]]:
    """Each cause in words, by its code (causes.json): ``says`` is a sentence, ``name`` is short
    enough for a cell of a table.
    """
    rows: Dict[str, Dict[str, str]] = data("ground/causes")
    return rows


if TYPE_CHECKING:
    Cause = str
else:
    # The codes of causes.json, as values of a type: so a JSON Schema lists them, too.
    Cause = Literal[tuple(code for code in causes() if code != "healthy")]
CAUSES: tuple[str, ...] = get_args(Cause)
Confidence = Literal["confirmed", "likely", "weak"]
State = Literal["", "healthy", "aside"]
# From the firmware up to the program: each can limit the GPU memory that a program gets.
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
"""Of a trial; ``stuck``: it hung, and SIGKILL did not end it."""
VERDICT_MIME = "application/vnd.casebook.verdict+json"
"""The MIME type of the output in which a notebook carries its verdict."""


@dataclass(frozen=True)
class Reading:
    """A value with its unit and source.

    ``value`` is None exactly when ``status`` is not ``ok``; then ``why`` says why.

    ``source`` is what a person would look at (a path or a command line). ``item`` is the id of
    the item of the bundle (the file that ``capture`` writes) from which the value was read,
    empty where the value comes from elsewhere.
    """

    # Read by pydantic where one of its models holds a reading: unknown keys are refused.
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
        if isinstance(self.value, (int, float)):
            return int(self.value)
        return 0

    def show(self) -> str:
        """The reading as a person reads it: ``62.54 GiB``, ``not available: no such file``."""
        if self.status == NOT_AVAILABLE:
            return f"not available: {self.why}"
        if self.status == NOT_ALLOWED:
            return f"not allowed: {self.why}"
        if self.unit == "bytes":
            return show_bytes(self.bytes)
        if self.unit == "pages":
            return f"{self.value} pages"
        return str(self.value)


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
    """No value: not allowed if ``status`` is NOT_ALLOWED, else not available. ``status`` comes
    from JSON that another program wrote, so it may be anything.
    """
    if status == NOT_ALLOWED:
        return not_allowed(why, unit, source, item)
    return not_available(why, unit, source, item)


def sum_of(parts: Sequence[Reading]) -> Reading:
    """The sum of sizes in bytes; where a part has no value, the first such part, which says why the
    sum is unknown. At least one part is given.
    """
    for part in parts:
        if not part.ok:
            return part
    if len(parts) == 1:  # returned as it is, with its own unit
        return parts[0]
    source = " + ".join(dict.fromkeys(part.source for part in parts))
    return seen(sum(part.bytes for part in parts), "bytes", source, parts[0].item)


@dataclass(frozen=True)
class Evidence(Shape):
    """One reading and what it says for or against a cause. ``id`` names the kind of evidence; it
    may begin with BESIDE or SUM.
    """

    id: str
    reading: Reading
    says: str


BESIDE = "beside-"
"""Begins the id of evidence for another cause than the verdict's."""
SUM = "sum-"
"""Begins the id of evidence that is arithmetic on the numbers of a message."""
LONGEST_TITLE = 140
"""Columns of a headline: two lines of a terminal of 80 columns, less their indent."""
LONGEST_NAME = 56
"""Columns of an answer in a cell of a table, where its cause has no name of its own; chosen so
that a terminal of 80 columns has room for another cell.
"""
_CONFIDENCES = ("", *(f"({word})" for word in get_args(Confidence)))


def in_words(label: str) -> str:
    """A cause's code in words: ``too little memory (likely)`` for ``true-capacity (likely)``. The
    confidence behind the code may be missing. Any other text is returned unchanged.
    """
    code, _, confidence = label.partition(" ")
    if code not in causes() or confidence not in _CONFIDENCES:
        return label
    name = causes()[code]["name"]
    # ``healthy`` and ``cannot-tell`` name no cause, so there is nothing to be confident of.
    if code in ("healthy", "cannot-tell") or not confidence:
        return name
    return f"{name} {confidence}"


@dataclass(frozen=True)
class Missing(Shape):
    """A reading that would decide between causes, and how to take it."""

    reading: str
    how: str


@dataclass(frozen=True)
class NextStep(Shape):
    """The one thing to do next.

    ``what`` is a sentence. ``command`` is printed, never run; ``precondition`` is what it needs,
    ``blast_radius`` what it may harm. ``reboot``: it takes effect at the next boot. ``check``
    and ``undo`` are commands that show that it did, and that take it back.
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

    ``state`` is ``healthy`` if nothing wrong was seen, and ``aside`` if the verdict answers a
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
        """The cause's code, or ``healthy`` if nothing is wrong: for data. People read ``short``."""
        if self.state == "healthy":
            return "healthy"
        return self.cause

    @property
    def headline(self) -> str:
        """The answer in one sentence: the title, cut to LONGEST_TITLE columns. Without a title it
        is the sentence of the cause in causes.json. That of ``other`` would only say that the
        cause is outside the list, so for ``other`` the summary's first clause takes its place.
        """
        title = " ".join(self.title.split())
        if not title and self.cause == "other":
            summary = " ".join(self.summary.split())
            title = re.split(r"[.:;]\s", summary)[0]
        title = plain(title).rstrip(".")
        if not title:
            return causes()[self.cause]["says"]
        return cut(title, LONGEST_TITLE)

    @property
    def name(self) -> str:
        """The answer in a few words: the cause's name, or the headline for the cause ``other``."""
        if self.label == "other":
            return cut(self.headline, LONGEST_NAME)
        return in_words(self.label)

    @property
    def short(self) -> str:
        """The name and the confidence, as a cell of a table has them. ``healthy`` and
        ``cannot-tell`` have no confidence.
        """
        if self.label == "other":
            return f"{self.name} ({self.confidence})"
        return in_words(f"{self.label} ({self.confidence})")


@dataclass(frozen=True)
class Ceiling(Shape):
    """One layer's limit on memory. ``bytes`` is the limit in force; ``pending_bytes`` the
    configured one, which the next boot sets, where it differs.
    """

    layer: Layer
    bytes: Optional[int]
    source: str
    status: Literal["ok", "not_available", "not_allowed"]
    pending_bytes: Optional[int] = None


@dataclass(frozen=True)
class TtmPlan(Shape):
    """What to do about the limit of TTM, the kernel's memory manager for GPUs that use RAM.

    ``pages_limit`` is the limit in pages of the box, ``bytes`` the same limit in bytes;
    ``reserve_bytes`` is the RAM that the limit leaves to everything else.
    """

    action: Literal["set", "leave", "remove"]
    pages_limit: Optional[int]
    bytes: Optional[int]
    reserve_bytes: Optional[int]
    why: str


@dataclass(frozen=True)
class TtmCommand(Shape):
    """Commands for one distribution (``system``): to make the change, to undo it, and to verify it
    after the reboot.
    """

    system: str
    run: str
    undo: str
    verify: str


@dataclass(frozen=True)
class Ttm(Shape):
    """Every ceiling between the RAM and torch, and the safe way to raise the limit of TTM.

    ``binding``: the layer that decides how much memory a program gets, and ``binding_bytes`` how
    much that is. Both are None where the readings do not tell which layer it is.
    """

    box: str
    ceilings: List[Ceiling]
    binding: Optional[Layer]
    binding_bytes: Optional[int]
    plan: TtmPlan
    schema_version: int = field(default=SCHEMA_VERSION, metadata=FIRST)
    commands: List[TtmCommand] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
