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
"""Names and values are compared and shown up to this many characters: more than any real one
has, and as wide as a terminal.
"""
NO_CACHE = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Variables that switch the allocator's cache off, of a CUDA and of a ROCm build."""


@dataclass(frozen=True)
class Option:
    """One key of the allocator's text. Before release ``since`` torch refuses it at its first use
    of the GPU.

    ``kind`` says how torch reads the value (flag, size, number, share, open share, divisions,
    list, reserve, backend). ``form`` is a regular expression for the values that make sense,
    ``expected`` says the same in words. ``shared``: the parser that all accelerators share
    since 2.10 reads it. ``field`` names the field of in_force.Settings that holds its value.
    ``inert`` says why a replay need not model it, ``unmodelled`` why it does not, though it
    should. ``least`` is the smallest value that torch takes. ``moment`` is one of MOMENTS, where
    torch reads the option at another moment than the rest of the text.
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
    """One environment variable: which program reads it (``read_by``), of which ``build`` (empty:
    both), and what it does (``says``).

    ``moment`` is when it is read, one of MOMENTS, ``read`` the same in words. ``form`` is a
    regular expression for the values that the program takes, ``expected`` says the same in
    words, ``verdict_otherwise`` is the verdict on other values (empty: not known). ``cause`` and
    ``why`` are as in a Rule.
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
    """A fact about a setting that holds where all its conditions hold.

    ``name`` is a variable, or ``option:NAME`` in the allocator's text. The conditions, each empty
    where it does not matter: ``value`` is a regular expression for the whole value. ``beside``
    is (another name, a regular expression for its value), or (another name, "") where that must
    be absent, or ("caching", "off") for a disabled cache. ``since`` and ``below`` are torch
    releases, ``rocm_since`` and ``rocm_below`` ROCm's, ``gfx`` starts of chip names.

    ``cause`` is the cause of a failure that the setting alone can be (empty: none; None: as
    its verdict says), ``why`` the reason.
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
    """One parameter of a kernel module.

    ``unit`` is pages, MiB or GiB, or empty where the parameter is not a size. ``verdict`` is that
    on a correct value. ``pool``: people set it to a large part of the RAM, so a value of another
    magnitude is a mistake in the unit.
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
    """A comparison of the model with the compiled allocator of one torch release and ``build``
    (cuda or rocm).

    ``traces`` and ``events`` were compared, ``differing`` of the events differed. ``origin`` says
    who made the build, where it is not PyTorch.
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
"""What a value may be, in words, by the ``kind`` of its Option."""
CHANGES: tuple[BehaviourChange, ...] = rows_of(BehaviourChange, _torch["changes"])
PROVED: tuple[Comparison, ...] = rows_of(Comparison, _torch["proved"])
TRIED: tuple[str, ...] = tuple(_torch["tried"])
"""The allocator's texts that a what-if tries."""
SAYS: dict[str, str] = _torch["sentences"]
"""Sentences about releases and allocator texts, with gaps for str.format."""
VARIABLES: dict[str, Variable] = {
    row.name: row for row in rows_of(Variable, _variables["variables"])
}
RULES: tuple[Rule, ...] = rows_of(Rule, _variables["rules"])
VERDICTS: dict[str, dict[str, str]] = _variables["verdicts"]
"""Every verdict, the most urgent first. Of each, ``cause`` is the cause of a failure that a
setting with this verdict alone can be (empty: none), ``why`` the reason.
"""
MOMENTS: tuple[str, ...] = tuple(_variables["moments"])
"""When a setting is read, in the order in which it happens."""
CODE_FORMS: dict[str, str] = {
    name: "|".join(forms) for name, forms in _variables["code"].items()
}
"""Regular expressions for lines of a program, by what the line does: ``import line``, ``use line``
(of the GPU), ``set line`` (of a variable), ``export line`` and ``shell line``.
"""
IMPORTS: dict[str, list[str]] = _variables["imports"]
"""By program (``read_by`` of a Variable): the modules whose import makes it read its variables."""
HOST_NAMES = tuple(
    row.name for row in VARIABLES.values() if row.read_by in ("C library", "OpenMP")
)
OTHER_NAMES = frozenset(_variables["other_names"])
"""Real names that resemble those of the table and have nothing to do with GPU memory: they are
not misspelt.
"""
PREFIXES: tuple[str, ...] = tuple(_variables["prefixes"])
"""How a name starts that is compared with the table for misspelling."""
FINDINGS: dict[str, dict[str, str]] = data("settings/findings")["findings"]
"""Columns of a Finding, with gaps for str.format, by the kind that ``finding`` is asked for."""
PARAMETERS: tuple[Parameter, ...] = rows_of(Parameter, _kernel["parameters"])
OTHER_PARAMETERS: dict[str, list[str]] = _kernel["others"]
"""By kernel module: its parameters that have nothing to do with memory."""


@dataclass(frozen=True)
class Finding:
    """One fact about one setting: ``name`` is set to ``value``, and ``says`` what that does.

    For an option of the allocator's text ``value`` is that option alone, ``key:value``.
    ``verdict`` is one of VERDICTS. ``cause`` is the cause of a failure that the setting alone
    can be (empty: none), ``why`` the reason; where they are not given, both are the verdict's.
    """

    name: str
    value: str
    verdict: str
    says: str
    source: str
    cause: str | None = None
    why: str = ""

    def __post_init__(self) -> None:
        """Fill in ``cause`` and ``why`` from the verdict, where they are not given."""
        usual = VERDICTS[self.verdict]
        if self.cause is None:
            object.__setattr__(self, "cause", usual["cause"])
        if self.cause and not self.why:
            object.__setattr__(self, "why", usual["why"])


def finding(kind: str, name: str, value: str, **gaps: object) -> Finding:
    """The row ``kind`` of FINDINGS, said of ``name`` set to ``value``; ``gaps`` fill its gaps."""
    columns = {column: text.format(**gaps) for column, text in FINDINGS[kind].items()}
    return Finding(name=name, value=value, **columns)


def sort(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings without repeats, the most urgent verdict first, then by name, value and words."""
    urgency = {verdict: place for place, verdict in enumerate(VERDICTS)}

    def place_of(finding: Finding) -> tuple[int, str, str, str]:
        return urgency[finding.verdict], finding.name, finding.value, finding.says

    return tuple(sorted(set(findings), key=place_of))
