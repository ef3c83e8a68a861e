"""What holds under an allocator text such as "max_split_size_mb:128,expandable_segments:True",
by release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from helpers.settings.allocator_text import (
    INTERVALS,
    LARGE_SEGMENT_BYTES,
    MIB,
    UNLIMITED,
    AllocatorText,
    SettingsError,
    parts,
)
from helpers.settings.releases import NEWEST, Behaviour, nearest
from helpers.settings.rules import dotted, facts_of, release, rule_findings
from helpers.settings.table import OPTIONS, SAYS, TRIED

MIN_BLOCK_BYTES = 512
SMALL_MAX_BYTES = MIB
MIN_LARGE_BYTES = 10 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_STEP_BYTES = 2 * MIB


@dataclass(frozen=True)
class Settings:
    """What holds under one text.

    ``fraction``: what the key says (None: not named); it limits memory from the start only.

    ``roundup_divisions``: entry k for sizes of [2^k, 2^(k+1)) MiB; the first also below, the
    last above; 0, 1: none. ``reserve``: parts of the device's memory (True) or GiB (False).
    ``ignored``: named without effect on bytes; ``warnings``: what does harm, or nothing, and of
    those ``dangers``: what does harm.
    """

    conf: str = ""
    max_split_bytes: int = UNLIMITED
    non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    gc_threshold: float = 0.0
    expandable: bool = False
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    throw_on_oom: bool = False
    fraction: float | None = None
    reserve: tuple[bool, float] | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()


def parse(
    conf: str, behaviour: Behaviour, previous: Settings | None = None
) -> Settings:
    """The settings that a text makes.

    With ``previous`` it is set again at run time, over what held before.

    Raises SettingsError, in one line, where this release stops with an error; its ``left`` is
    what then holds at run time: the keys before the one at fault, the rest as if unnamed
    (measured, torch 2.6 to 2.14).
    """
    before = previous or Settings()
    text = AllocatorText(conf, behaviour, before.large_segment_bytes)
    backend = text.named.get("backend", "native")
    if backend != "native":
        raise SettingsError(SAYS["other_allocator"].format(backend=backend))
    named = {
        OPTIONS[key].field: value
        for key, value in text.named.items()
        if OPTIONS[key].field
    }
    rounding = before.non_split_rounding_bytes
    if "large_segment_size_mb" in behaviour.keys:
        rounding = named.get("large_segment_bytes", before.large_segment_bytes)
    wants_expandable = named.get("expandable", before.expandable)
    values: dict[str, Any] = {
        # What a text does not name goes back to its default, but for these two.
        "max_split_bytes": UNLIMITED,
        "gc_threshold": 0.0,
        "roundup_divisions": tuple(text.divisions),
        "non_split_rounding_bytes": rounding,
        **named,
        "conf": conf,
        "expandable": wants_expandable and behaviour.expandable_available,
    }
    settings = replace(before, **values)
    ignored = [
        f"{key} {OPTIONS[key].inert}" for key in text.named if OPTIONS[key].inert
    ]
    if wants_expandable and not behaviour.expandable_available:
        ignored.append(SAYS["no_expandable"])
    if "non_split_rounding_bytes" in named and settings.max_split_bytes == UNLIMITED:
        ignored.append(SAYS["no_split"])
    if previous and "fraction" in named:
        ignored.append(SAYS["fraction_later"])
    fraction_in_force = (previous or settings).fraction
    warnings = _warnings(settings, behaviour, fraction_in_force)
    settings = replace(
        settings,
        ignored=tuple(ignored),
        warnings=tuple(warnings),
        dangers=tuple(
            says for says, verdict in warnings.items() if verdict == "dangerous"
        ),
    )
    if text.error is not None:
        text.error.left = settings
        raise text.error
    return settings


def _warnings(
    settings: Settings, behaviour: Behaviour, fraction: float | None
) -> dict[str, str]:
    """What is to be said of options in force, each sentence with its verdict: dangerous where the
    option does harm, ineffective where it does nothing. ``fraction`` is the memory fraction in
    force.
    """
    options = {}
    if settings.expandable:
        options["expandable_segments"] = "True"
    if settings.max_split_bytes < UNLIMITED:
        options["max_split_size_mb"] = str(settings.max_split_bytes // MIB)
    if settings.gc_threshold:
        options["garbage_collection_threshold"] = str(settings.gc_threshold)
    if fraction is not None:
        options["per_process_memory_fraction"] = str(fraction)
    if settings.throw_on_oom:
        options["throw_on_cudamalloc_oom"] = "True"
    facts = replace(facts_of({}, behaviour.torch, behaviour.build), options=options)
    warnings = {}
    for key, value in options.items():
        for finding in rule_findings(f"option:{key}", key, key, value, facts):
            if finding.verdict in ("dangerous", "ineffective"):
                warnings[f"{finding.name}: {finding.says} ({finding.source})"] = (
                    finding.verdict
                )
    if settings.expandable and not behaviour.expandable_safe:
        source = behaviour.source("expandable_safe")
        warnings[f"expandable_segments is not safe on this build: {source}"] = (
            "dangerous"
        )
    return warnings


def from_environment(
    environ: Mapping[str, str], behaviour: Behaviour
) -> tuple[str, str]:
    """The text that this build reads there, and the variable it comes from ("": none).

    A variable that is set wins even where it is empty. Keys that belong to the CUDA build alone
    may come from another variable than the common ones (measured, torch 2.14); the text given
    back then holds both. What becomes of the other variables, the audit says.
    """
    name = _variable_in_force(behaviour.conf_names, environ)
    own_name = _variable_in_force(behaviour.own_conf_names, environ)
    conf = environ.get(name, "")
    if name == own_name:
        return conf, name
    own_keys = {key for key in behaviour.keys if not OPTIONS[key].shared}
    own_conf = environ.get(own_name, "")
    pieces = [f"{key}:{value}" for key, value in parts(conf) if key not in own_keys]
    pieces += [f"{key}:{value}" for key, value in parts(own_conf) if key in own_keys]
    return ",".join(pieces), name


def _variable_in_force(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    return next((name for name in names if name in environ), "")


def memory_fraction(
    environ: Mapping[str, str], torch: str = "", build: str = ""
) -> tuple[float | None, str]:
    """The per_process_memory_fraction in force, and the variable it comes from.

    An unknown release is taken for the newest known, an unknown build for the one that reads
    the key. A release that does not know the key, or refuses another part of the text, stops
    with an error: no limit holds there.
    """
    key = "per_process_memory_fraction"
    version = torch if release(torch) else dotted(NEWEST)
    builds = ["cuda", "rocm"]
    if build.startswith(("cuda", "rocm")):
        builds = [build]
    for kind in builds:
        behaviour = nearest(version, kind)
        conf, _ = from_environment(environ, behaviour)
        text = AllocatorText(conf, behaviour)
        name = _variable_in_force(behaviour.names_for(key), environ)
        if text.error is not None:
            return None, name
        if key in text.named:
            return text.named[key], name
    return None, ""


def grid(behaviour: Behaviour) -> tuple[str, ...]:
    """The texts that a what-if tries by default on this build, the empty one first.

    All parse; none has a danger.

    A garbage collection threshold stands beside a memory fraction of 0.99, without which it
    does nothing.
    """
    usable = set(behaviour.keys)
    if not (behaviour.expandable_available and behaviour.expandable_safe):
        usable.discard("expandable_segments")
    return tuple(conf for conf in TRIED if dict(parts(conf)).keys() <= usable)
