"""Which rules of the table hold for a process: its variables, its torch build, its chip.

A rule that depends on what is not known (a release, a chip) neither holds nor fails: it is open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from helpers.settings.table import NO_CACHE, RULES, Finding, Rule, finding


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of a process: its variables, the options of the text that is judged, build,
    chip and releases.

    ``build`` is cuda, rocm, cpu or empty; an empty release is not known. ``caching_off`` is
    None where that is open.
    """

    environ: Mapping[str, str]
    build: str
    gfx: str
    torch: tuple[int, ...]
    rocm: tuple[int, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    caching_off: bool | None = False


def release(version: str) -> tuple[int, ...]:
    """Major and minor of a version text; empty where there is none."""
    return _numbers(re.search(r"^\s{0,9}v?([0-9]{1,4})\.([0-9]{1,4})", version))


def dotted(version: tuple[int, ...]) -> str:
    """A version as it is written: 2.14 of (2, 14)."""
    return ".".join(map(str, version))


def rocm_release(version: str) -> tuple[int, ...]:
    """Major and minor of the ``+rocm6.3`` part of torch's version; empty where there is none."""
    return _numbers(
        re.search(r"\+[^+]{0,80}?rocm-?v?([0-9]{1,4})\.([0-9]{1,4})", version)
    )


def _numbers(found: re.Match[str] | None) -> tuple[int, ...]:
    return () if found is None else (int(found[1]), int(found[2]))


def facts_of(
    environ: Mapping[str, str], torch: str, build: str, gfx: str = ""
) -> ProcessFacts:
    """The facts of a torch version text ("2.9.1+rocm7.0") and a build ("rocm" or "rocm7.0",
    "cuda", "cpu" or empty).

    Where no build is given, the version's own mark (+cu128, +rocm7.0, +cpu) tells it.
    """
    rocm = rocm_release(torch)
    if not rocm and build.startswith("rocm"):
        rocm = release(build[len("rocm") :])
    mark = re.search(r"\+(cu(?=[0-9])|rocm|cpu)", torch)
    if not build and mark:
        build = {"cu": "cuda"}.get(mark[1], mark[1])
    facts = ProcessFacts(
        environ=environ, build=build[:4], gfx=gfx, torch=release(torch), rocm=rocm
    )
    return replace(facts, caching_off=caching_off(facts))


def rule_findings(
    key: str, name: str, shown: str, value: str, facts: ProcessFacts
) -> list[Finding]:
    """What the rules of ``key`` say about ``name``, whose value is ``value`` and is shown as
    ``shown``.

    Rules that depend on something not known make one finding together.
    """
    findings = []
    open_rules = []
    for rule in RULES:
        if rule.name != key:
            continue
        state = holds(rule, value, facts)
        if state is None:
            open_rules.append(rule)
        elif state:
            findings.append(
                Finding(
                    name=name,
                    value=shown,
                    verdict=rule.verdict,
                    says=rule.says,
                    source=rule.source,
                    cause=rule.cause,
                    why=rule.why,
                )
            )
    if open_rules:
        says = "; or: ".join(f"{rule.says} [{conditions(rule)}]" for rule in open_rules)
        source = "; ".join(dict.fromkeys(rule.source for rule in open_rules))
        findings.append(finding("open", name, shown, rules=says, source=source))
    return findings


def holds(rule: Rule, value: str, facts: ProcessFacts) -> bool | None:
    """Whether a rule applies: None where only something that is not known stands in the way."""
    answers = [
        not rule.value or re.fullmatch(rule.value, value) is not None,
        _neighbour_holds(rule, facts),
        _build_holds(rule, facts),
        _chip_holds(rule, facts),
        between(facts.torch, rule.since, rule.below),
        between(facts.rocm, rule.rocm_since, rule.rocm_below),
    ]
    if False in answers:
        return False
    if None in answers:
        return None
    return True


def _neighbour_holds(rule: Rule, facts: ProcessFacts) -> bool | None:
    """Whether what must stand beside the setting does."""
    if not rule.beside:
        return True
    name, wanted = rule.beside
    if name == "caching":
        return facts.caching_off
    if name.startswith("option:"):
        neighbour = facts.options.get(name[len("option:") :])
    else:
        neighbour = facts.environ.get(name)
    if not wanted:
        return neighbour is None
    return neighbour is not None and re.fullmatch(wanted, neighbour) is not None


def _build_holds(rule: Rule, facts: ProcessFacts) -> bool | None:
    if not rule.build:
        return True
    if not facts.build:
        return None
    return rule.build == facts.build


def _chip_holds(rule: Rule, facts: ProcessFacts) -> bool | None:
    if not rule.gfx:
        return True
    if not facts.gfx:
        return None
    return facts.gfx.startswith(rule.gfx)


def caching_off(facts: ProcessFacts) -> bool | None:
    """Whether a variable switches the allocator's cache off; None where that depends on what is
    not known.
    """
    off: bool | None = False
    for name in NO_CACHE:
        if name not in facts.environ:
            continue
        value = facts.environ[name]
        verdicts = {
            row.verdict for row in rule_findings(name, name, value, value, facts)
        }
        if not verdicts or verdicts & {"debug_only", "contradictory"}:
            return True
        if "unknown" in verdicts:
            off = None
    return off


def between(version: tuple[int, ...], since: str, below: str) -> bool | None:
    """Whether a release is at least ``since`` and before ``below``; empty ones do not count."""
    if not since and not below:
        return True
    if not version:
        return None
    if since and version < release(since):
        return False
    return not below or version < release(below)


def conditions(rule: Rule) -> str:
    """What would have to be known for a rule to hold, in words."""
    words = []
    if rule.build:
        words.append(f"{rule.build} build")
    if rule.gfx:
        words.append("chip " + ", ".join(start + "*" for start in rule.gfx))
    if rule.since:
        words.append(f"torch from {rule.since}")
    if rule.below:
        words.append(f"torch before {rule.below}")
    if rule.rocm_since:
        words.append(f"ROCm from {rule.rocm_since}")
    if rule.rocm_below:
        words.append(f"ROCm before {rule.rocm_below}")
    return ", ".join(words) or "a cache that is switched off"
