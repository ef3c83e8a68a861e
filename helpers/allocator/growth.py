"""Does live memory grow from step to step, and whose line keeps it?

Read off the requests of a few steps, whatever made them.

A step is one pass of the program's main loop. Its beginning is a line of the program's own that
comes again and again: between two beginnings live memory rises to its height and falls back,
and in a training program the backward pass runs. What a step leaves behind is looked at two
steps later, so that a variable which the next step replaces is no growth, however long its
sequences are; and it counts only where it goes on to the last steps, so that caches, optimizer
states and bounded queues are none once they are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np

from helpers.allocator.lines import LinesError, Requests, Site, named, requests
from helpers.allocator.stack_frames import CALLS, own_line
from helpers.allocator.trace import Trace
from helpers.ground.units import show_bytes
from helpers.settings.text import MIN_BLOCK_BYTES

FEWEST_STEPS = 5
"""Three steps after the first that keep something, seen two steps later, are the least that can
be told from a start.
"""
SAME_HEIGHT = 0.5
SAME_COUNT = 0.9
WITH_BACKWARD = 0.5
_DEEPEST = 8
_MOST_CANDIDATES = 300
KEPT = "kept"
LARGER = "larger each step"


@dataclass(frozen=True, eq=False)
class Steps:
    """``begins``: the operation with which each step begins; ``line``: the program's line there."""

    begins: np.ndarray
    line: str

    def __len__(self) -> int:
        return len(self.begins)


@dataclass(frozen=True)
class Grower:
    """A call site that keeps more with each step.

    ``count``: blocks a step; ``how``: KEPT, or LARGER where its block is replaced by a larger
    one; ``last``: nothing else that stays is asked for later in a step.
    """

    site: Site
    bytes_per_step: float
    count: float
    how: str
    last: bool


@dataclass(frozen=True, eq=False)
class Growth:
    """What grew over the steps of a trace.

    ``growers`` is empty where nothing did: own files first, then by bytes.

    ``live``: live bytes at the beginning of each step. ``window``: the first and the last step,
    from 0, between which growth is counted, whole periods of it. ``inputs_grow``: the steps
    themselves ask for more each time, so that their peak rises. ``seen_bytes`` a step would
    have been seen if kept in every step, or at least once in ``seen_every`` steps.
    """

    steps: Steps
    growers: tuple[Grower, ...]
    live: tuple[int, ...]
    window: tuple[int, int]
    inputs_grow: bool
    seen_every: int
    seen_bytes: int = MIN_BLOCK_BYTES

    @property
    def bytes_per_step(self) -> float:
        return sum(one.bytes_per_step for one in self.growers)


def steps(found: Requests) -> Steps:
    """The steps of a trace. Raises LinesError where it shows fewer than FEWEST_STEPS."""
    best = _best(found)
    if best is None or len(best) < FEWEST_STEPS:
        named(found)  # without call sites there are no steps either
        many = "no loop" if best is None else f"{len(best)} steps"
        raise LinesError(
            f"the trace shows {many} of the program; expected at least {FEWEST_STEPS} steps, which can be told "
            "from its start: record a longer run"
        )
    return best


@dataclass(frozen=True, eq=False)
class _Candidate:
    """Where a step may begin: ``depth``: of the function in the stack; ``inside``: of the
    forward of a module, or of what a backward pass runs, where no main loop lies.
    """

    depth: int
    begins: np.ndarray
    line: str
    inside: bool


def _candidates(found: Requests) -> Iterator[_Candidate]:
    """Where a line of the program's own is come to anew, in the same function called from the
    same lines; then where what is asked for first by the same lines is asked for anew, then
    each time that it is.
    """
    frames = found.trace.frames
    own = []
    insides = []
    for names in frames:
        within = False
        lines = []
        flags = []
        for frame in reversed(names):
            within = within or bool(CALLS.match(frame)) or frame.endswith(" forward")
            if own_line(frame):
                lines.append(frame)
                flags.append(within)
        own.append(lines)
        insides.append(flags)
    named = np.array([bool(lines) for lines in own] + [False])
    framed = np.flatnonzero((found.at >= 0) & named[found.stack])
    at = found.at[framed]
    stack = found.stack[framed]
    for depth in range(min(_DEEPEST, max(map(len, own), default=0))):
        tokens: dict[tuple[str, ...], int] = {}
        inside: list[bool] = []
        of_stack = np.full(len(own) + 1, -1)
        for number, lines in enumerate(own):
            if depth < len(lines):
                of_stack[number] = tokens.setdefault(tuple(lines[: depth + 1]), len(tokens))
                if len(tokens) > len(inside):
                    inside.append(insides[number][depth])
        for token, begins in _entries(at, of_stack[stack], anew=True):
            yield _Candidate(depth, begins, list(tokens)[token][-1], inside[token])
    # A stack and a size of those lines' first request.
    paths = {tuple(lines): at for at, lines in reversed([*enumerate(own)])}
    _, pair = np.unique(np.stack((stack, found.size[framed])), axis=1, return_inverse=True)
    path = np.array([paths[tuple(lines)] for lines in own] + [-1])[stack]
    _, first = np.unique(path, return_index=True)
    firsts = np.where(np.isin(pair, pair[first]), pair, -1) if len(pair) else pair
    for anew in (True, False):
        for token, begins in _entries(at, firsts, anew):
            mine = int(stack[int(np.flatnonzero(pair == token)[0])])
            yield _Candidate(_DEEPEST + (not anew), begins, own[mine][-1], insides[mine][-1])


def _entries(at: np.ndarray, token: np.ndarray, anew: bool) -> Iterator[tuple[int, np.ndarray]]:
    """For each token where it stands, or with ``anew`` only where another stood before it."""
    first = np.ones(len(token), bool)
    if anew:
        first[1:] = token[1:] != token[:-1]
    first &= token >= 0
    order = np.argsort(token[first], kind="stable")
    sorted_tokens = token[first][order]
    places = at[first][order]
    cuts = np.flatnonzero(np.diff(sorted_tokens)) + 1
    for some, names in zip(np.split(places, cuts), np.split(sorted_tokens, cuts), strict=True):
        if len(some) >= 3:
            yield int(names[0]), some


def _best(found: Requests) -> Steps | None:
    """Of all that may be beginnings: those between which memory rises highest and falls again
    and, in training, the backward pass runs; of these the most; of these the one at which
    least is live. Without a backward pass the outermost loop is the main one.
    """
    live = np.concatenate(([0], found.live))
    back = np.zeros(len(found.trace) + 1, np.int64)
    np.add.at(back, found.at[found.backward] + 1, 1)
    back = np.cumsum(back)
    scored = []
    for one in islice(_candidates(found), _MOST_CANDIDATES):
        ends = np.maximum(live[one.begins[:-1]], live[one.begins[1:]])
        heights = np.maximum.reduceat(live[1:], one.begins)[:-1] - ends
        runs = (np.diff(back[one.begins]) > 0).mean() >= WITH_BACKWARD
        scored.append((float(np.median(heights)), bool(runs), one))
    # A module's forward is no main loop, unless whole steps run in it, as where a trainer wraps
    # them in one; but it lies in one, which a loop that loads weights before it does not
    # (2026-11).
    within = [one.begins for _, runs, one in scored if one.inside and (runs or not back[-1])]
    inner = np.sort(np.concatenate([*within, np.zeros(0, np.int64)]))
    outside = [row for row in scored if not row[2].inside]
    span = [np.ptp(np.searchsorted(inner, row[2].begins[[0, -1]])) for row in outside]
    outside = [row for row, held in zip(outside, span, strict=True) if held or not len(inner)]
    scored = outside or [row for row in scored if row[1]]
    scored = [row for row in scored if row[1]] if back[-1] else scored
    often = [row for row in scored if len(row[2].begins) >= FEWEST_STEPS]
    scored = [row for row in often if row[2].depth < _DEEPEST] or often or scored
    highest = max((height for height, _, _ in scored), default=0.0)
    scored = [row for row in scored if row[0] >= SAME_HEIGHT * highest]
    if not back[-1]:
        least = min((one.depth for _, _, one in scored), default=0)
        scored = [row for row in scored if row[2].depth == least]
    most = max((len(one.begins) for _, _, one in scored), default=0)
    alike = [one for _, _, one in scored if len(one.begins) >= SAME_COUNT * most]
    best = min(alike, key=lambda one: float(live[one.begins].mean()), default=None)
    return Steps(best.begins, best.line) if best else None


def growth(found: Requests) -> Growth:
    """What grows over the steps of a trace. Raises LinesError where it has too few of them."""
    loop = steps(found)
    begins = loop.begins
    count = len(loop)
    made, gone = (np.searchsorted(begins, ops, "right") - 1 for ops in (found.at, found.until))
    gone = np.minimum(gone, count - 1)
    first = max(1, count // 3) if count > FEWEST_STEPS else 1
    last = count - 1
    # What a step left behind and was there two steps later, at the beginning of each step, by
    # call site.
    old = _over_steps(found, (made >= 0) & (gone >= made + 2), made + 2, gone, count)
    # What the step just over left behind.
    young = _over_steps(found, (made >= 0) & (gone > made), made + 1, made + 1, count)
    keeps = [at for at, series in enumerate(old) if _goes_on(series[first:])]
    rising = _rising_sizes(found, made, count, first)
    larger = [
        at
        for at, series in enumerate(young)
        if at not in keeps and _goes_on(series[first:]) and _rises(series[first:])
    ]
    inputs = {at for at in larger if _with_inputs(at, rising)}
    larger = [at for at in larger if at not in inputs]
    kept = (made >= first - 1) & (gone == last) & (made <= last - 2) & np.isin(found.site, keeps)
    when = np.unique(made[kept])
    window = (int(when[0]), int(when[-1])) if len(when) > 1 else (first - 1, last - 1)
    span = window[1] - window[0]
    counted = kept & (made > window[0]) & (made <= window[1])
    latest = set(found.site[_last_of_each(made, counted)].tolist())
    growers = []
    for at in keeps:
        mine = counted & (found.site == at)
        row = float(found.size[mine].sum()) / span, float(mine.sum()) / span
        growers.append(Grower(found.sites[at], *row, KEPT, at in latest and len(keeps) > 1))
    for at in larger:
        more = float(young[at][last] - young[at][first]) / (last - first)
        growers.append(Grower(found.sites[at], more, 0.0, LARGER, False))
    growers.sort(key=lambda one: (not one.site.own, -one.bytes_per_step))
    before = np.concatenate(([0], found.live))[begins]
    every = max(1, (last - first) // 3)
    rises = bool(inputs)
    return Growth(loop, tuple(growers), tuple(before.tolist()), window, rises, every)


def _over_steps(
    found: Requests, which: np.ndarray, begin: np.ndarray, end: np.ndarray, count: int
) -> np.ndarray:
    """Bytes by call site and step, of requests that count from step ``begin`` to step ``end``."""
    change = np.zeros((len(found.sites), count + 2), np.int64)
    inside = which & (begin < count)
    np.add.at(change, (found.site[inside], begin[inside]), found.size[inside])
    np.add.at(change, (found.site[inside], end[inside] + 1), -found.size[inside])
    return np.cumsum(change, axis=1)[:, :count]


def _goes_on(series: np.ndarray) -> bool:
    """Whether it grows in each third, in the last at half the pace at least, does not fall back
    to where it was, and has not come to rest since.
    """
    places = np.linspace(0, len(series) - 1, 4).round().astype(int)
    gains = np.diff(series[places])
    falls = series[places[2] :].min() <= series[: places[1]].max()
    if falls or (gains <= 0).any() or gains[2] < (gains[0] + gains[1]) / 4:
        return False
    rises = np.flatnonzero(np.diff(series) > 0)
    rest = len(series) - 2 - rises[-1]
    return len(rises) >= 3 and bool(rest <= 3 * np.median(np.diff(rises)) + 1)


def _rises(series: np.ndarray) -> bool:
    return bool((np.diff(series) >= 0).mean() >= SAME_COUNT)


def _rising_sizes(found: Requests, made: np.ndarray, count: int, first: int) -> dict[int, bool]:
    """Of each call site that asks in most steps, whether its largest request becomes larger
    from step to step.
    """
    most = np.zeros((len(found.sites), count), np.int64)
    inside = made >= 0
    np.maximum.at(most, (found.site[inside], made[inside]), found.size[inside])
    window = most[:, first : count - 1]
    asked = (window > 0).mean(axis=1) > 2 / 3
    return {
        int(at): _goes_on(window[at]) and _rises(window[at])
        for at in np.flatnonzero(asked).tolist()
    }


def _with_inputs(at: int, rising: dict[int, bool]) -> bool:
    """Whether a third of the other call sites ask for more from step to step too: then it is
    what the steps are given.
    """
    others = [rises for site, rises in rising.items() if site != at]
    return sum(others) >= max(2, len(others) / 3)


def _last_of_each(made: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The last request of each step among those of a mask; requests are in order."""
    places = np.flatnonzero(which)
    return places[np.append(np.diff(made[places]) != 0, True)[: len(places)]]


@lru_cache(1)  # remedies, cards and releases are each asked about with the same trace
def grown(trace: Trace) -> Growth | None:
    """What grows in a trace; None where that cannot be told."""
    try:
        return growth(requests(trace))
    except LinesError:
        return None


def grows(trace: Trace) -> str:
    """What grows in a trace, in words; empty where nothing does, or where it cannot be told."""
    found = grown(trace)
    if found is None or not found.growers:
        return ""
    size = show_bytes(round(found.bytes_per_step))
    first = found.growers[0].site.name
    return f"live memory grows by {size} a step, most of it asked for at {first}"
