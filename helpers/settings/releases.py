"""How does the caching allocator of one torch release and build behave, where releases differ?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from helpers.settings.table import CHANGES, OPTIONS, PROVED, RULES, SAYS, facts_of, holds, release

OLDEST, NEWEST = (2, 2), (2, 15)
EXPANDABLE = "option:expandable_segments"


class VersionError(ValueError):
    """The release or the build is not one that can be replayed; one line."""


@dataclass(frozen=True)
class Behaviour:
    """What one build of torch does. Each field's source stands in ``sources`` under the field's name.

    ``order``: what decides between free blocks of one stream and size: the lower ``address``, the ``block`` made first, or
    the ``segment`` made first and then the lower address. ``unified_parser``: the settings parser that all accelerators
    share: 64-bit numbers, separators taken on trust. ``above_fills_last_key``: ``>:K`` in a list of roundup divisions also
    overwrites the last key before it. ``one_division_rounds``: to 512 bytes, else it leaves sizes as they are (-1 in a
    Settings). ``fraction_rounds``: a memory limit is rounded to whole bytes, not cut. ``conf_names``: environment
    variables with the settings, the winner first; ``own_conf_names``: the same for options not shared by all accelerators.
    ``expandable_safe``: no loss of data, hang or crash is reported for it on this build.
    ``pools_flush``: a request to a private pool outside of a capture gives cached memory back before it fails.
    ``device_type``: by which torch hashes streams (c10/core/DeviceType.h: 1 CUDA, 6 HIP).
    ``checks_range``: a request larger than the range of addresses that an expandable segment reserves fails at once.
    ``expandable_pools``: private pools have expandable segments too.
    ``proved``: ``oracle`` where the compiled allocator of this release and build was compared, else ``source``; ``proved_on``:
    that in words, with what was compared. ``note``: what else a reader must know.
    """

    torch: str
    release: tuple[int, ...]
    build: str
    order: str
    keys: frozenset[str]
    unified_parser: bool
    max_split_minimum_inclusive: bool
    above_fills_last_key: bool
    one_division_rounds: bool
    fraction_one_is_unlimited: bool
    fraction_rounds: bool
    oversize_release_skips_expandable: bool
    pools_flush: bool
    checks_range: bool
    expandable_pools: bool
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
        """Where the value of ``field`` was read or measured; empty for what follows from the version itself."""
        return dict(self.sources).get(field, "")

    def names_for(self, key: str) -> tuple[str, ...]:
        """The variables that this build reads an option from, the winner first."""
        own = key in OPTIONS and not OPTIONS[key].shared
        return self.own_conf_names if own else self.conf_names


def behaviour(torch: str = "2.14.1", build: str = "cuda") -> Behaviour:
    """How the allocator of this release and build behaves.

    ``torch`` is a version as it prints itself ("2.9.0+rocm6.4", "2.8.0a0+git1234"); ``build`` is "cuda", or "rocm" with
    ROCm's version ("rocm7.2"); a "+rocm" in ``torch`` counts too. A release newer than is known runs as the newest known and
    says so in ``note``. Raises VersionError for what is older than 2.2 or cannot be read.
    """
    if release(torch) < OLDEST:
        why = "too_old" if release(torch) else "unreadable"
        raise VersionError(SAYS[why].format(torch=torch))
    local = re.search(r"\+(rocm[0-9.]*)", torch)
    build = local[1].rstrip(".") if build == "cuda" and local else build
    if not re.fullmatch(r"cuda|rocm([0-9][0-9.]*)?", build):
        raise VersionError(SAYS["no_build"].format(build=build))
    return nearest(torch, build)


@lru_cache(maxsize=256)
def nearest(torch: str, build: str) -> Behaviour:
    """As ``behaviour``, where a release older than is known is taken for the oldest known; ``build`` is one of its words."""
    facts = facts_of({}, torch, build)
    used = min(max(facts.torch, OLDEST), NEWEST)
    known = [c for c in CHANGES if release(c.since) <= used and c.build in ("", facts.build)]
    values = {change.field: change.value for change in known}
    sources = {change.field: change.source for change in known}
    last = min(facts.torch, NEWEST)
    options = [one for one in OPTIONS.values() if not one.since or release(one.since) <= last]
    values["keys"] = frozenset(option.name for option in options)
    sources["keys"] = "; ".join(dict.fromkeys(option.source for option in options))
    rules = [rule for rule in RULES if rule.name == EXPANDABLE and holds(rule, "True", facts)]
    refusal = next((rule for rule in rules if rule.verdict == "unsupported"), None)
    values["expandable_available"] = refusal is None
    sources["expandable_available"] = (refusal or OPTIONS[EXPANDABLE[7:]]).source
    newer = SAYS["newer"].format(torch=torch, newest=".".join(map(str, NEWEST)))
    notes = [newer] if facts.torch > NEWEST else []
    if facts.build == "rocm":
        notes += [] if facts.rocm else [SAYS["no_rocm_version"]]
        notes += [f"expandable segments: {r.says}" for r in rules if r.verdict == "unknown"]
    values["proved"], values["proved_on"] = _proved(facts.torch, facts.build)
    values.update(note="; ".join(notes), sources=tuple(sorted(sources.items())))
    return Behaviour(torch=torch, release=used, build=build, **values)


def _proved(torch: tuple[int, ...], build: str) -> tuple[Literal["oracle", "source"], str]:
    """How far what is said of a release and build was compared with its compiled allocator, and that in words."""
    own = [row for row in PROVED if (release(row["torch"]), row["build"]) == (torch, build)]
    if own:
        made = [{**row, "made": f" ({row['made']})" if row.get("made") else ""} for row in own]
        return "oracle", "; ".join(SAYS["proved"].format(**row) for row in made)
    on = {b: ", ".join(r["torch"] for r in PROVED if r["build"] == b) for b in ("cuda", "rocm")}
    return "source", SAYS["not_proved"].format(torch=".".join(map(str, torch)), build=build, **on)
