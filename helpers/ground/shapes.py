"""The contracts: what a reading, a verdict, an answer about TTM and a replay hold, in Python
and as JSON.

Plain dataclasses of the standard library that check themselves, so that ``diagnose`` needs no
other package. Unknown keys, wrong types and words outside a vocabulary are refused in one line.
As fields of pydantic models, which plans and records are, they are checked alike.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Literal,
    Optional,
    Tuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from helpers.ground.units import cut, plain, show_bytes

SCHEMA_VERSION = 1
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
    rows: Dict[str, Dict[str, str]] = json.loads(pkgutil.get_data(__name__, "causes.json") or b"{}")
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
Known = TypeVar("Known")

# Where a key stands in JSON, besides the order of the fields: those without a default come
# first there.
_FIRST = {"place": -1}
_LAST = {"place": 1}


class Shape:
    """Base of a contract: on making one its fields are checked. Raises ValueError in one line."""

    # Read by pydantic where one of its models holds a shape: unknown keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in _kinds(cls).items():
            object.__setattr__(self, name, _read(kind, getattr(self, name), name))
        version = getattr(self, "schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            known = f"this workbook reads {SCHEMA_VERSION}; update the workbook"
            raise ValueError(f"schema_version {version}: {known}")


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
            raise ValueError("unit {!r}: expected one of {}".format(self.unit, ", ".join(UNITS)))
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}: expected one of {', '.join(STATUSES)}")
        if (self.value is None) is (self.status == OK):
            raise ValueError(f"status {self.status!r} does not go with value {self.value!r}")
        if self.status != OK and not self.why:
            raise ValueError(f"a reading without a value says why ({self.source})")

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def bytes(self) -> int:
        """The value as a whole number, 0 where there is none."""
        return int(self.value) if self.ok and isinstance(self.value, (int, float)) else 0

    def show(self) -> str:
        """The reading as a person reads it: ``62.54 GiB``, ``not available: no such file``."""
        if self.status == NOT_AVAILABLE:
            return "not available: " + self.why
        if self.status == NOT_ALLOWED:
            return "not allowed: " + self.why
        if self.unit == "bytes":
            return show_bytes(int(self.value))  # type: ignore[arg-type]
        return f"{self.value} pages" if self.unit == "pages" else str(self.value)


def seen(value: int | float | str, unit: str, source: str, item: str = "") -> Reading:
    """A value that was read; a true zero included."""
    return Reading(value, unit, OK, "", source, item)


def not_available(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: the file, tool or field does not exist, or what it said cannot be read as a value."""
    return Reading(None, unit, NOT_AVAILABLE, why, source, item)


def not_allowed(why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: it exists and this process may not read it."""
    return Reading(None, unit, NOT_ALLOWED, why, source, item)


def absent(status: object, why: str, unit: str, source: str, item: str = "") -> Reading:
    """No value: not allowed where ``status`` says so, whatever wrote it; else not available."""
    make = not_allowed if status == NOT_ALLOWED else not_available
    return make(why, unit, source, item)


def sum_of(parts: Sequence[Reading]) -> Reading:
    """The sizes together, in bytes; one part without a value leaves the whole without one."""
    missing = [part for part in parts if not part.ok]
    if missing or len(parts) == 1:
        return (missing or parts)[0]
    source = " + ".join(dict.fromkeys(part.source for part in parts))
    return seen(sum(part.bytes for part in parts), "bytes", source, parts[0].item)


@dataclass(frozen=True)
class Evidence(Shape):
    """One reading and what it says for or against a cause."""

    id: str
    reading: Reading
    says: str


LONGEST_TITLE = 140
LONGEST_NAME = 56
"""Letters of an answer, and of one that has no name in a cell of a table."""


def in_words(label: str) -> str:
    """A cause's code as its name, ``ttm-gtt-cap (likely)`` with how sure it is; any other text
    as it is.
    """
    code, _, sure = label.partition(" ")
    if code not in causes() or sure not in ("", "(confirmed)", "(likely)", "(weak)"):
        return label
    sure = "" if code in ("healthy", "cannot-tell") else sure
    return f"{causes()[code]['name']} {sure}".strip()


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
    fails. ``title`` is the answer in a few words, or empty.
    """

    cause: Cause
    confidence: Confidence
    next_step: NextStep = field(metadata=_LAST)
    schema_version: int = field(default=SCHEMA_VERSION, metadata=_FIRST)
    state: State = ""
    title: str = ""
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
        own = self.title.strip()
        if not own and self.cause == "other":
            own = re.split(r"[.:;]\s", " ".join(self.summary.split()))[0]
        own = plain(" ".join(own.split())).rstrip(".")
        return cut(own, LONGEST_TITLE) or causes()[self.cause]["says"]

    @property
    def short(self) -> str:
        """The answer in a cell of a table: the cause's name, of one outside the list its title,
        and how sure that is.
        """
        if self.label == "other":
            return f"{cut(self.headline, LONGEST_NAME)} ({self.confidence})"
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
    """What a person would run on one system, how to undo it and how to verify it after the reboot."""

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
    torch_total_bytes: Optional[int]
    plan: TtmPlan
    schema_version: int = field(default=SCHEMA_VERSION, metadata=_FIRST)
    commands: List[TtmCommand] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class FirstOom(Shape):
    """Where a replay first ran out."""

    index: int
    size_bytes: int


@dataclass(frozen=True)
class Replay(Shape):
    """What the allocator did, or would have done, under one setting.

    ``proved``: the compiled allocator of this release and build was compared with the model, or
    only its source was read; ``proved_on``: that in words, with what was compared;
    ``not_modelled``: settings named in ``settings`` that the model leaves out, each with why.
    """

    events: int
    ooms: int
    first_oom: Optional[FirstOom]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    device_allocs: int
    settings: str
    torch: str
    build: str
    proved: Literal["oracle", "source"]
    schema_version: int = field(default=SCHEMA_VERSION, metadata=_FIRST)
    proved_on: str = ""
    slow_calls: int = 0
    passes: bool = False
    addresses_agree: Optional[bool] = None
    peak_reserved_low_bytes: int = 0
    peak_reserved_high_bytes: int = 0
    flags: List[str] = field(default_factory=list)
    not_modelled: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class LiveBytes(Shape):
    """What was live at the first out-of-memory, in requested bytes: one allocation (``id``, and
    ``index``, the operation that made it; -1: before the first) or all of one stack
    (``count``). ``frames``: that stack, innermost first.
    """

    size_bytes: int
    frames: Tuple[str, ...] = ()
    id: Optional[int] = None
    index: Optional[int] = None
    count: Optional[int] = None


@dataclass(frozen=True)
class LineEdit(Shape):
    """A line of the program and the least change of it that lets the recorded requests pass;
    ``edit`` "" where it alone does not. ``live_bytes``: what of it is live where it fails;
    ``conf``: the settings under which it passes then.
    """

    line: str
    live_bytes: int
    edit: str
    conf: str
    assumes: str
    chunks: int


@dataclass(frozen=True)
class WhatIf(Shape):
    """The settings tried on one trace and the one to use: empty for the default settings, or
    where needs_bytes is not 0. ``grows``: what grows from step to step, in words; then a
    setting that passes here passes for the steps of the trace only.
    """

    capacity_bytes: int
    rows: List[Replay]
    use: str
    needs_bytes: int
    schema_version: int = field(default=SCHEMA_VERSION, metadata=_FIRST)
    proved: Literal["oracle", "source"] = "source"
    proved_on: str = ""
    warnings: List[str] = field(default_factory=list)
    held_bytes: int = 0
    torch: str = ""
    build: str = ""
    why: str = ""
    needs_settings: str = ""
    floor_bytes: int = 0
    floor_index: int = -1
    live: List[LiveBytes] = field(default_factory=list)
    groups: List[LiveBytes] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    grows: str = ""
    lines: List[LineEdit] = field(default_factory=list)


def from_json(cls: type[Known], data: object, what: str = "") -> Known:
    """A shape from JSON text or from what JSON holds.

    Raises ValueError in one line: ``what`` (the shape's name), where, what was seen, what was
    expected.
    """
    name = what or cls.__name__.lower()
    if isinstance(data, (str, bytes, bytearray)):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: no JSON ({str(error)[:80]})") from None
    try:
        made: Known = _read(cls, data, "")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return made


def as_dict(shape: Any) -> dict[str, Any]:
    """A shape as JSON holds it: dictionaries, lists, text, numbers."""
    order = sorted(fields(shape), key=lambda one: one.metadata.get("place", 0))
    return {one.name: _plain(getattr(shape, one.name)) for one in order}


def to_json(shape: Any, indent: int | None = None) -> str:
    """A shape as JSON text: compact, or with ``indent`` spaces a level."""
    separators = (",", ":") if indent is None else None
    return json.dumps(as_dict(shape), indent=indent, ensure_ascii=False, separators=separators)


def one_line(error: Any, what: str) -> str:
    """The first thing wrong with an input that pydantic refused, in one line: where, what was
    seen, what was expected.
    """
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    seen = repr(first.get("input"))
    wrong = first["msg"].replace("Value error, ", "", 1)
    seen = seen if len(seen) < 60 else seen[:57] + "..."
    return f"{what}: {where}: {wrong}; seen {seen}{others}"


@lru_cache(maxsize=None)
def _kinds(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_shape(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__")


def _plain(value: Any) -> Any:
    if _is_shape(value):
        return as_dict(value)
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value as ``kind``, its lists and objects made; ``where`` is its path, for the error."""
    origin = get_origin(kind)
    options = get_args(kind)
    if _is_shape(kind):
        return value if isinstance(value, kind) else _made(kind, value, where)
    if origin is Union:
        shape = next((option for option in options if _is_shape(option)), None)
        if shape is not None and value is not None:
            return _read(shape, value, where)
        if not any(_is(option, value) for option in options):
            raise _odd(where, value, kind)
        return value
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        alike = origin is list or options[-1] is ...
        kinds = options[:1] * len(value) if alike else options
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value))
            return origin(_read(inner, one, f"{where}.{at}") for at, (inner, one) in pairs)
    if not _is(kind, value):
        raise _odd(where, value, kind)
    return value


def _is(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind if isinstance(kind, type) else False


def _made(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _odd(where, value, kind)
    before = where and where + "."
    own = {one.name: one for one in fields(kind)}
    for key in value:
        if key not in own:
            name = f"{before}{plain(str(key)[:60])}"
            raise ValueError(f"{name}: unknown key; expected {', '.join(own)}")
    for one in own.values():
        if one.name not in value and one.default is MISSING and one.default_factory is MISSING:
            expected = _words(_kinds(kind)[one.name])
            raise ValueError(f"{before}{one.name}: nothing seen; expected {expected}")
    inner = {key: _read(_kinds(kind)[key], one, before + key) for key, one in value.items()}
    try:
        return kind(**inner)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _odd(where: str, value: object, kind: Any) -> ValueError:
    seen = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    seen = seen if len(seen) < 64 else seen[:60] + "..."
    return ValueError(f"{where or 'the whole'}: seen {seen}; expected {_words(kind)}")


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(one) for one in get_args(kind))
    if get_origin(kind) is Union:
        return " or ".join(_words(option) for option in get_args(kind))
    if get_origin(kind) in (list, tuple):
        return "a list"
    return _WORDS.get(kind, "an object")


_WORDS: Dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
