"""What each setting that people try against memory trouble does on this build and this chip: pure, from the table of settings.

A fact that depends on what the box does not tell (a torch release, a chip) is ``unknown`` and says on what it depends.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from helpers.judge.settings import (
    CONF_NAMES,
    CONF_READ,
    NO_CACHE,
    OPTIONS,
    OTHER_NAMES,
    PREFIXES,
    RULES,
    SETTINGS,
    Rule,
)
from helpers.look.bundle import Bundle
from helpers.look.environment import variables
from helpers.look.framework import framework
from helpers.look.gpus import gpus

VERDICTS = ("dangerous", "contradictory", "misspelt", "too_late", "shadowed", "unsupported", "ineffective", "debug_only",
            "unknown", "effective")
"""Every verdict, what a person should look at first on top."""
KNOWN = {setting.name: setting for setting in SETTINGS}
ALIKE = 0.88
# The loader reads these once, before any line of the program.
AT_PROCESS_START = ("LD_LIBRARY_PATH", "LD_PRELOAD")
AT_PARSE = "PyTorch c10/core/AllocatorConfig.cpp"
STOPS = "torch stops at its first use of the GPU"


@dataclass(frozen=True)
class SettingFinding:
    """One fact of one variable. For an option of the allocator's text ``value`` is that option alone, ``key:value``."""

    name: str
    value: str
    verdict: str
    says: str
    source: str


@dataclass(frozen=True)
class _Facts:
    environ: Mapping[str, str]
    options: Mapping[str, str]
    build: str
    gfx: str
    torch: tuple[int, ...]
    rocm: tuple[int, ...]
    caching_off: bool | None


def audit_box(bundle: Bundle) -> tuple[SettingFinding, ...]:
    """What the captured environment's settings do on this box, by its torch build and its GPU's target."""
    build = framework(bundle)
    targets = [gpu.indices["gfx"] for gpu in gpus(bundle) if gpu.indices.get("gfx")]
    return audit({v.name: v.value for v in variables(bundle)}, str(build.version.value or ""), build.build,
                 targets[0] if targets else "")


def audit(environ: Mapping[str, str], torch: str, build: str, gfx: str = "") -> tuple[SettingFinding, ...]:
    """Findings on every variable that is known here or looks like one, by urgency, then by name.

    ``torch`` is its version as it prints itself ("2.9.1+rocm7.0"), ``build`` cuda, rocm, cpu or empty, ``gfx`` the chip
    ("gfx1100"); each may be empty where it is not known. Names that are no concern of GPU memory are passed over.
    """
    facts = _Facts(environ, {}, build, gfx, _release(torch), _release(torch, "rocm"), None)
    facts = _with(facts, caching_off=_caching_off(facts))
    found: list[SettingFinding] = []
    for name in environ:
        if name not in CONF_NAMES:
            found += _variable(name, facts)
    found += _conf(facts)
    return tuple(sorted(set(found), key=lambda f: (VERDICTS.index(f.verdict), f.name, f.value, f.says)))


def too_late(environ_at_start: Mapping[str, str], environ_now: Mapping[str, str]) -> tuple[SettingFinding, ...]:
    """Settings that changed after the process started: /proc/PID/environ keeps what it was given, os.environ what it has now.

    ``too_late`` means here: without effect unless it was changed before the moment that ``says`` names.
    """
    found = []
    for name in sorted({*environ_at_start, *environ_now}):
        before, now = environ_at_start.get(name), environ_now.get(name)
        if before == now or (name not in KNOWN and name not in AT_PROCESS_START):
            continue
        change = "set" if before is None else "removed" if now is None else f"changed from {before!r}"
        when = "only when a process starts" if name in AT_PROCESS_START else f"once, {KNOWN[name].read_when}"
        says = f"{change} after the process started; it is read {when}"
        if name not in AT_PROCESS_START:
            says += ", and a change after that does nothing"
        source = "ld.so(8)" if name in AT_PROCESS_START else KNOWN[name].source
        found.append(SettingFinding(name, "" if now is None else now, "too_late", says, source))
    return tuple(found)


def options_of(text: str) -> dict[str, str]:
    """The options of an allocator text, as torch splits it: commas between, a colon before the value, blanks ignored."""
    found = {}
    for part in re.findall(r"(?:\[[^\]]*\]?|[^,\[])+", text.replace(" ", "")):
        key, _, value = part.partition(":")
        if key:
            found[key] = value
    return found


def _variable(name: str, facts: _Facts) -> list[SettingFinding]:
    value, setting = facts.environ[name], KNOWN.get(re.sub(r"(?<=HSA_OVERRIDE_GFX_VERSION)_[0-9]+$", "", name))
    if setting is None:
        return _stranger(name, value)
    other = _not_of_this_build(setting.build, facts.build)
    if other:
        return [SettingFinding(name, value, "ineffective", other, setting.source)]
    return _ruled(setting.name, name, value, value, facts) or [
        SettingFinding(name, value, setting.verdict, f"{setting.says}; read {setting.read_when}", setting.source)]


def _not_of_this_build(wanted: str, build: str) -> str:
    if build == "cpu":
        return "this torch is built for the CPU alone: nothing in it reads GPU settings"
    if wanted and build and wanted != build:
        return f"read by {'ROCm' if wanted == 'rocm' else 'CUDA'} programs; this torch is built for " + \
               ("CUDA" if build == "cuda" else "ROCm")
    return ""


def _stranger(name: str, value: str) -> list[SettingFinding]:
    if name in OTHER_NAMES or not name.upper().startswith(PREFIXES):
        return []
    near = difflib.get_close_matches(name.upper(), [*KNOWN, *OTHER_NAMES], 1, ALIKE)
    if near and near[0] in KNOWN:
        says = f"no such name is known; the nearest is {near[0]}"
        return [SettingFinding(name, value, "misspelt", says, KNOWN[near[0]].source)]
    if not near and re.search("ALLOC|MEM", name.upper()) and name.upper().startswith("PYTORCH"):
        return [SettingFinding(name, value, "unknown", "no such name is known here", "the table of settings")]
    return []


def _conf(facts: _Facts) -> list[SettingFinding]:
    """The allocator's text: the first of its names that is set and read wins, also where it is empty."""
    found: list[SettingFinding] = []
    winner, sure = "", True
    for name in (name for name in CONF_NAMES if name in facts.environ):
        value = facts.environ[name]
        read, why, source = _read(name, facts)
        if read is False:
            found.append(SettingFinding(name, value, "ineffective", why, source))
        elif winner:
            says = f"{winner} is set{' (empty counts as set)' if not facts.environ[winner] else ''} and wins"
            found.append(SettingFinding(name, value, "shadowed" if sure else "unknown",
                                        says if sure else f"if this build reads {winner}, that wins: {says}", source))
        else:
            winner, sure = name, read is True
            if not sure:
                found.append(SettingFinding(name, value, "unknown", why, source))
            elif not value:
                found.append(SettingFinding(name, value, "ineffective", "empty: it counts as set, hides the other names and "
                                            "sets nothing", source))
            else:
                found += _ruled(name, name, value, value, facts)
            pieces = _options(name, _with(facts, options=options_of(value)))
            found += pieces if sure else [piece for piece in pieces if piece.verdict != "effective"]
            if sure and value and not pieces:
                found.append(SettingFinding(name, value, "ineffective", "no option can be read in it", source))
    return found


def _read(name: str, facts: _Facts) -> tuple[bool | None, str, str]:
    if facts.build == "cpu":
        return False, _not_of_this_build("", "cpu"), "the torch build"
    for wanted, build, since, below, read, why, source in CONF_READ:
        fits = _all(wanted == name, None if not facts.build and build else build in ("", facts.build),
                    _at_least(facts.torch, since), _under(facts.torch, below))
        if fits:
            return read, why, source
        if fits is None:
            return None, "whether this build reads it depends on the torch build and release, which are not known", source
    return None, "whether this build reads it was not checked", "the table of settings"


def _options(name: str, facts: _Facts) -> list[SettingFinding]:
    found: list[SettingFinding] = []
    by_name = {option.name: option for option in OPTIONS}
    for key, value in facts.options.items():
        piece, option = f"{key}:{value}", by_name.get(key)
        if option is None:
            near = difflib.get_close_matches(key, by_name, 1, 0.6)
            says = "no such option is known" + (f"; the nearest is {near[0]}" if near else "") + \
                f". Where torch does not know it either, {STOPS}"
            found.append(SettingFinding(name, piece, "misspelt" if near else "unknown", says, AT_PARSE))
        elif _at_least(facts.torch, option.since) is False:
            says = f"an option from torch {option.since} on; before, {STOPS}"
            found.append(SettingFinding(name, piece, "unsupported", says, option.source))
        elif not re.fullmatch(option.value, value):
            says = f"{value!r} is not {option.expected}: {STOPS}"
            found.append(SettingFinding(name, piece, "misspelt", says, option.source))
        else:
            found += _ruled("option:" + key, name, piece, value, facts) or [
                SettingFinding(name, piece, "effective", option.says, option.source)]
    return found


def _ruled(key: str, name: str, shown: str, value: str, facts: _Facts) -> list[SettingFinding]:
    """What the rules of a name say. Rules that hang on something not known make one finding together."""
    found, open_rules = [], []
    for rule in RULES:
        if rule.name != key:
            continue
        holds = _holds(rule, value, facts)
        if holds:
            found.append(SettingFinding(name, shown, rule.verdict, rule.says, rule.source))
        elif holds is None:
            open_rules.append(rule)
    if open_rules:
        says = "; or: ".join(f"{rule.says} [{_needs(rule)}]" for rule in open_rules)
        sources = "; ".join(dict.fromkeys(rule.source for rule in open_rules))
        found.append(SettingFinding(name, shown, "unknown", "it depends on what is not known here: " + says, sources))
    return found


def _holds(rule: Rule, value: str, facts: _Facts) -> bool | None:
    """Whether a rule applies: None where only something that is not known stands in the way."""
    return _all(
        not rule.value or re.fullmatch(rule.value, value) is not None,
        _beside(rule.beside, facts),
        None if rule.build and not facts.build else rule.build in ("", facts.build),
        None if rule.gfx and not facts.gfx else not rule.gfx or facts.gfx.startswith(rule.gfx),
        _at_least(facts.torch, rule.since), _under(facts.torch, rule.below),
        _at_least(facts.rocm, rule.rocm_since), _under(facts.rocm, rule.rocm_below))


def _beside(beside: tuple[str, str], facts: _Facts) -> bool | None:
    name, wanted = beside
    if not name:
        return True
    if name == "caching":
        return facts.caching_off
    there = facts.options.get(name[7:]) if name.startswith("option:") else facts.environ.get(name)
    return there is None if not wanted else there is not None and re.fullmatch(wanted, there) is not None


def _caching_off(facts: _Facts) -> bool | None:
    off: bool | None = False
    for name in NO_CACHE:
        if name in facts.environ:
            verdicts = {finding.verdict for finding in _variable(name, facts)}
            if verdicts & {"debug_only", "contradictory"}:
                return True
            off = None if "unknown" in verdicts else off
    return off


def _needs(rule: Rule) -> str:
    parts = [f"{rule.build} build"] if rule.build else []
    parts += ["chip " + ", ".join(part + "*" for part in rule.gfx)] if rule.gfx else []
    for what, since, below in (("torch", rule.since, rule.below), ("ROCm", rule.rocm_since, rule.rocm_below)):
        parts += [f"{what} from {since}"] if since else []
        parts += [f"{what} before {below}"] if below else []
    return ", ".join(parts) or "a cache that is switched off"


def _all(*answers: bool | None) -> bool | None:
    return False if False in answers else None if None in answers else True


def _at_least(version: tuple[int, ...], wanted: str) -> bool | None:
    return True if not wanted else None if not version else version >= _release(wanted)


def _under(version: tuple[int, ...], wanted: str) -> bool | None:
    return True if not wanted else None if not version else version < _release(wanted)


def _release(text: str, word: str = "") -> tuple[int, ...]:
    """Major and minor of a version text, of its ``+rocm6.3`` part where that is asked for; empty where there is none."""
    match = re.search(r"\+[^+]*?rocm-?v?([0-9]{1,4})\.([0-9]{1,4})", text) if word else \
        re.match(r"\s*v?([0-9]{1,4})\.([0-9]{1,4})", text)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def _with(facts: _Facts, *, options: Mapping[str, str] | None = None, caching_off: bool | None = None) -> _Facts:
    return _Facts(facts.environ, facts.options if options is None else options, facts.build, facts.gfx, facts.torch, facts.rocm,
                  facts.caching_off if options is not None else caching_off)
