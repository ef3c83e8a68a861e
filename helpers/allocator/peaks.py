"""What moved at the peak of live memory from one trace to another, by the program's lines.

A line is found again by its file, its function and what it asks for: lines inserted above it
are no change. Where the sources of both sides are at hand, their text says which line became
which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from helpers.allocator.call_sites import CallSite, Requests, requests_with_lines
from helpers.allocator.circumstances import AMPLE_BYTES, circumstances
from helpers.allocator.driver import Card
from helpers.allocator.kinds import CACHED, KINDS, WORKSPACES, bytes_by_kind
from helpers.allocator.replay import replay
from helpers.allocator.trace import Trace

MOST_CHANGED = 8
Sources = Mapping[str, Sequence[str]]
"""The lines of each source file, by its name without folders."""


@dataclass(frozen=True)
class PeakChange:
    """Bytes of one line, or of one kind, at the peak of each side; ``before`` is None for a
    line that is new, ``after`` for one that is gone. ``was``: the line's name before, where
    it has another now.
    """

    name: str
    before: int | None
    after: int | None
    was: str = ""

    @property
    def by(self) -> int:
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class Peaks:
    """The peaks of live bytes, the peaks of what is reserved on each side's own card and
    settings, and what moved, largest first.

    ``changed``: where the sources are known, their new or changed lines ("model.py:29"): those
    from which a line that rose was called, else all of them, up to MOST_CHANGED.
    """

    live: tuple[int, int]
    reserved: tuple[int, int]
    lines: tuple[PeakChange, ...]
    kinds: tuple[PeakChange, ...]
    changed: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """By which share the peak of live bytes rose: of what was live without the workspaces,
        which no line decides.
        """
        before, after = self.live
        changeable = before - self._workspaces
        rise = after - before
        return rise / changeable if changeable > 0 else float(rise > 0)

    @property
    def share_words(self) -> str:
        """The share as a percentage, and what it is of."""
        without = ", cuBLAS's workspaces not counted" if self._workspaces else ""
        return f"{self.share:+.1%}{without}"

    @property
    def _workspaces(self) -> int:
        return sum(
            change.before or 0 for change in self.kinds if change.name == WORKSPACES
        )


class _Side:
    """One of two traces, at its peak."""

    def __init__(self, trace: Trace) -> None:
        self.requests = requests_with_lines(trace)
        self.sites: tuple[CallSite, ...] = self.requests.sites
        peak = self.requests.peak
        self.live = int(self.requests.live[peak])
        alive = self.requests.alive(peak)
        self.bytes: list[int] = self.requests.by_site(alive).tolist()
        """Bytes at the peak of each call site."""
        counts = np.bincount(self.requests.site, minlength=len(self.sites))
        self.counts: list[int] = counts.tolist()
        """How many requests each call site makes."""

    def asks(self, site: int) -> tuple[int, int]:
        """What tells a moved call site: its bytes at the peak, and how many requests it makes."""
        return self.bytes[site], self.counts[site]

    def line(self, site: int | None) -> tuple[str, int | None]:
        """The name of a call site and its bytes at the peak; "" and None for no site."""
        if site is None:
            return "", None
        return self.sites[site].name, self.bytes[site]

    @cached_property
    def reserved(self) -> int:
        """The most bytes reserved on the recording's own card, under its own settings."""
        trace = self.requests.trace
        recorded = circumstances(trace)
        card = Card(recorded.capacity_bytes or AMPLE_BYTES)
        outcome = replay(
            trace, recorded.conf, card, torch=recorded.torch, build=recorded.build
        )
        return outcome.peak_reserved_bytes

    @cached_property
    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind, with what is cached."""
        cached = max(0, self.reserved - self.live)
        return {**bytes_by_kind(self.requests), CACHED: cached}


def compare_peaks(
    before: Trace, after: Trace, sources: tuple[Sources, Sources] = ({}, {})
) -> Peaks:
    """What moved at the peak from one trace to the other.

    Raises LinesError where one of them has no lines.
    """
    old = _Side(before)
    new = _Side(after)
    changes = []
    for old_site, new_site in _pairs(old, new, sources):
        change = _change(old, new, old_site, new_site)
        if change.by:
            changes.append(change)
    risen = [change.name for change in changes if change.by > 0]
    kinds = [PeakChange(kind, old.by_kind[kind], new.by_kind[kind]) for kind in KINDS]
    return Peaks(
        live=(old.live, new.live),
        reserved=(old.reserved, new.reserved),
        lines=tuple(sorted(changes, key=lambda change: -abs(change.by))),
        kinds=tuple(kinds),
        changed=_changed_lines(new.requests, risen, sources),
    )


def _change(
    old: _Side, new: _Side, old_site: int | None, new_site: int | None
) -> PeakChange:
    """The change of a line from a call site of the one side to one of the other."""
    was, before = old.line(old_site)
    name, after = new.line(new_site)
    renamed = was if name and was != name else ""
    return PeakChange(name or was, before, after, renamed)


def _changed_lines(
    requests: Requests, risen: Sequence[str], sources: tuple[Sources, Sources]
) -> tuple[str, ...]:
    """The lines of the newer sources that the older do not have; see Peaks."""
    older, newer = sources
    new = []
    for name, lines in newer.items():
        for tag, _, _, begin, end in _differences(older.get(name, ()), lines):
            if tag in ("replace", "insert"):
                numbers = range(begin, end)
                new += [
                    f"{name}:{number + 1}"
                    for number in numbers
                    if lines[number].strip()
                ]
    sites = np.array([site.name in risen for site in requests.sites])
    live = requests.alive(requests.peak) & sites[requests.site]
    stacks = set(requests.stack[live].tolist()) - {-1}
    frames = set()
    for stack in stacks:
        frames |= {frame.partition(" ")[0] for frame in requests.trace.frames[stack]}
    calling = [line for line in new if line in frames]
    return tuple(calling or new)[:MOST_CHANGED]


def _pairs(
    old: _Side, new: _Side, sources: tuple[Sources, Sources]
) -> list[tuple[int | None, int | None]]:
    """Call sites of both sides that are the same line; a site without a partner stands alone."""
    older, newer = sources
    texts = {
        name: _aligned(older[name], newer[name]) for name in older if name in newer
    }
    pairs: dict[int, int] = {}
    new_groups = _groups(new.sites, texts)
    for key, old_sites in _groups(old.sites, texts).items():
        new_sites = new_groups.get(key, [])
        if isinstance(key, str):
            pairs.update(_pairs_by_text(old, new, old_sites, new_sites, texts[key]))
        else:
            pairs.update(_pairs_by_order(old, new, old_sites, new_sites))
    # What was moved to another function or file is found again by what it asks for.
    paired = {*pairs.values()}
    gone = [site for site, size in enumerate(old.bytes) if size and site not in pairs]
    come = [site for site, size in enumerate(new.bytes) if size and site not in paired]
    for site in tuple(gone):
        other = next((other for other in come if new.asks(other) == old.asks(site)), -1)
        if other >= 0:
            pairs[site] = other
            gone.remove(site)
            come.remove(other)
    alone = [(site, None) for site in gone]
    return [*pairs.items(), *alone, *((None, site) for site in come)]


def _groups(
    sites: Sequence[CallSite], texts: Mapping[str, object]
) -> dict[Hashable, list[int]]:
    """The call sites by file where its text is known on both sides, else by file and function."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for number, site in enumerate(sites):
        if site.in_program and site.file in texts:
            groups[site.file].append(number)
        else:
            groups[site.file, site.function or site.name].append(number)
    return groups


def _pairs_by_text(
    old: _Side,
    new: _Side,
    old_sites: list[int],
    new_sites: list[int],
    lines: Mapping[int, int],
) -> dict[int, int]:
    """Call sites of a file paired by which line of its text became which."""
    site_at_line = {new.sites[number].line - 1: number for number in new_sites}
    pairs = {}
    for number in old_sites:
        line = lines.get(old.sites[number].line - 1, -1)
        if line in site_at_line:
            pairs[number] = site_at_line[line]
    return pairs


def _pairs_by_order(
    old: _Side, new: _Side, old_sites: list[int], new_sites: list[int]
) -> dict[int, int]:
    """Call sites of a function paired by how often they ask, in the order of their lines."""
    old_sites = sorted(old_sites, key=lambda number: old.sites[number].line)
    new_sites = sorted(new_sites, key=lambda number: new.sites[number].line)
    old_counts = [old.counts[number] for number in old_sites]
    new_counts = [new.counts[number] for number in new_sites]
    places = _aligned(old_counts, new_counts)
    return {old_sites[at]: new_sites[other] for at, other in places.items()}


def _aligned(before: Sequence[Hashable], after: Sequence[Hashable]) -> dict[int, int]:
    """Place to place of two sequences, where they are alike and where one thing stands in place
    of another.
    """
    pairs: dict[int, int] = {}
    for tag, begin, end, other_begin, other_end in _differences(before, after):
        if tag in ("equal", "replace"):
            pairs.update(
                zip(range(begin, end), range(other_begin, other_end), strict=False)
            )
    return pairs


def _differences(
    before: Sequence[Hashable], after: Sequence[Hashable]
) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
