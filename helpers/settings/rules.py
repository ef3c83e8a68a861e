"""What the table says of one setting on one build, release and chip: findings, and rules whose conditions hold there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from helpers.settings.table import FINDINGS, NEEDS, NO_CACHE, RULES, VERDICTS, Rule, release


@dataclass(frozen=True)
class Finding:
    """One fact of one setting. For an option of the allocator's text ``value`` is that option alone, ``key:value``.

    ``verdict`` is one of VERDICTS. ``cause`` is the cause of a failure that the setting can be alone (empty: none), ``why``
    the reason; both are the verdict's own where they are not given. ``right`` is what was meant where it is misspelt,
    ``remark`` what stood behind the value, and ``hearsay`` says that the finding rests on such a remark.
    """

    name: str
    value: str
    verdict: str
    says: str
    source: str
    cause: str | None = None
    why: str = ""
    right: str = ""
    remark: str = ""
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


def told(kind: str, name: str, value: str, right: str = "", **gaps: object) -> Finding:
    """The finding of one row of FINDINGS, its gaps filled."""
    row = {column: text.format(**gaps) for column, text in FINDINGS[kind].items()}
    return Finding(name, value, right=right, **row)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Facts:
    """What is known of a process: its variables, the options of the text that is judged, build, chip and releases.

    ``build`` is cuda, rocm, cpu or empty; an empty release is not known. ``caching_off`` is None where that is open.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    gfx: str = ""
    torch: tuple[int, ...] = ()
    rocm: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    caching_off: bool | None = False


def facts_of(environ: Mapping[str, str], torch: str, build: str, gfx: str = "") -> Facts:
    """The facts of a torch version text ("2.9.1+rocm7.0") and a build ("rocm" or "rocm7.0", "cuda", "cpu" or empty).

    Where no build is given, the version's own mark (+cu128, +rocm7.0, +cpu) tells it.
    """
    rocm = release(torch, "rocm") or release(build[4:] if build.startswith("rocm") else "")
    local = re.search(r"\+(cu(?=[0-9])|rocm|cpu)", torch)
    build = build or ({"cu": "cuda"}.get(local[1], local[1]) if local else "")
    facts = Facts(environ, build[:4], gfx, release(torch), rocm)
    return replace(facts, caching_off=caching_off(facts))


def ruled(key: str, name: str, shown: str, value: str, facts: Facts) -> list[Finding]:
    """What the rules of ``key`` say. Rules that hang on something not known make one finding together."""
    states = [(rule, holds(rule, value, facts)) for rule in RULES if rule.name == key]
    held = [rule for rule, state in states if state]
    found = [Finding(name, shown, r.verdict, r.says, r.source, r.cause, r.why) for r in held]
    unsure = [rule for rule, state in states if state is None]
    if unsure:
        says = "; or: ".join(f"{rule.says} [{_needs(rule)}]" for rule in unsure)
        source = "; ".join(dict.fromkeys(rule.source for rule in unsure))
        found.append(told("open", name, shown, rules=says, source=source))
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
    """Whether a variable switches the allocator's cache off; None where that depends on what is not known."""
    off: bool | None = False
    for name in (name for name in NO_CACHE if name in facts.environ):
        value = facts.environ[name]
        said = {one.verdict for one in ruled(name, name, value, value, facts)}
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
