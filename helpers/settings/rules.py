"""Which rules of the table hold for a process: its variables, its torch build, its chip.

A rule that depends on what is not known (a release, a chip) neither holds nor fails: it is open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from helpers.settings.table import NO_CACHE, RULES, Finding, Rule, finding

BUILDS = {"cu": "cuda", "rocm": "rocm", "cpu": "cpu"}
"""The build by how the local part of torch's version starts: 2.8.0+cu128, 2.9.1+rocm7.0."""


@dataclass(frozen=True)
class ProcessFacts:
    """What is known of a process, for the conditions of rules.

    ``environ`` has its variables, ``options`` those of the allocator's text that is judged.
    ``build`` is cuda, rocm, cpu or empty, ``gfx`` the chip or empty; ``torch`` and ``rocm`` are
    releases (major, minor), empty where not known. ``caching_off`` says whether a variable
    disables the allocator's cache, None where that depends on what is not known.
    """

    environ: Mapping[str, str]
    build: str
    gfx: str
    torch: tuple[int, ...]
    rocm: tuple[int, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    caching_off: bool | None = False


def release(version: str) -> tuple[int, ...]:
    """Major and minor of a version text such as 2.9.1 or v2.9; empty where it is none."""
    return _numbers(re.match(r"\s{0,9}v?([0-9]{1,4})\.([0-9]{1,4})", version))


def dotted(version: tuple[int, ...]) -> str:
    """A version as it is written: 2.14 of (2, 14)."""
    return ".".join(map(str, version))


def rocm_release(version: str) -> tuple[int, ...]:
    """Major and minor of the ``+rocm6.3`` part of torch's version; empty where there is none.

    Up to 80 characters between the plus sign and it are passed over, should a build put its commit
    there: a choice of ours.
    """
    number = r"([0-9]{1,4})"
    mark = re.search(rf"\+[^+]{{0,80}}?rocm-?v?{number}\.{number}", version)
    return _numbers(mark)


def _numbers(match: re.Match[str] | None) -> tuple[int, ...]:
    """The two numbers that a pattern found, or none."""
    if match is None:
        return ()
    return int(match[1]), int(match[2])


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
        build = BUILDS[mark[1]]
    kind = build[:4]  # without ROCm's version
    facts = ProcessFacts(environ, kind, gfx, release(torch), rocm)
    return replace(facts, caching_off=caching_off(facts))


def rule_findings(
    key: str, name: str, shown: str, value: str, facts: ProcessFacts
) -> list[Finding]:
    """Findings of the rules named ``key`` about a setting with this value.

    They are said of ``name``, its value shown as ``shown``. Rules that depend on something not
    known make one finding together.
    """
    findings = []
    open_rules = []
    for rule in RULES:
        if rule.name != key:
            continue
        is_true = holds(rule, value, facts)
        if is_true is None:
            open_rules.append(rule)
        elif is_true:
            of_rule = Finding(
                name=name,
                value=shown,
                verdict=rule.verdict,
                says=rule.says,
                source=rule.source,
                cause=rule.cause,
                why=rule.why,
            )
            findings.append(of_rule)
    if open_rules:
        says = "; or: ".join(f"{rule.says} [{conditions(rule)}]" for rule in open_rules)
        source = "; ".join(dict.fromkeys(rule.source for rule in open_rules))
        findings.append(finding("open", name, shown, rules=says, source=source))
    return findings


def holds(rule: Rule, value: str, facts: ProcessFacts) -> bool | None:
    """Whether all conditions of a rule hold.

    None: no condition fails, but one depends on something that is not known.
    """
    if rule.value and not re.fullmatch(rule.value, value):
        return False
    # Each is True, False or None (not known); one that is False decides.
    answers = [
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
    """Whether the rule's condition on another setting (``beside``) holds; None: not known."""
    if not rule.beside:
        return True
    name, wanted = rule.beside
    if name == "caching":  # ("caching", "off") is the only such condition
        return facts.caching_off
    if name.startswith("option:"):
        neighbour = facts.options.get(name[len("option:") :])
    else:
        neighbour = facts.environ.get(name)
    if not wanted:
        return neighbour is None
    return neighbour is not None and re.fullmatch(wanted, neighbour) is not None


def _build_holds(rule: Rule, facts: ProcessFacts) -> bool | None:
    """Whether the rule is for this build; None where the build is not known."""
    if not rule.build:
        return True
    if not facts.build:
        return None
    return rule.build == facts.build


def _chip_holds(rule: Rule, facts: ProcessFacts) -> bool | None:
    """Whether the rule is for this chip; None where the chip is not known."""
    if not rule.gfx:
        return True
    if not facts.gfx:
        return None
    return facts.gfx.startswith(rule.gfx)


def caching_off(facts: ProcessFacts) -> bool | None:
    """Whether a variable switches the allocator's cache off; None where that depends on what is
    not known.

    Both verdicts of the rules that say so count: ``debug_only``, and ``contradictory`` of a value
    that was meant to keep the cache on. Without a rule a variable that is set does switch it off.
    """
    is_off: bool | None = False
    for name in NO_CACHE:
        if name not in facts.environ:
            continue
        value = facts.environ[name]
        findings = rule_findings(name, name, value, value, facts)
        verdicts = {finding.verdict for finding in findings}
        if not verdicts or verdicts & {"debug_only", "contradictory"}:
            return True
        if "unknown" in verdicts:
            is_off = None
    return is_off


def between(version: tuple[int, ...], since: str, below: str) -> bool | None:
    """Whether a release is at least ``since`` and before ``below``, each empty where there is no
    such bound; None where the release is not known.
    """
    if not since and not below:
        return True
    if not version:
        return None
    if since and version < release(since):
        return False
    return not below or version < release(below)


def conditions(rule: Rule) -> str:
    """The conditions of a rule about build, chip and releases, in words."""
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
    if not words:  # then the rule depends on ``caching`` beside it
        return "a cache that is switched off"
    return ", ".join(words)
