"""The table of settings: what each variable, allocator option and module parameter is, and what
holds of it where.

Four data files, each row with its source. ``torch.json``: the options of torch's allocator, how
its releases differ, and the strings that a what-if tries. ``variables.json``: environment
variables, and rules that hold under conditions. ``kernel.json``: parameters of the kernel
modules. ``findings.json``: what else is said of a setting, with gaps. A source is a file of the
program's source code, an issue, a manual page, or "measured" (torch's own compiled allocator
behind a stand-in for the GPU runtime, the releases named).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from helpers.ground.tables import data

CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Names of the allocator's text, the one that wins first.

A name that is set wins even where it is empty.
"""
LONGEST = 80
"""Names and values are compared and shown up to this many characters."""
NO_CACHE = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")


@dataclass(frozen=True)
class Option:
    """One key of the allocator's text; before ``since`` torch stops at its first use of the GPU
    with "Unrecognized".

    ``kind`` says how torch reads the value (flag, size, number, share, open share, divisions,
    list, reserve, backend), ``form`` is an expression for values as they are meant,
    ``expected`` the same in words. ``shared``: read by the parser that all accelerators share
    since 2.10. ``field``: of a text.Settings; ``inert``: why a replay need not model it,
    ``unmodelled``: why it does not, though it should. ``moment``: when it is read, where that
    is not when the text is.
    """

    name: str
    kind: str
    form: str
    expected: str
    says: str
    source: str
    since: str = ""
    shared: bool = False
    field: str = ""
    inert: str = ""
    unmodelled: str = ""
    least: int = 0
    moment: str = ""


@dataclass(frozen=True)
class Variable:
    """One variable: which build's programs read it (empty: both), which program (``read_by``), and
    what it does.

    ``moment`` is when it is read, one of MOMENTS, ``read`` the same in words. ``form`` is an
    expression for values that are read, ``expected`` the same in words, ``verdict_otherwise``
    what becomes of other values (empty: not known). ``cause`` and ``why`` are as in a
    Rule.
    """

    name: str
    moment: str
    read: str
    verdict: str
    says: str
    source: str
    build: str = ""
    read_by: str = ""
    form: str = ""
    expected: str = ""
    verdict_otherwise: str = ""
    cause: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """A fact under conditions, all of which must hold.

    ``name`` is a variable, or ``option:NAME`` in the allocator's text.

    ``value`` is an expression for the whole value. ``beside`` is (another name, an expression
    for its value), or (another name, "") where that must be absent; ``caching`` stands for a
    disabled cache. ``since`` and ``below`` are torch releases, ``rocm_since`` and
    ``rocm_below`` ROCm's, ``gfx`` starts of chip names. ``cause`` is the cause of a failure
    that this can be alone (empty: none; None: as its verdict says), ``why`` the reason.
    """

    name: str
    verdict: str
    says: str
    source: str
    value: str = ""
    beside: tuple[str, ...] = ()
    build: str = ""
    gfx: tuple[str, ...] = ()
    since: str = ""
    below: str = ""
    rocm_since: str = ""
    rocm_below: str = ""
    cause: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel module; ``unit`` pages, MiB, GiB, or empty for no size;
    ``verdict`` where it is set well.

    ``pool``: it is meant as a good part of the RAM, so that another magnitude is a mistake in
    the unit.
    """

    module: str
    name: str
    unit: str
    verdict: str
    says: str
    source: str
    pool: bool = False


@dataclass(frozen=True)
class BehaviourChange:
    """From torch release ``since`` on, ``field`` of a Behaviour has ``value``; ``build``: only
    there (empty: both).
    """

    since: str
    field: str
    value: object
    source: str
    build: str = ""


@dataclass(frozen=True)
class Comparison:
    """What the model was held against: a release's compiled allocator, of a cuda or rocm build,
    over so many traces and events; ``origin``: where that build is from, where that must be said.
    """

    torch: str
    build: str
    traces: int
    events: int
    differing: int
    source: str
    origin: str = ""


Row = TypeVar("Row")


def rows_of(
    kind: Callable[..., Row], rows: Iterable[Mapping[str, object]]
) -> tuple[Row, ...]:
    """Rows of one kind; lists become tuples. An unknown column is refused with TypeError."""
    instances = []
    for row in rows:
        columns = dict(row)
        for name, value in row.items():
            if isinstance(value, list):
                columns[name] = tuple(value)
        instances.append(kind(**columns))
    return tuple(instances)


_torch = data("settings/torch")
_variables = data("settings/variables")
_kernel = data("settings/kernel")
OPTIONS: dict[str, Option] = {
    row.name: row for row in rows_of(Option, _torch["options"])
}
KINDS: dict[str, str] = _torch["kinds"]
"""What a value of a kind may be, in words."""
CHANGES: tuple[BehaviourChange, ...] = rows_of(BehaviourChange, _torch["changes"])
PROVED: tuple[Comparison, ...] = rows_of(Comparison, _torch["proved"])
TRIED: tuple[str, ...] = tuple(_torch["tried"])
"""The allocator's texts that a what-if tries."""
SAYS: dict[str, str] = _torch["sentences"]
"""Sentences about releases and strings, with gaps."""
VARIABLES: dict[str, Variable] = {
    row.name: row for row in rows_of(Variable, _variables["variables"])
}
RULES: tuple[Rule, ...] = rows_of(Rule, _variables["rules"])
VERDICTS: dict[str, dict[str, str]] = _variables["verdicts"]
"""Every verdict, what a person should look at first on top, each with the cause it can be
alone, and why.
"""
MOMENTS: tuple[str, ...] = tuple(_variables["moments"])
"""When a setting is read, in the order in which it happens."""
CODE_FORMS: dict[str, str] = {
    name: "|".join(forms) for name, forms in _variables["code"].items()
}
"""Expressions for the lines of a program that import, use the GPU or make a setting."""
IMPORTS: dict[str, list[str]] = _variables["imports"]
"""The modules whose import makes a program read its variables."""
HOST_NAMES = tuple(
    row.name for row in VARIABLES.values() if row.read_by in ("C library", "OpenMP")
)
OTHER_NAMES = frozenset(_variables["other_names"])
"""Real names near those of the table that are no concern here, so that they are not taken for a
slip of the pen.
"""
PREFIXES: tuple[str, ...] = tuple(_variables["prefixes"])
FINDINGS: dict[str, dict[str, str]] = data("settings/findings")["findings"]
"""Columns of a Finding with gaps: what is said of a setting beside its own row and the rules."""
PARAMETERS: tuple[Parameter, ...] = rows_of(Parameter, _kernel["parameters"])
OTHER_PARAMETERS: dict[str, list[str]] = _kernel["others"]


@dataclass(frozen=True)
class Finding:
    """One fact of one setting.

    For an option of the allocator's text ``value`` is that option alone, ``key:value``.

    ``verdict`` is one of VERDICTS. ``cause`` is the cause of a failure that the setting can be
    alone (empty: none), ``why`` the reason; both are the verdict's own where they are not
    given.
    """

    name: str
    value: str
    verdict: str
    says: str
    source: str
    cause: str | None = None
    why: str = ""

    def __post_init__(self) -> None:
        usual = VERDICTS[self.verdict]
        if self.cause is None:
            object.__setattr__(self, "cause", usual["cause"])
        if self.cause and not self.why:
            object.__setattr__(self, "why", usual["why"])


def finding(kind: str, name: str, value: str, **gaps: object) -> Finding:
    """The finding of one row of FINDINGS about ``name`` set to ``value``, its gaps filled."""
    columns = {column: text.format(**gaps) for column, text in FINDINGS[kind].items()}
    return Finding(
        name=name,
        value=value,
        verdict=columns["verdict"],
        says=columns["says"],
        source=columns["source"],
        cause=columns.get("cause"),
        why=columns.get("why", ""),
    )


def sort(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings without repeats, by urgency, then by name."""
    urgency = {verdict: place for place, verdict in enumerate(VERDICTS)}
    return tuple(
        sorted(
            set(findings),
            key=lambda finding: (
                urgency[finding.verdict],
                finding.name,
                finding.value,
                finding.says,
            ),
        )
    )
