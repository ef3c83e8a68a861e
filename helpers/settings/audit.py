"""What each setting that people try against memory trouble does on this build and this chip:
pure, from the table of settings.

A fact that depends on what the box does not tell (a torch release, a chip) is ``unknown`` and
says on what it depends.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.look.bundle import Bundle
from helpers.settings import table
from helpers.settings.allocator_text import AllocatorText, parts
from helpers.settings.releases import NEWEST, OLDEST, Behaviour, nearest
from helpers.settings.rules import (
    ProcessFacts,
    between,
    dotted,
    facts_of,
    rule_findings,
)
from helpers.settings.table import (
    CONF_NAMES,
    LONGEST,
    OPTIONS,
    VARIABLES,
    Finding,
    Option,
    Variable,
    finding,
)

ALIKE = 0.88
ALIKE_OPTIONS = 0.6
EMPTY = " (empty counts as set)"
OWN_BUILD = (
    "ollama",
    "llama.cpp",
    "vLLM",
    "JAX",
    "TensorFlow",
    "loader",
    "OpenMP",
    "C library",
)
"""Programs that read their variables whatever torch is built for."""
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
QUIET = {*table.HOST_NAMES, "LD_LIBRARY_PATH", "LD_PRELOAD"}


def audit_box(bundle: Bundle) -> tuple[Finding, ...]:
    """What the captured environment's settings do on this box, by its torch build and its GPU's
    target.
    """
    from helpers.look.environment import variables
    from helpers.look.framework import framework
    from helpers.look.gpus import gpus

    build = framework(bundle)
    targets = (gpu.indices.get("gfx") for gpu in gpus(bundle))
    environ = {variable.name: variable.value for variable in variables(bundle)}
    gfx = next(filter(None, targets), "")
    findings = audit(environ, str(build.version.value or ""), build.build, gfx)
    override = environ.get(OVERRIDE, "")
    is_native = gfx in {arch.split(":")[0] for arch in build.archs}
    if is_native and override and _chip(override) != gfx:
        native = finding("native chip", OVERRIDE, override, chip=gfx)
        findings = table.sort([*findings, native])
    return findings


def _chip(version: str) -> str:
    """The chip of a version such as 9.0.10: gfx90a."""
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)\.([0-9]+)", version)
    if match is None:
        return ""
    return f"gfx{match[1]}{int(match[2]):x}{int(match[3]):x}"


def audit(
    environ: Mapping[str, str], torch: str, build: str, gfx: str = ""
) -> tuple[Finding, ...]:
    """Findings on every variable that is known here or looks like one, by urgency, then by name.

    ``torch`` is its version as it prints itself ("2.9.1+rocm7.0"), ``build`` cuda, rocm, cpu or
    empty, ``gfx`` the chip ("gfx1100"); each may be empty where it is not known. Names that are
    no concern of GPU memory are passed over.
    """
    facts = facts_of(environ, torch, build, gfx)
    findings = _AllocatorAudit(facts).findings()
    for name, value in environ.items():
        if name not in CONF_NAMES:
            findings += _variable(name, value, facts)
    return table.sort(findings)


def _variable(name: str, value: str, facts: ProcessFacts) -> list[Finding]:
    """What a variable does that is not the allocator's text."""
    row = VARIABLES.get(re.sub(r"(?<=HSA_OVERRIDE_GFX_VERSION)_[0-9]+$", "", name))
    if row is None:
        return unknown_name(name, value)
    other_build = _other_build(row, facts)
    if other_build:
        return [finding(other_build, name, value, source=row.source)]
    if row.verdict_otherwise and not re.fullmatch(row.form, value):
        return [
            finding(
                "value",
                name,
                value,
                given=value[:LONGEST],
                verdict=row.verdict_otherwise,
                expected=row.expected,
                source=row.source,
            )
        ]
    ruled = rule_findings(row.name, name, value, value, facts)
    if ruled or name in QUIET:
        return ruled
    return [
        Finding(
            name=name,
            value=value,
            verdict=row.verdict,
            says=f"{row.says}; read {row.read}",
            source=row.source,
            cause=row.cause,
            why=row.why,
        )
    ]


def _other_build(row: Variable, facts: ProcessFacts) -> str:
    """The kind of finding where another build's programs read the variable; "" where this one's
    do.
    """
    if row.read_by in OWN_BUILD:
        return ""
    if facts.build == "cpu":
        return "cpu build"
    if row.build and facts.build and row.build != facts.build:
        return f"{row.build} programs"
    return ""


def unknown_name(name: str, value: str) -> list[Finding]:
    """What to say of a name that is not in the table: it may be misspelt."""
    spelling = name.upper().replace("-", "_")
    passed_over = name in table.OTHER_NAMES or len(name) > LONGEST
    if passed_over or not spelling.startswith(table.PREFIXES):
        return []
    near = nearest_name(spelling, (*VARIABLES, *table.OTHER_NAMES), ALIKE)
    if near in VARIABLES:
        return [
            finding("near name", name, value, near=near, source=VARIABLES[near].source)
        ]
    if not near and spelling.startswith("PYTORCH") and re.search("ALLOC|MEM", spelling):
        return [finding("strange name", name, value)]
    return []


def nearest_name(name: str, names: Iterable[str], alike: float) -> str:
    """The name that is spelt most like another one; empty where none is ``alike`` enough."""
    return next(iter(difflib.get_close_matches(name, names, 1, alike)), "")


@lru_cache(maxsize=64)
def _behaviours(
    torch: tuple[int, ...], rocm: tuple[int, ...], build: str
) -> tuple[Behaviour, ...]:
    """What may be running: one release and build, or every one that is possible where they are
    not known.
    """
    versions = [f"2.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    if torch:
        versions = [dotted(torch)]
    builds = {"cuda": "cuda", "rocm": "rocm" + dotted(rocm)}
    words = list(builds.values())
    if build in builds:
        words = [builds[build]]
    behaviours: list[Behaviour] = []
    for version in versions:
        behaviours += [nearest(version, word) for word in words]
    return tuple(behaviours)


@dataclass(frozen=True)
class _Reader:
    """Which of the allocator's variables wins, and whether it is sure that this build reads it."""

    name: str
    sure: bool


class _AllocatorAudit:
    """The allocator's text: the first of its names that is set and read wins, also where it is
    empty.
    """

    def __init__(self, facts: ProcessFacts):
        self.facts = facts
        self.behaviours = _behaviours(facts.torch, facts.rocm, facts.build)
        self.names_source = self.behaviours[0].source("conf_names")

    def findings(self) -> list[Finding]:
        findings: list[Finding] = []
        winner: _Reader | None = None
        for name in CONF_NAMES:
            if name not in self.facts.environ:
                continue
            value = self.facts.environ[name]
            facts = replace(self.facts, options=dict(parts(value)[:LONGEST]))
            is_read, about_reading = self._is_read(name, facts)
            findings += about_reading
            if is_read is False:
                continue
            if winner is None:
                winner = _Reader(name, sure=is_read is True)
                if winner.sure and not facts.options:
                    kind = "no option" if value else "empty text"
                    findings.append(
                        finding(kind, name, value, source=self.names_source)
                    )
            else:
                findings.append(self._shadowed(name, winner))
            about_options = self._options(name, facts, winner)
            findings += [
                row
                for row in about_options
                if winner.sure or row.verdict != "effective"
            ]
        return findings

    def _shadowed(self, name: str, winner: _Reader) -> Finding:
        kind = "shadowed" if winner.sure else "perhaps shadowed"
        empty = "" if self.facts.environ[winner.name] else EMPTY
        value = self.facts.environ[name]
        source = self.names_source
        return finding(
            kind, name, value, winner=winner.name, empty=empty, source=source
        )

    def _is_read(
        self, name: str, facts: ProcessFacts
    ) -> tuple[bool | None, list[Finding]]:
        """Whether this build reads a name for the allocator's text, and what is to be said of
        that and of the whole text.
        """
        value = facts.environ[name]
        if facts.build == "cpu":
            return False, [finding("cpu build", name, value, source="the torch build")]
        ruled = rule_findings(name, name, value, value, facts)
        answers = {name in behaviour.conf_names for behaviour in self.behaviours}
        if answers == {True} and value:
            return True, ruled
        if answers == {True}:
            return True, []
        if len(answers) > 1:
            return None, [
                finding("perhaps read", name, value, source=self.names_source)
            ]
        unknown = [row for row in ruled if row.verdict == "unknown"]
        if unknown:
            return None, unknown
        inert = [row for row in ruled if row.verdict == "ineffective"]
        if inert:
            return False, inert
        names = ", ".join(self.behaviours[0].conf_names)
        source = self.names_source
        return False, [finding("not read", name, value, names=names, source=source)]

    def _options(
        self, name: str, facts: ProcessFacts, winner: _Reader
    ) -> list[Finding]:
        """What the options of one name's text do: of the name that wins, and of those that this
        build takes from another.
        """
        findings: list[Finding] = []
        certain = winner.sure and len(self.behaviours) == 1
        for key, value in facts.options.items():
            piece = f"{key}:{value}"
            if key not in OPTIONS:
                near = nearest_name(key[:LONGEST], OPTIONS, ALIKE_OPTIONS)
                kind = "near option" if near else "strange option"
                findings.append(finding(kind, name, piece, near=near))
                continue
            names = self.behaviours[-1].names_for(key)
            if certain and name not in names:
                findings.append(
                    finding(
                        "passed over",
                        name,
                        piece,
                        key=key,
                        names=" or ".join(names),
                        source=self.behaviours[0].source("own_conf_names"),
                    )
                )
                continue
            reader = winner.name
            if certain:
                reader = next((other for other in names if other in facts.environ), "")
            if name == reader:
                findings += self._option(name, OPTIONS[key], value, facts)
        return findings

    def _option(
        self, name: str, option: Option, value: str, facts: ProcessFacts
    ) -> list[Finding]:
        """What one option does where its text is read: whether torch takes it at all, then what
        the rules say.
        """
        piece = f"{option.name}:{value}"
        if between(facts.torch, option.since, "") is False:
            return [finding("newer option", name, piece, option=option)]
        knowing = [rules for rules in self.behaviours if option.name in rules.keys]
        errors = [AllocatorText(piece, rules).error for rules in knowing]
        refusals = [error.why for error in errors if error is not None]
        if refusals and not re.fullmatch(option.form, value):
            return [
                finding(
                    "option value", name, piece, given=value[:LONGEST], option=option
                )
            ]
        if refusals:
            kind = "refused" if len(refusals) == len(errors) else "perhaps refused"
            return [finding(kind, name, piece, refusal=refusals[-1])]
        ruled = rule_findings(f"option:{option.name}", name, piece, value, facts)
        if ruled:
            return ruled
        return [Finding(name, piece, "effective", option.says, option.source)]
