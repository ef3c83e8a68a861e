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
from itertools import product

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
"""How like a known variable an unknown name must be spelt to count as misspelt, as difflib's
ratio: one or two wrong letters. Different real names are hardly ever so alike.
"""
ALIKE_OPTIONS = 0.6
"""The same for options of the allocator's text, difflib's usual: torch refuses every unknown one,
so a far resemblance is still a mistake.
"""
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
"""Variables that most programs run with: worth a finding only where a rule holds for them."""
MOST_OPTIONS = 80
"""Options of one text that are judged; torch knows fewer."""


def audit_box(bundle: Bundle) -> tuple[Finding, ...]:
    """What the settings in the captured environment do on this box, with its torch build and its
    first GPU.
    """
    from helpers.look.environment import variables
    from helpers.look.framework import framework
    from helpers.look.gpus import gpus

    torch = framework(bundle)
    version = ""
    if torch.version.ok:
        version = str(torch.version.value)
    chips = [gpu.indices["gfx"] for gpu in gpus(bundle) if gpu.indices.get("gfx")]
    gfx = ""
    if chips:
        gfx = chips[0]
    environ = {variable.name: variable.value for variable in variables(bundle)}
    findings = audit(environ, version, torch.build, gfx)
    override = environ.get(OVERRIDE, "")
    # An override makes a chip pass for another one; torch may have code for the chip itself.
    # A target of torch may have features behind its chip: gfx90a:sramecc+:xnack-.
    is_native = gfx in {target.split(":")[0] for target in torch.archs}
    if is_native and override and _chip(override) != gfx:
        native = finding("native chip", OVERRIDE, override, chip=gfx)
        findings = table.sort([*findings, native])
    return findings


def _chip(version: str) -> str:
    """The chip of a version such as 9.0.10, gfx90a: minor and stepping are written in
    hexadecimal. Empty where the text is no such version.
    """
    match = re.fullmatch(r"([0-9]+)\.([0-9]+)\.([0-9]+)", version)
    if match is None:
        return ""
    return f"gfx{match[1]}{int(match[2]):x}{int(match[3]):x}"


def audit(
    environ: Mapping[str, str], torch: str, build: str, gfx: str = ""
) -> tuple[Finding, ...]:
    """Findings on every variable that the table knows or that looks misspelt, the most urgent
    first.

    ``torch`` is its version as torch prints it ("2.9.1+rocm7.0"), ``build`` cuda, rocm or cpu,
    ``gfx`` the chip ("gfx1100"); each is empty where it is not known. Other variables are
    passed over.
    """
    facts = facts_of(environ, torch, build, gfx)
    findings = _AllocatorAudit(facts).findings()
    for name, value in environ.items():
        if name not in CONF_NAMES:
            findings += _variable(name, value, facts)
    return table.sort(findings)


def _variable(name: str, value: str, facts: ProcessFacts) -> list[Finding]:
    """What a variable does that is not the allocator's text: the first that holds of a name that
    is not known, a build that does not read it, a value that the program does not take, rules of
    the table, and what the variable does by its row. Empty for QUIET ones without a rule.
    """
    row = VARIABLES.get(without_device(name))
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


def without_device(name: str) -> str:
    """A name without the device's number that ROCm allows behind HSA_OVERRIDE_GFX_VERSION."""
    return re.sub(rf"(?<={OVERRIDE})_[0-9]+$", "", name)


def _other_build(row: Variable, facts: ProcessFacts) -> str:
    """The kind of finding where only programs of another build read the variable, else ""."""
    if row.read_by in OWN_BUILD:
        return ""
    if facts.build == "cpu":
        return "cpu build"
    if row.build and facts.build and row.build != facts.build:
        return f"{row.build} programs"
    return ""


def unknown_name(name: str, value: str) -> list[Finding]:
    """The finding on a name that is not in the table: misspelt where it is near a known variable,
    strange where it looks like one of PyTorch's about memory. Empty for any other name.
    """
    if name in table.OTHER_NAMES or len(name) > LONGEST:
        return []
    spelling = name.upper().replace("-", "_")
    if not spelling.startswith(table.PREFIXES):
        return []
    # Real names that have nothing to do with memory take part, so that none of them counts as a
    # misspelt one of the table.
    near = nearest_name(spelling, (*VARIABLES, *table.OTHER_NAMES), ALIKE)
    if near in VARIABLES:
        source = VARIABLES[near].source
        return [finding("near name", name, value, near=near, source=source)]
    is_about_memory = re.match("PYTORCH.*(ALLOC|MEM)", spelling)
    if is_about_memory and not near:
        return [finding("strange name", name, value)]
    return []


def nearest_name(name: str, names: Iterable[str], alike: float) -> str:
    """Of ``names`` the one that is spelt most like ``name``; empty where none has difflib's ratio
    ``alike``, from 0 to 1.
    """
    matches = difflib.get_close_matches(name, names, n=1, cutoff=alike)
    return next(iter(matches), "")


@lru_cache(maxsize=64)
def _behaviours(
    torch: tuple[int, ...], rocm: tuple[int, ...], build: str
) -> tuple[Behaviour, ...]:
    """The allocators that the program may have: that of its release and build, or those of every
    release or build where one of the two is not known.
    """
    versions = [dotted(torch)]
    if not torch:  # not known
        versions = [f"2.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    builds = ["cuda", f"rocm{dotted(rocm)}"]
    fitting = [word for word in builds if build and word.startswith(build)]
    if fitting:
        builds = fitting
    return tuple(nearest(*pair) for pair in product(versions, builds))


@dataclass(frozen=True)
class _Winner:
    """Which of the allocator's variables wins, and whether it is sure that this build reads it."""

    name: str
    is_sure: bool


class _AllocatorAudit:
    """The audit of the allocator's text: of its variables the first that is set and read wins,
    also where it is empty.
    """

    def __init__(self, facts: ProcessFacts):
        self.facts = facts
        self.behaviours = _behaviours(facts.torch, facts.rocm, facts.build)
        self.names_source = self.behaviours[0].source("conf_names")

    def findings(self) -> list[Finding]:
        """Findings on each variable of the allocator that is set, in the order of precedence."""
        findings: list[Finding] = []
        winner: _Winner | None = None
        for name in CONF_NAMES:
            if name not in self.facts.environ:
                continue
            options = parts(self.facts.environ[name])
            facts = replace(self.facts, options=dict(options[:MOST_OPTIONS]))
            is_read, about_reading = self._is_read(name, facts)
            findings += about_reading
            if is_read is False:  # known not to be read: it hides no other variable
                continue
            if winner is not None:
                findings.append(self._shadowed(name, winner))
            else:
                winner = _Winner(name, is_sure=is_read is True)
                if winner.is_sure and not options:
                    findings.append(self._without_option(name))
            for row in self._options(name, facts, winner):
                # That an option works is said only where it is surely read.
                if winner.is_sure or row.verdict != "effective":
                    findings.append(row)
        return findings

    def _without_option(self, name: str) -> Finding:
        """The finding on the variable that wins, and has no option in its text."""
        value = self.facts.environ[name]
        kind = "empty text"
        if value:
            kind = "no option"
        return finding(kind, name, value, source=self.names_source)

    def _shadowed(self, name: str, winner: _Winner) -> Finding:
        """The finding on a variable that another one hides, or may hide where it is not known
        whether this build reads that one.
        """
        kind = "perhaps shadowed"
        if winner.is_sure:
            kind = "shadowed"
        empty = ""
        if not self.facts.environ[winner.name]:
            empty = EMPTY
        return finding(
            kind,
            name,
            self.facts.environ[name],
            winner=winner.name,
            empty=empty,
            source=self.names_source,
        )

    def _is_read(
        self, name: str, facts: ProcessFacts
    ) -> tuple[bool | None, list[Finding]]:
        """Whether this build reads the allocator's text from ``name``, None where that is not
        known; and the findings on that and on the whole text.
        """
        value = facts.environ[name]
        if facts.build == "cpu":
            return False, [finding("cpu build", name, value, source="the torch build")]
        ruled = rule_findings(name, name, value, value, facts)
        # One answer for each release that the process may have.
        answers = {name in behaviour.conf_names for behaviour in self.behaviours}
        if answers == {True} and value:
            return True, ruled
        if answers == {True}:  # of an empty text the rules about a text do not hold
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
        self, name: str, facts: ProcessFacts, winner: _Winner
    ) -> list[Finding]:
        """Findings on the options in the text of ``name``: what those do that are read from
        there, and which are unknown or read only from another variable.
        """
        findings: list[Finding] = []
        for key, value in facts.options.items():
            if key not in OPTIONS:
                findings.append(_unknown_option(name, key, value))
                continue
            # Where release and build are known, each option has its own order of variables
            # (Behaviour.names_for), and the first that is set is read.
            read_from = winner.name
            if winner.is_sure and len(self.behaviours) == 1:
                names = self.behaviours[0].names_for(key)
                if name not in names:
                    findings.append(self._passed_over(name, key, value))
                    continue
                read_from = next(other for other in names if other in facts.environ)
            if name == read_from:
                findings += self._option(name, OPTIONS[key], value, facts)
        return findings

    def _passed_over(self, name: str, key: str, value: str) -> Finding:
        """The finding on an option that this build reads only from other variables."""
        behaviour = self.behaviours[0]
        return finding(
            "passed over",
            name,
            f"{key}:{value}",
            key=key,
            names=" or ".join(behaviour.names_for(key)),
            source=behaviour.source("own_conf_names"),
        )

    def _option(
        self, name: str, option: Option, value: str, facts: ProcessFacts
    ) -> list[Finding]:
        """Findings on one option that is read: whether torch takes it, then what the rules say."""
        piece = f"{option.name}:{value}"
        if between(facts.torch, option.since, "") is False:
            return [finding("newer option", name, piece, option=option)]
        # Of the releases that the process may have, those that know the option.
        errors = [
            AllocatorText(piece, behaviour).error
            for behaviour in self.behaviours
            if option.name in behaviour.keys
        ]
        refusals = [error.why for error in errors if error is not None]
        if refusals and not re.fullmatch(option.form, value):
            shown = value[:LONGEST]
            return [finding("option value", name, piece, given=shown, option=option)]
        if refusals:
            kind = "perhaps refused"
            if len(refusals) == len(errors):
                kind = "refused"
            return [finding(kind, name, piece, refusal=refusals[-1])]
        ruled = rule_findings(f"option:{option.name}", name, piece, value, facts)
        if ruled:
            return ruled
        return [Finding(name, piece, "effective", option.says, option.source)]


def _unknown_option(name: str, key: str, value: str) -> Finding:
    """The finding on an option that torch does not know: misspelt where it is near a known one."""
    near = nearest_name(key[:LONGEST], OPTIONS, ALIKE_OPTIONS)
    kind = "strange option"
    if near:
        kind = "near option"
    return finding(kind, name, f"{key}:{value}", near=near)
