"""What each setting that people try against memory trouble does on this build and this chip: pure, from the table of settings.

A fact that depends on what the box does not tell (a torch release, a chip) is ``unknown`` and says on what it depends.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from helpers.look.bundle import Bundle
from helpers.settings.posted import late_by_remark, value_and_remark
from helpers.settings.releases import NEWEST, OLDEST, Behaviour, nearest
from helpers.settings.rules import Facts, Finding, between, facts_of, finding, ruled, sort
from helpers.settings.table import (
    CONF_NAMES,
    HOST_NAMES,
    OPTIONS,
    OTHER_NAMES,
    PREFIXES,
    VARIABLES,
    Option,
)
from helpers.settings.text import Conf, parts

ALIKE, ALIKE_OPTIONS, LONGEST = 0.88, 0.6, 80
AT_PARSE = "PyTorch c10/core/AllocatorConfig.cpp"
STOPS = "torch stops at its first use of the GPU"
OWN_BUILD = ("ollama", "llama.cpp", "vLLM", "JAX", "TensorFlow", "loader", *("OpenMP", "C library"))
"""Programs that read their variables whatever torch is built for."""
QUIET = {*HOST_NAMES, "LD_LIBRARY_PATH", "LD_PRELOAD"}


def audit_box(bundle: Bundle) -> tuple[Finding, ...]:
    """What the captured environment's settings do on this box, by its torch build and its GPU's target."""
    from helpers.look.environment import variables  # only a captured box needs its readers
    from helpers.look.framework import framework
    from helpers.look.gpus import gpus

    build = framework(bundle)
    targets = [gpu.indices["gfx"] for gpu in gpus(bundle) if gpu.indices.get("gfx")]
    environ = {v.name: v.value for v in variables(bundle)}
    version, gfx = str(build.version.value or ""), targets[0] if targets else ""
    return audit(environ, version, build.build, gfx, posted=bundle.kind != "live")


def audit(
    environ: Mapping[str, str], torch: str, build: str, gfx: str = "", posted: bool = False
) -> tuple[Finding, ...]:
    """Findings on every variable that is known here or looks like one, by urgency, then by name.

    ``torch`` is its version as it prints itself ("2.9.1+rocm7.0"), ``build`` cuda, rocm, cpu or empty, ``gfx`` the chip
    ("gfx1100"); each may be empty where it is not known. ``posted``: the values were typed by a person, who may have put a
    remark behind them ("True (second attempt)"); one that says when it was set counts as hearsay that it was too late.
    Names that are no concern of GPU memory are passed over.
    """
    remarks: dict[str, str] = {}
    if posted:
        split = {name: value_and_remark(name, value) for name, value in environ.items()}
        environ = {name: value for name, (value, _) in split.items() if value is not None}
        remarks = {name: remark for name, (_, remark) in split.items() if remark}
    facts = facts_of(environ, torch, build, gfx)
    found = _findings(facts)
    if not facts.build and facts.torch:
        either = [_findings(facts_of(environ, torch, one, gfx)) for one in ("cuda", "rocm")]
        found = [known for one in found for known in _known(one, either)]
    found = [replace(f, remark=remarks.get(f.name, "")) for f in found]
    found += [
        f for name in remarks for f in late_by_remark(name, environ.get(name, ""), remarks[name])
    ]
    return sort(found)


def _findings(facts: Facts) -> list[Finding]:
    found = [f for name in facts.environ if name not in CONF_NAMES for f in _variable(name, facts)]
    return found + _conf(facts)


def _known(one: Finding, either: list[list[Finding]]) -> list[Finding]:
    """An unknown finding, or what stands in its place where the answer is known for one build and unchecked for the other."""
    key = (one.name, one.value)
    cuda, rocm = ([f for f in found if (f.name, f.value) == key] for found in either)
    unchecked = any(f.verdict == "unknown" for f in rocm)
    if one.verdict != "unknown" or not unchecked or not all(f.cause for f in cuda):
        return [one]
    return [replace(f, says=f"{f.says} (a CUDA build; ROCm not checked)") for f in cuda] or [one]


def _variable(name: str, facts: Facts) -> list[Finding]:
    value = facts.environ[name]
    row = VARIABLES.get(re.sub(r"(?<=HSA_OVERRIDE_GFX_VERSION)_[0-9]+$", "", name))
    if row is None:
        return _stranger(name, value)
    other = "" if row.by in OWN_BUILD else _not_of_this_build(row.build, facts.build)
    if other:
        return [finding(name, value, "ineffective", other, row.source)]
    if row.otherwise and not re.fullmatch(row.form, value):
        says = f"{value[:LONGEST]!r} is not {row.expected}"
        return [finding(name, value, row.otherwise, says, row.source)]
    found = ruled(row.name, name, value, value, facts)
    if found or name in QUIET:
        return found
    return [finding(name, value, row.verdict, f"{row.says}; read {row.when}", row.source, row)]


def _not_of_this_build(wanted: str, build: str) -> str:
    if build == "cpu":
        return "this torch is built for the CPU alone: nothing in it reads GPU settings"
    if wanted and build and wanted != build:
        words = {"rocm": "ROCm", "cuda": "CUDA"}
        return f"read by {words[wanted]} programs; this torch is built for {words[build]}"
    return ""


def _stranger(name: str, value: str) -> list[Finding]:
    plain = name.upper().replace("-", "_")
    if name in OTHER_NAMES or not plain.startswith(PREFIXES) or len(name) > LONGEST:
        return []
    near = difflib.get_close_matches(plain, [*VARIABLES, *OTHER_NAMES], 1, ALIKE)
    if near and near[0] in VARIABLES:
        says = f"no such name is known; the nearest is {near[0]}"
        one = finding(name, value, "misspelt", says, VARIABLES[near[0]].source)
        return [replace(one, right=near[0])]
    if not near and re.search("ALLOC|MEM", plain) and plain.startswith("PYTORCH"):
        says = "no such name is known here"
        return [finding(name, value, "unknown", says, "the table of settings")]
    return []


@lru_cache(maxsize=64)
def _behaviours(torch: tuple[int, ...], rocm: tuple[int, ...], build: str) -> tuple[Behaviour, ...]:
    """What may be running: one release and build, or every one that is possible where they are not known."""
    known = [torch] if torch else [(2, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]
    builds = [build] if build in ("cuda", "rocm") else ["cuda", "rocm"]
    of = {"cuda": "cuda", "rocm": "rocm" + ".".join(map(str, rocm))}
    return tuple(nearest(".".join(map(str, one)), of[kind]) for one in known for kind in builds)


def _conf(facts: Facts) -> list[Finding]:
    """The allocator's text: the first of its names that is set and read wins, also where it is empty."""
    found: list[Finding] = []
    behaviours = _behaviours(facts.torch, facts.rocm, facts.build)
    winner, sure = "", True
    for name in (name for name in CONF_NAMES if name in facts.environ):
        value = facts.environ[name]
        options = dict(parts(value)[:LONGEST])
        here = replace(facts, options=options)
        read, said = _read(name, here, behaviours)
        found += said
        if read is False:
            continue
        source = behaviours[0].source("conf_names")
        if winner:
            says = f"{winner} is set{'' if facts.environ[winner] else ' (empty counts as set)'} and wins"
            says = says if sure else f"if this build reads {winner}, that wins: {says}"
            found.append(finding(name, value, "shadowed" if sure else "unknown", says, source))
        else:
            winner, sure = name, read is True
            empty = "empty: it counts as set, hides the other names and sets nothing"
            if sure and not value:
                found.append(finding(name, value, "ineffective", empty, source))
            elif sure and not options:
                says = "no option can be read in it"
                found.append(finding(name, value, "ineffective", says, source))
        judged = _options(name, here, behaviours, winner, sure)
        found += judged if sure else [one for one in judged if one.verdict != "effective"]
    return found


def _read(
    name: str, facts: Facts, behaviours: tuple[Behaviour, ...]
) -> tuple[bool | None, list[Finding]]:
    """Whether this build reads a name for the allocator's text, and what is to be said of that and of the whole text."""
    value, states = facts.environ[name], {name in one.conf_names for one in behaviours}
    if facts.build == "cpu":
        says = _not_of_this_build("", "cpu")
        return False, [finding(name, value, "ineffective", says, "the torch build")]
    said = ruled(name, name, value, value, facts)
    source = behaviours[0].source("conf_names")
    if states == {True}:
        return True, said if value else []
    if len(states) > 1:
        says = "whether this build reads it depends on the torch build and release, which are not known"
        return None, [finding(name, value, "unknown", says, source)]
    unsure = [one for one in said if one.verdict == "unknown"]
    if unsure:
        return None, unsure
    names = ", ".join(behaviours[0].conf_names)
    usual = finding(name, value, "ineffective", f"this build reads {names} alone", source)
    return False, [one for one in said if one.verdict == "ineffective"] or [usual]


def _options(
    name: str, facts: Facts, behaviours: tuple[Behaviour, ...], winner: str, sure: bool
) -> list[Finding]:
    found: list[Finding] = []
    for key, value in facts.options.items():
        names = behaviours[-1].names_for(key)
        reader = next((one for one in names if one in facts.environ), "")
        piece, option = f"{key}:{value}", OPTIONS.get(key)
        if option is None:
            found.append(_unknown_option(name, key, piece))
        elif sure and len(behaviours) == 1 and name not in names:
            says = f"this build takes {key} from {' or '.join(names)} alone: here it is passed over"
            source = behaviours[0].source("own_conf_names")
            one = finding(name, piece, "ineffective", says, source)
            found.append(replace(one, cause="config-ineffective", why="it is not read from there"))
        elif name == (reader if sure and len(behaviours) == 1 else winner):
            found += _option(name, option, value, facts, behaviours)
    return found


def _unknown_option(name: str, key: str, piece: str) -> Finding:
    near = difflib.get_close_matches(key[:LONGEST], OPTIONS, 1, ALIKE_OPTIONS)
    nearest_ = f"; the nearest is {near[0]}" if near else ""
    says = f"no such option is known{nearest_}. Where torch does not know it either, {STOPS}"
    one = finding(name, piece, "misspelt" if near else "unknown", says, AT_PARSE)
    return replace(one, right=near[0] if near else "")


def _option(
    name: str, option: Option, value: str, facts: Facts, behaviours: tuple[Behaviour, ...]
) -> list[Finding]:
    """What one option does where its text is read: whether torch takes it at all, then what the rules say."""
    piece = f"{option.name}:{value}"
    if between(facts.torch, option.since, "") is False:
        says = f"an option from torch {option.since} on; before, {STOPS}"
        one = finding(name, piece, "unsupported", says, option.source)
        return [replace(one, why="torch stops with an error")]
    refusals = [Conf(piece, one).error for one in behaviours if option.name in one.keys]
    refused = [str(one).partition("settings: ")[2] for one in refusals if one is not None]
    if refused and not re.fullmatch(option.form, value):
        says = f"{value[:LONGEST]!r} is not {option.expected}: {STOPS}"
        return [finding(name, piece, "misspelt", says, option.source)]
    if refused and len(refused) == len(refusals):
        return [finding(name, piece, "dangerous", f"{refused[-1]}: {STOPS}", AT_PARSE)]
    if refused:
        says = f"some releases refuse it, and which one this is is not known: {refused[-1]}"
        return [finding(name, piece, "unknown", says, AT_PARSE)]
    found = ruled("option:" + option.name, name, piece, value, facts)
    return found or [finding(name, piece, "effective", option.says, option.source)]
