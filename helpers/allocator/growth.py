"""Does live memory grow from step to step, and whose line keeps it?

What a step leaves behind is looked at two steps later, so that a variable which the next step
replaces is no growth, however long its sequences are; and it counts only where it goes on to
the last steps, so that caches, optimizer states and bounded queues are none once they are full.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from helpers.allocator.call_sites import CallSite, Requests
from helpers.allocator.steps import FEWEST_STEPS, SAME_COUNT, Steps, loops_of

KEPT = "kept"
LARGER = "larger each step"
MOST_OF_IT = 0.8
"""Loops lie in each other: of those that kept so much of the most that one kept, the main one."""
AS_FULL = 0.99


@dataclass(frozen=True)
class Grower:
    """A call site that keeps more with each step.

    ``count``: blocks a step. ``how``: KEPT, or LARGER where its blocks are replaced by
    larger ones or by more. ``held_bytes``: of what it kept, there when the program ran out of memory, or when most
    was live.
    """

    site: CallSite
    bytes_per_step: float
    count: float
    how: str
    held_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Growth:
    """What grew over the steps of a trace.

    ``growers`` is empty where nothing did: own files first, then by bytes.

    ``goes_on``: it had not come to its end: the program ran out of memory, or the last request
    of the trace is one that the steps make. ``live``: live bytes at the beginning of each step.
    ``window``: the first and the last step, from 0, between which growth is counted, whole
    periods of it. ``inputs_grow``: the steps themselves ask for more each time, so that their
    peak rises. A block kept at least once in ``seen_every`` steps would have been seen.
    """

    steps: Steps
    growers: tuple[Grower, ...]
    live: tuple[int, ...]
    window: tuple[int, int]
    inputs_grow: bool
    goes_on: bool
    seen_every: int

    @property
    def bytes_per_step(self) -> float:
        return sum(grower.bytes_per_step for grower in self.growers)

    def steps_at(self, operation: int) -> int:
        """How many of the steps have begun at an operation."""
        return int(np.searchsorted(self.steps.begins, operation, "right"))

    @property
    def held_bytes(self) -> int:
        """What the growers hold when the program runs out of memory, or when most is live."""
        return sum(grower.held_bytes for grower in self.growers)


def growth_of(requests: Requests, *, until_given_up: bool = False) -> Growth:
    """What grows over the steps of a trace: in its main loop, unless more of what is there when
    the program runs out of memory was kept by the passes of another one.

    ``until_given_up``: what the steps kept counts although they give it up later, as a queue
    that drains or a list that is cleared each epoch. Raises LinesError where it has too few steps.
    """
    loops = loops_of(requests)
    if until_given_up:
        loops = [_rise_to_the_peak(requests, loop) for loop in loops]
    growths = [_Search(requests, loop).growth() for loop in loops]
    most = max(growth.held_bytes for growth in growths)
    return next(growth for growth in growths if growth.held_bytes >= MOST_OF_IT * most)


def _rise_to_the_peak(requests: Requests, steps: Steps) -> Steps:
    """The steps since half of what they kept was last given up in one of them, up to the last one
    that was as full as the fullest, where half of that is given up later.
    """
    live = requests.live_before[steps.begins]
    # Without weights, and what an optimizer makes in the first step.
    live = live - live[1:].min()
    half = live.max() / 2
    falls = np.flatnonzero(np.diff(live) < -half) + 1
    bounds = [0, *falls.tolist(), len(steps)]
    fullest = int(np.searchsorted(steps.begins, requests.fullest, "right")) - 1
    if fullest < 0:
        return steps
    rising = bisect_right(bounds, fullest)
    first = bounds[rising - 1]
    end = bounds[rising]
    rise = live[first:end]
    if end < len(steps) or rise[-1] < half:
        end = first + int(np.flatnonzero(rise >= AS_FULL * rise.max())[-1]) + 1
    if end - first < FEWEST_STEPS:
        return steps
    return replace(steps, begins=steps.begins[first:end])


class _Search:
    """The search for what grows over the steps of a trace.

    ``asked_in``: the step in which each request was asked for, -1 before the first;
    ``freed_in``: that in which it was freed, the last one also for what was not. Growth is
    looked for from the step ``first`` to the step ``last``.
    """

    def __init__(self, requests: Requests, steps: Steps) -> None:
        self.requests = requests
        self.steps = steps
        self.count = len(steps)
        self.asked_in = np.searchsorted(steps.begins, requests.at, "right") - 1
        freed_in = np.searchsorted(steps.begins, requests.until, "right") - 1
        self.freed_in = np.minimum(freed_in, self.count - 1)
        self.first = max(1, self.count // 3) if self.count > FEWEST_STEPS else 1
        self.last = self.count - 1
        self.alive = requests.alive(requests.fullest)

    def growth(self) -> Growth:
        """What grows over the steps."""
        stays = (self.asked_in >= 0) & (self.freed_in >= self.asked_in + 2)
        held_bytes = self.requests.by_site(stays & self.alive)
        if not self.steps.trains:
            held_bytes[self._graphs(stays)] = 0
        # Of each call site, by step: what was asked for two steps before or earlier.
        later = self._bytes_by_site(stays, self.asked_in + 2, self.freed_in)
        keeping = self._keeping_sites(later, held_bytes)
        larger, inputs_grow = self._replaced_by_larger(keeping)
        kept = self._kept_by(keeping)
        window = self._window(kept)
        growers = self._keepers(keeping, kept, window, later, held_bytes) + larger
        growers.sort(
            key=lambda grower: (not grower.site.in_program, -grower.bytes_per_step)
        )
        live = self.requests.live_before[self.steps.begins]
        return Growth(
            steps=self.steps,
            growers=tuple(growers),
            live=tuple(live.tolist()),
            window=window,
            inputs_grow=inputs_grow,
            goes_on=self._goes_on_at_the_end(),
            seen_every=max(1, (self.last - self.first) // 3),
        )

    def _goes_on_at_the_end(self) -> bool:
        """Whether the program ran out of memory, or its last request is one that steps make: else
        it has gone on with what they kept.
        """
        sites = self.requests.site
        in_steps = (self.asked_in >= 0) & (self.asked_in < self.last)
        return self.requests.trace.ran_out or bool(np.isin(sites[-1], sites[in_steps]))

    def _keeping_sites(self, later: np.ndarray, held_bytes: np.ndarray) -> list[int]:
        """The call sites of which more and more is there two steps later, and some of it when
        the program runs out of memory.
        """
        held_sites = np.flatnonzero(held_bytes).tolist()
        return [site for site in held_sites if _goes_on(later[site, self.first :])]

    def _graphs(self, stays: np.ndarray) -> np.ndarray:
        """The call sites of which what stays over steps goes in the next backward pass: a part
        of a training step that is run in pieces.
        """
        freed = self.requests.by_site(stays & ~self.alive)
        in_backward = self.requests.by_site(stays & self.requests.freed_in_backward)
        return in_backward > freed / 2

    def _replaced_by_larger(self, keeping: list[int]) -> tuple[list[Grower], bool]:
        """Call sites whose blocks each step replaces by larger ones or by more of them; and whether
        that is what the steps are given.
        """
        one_later = self.asked_in + 1
        counted = (self.asked_in >= 0) & (self.freed_in > self.asked_in)
        left = self._bytes_by_site(counted, one_later, one_later)
        rising = self._sites_that_ask_for_more()
        growers = []
        inputs_grow = False
        for site, series in enumerate(left):
            grows = _goes_on(series[self.first :]) and _rises(series[self.first :])
            if site in keeping or not (grows and rising.get(site)):
                continue
            if _with_inputs(site, rising):
                inputs_grow = True
                continue
            more = float(series[self.last] - series[self.first])
            grower = Grower(
                site=self.requests.sites[site],
                bytes_per_step=more / (self.last - self.first),
                count=0.0,
                how=LARGER,
                held_bytes=int(series[self.last]),
            )
            growers.append(grower)
        return growers, inputs_grow

    def _kept_by(self, sites: list[int]) -> np.ndarray:
        """The requests of these call sites that stay to the end, as a mask."""
        in_time = (self.asked_in >= self.first - 1) & (self.asked_in <= self.last - 2)
        stays: np.ndarray = self.alive & (self.freed_in == self.last)
        return stays & in_time & np.isin(self.requests.site, sites)

    def _window(self, kept: np.ndarray) -> tuple[int, int]:
        """The first and the last step that keep something."""
        steps = np.unique(self.asked_in[kept])
        if len(steps) > 1:
            return int(steps[0]), int(steps[-1])
        return self.first - 1, self.last - 1

    def _keepers(
        self,
        sites: list[int],
        kept: np.ndarray,
        window: tuple[int, int],
        later: np.ndarray,
        held_bytes: np.ndarray,
    ) -> list[Grower]:
        """The call sites that keep something, with how much more of it a step."""
        begin, end = window
        counted = kept & (self.asked_in > begin) & (self.asked_in <= end)
        growers = []
        for site in sites:
            blocks = counted & (self.requests.site == site)
            more = later[site, min(end + 2, self.last)] - later[site, begin + 2]
            grower = Grower(
                site=self.requests.sites[site],
                bytes_per_step=float(more) / (end - begin),
                count=float(blocks.sum()) / (end - begin),
                how=KEPT,
                held_bytes=int(held_bytes[site]),
            )
            growers.append(grower)
        return growers

    def _bytes_by_site(
        self, mask: np.ndarray, begin: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """Bytes by call site and step, of requests that count from step ``begin`` to ``end``."""
        change = np.zeros((len(self.requests.sites), self.count + 2), np.int64)
        inside = mask & (begin < self.count)
        site = self.requests.site[inside]
        size = self.requests.size[inside]
        np.add.at(change, (site, begin[inside]), size)
        np.add.at(change, (site, end[inside] + 1), -size)
        return np.cumsum(change, axis=1)[:, : self.count]

    def _sites_that_ask_for_more(self) -> dict[int, bool]:
        """Of each call site that asks in most steps, whether it asks for more from step to step: in
        larger requests, or more often.
        """
        asked_bytes = np.zeros((len(self.requests.sites), self.count), np.int64)
        inside = self.asked_in >= 0
        place = (self.requests.site[inside], self.asked_in[inside])
        np.add.at(asked_bytes, place, self.requests.size[inside])
        window = asked_bytes[:, self.first : self.count - 1]
        asks_often = (window > 0).mean(axis=1) > 2 / 3
        return {
            site: _goes_on(window[site]) and _rises(window[site])
            for site in np.flatnonzero(asks_often).tolist()
        }


def _goes_on(series: np.ndarray) -> bool:
    """Whether it grows in each third, in the last at half the pace at least, does not fall back
    to where it was, and has not come to rest since.
    """
    places = np.linspace(0, len(series) - 1, 4).round().astype(int)
    gains = np.diff(series[places])
    falls_back = series[places[2] :].min() <= series[: places[1]].max()
    slows_down = gains[2] < (gains[0] + gains[1]) / 4
    if falls_back or (gains <= 0).any() or slows_down:
        return False
    rises = np.flatnonzero(np.diff(series) > 0)
    if len(rises) < 3:
        return False
    rest = len(series) - 2 - rises[-1]
    return bool(rest <= 3 * np.median(np.diff(rises)) + 1)


def _rises(series: np.ndarray) -> bool:
    return bool((np.diff(series) >= 0).mean() >= SAME_COUNT)


def _with_inputs(site: int, rising: dict[int, bool]) -> bool:
    """Whether half of the other call sites ask for more from step to step too: then it is
    what the steps are given.
    """
    others = [rises for other, rises in rising.items() if other != site]
    return sum(others) >= max(1, len(others) / 2)
