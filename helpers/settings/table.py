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

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from helpers.ground.grammar import data

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
    """One variable: which build's programs read it (empty: both), which program (``by``), and
    what it does.

    ``moment`` is when it is read, one of MOMENTS, ``when`` the same in words. ``form`` is an
    expression for values that are read, ``expected`` the same in words, ``otherwise`` what
    becomes of other values (a verdict; empty: not known). ``cause`` and ``why`` are as in a
    Rule.
    """

    name: str
    moment: str
    when: str
    verdict: str
    says: str
    source: str
    build: str = ""
    by: str = ""
    form: str = ""
    expected: str = ""
    otherwise: str = ""
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
class Change:
    """From torch release ``since`` on, ``field`` of a Behaviour has ``value``; ``build``: only
    there ("": both).
    """

    since: str
    field: str
    value: Any
    source: str
    build: str = ""


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


def release(text: str, word: str = "") -> tuple[int, ...]:
    """Major and minor of a version text, of its ``+rocm6.3`` part where ``word`` is given;
    empty where there is none.
    """
    form = r"\+[^+]{0,80}?rocm-?v?([0-9]{1,4})\.([0-9]{1,4})"
    form = form if word else r"^\s{0,9}v?([0-9]{1,4})\.([0-9]{1,4})"
    match = re.search(form, text)
    return (int(match[1]), int(match[2])) if match else ()


def _rows(kind: Any, rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Rows of one kind; lists become tuples. An unknown column is refused with TypeError."""
    tuples = ({k: tuple(v) if isinstance(v, list) else v for k, v in r.items()} for r in rows)
    return tuple(kind(**row) for row in tuples)


_torch = data("settings/torch")
_variables = data("settings/variables")
_kernel = data("settings/kernel")
_findings = data("settings/findings")
OPTIONS: dict[str, Option] = {row.name: row for row in _rows(Option, _torch["options"])}
KINDS: dict[str, str] = _torch["kinds"]
"""What a value of a kind may be, in words."""
CHANGES: tuple[Change, ...] = _rows(Change, _torch["changes"])
PROVED: tuple[dict[str, Any], ...] = tuple(_torch["proved"])
"""What the model was held against: a release's compiled allocator, cuda or rocm, over so many
traces and events; its source.
"""
TRIED: tuple[str, ...] = tuple(_torch["tried"])
SAYS: dict[str, str] = _torch["says"]
"""Sentences about releases and strings, with gaps."""
VARIABLES: dict[str, Variable] = {row.name: row for row in _rows(Variable, _variables["variables"])}
RULES: tuple[Rule, ...] = _rows(Rule, _variables["rules"])
VERDICTS: dict[str, dict[str, str]] = _variables["verdicts"]
"""Every verdict, what a person should look at first on top, each with the cause it can be
alone, and why.
"""
MOMENTS: tuple[str, ...] = tuple(_variables["moments"])
"""When a setting is read, in the order in which it happens."""
NEEDS: dict[str, str] = _variables["needs"]
"""What a rule may depend on, in words with a gap."""
POSTED: dict[str, str] = {k: "|".join(v) for k, v in _variables["posted"].items()}
"""Expressions for what people write about a setting, and for lines of programs that make one."""
IMPORTS: dict[str, list[str]] = _variables["imports"]
HOST_NAMES = tuple(row.name for row in VARIABLES.values() if row.by in ("C library", "OpenMP"))
OTHER_NAMES = frozenset(_variables["others"])
"""Real names near those of the table that are no concern here, so that they are not taken for a
slip of the pen.
"""
PREFIXES: tuple[str, ...] = tuple(_variables["prefixes"])
FINDINGS: dict[str, dict[str, str]] = _findings["findings"]
"""Columns of a Finding with gaps, for what is said of a setting beside its own row and the rules."""
PARAMETERS: tuple[Parameter, ...] = _rows(Parameter, _kernel["parameters"])
OTHER_PARAMETERS: dict[str, list[str]] = _kernel["others"]


@dataclass(frozen=True)
class Finding:
    """One fact of one setting.

    For an option of the allocator's text ``value`` is that option alone, ``key:value``.

    ``verdict`` is one of VERDICTS. ``cause`` is the cause of a failure that the setting can be
    alone (empty: none), ``why`` the reason; both are the verdict's own where they are not
    given. ``hearsay``: it rests on what a person remarked.
    """

    name: str
    value: str
    verdict: str
    says: str
    source: str
    cause: str | None = None
    why: str = ""
    hearsay: bool = False

    def __post_init__(self) -> None:
        usual = VERDICTS[self.verdict]
        if self.cause is None:
            object.__setattr__(self, "cause", usual["cause"])
        if self.cause and not self.why:
            object.__setattr__(self, "why", usual["why"])

    @property
    def carries_cause(self) -> bool:
        """Whether this setting alone can be the cause of a failure."""
        return bool(self.cause)


def finding(kind: str, name: str, value: str, **gaps: object) -> Finding:
    """The finding of one row of FINDINGS, its gaps filled."""
    row = {column: text.format(**gaps) for column, text in FINDINGS[kind].items()}
    return Finding(name, value, **row)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Facts:
    """What is known of a process: its variables, the options of the text that is judged, build,
    chip and releases.

    ``build`` is cuda, rocm, cpu or empty; an empty release is not known. ``caching_off`` is
    None where that is open.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    gfx: str = ""
    torch: tuple[int, ...] = ()
    rocm: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    caching_off: bool | None = False


def facts_of(environ: Mapping[str, str], torch: str, build: str, gfx: str = "") -> Facts:
    """The facts of a torch version text ("2.9.1+rocm7.0") and a build ("rocm" or "rocm7.0",
    "cuda", "cpu" or empty).

    Where no build is given, the version's own mark (+cu128, +rocm7.0, +cpu) tells it.
    """
    rocm = release(torch, "rocm") or release(build[4:] if build.startswith("rocm") else "")
    local = re.search(r"\+(cu(?=[0-9])|rocm|cpu)", torch)
    build = build or ({"cu": "cuda"}.get(local[1], local[1]) if local else "")
    facts = Facts(environ, build[:4], gfx, release(torch), rocm)
    return replace(facts, caching_off=caching_off(facts))


def rule_findings(key: str, name: str, shown: str, value: str, facts: Facts) -> list[Finding]:
    """What the rules of ``key`` say.

    Rules that hang on something not known make one finding together.
    """
    states = [(rule, holds(rule, value, facts)) for rule in RULES if rule.name == key]
    held = [rule for rule, state in states if state]
    found = [Finding(name, shown, r.verdict, r.says, r.source, r.cause, r.why) for r in held]
    unsure = [rule for rule, state in states if state is None]
    if unsure:
        says = "; or: ".join(f"{rule.says} [{_needs(rule)}]" for rule in unsure)
        source = "; ".join(dict.fromkeys(rule.source for rule in unsure))
        found.append(finding("open", name, shown, rules=says, source=source))
    return found


def holds(rule: Rule, value: str, facts: Facts) -> bool | None:
    """Whether a rule applies: None where only something that is not known stands in the way."""
    chip = facts.gfx.startswith(rule.gfx) if facts.gfx else None
    build = rule.build == facts.build if facts.build else None
    answers = [
        not rule.value or re.fullmatch(rule.value, value) is not None,
        _beside(rule.beside, facts) if rule.beside else True,
        build if rule.build else True,
        chip if rule.gfx else True,
        between(facts.torch, rule.since, rule.below),
        between(facts.rocm, rule.rocm_since, rule.rocm_below),
    ]
    return False if False in answers else None if None in answers else True


def _beside(beside: tuple[str, ...], facts: Facts) -> bool | None:
    name, wanted = beside
    if name == "caching":
        return facts.caching_off
    there = facts.options.get(name[7:]) if name.startswith("option:") else facts.environ.get(name)
    return there is None if not wanted else there is not None and bool(re.fullmatch(wanted, there))


def caching_off(facts: Facts) -> bool | None:
    """Whether a variable switches the allocator's cache off; None where that depends on what is
    not known.
    """
    off: bool | None = False
    for name in (name for name in NO_CACHE if name in facts.environ):
        value = facts.environ[name]
        said = {one.verdict for one in rule_findings(name, name, value, value, facts)}
        if said & {"debug_only", "contradictory"} or not said:
            return True
        off = None if "unknown" in said else off
    return off


def between(version: tuple[int, ...], since: str, below: str) -> bool | None:
    """Whether a release is at least one and below another; empty ones do not count."""
    if not version:
        return None if since or below else True
    return (not since or version >= release(since)) and (not below or version < release(below))


def _needs(rule: Rule) -> str:
    """What would have to be known for a rule to hold, in words."""
    given = {**vars(rule), "gfx": ", ".join(part + "*" for part in rule.gfx)}
    said = [form.format(given[what]) for what, form in NEEDS.items() if given[what]]
    return ", ".join(said) or "a cache that is switched off"


def sort(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings without repeats, by urgency, then by name."""
    order = list(VERDICTS)
    key = lambda f: (order.index(f.verdict), f.name, f.value, f.says)  # noqa: E731
    return tuple(sorted(set(found), key=key))


# How does the caching allocator of one torch release and build behave, where releases differ?

OLDEST = (2, 2)
NEWEST = (2, 15)
EXPANDABLE = "option:expandable_segments"


class VersionError(ValueError):
    """The release or the build is not one that can be replayed; one line."""


@dataclass(frozen=True)
class Behaviour:
    """What one build of torch does.

    Each field's source stands in ``sources`` under the field's name.

    ``order``: what decides between free blocks of one stream and size: the lower ``address``,
    the ``block`` made first, or the ``segment`` made first and then the lower address.
    ``unified_parser``: the settings parser that all accelerators share: 64-bit numbers,
    separators taken on trust. ``above_fills_last_key``: ``>:K`` in a list of roundup divisions
    also overwrites the last key before it. ``one_division_rounds``: to 512 bytes, else it
    leaves sizes as they are (-1 in a Settings). ``fraction_rounds``: a memory limit is rounded
    to whole bytes, not cut. ``conf_names``: environment variables with the settings, the winner
    first; ``own_conf_names``: the same for options not shared by all accelerators.
    ``expandable_safe``: no loss of data, hang or crash is reported for it on this build.
    ``pools_flush``: a request to a private pool outside of a capture gives cached memory back
    before it fails. ``device_type``: by which torch hashes streams (c10/core/DeviceType.h: 1
    CUDA, 6 HIP). ``checks_range``: a request larger than the range of addresses that an
    expandable segment reserves fails at once. ``expandable_pools``: private pools have
    expandable segments too. ``proved``: ``oracle`` where the compiled allocator of this release
    and build was compared, else ``source``; ``proved_on``: that in words, with what was
    compared. ``note``: what else a reader must know.
    """

    torch: str
    release: tuple[int, ...]
    build: str
    order: str
    keys: frozenset[str]
    unified_parser: bool
    max_split_minimum_inclusive: bool
    above_fills_last_key: bool
    one_division_rounds: bool
    fraction_one_is_unlimited: bool
    fraction_rounds: bool
    oversize_release_skips_expandable: bool
    pools_flush: bool
    checks_range: bool
    expandable_pools: bool
    device_type: int
    conf_names: tuple[str, ...]
    own_conf_names: tuple[str, ...]
    expandable_available: bool
    expandable_safe: bool
    proved: Literal["oracle", "source"]
    proved_on: str
    note: str
    sources: tuple[tuple[str, str], ...]

    def source(self, field: str) -> str:
        """Where the value of ``field`` was read or measured; empty for what follows from the
        version itself.
        """
        return dict(self.sources).get(field, "")

    def names_for(self, key: str) -> tuple[str, ...]:
        """The variables that this build reads an option from, the winner first."""
        own = key in OPTIONS and not OPTIONS[key].shared
        return self.own_conf_names if own else self.conf_names


def behaviour(torch: str = "2.14.1", build: str = "cuda") -> Behaviour:
    """How the allocator of this release and build behaves.

    ``torch`` is a version as it prints itself ("2.9.0+rocm6.4", "2.8.0a0+git1234"); ``build``
    is "cuda", or "rocm" with ROCm's version ("rocm7.2"); a "+rocm" in ``torch`` counts too. A
    release newer than is known runs as the newest known and says so in ``note``. Raises
    VersionError for what is older than 2.2 or cannot be read.
    """
    if release(torch) < OLDEST:
        why = "too_old" if release(torch) else "unreadable"
        raise VersionError(SAYS[why].format(torch=torch))
    local = re.search(r"\+(rocm[0-9.]*)", torch)
    build = local[1].rstrip(".") if build == "cuda" and local else build
    if not re.fullmatch(r"cuda|rocm([0-9][0-9.]*)?", build):
        raise VersionError(SAYS["no_build"].format(build=build))
    return nearest(torch, build)


@lru_cache(maxsize=256)
def nearest(torch: str, build: str) -> Behaviour:
    """As ``behaviour``, where a release older than is known is taken for the oldest known;
    ``build`` is one of its words.
    """
    facts = facts_of({}, torch, build)
    used = min(max(facts.torch, OLDEST), NEWEST)
    known = [c for c in CHANGES if release(c.since) <= used and c.build in ("", facts.build)]
    values = {change.field: change.value for change in known}
    sources = {change.field: change.source for change in known}
    last = min(facts.torch, NEWEST)
    options = [one for one in OPTIONS.values() if not one.since or release(one.since) <= last]
    values["keys"] = frozenset(option.name for option in options)
    sources["keys"] = "; ".join(dict.fromkeys(option.source for option in options))
    rules = [rule for rule in RULES if rule.name == EXPANDABLE and holds(rule, "True", facts)]
    refusal = next((rule for rule in rules if rule.verdict == "unsupported"), None)
    values["expandable_available"] = refusal is None
    sources["expandable_available"] = (refusal or OPTIONS[EXPANDABLE[7:]]).source
    newer = SAYS["newer"].format(torch=torch, newest=".".join(map(str, NEWEST)))
    notes = [newer] if facts.torch > NEWEST else []
    if facts.build == "rocm":
        notes += [] if facts.rocm else [SAYS["no_rocm_version"]]
        notes += [f"expandable segments: {r.says}" for r in rules if r.verdict == "unknown"]
    values["proved"], values["proved_on"] = _proved(facts.torch, facts.build)
    values.update(note="; ".join(notes), sources=tuple(sorted(sources.items())))
    return Behaviour(torch=torch, release=used, build=build, **values)


def _proved(torch: tuple[int, ...], build: str) -> tuple[Literal["oracle", "source"], str]:
    """How far what is said of a release and build was compared with its compiled allocator, and
    that in words.
    """
    own = [row for row in PROVED if (release(row["torch"]), row["build"]) == (torch, build)]
    if own:
        made = [{**row, "made": f" ({row['made']})" if row.get("made") else ""} for row in own]
        return "oracle", "; ".join(SAYS["proved"].format(**row) for row in made)
    on = {b: ", ".join(r["torch"] for r in PROVED if r["build"] == b) for b in ("cuda", "rocm")}
    return "source", SAYS["not_proved"].format(torch=".".join(map(str, torch)), build=build, **on)
