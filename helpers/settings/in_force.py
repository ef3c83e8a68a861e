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
    Reserve,
    SettingsError,
    parts,
)
from helpers.settings.releases import NEWEST, Behaviour, nearest
from helpers.settings.rules import dotted, facts_of, release, rule_findings
from helpers.settings.table import OPTIONS, SAYS, TRIED

# Sizes that are constant in c10/cuda/CUDACachingAllocator.cpp, in later releases in
# c10/core/AllocatorConfig.h (read at 2.13), with torch's names.
MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_MAX_BYTES = MIB  # kSmallSize
MIN_LARGE_BYTES = 10 * MIB  # kMinLargeAlloc
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_STEP_BYTES = 2 * MIB  # kRoundLarge


@dataclass(frozen=True)
class Settings:
    """The settings that hold under one text of the allocator, ``conf``.

    ``fraction`` is per_process_memory_fraction (None: not named); it limits memory only where
    the program started with it. ``roundup_divisions``: entry k is for sizes of [2^k, 2^(k+1))
    MiB, the first also for smaller ones, the last for larger ones; 0 and 1 do not round.

    Sentences: ``ignored`` about options that change no bytes, ``warnings`` about options that do
    harm or nothing, ``dangers`` those of the warnings about harm.
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
    reserve: Reserve | None = None
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()


def parse(
    conf: str, behaviour: Behaviour, previous: Settings | None = None
) -> Settings:
    """The settings that a text makes, as the program starts with it.

    With ``previous`` it is a text set at run time, over those settings.

    Raises SettingsError, in one line, where this release stops with an error; its ``left`` is
    what then holds at run time: the keys before the one at fault, the rest as if unnamed
    (measured, torch 2.6 to 2.14).
    """
    before = Settings()
    if previous is not None:
        before = previous
    text = AllocatorText(conf, behaviour, before.large_segment_bytes)
    backend = text.named.get("backend", "native")
    if backend != "native":
        raise SettingsError(SAYS["other_allocator"].format(backend=backend))
    settings = _over(before, text)
    settings = replace(settings, conf=conf, roundup_divisions=tuple(text.divisions))
    # torch reads the memory fraction once, as it starts: a later text changes nothing of it.
    fraction_in_force = settings.fraction
    ignored = _ignored(text, settings)
    if previous is not None:
        fraction_in_force = previous.fraction
        if "per_process_memory_fraction" in text.named:
            ignored.append(SAYS["fraction_later"])
    if not behaviour.expandable_available:
        settings = replace(settings, expandable=False)
    verdicts = _warnings(settings, behaviour, fraction_in_force)
    dangers = [says for says, verdict in verdicts.items() if verdict == "dangerous"]
    settings = replace(
        settings,
        ignored=tuple(ignored),
        warnings=tuple(verdicts),
        dangers=tuple(dangers),
    )
    if text.error is not None:
        text.error.left = settings
        raise text.error
    return settings


def _over(before: Settings, text: AllocatorText) -> Settings:
    """The settings ``before`` with those that a text names in their place.

    At each text torch's parseArgs puts max_split_size_mb, garbage_collection_threshold and the
    roundup divisions (which ``parse`` sets) back to their defaults, and since 2.11, with
    large_segment_size_mb, also max_non_split_rounding_mb. It is in CUDAAllocatorConfig.cpp, since
    2.10 in AllocatorConfig.cpp, and keeps what else the text does not name.
    """
    values: dict[str, Any] = {"max_split_bytes": UNLIMITED, "gc_threshold": 0.0}
    if "large_segment_size_mb" in text.behaviour.keys:
        large_bytes = before.large_segment_bytes
        large_bytes = text.named.get("large_segment_size_mb", large_bytes)
        values["non_split_rounding_bytes"] = large_bytes
    for key, value in text.named.items():
        if OPTIONS[key].field:
            values[OPTIONS[key].field] = value
    return replace(before, **values)


def _ignored(text: AllocatorText, settings: Settings) -> list[str]:
    """Sentences about options that the text names and that change no bytes.

    ``settings`` are those wanted, before it is known whether expandable segments can be had.
    """
    ignored = [
        f"{key} {OPTIONS[key].inert}" for key in text.named if OPTIONS[key].inert
    ]
    if settings.expandable and not text.behaviour.expandable_available:
        ignored.append(SAYS["no_expandable"])
    is_split_limited = settings.max_split_bytes != UNLIMITED
    if "max_non_split_rounding_mb" in text.named and not is_split_limited:
        ignored.append(SAYS["no_split"])
    return ignored


def _warnings(
    settings: Settings, behaviour: Behaviour, fraction: float | None
) -> dict[str, str]:
    """Sentences about the options in force, each with its verdict: ``dangerous`` where the option
    does harm, ``ineffective`` where it does nothing.

    ``fraction`` is the memory fraction in force, None where there is none.
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
    # The rules need the options as a text has them, of which only those that are on matter.
    facts = replace(facts_of({}, behaviour.torch, behaviour.build), options=options)
    verdicts = {}
    for key, value in options.items():
        for finding in rule_findings(f"option:{key}", key, key, value, facts):
            if finding.verdict in ("dangerous", "ineffective"):
                says = f"{finding.name}: {finding.says} ({finding.source})"
                verdicts[says] = finding.verdict
    if settings.expandable and not behaviour.expandable_safe:
        source = behaviour.source("expandable_safe")
        says = f"expandable_segments is not safe on this build: {source}"
        verdicts[says] = "dangerous"
    return verdicts


def from_environment(
    environ: Mapping[str, str], behaviour: Behaviour
) -> tuple[str, str]:
    """The allocator's text that this build reads in an environment, and the variable that has it
    ("": none).

    A variable that is set wins even where it is empty. Options that only CUDA and ROCm have may
    come from another variable than those that all accelerators share (measured, torch 2.14); the
    text returned then holds both. audit.audit says what the other variables do.
    """
    name = _variable_in_force(behaviour.conf_names, environ)
    own_name = _variable_in_force(behaviour.own_conf_names, environ)
    conf = environ.get(name, "")
    if name == own_name:  # one variable has all options
        return conf, name
    own_keys = {key for key in behaviour.keys if not OPTIONS[key].shared}
    own_conf = environ.get(own_name, "")
    pieces = [f"{key}:{value}" for key, value in parts(conf) if key not in own_keys]
    pieces += [f"{key}:{value}" for key, value in parts(own_conf) if key in own_keys]
    return ",".join(pieces), name


def _variable_in_force(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """The first of the names that is set, also to an empty text; "" where none is."""
    return next((name for name in names if name in environ), "")


def memory_fraction(
    environ: Mapping[str, str], torch: str = "", build: str = ""
) -> tuple[float | None, str]:
    """The per_process_memory_fraction in force, and the variable that sets it; None and "" where
    no variable does.

    An unknown release is taken for the newest known, an unknown build for the one that reads
    the key. A release that does not know the key, or refuses another part of the text, stops
    with an error: then no limit holds, and the variable with that text is returned.
    """
    key = "per_process_memory_fraction"
    version = torch
    if not release(torch):
        version = dotted(NEWEST)
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
    """The texts that a what-if tries by default on this build, the empty one first: those whose
    options this build knows and has no report of harm for.

    Beside each garbage collection threshold stands a memory fraction of 0.99, without which the
    threshold does nothing.
    """
    usable = set(behaviour.keys)
    if not (behaviour.expandable_available and behaviour.expandable_safe):
        usable.discard("expandable_segments")
    return tuple(conf for conf in TRIED if dict(parts(conf)).keys() <= usable)
