"""What two traces hold at their peaks of live memory, by the program's lines and by kind, and
what moved from one to the other.

A line is found again by its file, its function and what it asks for: lines inserted above it
are no change. Where the sources of both sides are at hand, their text says which line became
which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.engine import replay
from helpers.allocator.growth import steps
from helpers.allocator.lines import LinesError, Requests, with_lines
from helpers.allocator.recorded import AMPLE_BYTES, circumstances
from helpers.allocator.trace import Trace

KINDS = "parameters,gradients,optimizer state,activations,workspaces,kept,temporaries,cached".split(
    ","
)
BLAS_BYTES = (8519680, 32 << 20)
"""What cuBLAS gets once and keeps, up to Hopper and on it
(aten/src/ATen/cuda/CublasHandlePool.cpp).
"""
MOST_CHANGED = 8
Sources = Mapping[str, Sequence[str]]
"""The lines of each source file, by its name without folders."""


@dataclass(frozen=True)
class Change:
    """Bytes of one line, or of one kind, at the peak of each side; ``before`` is None for a
    line that is new, ``after`` for one that is gone. ``was``: the line's name before, where
    it has another now.
    """

    what: str
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
    lines: tuple[Change, ...]
    kinds: tuple[Change, ...]
    changed: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """By which share the peak of live bytes rose: of what was live without the workspaces,
        which no line decides.
        """
        fixed = next((one.before or 0 for one in self.kinds if one.what == "workspaces"), 0)
        rose = self.live[1] - self.live[0]
        own = self.live[0] - fixed
        return rose / own if own > 0 else float(rose > 0)


def compare(one: Trace, two: Trace, sources: tuple[Sources, Sources] = ({}, {})) -> Peaks:
    """What moved at the peak from one trace to the other.

    Raises LinesError where one of them has no lines.
    """
    sides = with_lines(one), with_lines(two)
    held = [found.by_site(found.alive(found.peak)).tolist() for found in sides]
    live = tuple(int(found.live[found.peak]) for found in sides)
    reserved = tuple(_reserved(found.trace) for found in sides)
    changes = []
    for old, new in _pairs(sides, held, sources):
        name = sides[1].sites[new].name if new is not None else ""
        was = sides[0].sites[old].name if old is not None else ""
        sizes = (
            held[0][old] if old is not None else None,
            held[1][new] if new is not None else None,
        )
        changes.append(Change(name or was, *sizes, was if name and was != name else ""))
    kinds = [by_kind(found) for found in sides]
    for at in (0, 1):
        kinds[at]["cached"] = max(0, reserved[at] - live[at])
    moved = [Change(kind, kinds[0][kind], kinds[1][kind]) for kind in KINDS]
    lines = [one for one in changes if one.by]
    return Peaks(
        (live[0], live[1]),
        (reserved[0], reserved[1]),
        tuple(sorted(lines, key=lambda one: -abs(one.by))),
        tuple(moved),
        _changed(sides[1], [one.what for one in lines if one.by > 0], sources),
    )


def _changed(
    found: Requests, rose: Sequence[str], sources: tuple[Sources, Sources]
) -> tuple[str, ...]:
    """The lines of the newer sources that the older do not have; see Peaks."""
    new = []
    for name, lines in sources[1].items():
        same = SequenceMatcher(None, sources[0].get(name, ()), lines, autojunk=False)
        kept = {at for _, s, size in same.get_matching_blocks() for at in range(s, s + size)}
        new += [f"{name}:{at + 1}" for at, t in enumerate(lines) if at not in kept and t.strip()]
    sites = np.array([site.name in rose for site in found.sites])
    stacks = set(found.stack[found.alive(found.peak) & sites[found.site]].tolist()) - {-1}
    frames = {one.partition(" ")[0] for stack in stacks for one in found.trace.frames[stack]}
    return tuple([one for one in new if one in frames] or new)[:MOST_CHANGED]


def _reserved(trace: Trace) -> int:
    known = circumstances(trace)
    how: dict[str, Any] = {"torch": known.torch, "build": known.build}
    return replay(
        trace, known.conf, Card(known.capacity_bytes or AMPLE_BYTES), **how
    ).peak_reserved_bytes


def by_kind(found: Requests) -> dict[str, int]:
    """Live bytes at the peak by kind, told by who asked and how long it stays.

    What the optimizer's code asks for and keeps is its state; what a backward pass asks for and
    outlives it, a gradient; what is there when a backward pass begins and not to the end, an
    activation; what stays to the end beside those, a parameter or buffer where it was asked for
    before the first step, else kept; a block of cuBLAS's size that stays, its workspace.
    """
    frames = found.trace.frames
    optimizer = np.array(
        [any(one.startswith(("torch/optim/", "Optimizer.step")) for one in row) for row in frames]
        + [False]
    )[found.stack]
    stays = found.until > found.at.max(initial=0)  # what a program frees at its own end, too

    def outlive(which: np.ndarray) -> np.ndarray:
        """Which are still there when the next of those is asked for, or at the end."""
        asked = np.append(np.sort(found.at[which]), len(found.trace))
        return np.asarray(asked[np.searchsorted(asked, found.at, "right")] < found.until)

    in_backward, outlives = outlive(found.backward), outlive(~found.backward)
    workspace = stays & np.isin(found.size, BLAS_BYTES) & ~optimizer
    tests = {
        "workspaces": workspace,
        "optimizer state": optimizer & stays,
        "gradients": found.backward & (outlives | stays),
        "parameters": stays & ~optimizer & (found.at < _first_step(found)),
        "kept": stays,
        "activations": in_backward & ~found.backward,
        "temporaries": np.ones(len(found), bool),
    }
    left = found.alive(found.peak)
    sums = {}
    for kind, test in tests.items():
        sums[kind] = int(found.size[left & test].sum())
        left = left & ~test
    return sums


def _first_step(found: Requests) -> int:
    """The operation with which the steps begin; where none are seen, the first of a backward
    pass, else the end.
    """
    try:
        return int(steps(found).begins[0])
    except LinesError:
        return int(found.at[found.backward].min(initial=len(found.trace)))


def _pairs(
    sides: tuple[Requests, Requests], held: list[list[int]], sources: tuple[Sources, Sources]
) -> list[tuple[int | None, int | None]]:
    """Call sites of both sides that are the same line; one without a partner stands alone."""
    counts = [np.bincount(found.site, minlength=len(found.sites)).tolist() for found in sides]
    groups: list[dict[Hashable, list[int]]] = [defaultdict(list), defaultdict(list)]
    texts = {
        name: _aligned(lines, sources[1][name])
        for name, lines in sources[0].items()
        if name in sources[1]
    }
    for found, group in zip(sides, groups, strict=True):
        for at, site in enumerate(found.sites):
            known = site.own and site.file in texts
            group[site.file if known else (site.file, site.function or site.name)].append(at)
    pairs: dict[int, int] = {}
    for key, mine in groups[0].items():
        theirs = groups[1].get(key, [])
        if isinstance(key, str):
            places = {sides[1].sites[at].line - 1: at for at in theirs}
            follows = {
                at: places.get(texts[key].get(sides[0].sites[at].line - 1, -1)) for at in mine
            }
            pairs |= {old: new for old, new in follows.items() if new is not None}
            continue
        mine.sort(key=lambda at: sides[0].sites[at].line)
        theirs = sorted(theirs, key=lambda at: sides[1].sites[at].line)
        asked = [counts[0][at] for at in mine], [counts[1][at] for at in theirs]
        pairs |= {mine[old]: theirs[new] for old, new in _aligned(*asked).items()}
    # What was moved to another function or file is found again by what it asks for.
    rest = [
        [at for at in range(len(sides[side].sites)) if at not in taken and held[side][at]]
        for side, taken in enumerate((set(pairs), set(pairs.values())))
    ]
    for old in rest[0]:
        same = [
            new
            for new in rest[1]
            if (held[1][new], counts[1][new]) == (held[0][old], counts[0][old])
        ]
        if same:
            pairs[old] = same[0]
            rest[1].remove(same[0])
    alone = [(old, None) for old in rest[0] if old not in pairs]
    return [*pairs.items(), *alone, *((None, new) for new in rest[1])]


def _aligned(one: Sequence[Hashable], two: Sequence[Hashable]) -> dict[int, int]:
    """Place to place of two sequences, where they are alike and where one thing stands in place
    of another.
    """
    pairs: dict[int, int] = {}
    for tag, i, j, k, m in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if tag in ("equal", "replace"):
            pairs.update(zip(range(i, j), range(k, m), strict=False))
    return pairs
