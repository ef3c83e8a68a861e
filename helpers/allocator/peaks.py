"""What changed at the peak of live memory from one trace to another, by the program's lines.

A line is found again by its file, its function and what it asks for, so lines inserted above it
change nothing. Where the sources of both sides are known, their text says which line became
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
"""Changed lines that are named: they stand in one sentence."""
Sources = Mapping[str, Sequence[str]]
"""The lines of each source file, by its name without folders."""


@dataclass(frozen=True)
class PeakChange:
    """The bytes of one line, or of one kind of memory, at the peak of the trace ``before`` and at
    that of the trace ``after``. ``before`` is None for a new line, ``after`` for a line that is
    gone. ``name``: the line in the newer trace, or the only name that it has. ``was``: its name in
    the older trace, "" where that is the same.
    """

    name: str
    before: int | None
    after: int | None
    was: str = ""

    @property
    def by(self) -> int:
        """The bytes by which it rose; below 0 where it fell."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True)
class Peaks:
    """The peaks of two traces, each as (before, after) in bytes: ``live`` memory, and ``reserved``
    memory when each trace is replayed on its own card under its own settings. ``lines``: the lines
    whose bytes changed, the largest change first. ``kinds``: every kind of memory, in the order of
    KINDS.

    ``changed``: new or changed lines of the newer sources, such as "model.py:29", up to
    MOST_CHANGED. If lines whose bytes rose were called from some of them, it has only those. Empty
    where the sources are not known.
    """

    live: tuple[int, int]
    reserved: tuple[int, int]
    lines: tuple[PeakChange, ...]
    kinds: tuple[PeakChange, ...]
    changed: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The rise of the peak of live bytes as a share of the peak before, without the
        workspaces, which no line of the program decides. 1 for any rise from nothing.
        """
        before, after = self.live
        changeable = before - self._workspaces_before
        rise = after - before
        if changeable > 0:
            return rise / changeable
        # Nothing but workspaces before: no share can be computed, and any rise is a whole one.
        return 1.0 if rise > 0 else 0.0

    @property
    def share_words(self) -> str:
        """The share as a percentage, and whether workspaces were left out."""
        words = f"{self.share:+.1%}"
        if self._workspaces_before:
            words += ", cuBLAS's workspaces not counted"
        return words

    @property
    def _workspaces_before(self) -> int:
        """Bytes of cuBLAS's workspaces at the peak before."""
        workspaces = [kind for kind in self.kinds if kind.name == WORKSPACES]
        return sum(kind.before for kind in workspaces if kind.before)


class _Side:
    """One of the two traces, at its peak. A site is the number of a call site in ``sites``."""

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
        """The bytes of a call site at the peak, and the number of its requests in the whole trace.
        A line that was moved to another function is recognised by these two.
        """
        return self.bytes[site], self.counts[site]

    def line(self, site: int | None) -> tuple[str, int | None]:
        """The name of a call site and its bytes at the peak; "" and None without a site."""
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
        """Bytes at the peak by kind, CACHED included."""
        # The peaks of reserved and of live memory may be at different moments, so the difference is
        # an estimate, and may even be below 0.
        cached = max(0, self.reserved - self.live)
        return {**bytes_by_kind(self.requests), CACHED: cached}


def compare_peaks(
    before: Trace, after: Trace, sources: tuple[Sources, Sources] = ({}, {})
) -> Peaks:
    """What changed at the peak from one trace to the other; ``sources``: of each, where known.

    Raises LinesError where a trace has no line of the program.
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
    """The change of a line, given by its call site on either side; None on the side without it."""
    old_name, before = old.line(old_site)
    new_name, after = new.line(new_site)
    if new_name in ("", old_name):  # it is gone, or has the name that it had
        return PeakChange(old_name, before, after)
    return PeakChange(new_name, before, after, was=old_name)


def _changed_lines(
    requests: Requests, risen: Sequence[str], sources: tuple[Sources, Sources]
) -> tuple[str, ...]:
    """The new or changed lines of the newer sources, chosen as ``Peaks.changed`` says.

    ``requests``: those of the newer trace. ``risen``: the names of its lines whose bytes rose.
    """
    older, newer = sources
    changed = []
    for file, lines in newer.items():
        for tag, _, _, begin, end in _differences(older.get(file, ()), lines):
            if tag not in ("replace", "insert"):  # the others add no line
                continue
            for number, line in enumerate(lines[begin:end], begin + 1):
                if line.strip():
                    changed.append(f"{file}:{number}")
    sites = np.array([site.name in risen for site in requests.sites])
    live = requests.alive(requests.peak) & sites[requests.site]
    places = set()  # lines, as "model.py:29", in the stacks of what rose
    for stack in set(requests.stack[live].tolist()) - {-1}:
        for frame in requests.trace.frames[stack]:
            place, _, _function = frame.partition(" ")
            places.add(place)
    calling = [line for line in changed if line in places]
    if calling:
        changed = calling
    return tuple(changed[:MOST_CHANGED])


def _pairs(
    old: _Side, new: _Side, sources: tuple[Sources, Sources]
) -> list[tuple[int | None, int | None]]:
    """The old and the new site of each line that holds something at a peak, as (old, new); None on
    the side that does not have the line.

    Lines of a file are paired by its text where both sides have that, else in the order of their
    function; what is left is paired by its bytes and requests.
    """
    older, newer = sources
    texts = {
        file: _aligned(older[file], newer[file]) for file in older if file in newer
    }
    pairs: dict[int, int] = {}
    new_groups = _groups(new.sites, texts)
    for key, old_sites in _groups(old.sites, texts).items():
        new_sites = new_groups.get(key, [])
        if isinstance(key, str):  # a file whose text is known (_groups)
            pairs.update(_pairs_by_text(old, new, old_sites, new_sites, texts[key]))
        else:
            pairs.update(_pairs_by_order(old, new, old_sites, new_sites))
    pairs.update(_pairs_by_size(old, new, pairs))
    paired = {*pairs.values()}
    all_pairs: list[tuple[int | None, int | None]] = [*pairs.items()]
    for site, size in enumerate(old.bytes):
        if size and site not in pairs:
            all_pairs.append((site, None))
    for site, size in enumerate(new.bytes):
        if size and site not in paired:
            all_pairs.append((None, site))
    return all_pairs


def _pairs_by_size(old: _Side, new: _Side, pairs: Mapping[int, int]) -> dict[int, int]:
    """More pairs, old site to new: sites that have no partner in ``pairs`` and ask for the same
    bytes in as many requests. Their line was moved to another function or file.
    """
    paired = {*pairs.values()}
    unpaired = [
        site for site, size in enumerate(new.bytes) if size and site not in paired
    ]
    moved = {}
    for site, size in enumerate(old.bytes):
        if not size or site in pairs:
            continue
        alike = [other for other in unpaired if new.asks(other) == old.asks(site)]
        if alike:
            moved[site] = alike[0]
            unpaired.remove(alike[0])
    return moved


def _groups(
    sites: Sequence[CallSite], texts: Mapping[str, object]
) -> dict[Hashable, list[int]]:
    """The numbers of the call sites in groups. The key of a group is the name of a file whose
    source is known on both sides, else a tuple of file and function.

    ``texts`` has the former files as its keys. A site without a function has its own name as one.
    """
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
    """Call sites of a file, paired by its text: ``lines`` maps an old line to its new line,
    both counted from 0, where frames count from 1.
    """
    site_at_line = {new.sites[site].line - 1: site for site in new_sites}
    pairs = {}
    for site in old_sites:
        line = lines.get(old.sites[site].line - 1)
        if line in site_at_line:
            pairs[site] = site_at_line[line]
    return pairs


def _pairs_by_order(
    old: _Side, new: _Side, old_sites: list[int], new_sites: list[int]
) -> dict[int, int]:
    """Call sites of one function, paired without its text. Each side is a sequence, in the order of
    its lines, of how many requests each site makes. The two are aligned as the lines of two
    versions of a text are, so that a site which was put in between changes no other pair.
    """
    old_sites = sorted(old_sites, key=lambda site: old.sites[site].line)
    new_sites = sorted(new_sites, key=lambda site: new.sites[site].line)
    old_counts = [old.counts[site] for site in old_sites]
    new_counts = [new.counts[site] for site in new_sites]
    places = _aligned(old_counts, new_counts)
    return {old_sites[place]: new_sites[other] for place, other in places.items()}


def _aligned(before: Sequence[Hashable], after: Sequence[Hashable]) -> dict[int, int]:
    """For each index of ``before`` the index in ``after`` of the same or the changed item; an
    item that was taken out has none.
    """
    pairs: dict[int, int] = {}
    for tag, begin, end, other_begin, other_end in _differences(before, after):
        if tag in ("equal", "replace"):
            # Of a replaced part one side may be longer: its last items stay without a partner.
            old_places = range(begin, end)
            new_places = range(other_begin, other_end)
            pairs.update(zip(old_places, new_places, strict=False))
    return pairs


def _differences(
    before: Sequence[Hashable], after: Sequence[Hashable]
) -> Sequence[tuple[str, int, int, int, int]]:
    """How one sequence became the other: "equal", "replace", "insert" or "delete", with begin and
    end in both. ``autojunk`` would take frequent lines of a long file for noise.
    """
    return SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
