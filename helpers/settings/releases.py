"""How does the caching allocator of one torch release and build behave, where releases differ?

The rows ``changes`` of torch.json say from which release on a field of Behaviour has a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from helpers.settings.rules import ProcessFacts, dotted, facts_of, holds, release
from helpers.settings.table import (
    CHANGES,
    OPTIONS,
    PROVED,
    RULES,
    SAYS,
    Option,
    Rule,
)

OLDEST = (2, 5)
NEWEST = (2, 15)
"""The oldest and the newest release that is modelled; others are run as the nearer of the two."""
OLDEST_NAMED = (2, 0)
"""The oldest release that a person may name; it runs as OLDEST. Nothing of torch 1 was checked."""
EXPANDABLE = "expandable_segments"


class VersionError(ValueError):
    """The release or the build is not one that can be replayed; one line."""


def named_release(text: str) -> str:
    """The release that a person named, as it is; empty stands for none.

    Raises VersionError for one that is neither modelled nor near enough to one that is.
    """
    if text and not OLDEST_NAMED <= release(text) <= NEWEST:
        bounds = f"{dotted(OLDEST_NAMED)} to {dotted(NEWEST)}"
        expected = f"expected a release from {bounds}, such as 2.14.1"
        raise VersionError(f"torch {text!r} is not modelled here; {expected}")
    return text


@dataclass(frozen=True)
class Behaviour:
    """What the allocator of one build of torch does.

    ``torch`` is the version asked for, ``release`` the (major, minor) that it is run as.
    ``sources`` has (field, where its value was read or measured). ``keys``: the options that the
    build knows.

    ``order``: what decides between free blocks of one stream and size: the lower ``address``,
    the ``block`` made first, or the ``segment`` made first and then the lower address.
    ``unified_parser``: the settings are read by the parser that all accelerators share: 64-bit
    numbers, separators not checked. ``max_split_minimum_inclusive``: max_split_size_mb may be
    as small as a large segment, not only larger. ``above_fills_last_key``: ``>:K`` in a list of
    roundup divisions also overwrites the last key before it. ``fraction_one_is_unlimited``: a
    memory fraction of 1 sets no limit. ``fraction_rounds``: a memory limit is rounded to whole
    bytes, not cut. ``conf_names``: environment variables with the settings, the winner
    first; ``own_conf_names``: the same for options not shared by all accelerators.
    ``expandable_safe``: no loss of data, hang or crash is reported for it on this build.
    ``pools_flush``: a request to a private pool outside of a capture gives cached memory back
    before it fails. ``device_type``: by which torch hashes streams (c10/core/DeviceType.h: 1
    CUDA, 6 HIP). ``checks_range``: a request larger than the range of addresses that an
    expandable segment reserves fails at once. ``proved``: ``oracle`` where the compiled
    allocator of this release and build was compared, else ``source``; ``proved_on``: that in
    words, with what was compared. ``note``: what else a reader must know.
    """

    torch: str
    release: tuple[int, ...]
    build: str
    order: str
    keys: frozenset[str]
    unified_parser: bool
    max_split_minimum_inclusive: bool
    above_fills_last_key: bool
    fraction_one_is_unlimited: bool
    fraction_rounds: bool
    pools_flush: bool
    checks_range: bool
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
        if key in OPTIONS and not OPTIONS[key].shared:
            return self.own_conf_names
        return self.conf_names


def behaviour(torch: str = "2.14.1", build: str = "cuda") -> Behaviour:
    """How the allocator of this release and build behaves.

    ``torch`` is a version as it prints itself ("2.9.0+rocm6.4", "2.8.0a0+git1234"); ``build``
    is "cuda", or "rocm" with ROCm's version ("rocm7.2"); a "+rocm" in ``torch`` counts too. A
    release older than OLDEST or newer than NEWEST runs as that one and says so in ``note``.
    Raises VersionError for what cannot be read.
    """
    if not release(torch):
        raise VersionError(SAYS["unreadable"].format(torch=torch))
    mark = re.search(r"\+(rocm[0-9.]*)", torch)
    if build == "cuda" and mark:
        build = mark[1].rstrip(".")
    if not re.fullmatch(r"cuda|rocm([0-9][0-9.]*)?", build):
        raise VersionError(SAYS["no_build"].format(build=build))
    return nearest(torch, build)


@lru_cache(maxsize=256)
def nearest(torch: str, build: str) -> Behaviour:
    """As ``behaviour``, for a ``build`` that it takes, and also where the release cannot be read:
    then as the oldest known.
    """
    facts = facts_of({}, torch, build)
    used = min(max(facts.torch, OLDEST), NEWEST)
    values: dict[str, Any] = {}  # fields of Behaviour
    sources = {}
    for change in CHANGES:  # a later row replaces an earlier one of its field
        if release(change.since) <= used and change.build in ("", facts.build):
            values[change.field] = change.value
            sources[change.field] = change.source
    # Not in ``changes``: what the options' own rows and the rules say of this release and build.
    options = _known_options(facts)
    sources["keys"] = "; ".join(dict.fromkeys(option.source for option in options))
    expandable_rules = [
        rule
        for rule in RULES
        if rule.name == f"option:{EXPANDABLE}" and holds(rule, "True", facts)
    ]
    refusals = [rule for rule in expandable_rules if rule.verdict == "unsupported"]
    sources["expandable_available"] = OPTIONS[EXPANDABLE].source
    if refusals:
        sources["expandable_available"] = refusals[0].source
    proved, proved_on = _proved(facts.torch, facts.build)
    if facts.torch < OLDEST:
        is_older = SAYS["older"].format(torch=torch, oldest=dotted(OLDEST))
        proved_on = f"{is_older}; {proved_on}"
    return Behaviour(
        torch=torch,
        release=used,
        build=build,
        keys=frozenset(option.name for option in options),
        expandable_available=not refusals,
        proved=proved,
        proved_on=proved_on,
        note=_note(torch, facts, expandable_rules),
        sources=tuple(sorted(sources.items())),
        **values,
    )


def _known_options(facts: ProcessFacts) -> list[Option]:
    """The options that a release knows. One before OLDEST, which otherwise runs as OLDEST, has
    fewer.
    """
    newest = min(facts.torch, NEWEST)
    return [
        option
        for option in OPTIONS.values()
        if not option.since or release(option.since) <= newest
    ]


def _note(torch: str, facts: ProcessFacts, expandable_rules: list[Rule]) -> str:
    """What else a reader must know of a release and build, in words; empty for nothing: that it
    runs as an older or newer one, that ROCm's version is missing, and what is not known of
    expandable segments on ROCm.
    """
    notes = []
    if facts.torch < OLDEST:
        notes.append(SAYS["older"].format(torch=torch, oldest=dotted(OLDEST)))
    if facts.torch > NEWEST:
        notes.append(SAYS["newer"].format(torch=torch, newest=dotted(NEWEST)))
    if facts.build == "rocm":
        if not facts.rocm:
            notes.append(SAYS["no_rocm_version"])
        notes += [
            f"expandable segments: {rule.says}"
            for rule in expandable_rules
            if rule.verdict == "unknown"
        ]
    return "; ".join(notes)


def _proved(
    torch: tuple[int, ...], build: str
) -> tuple[Literal["oracle", "source"], str]:
    """The fields ``proved`` and ``proved_on`` of a Behaviour: whether the model was compared with
    the compiled allocator of this release and build, and that in words.
    """
    comparisons = []
    for row in PROVED:
        if release(row.torch) != torch or row.build != build:
            continue
        gaps = vars(row)
        if row.origin:
            gaps = {**gaps, "origin": f" ({row.origin})"}
        comparisons.append(SAYS["proved"].format(**gaps))
    if comparisons:
        return "oracle", "; ".join(comparisons)
    words = SAYS["not_proved"].format(
        torch=dotted(torch),
        build=build,
        cuda=", ".join(row.torch for row in PROVED if row.build == "cuda"),
        rocm=", ".join(row.torch for row in PROVED if row.build == "rocm"),
    )
    return "source", words
