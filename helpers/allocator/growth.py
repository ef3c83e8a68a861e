"""Does live memory grow from step to step, and whose line keeps it?

What a step leaves behind is looked at two steps later, so that a variable which the next step
replaces is no growth, however long its sequences are. Growth counts only where it goes on to the
last steps, so that caches, optimizer states and bounded queues are none once they are full.

A call site is the program's line that asks for memory; it is named by its number in
Requests.sites. A grower is a call site that grows. A trace is fullest at the operation that ran
out of memory, or else at the peak of live bytes (Requests.fullest). A mask says of each request
whether it belongs to a set.
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
"""A trace may show several loops, the main one first. The answer is about the first loop that kept
at least this share of the most bytes that one of the loops kept: loops that lie in each other keep
nearly the same.
"""
AS_FULL = 0.99
"""A step is as full as the fullest if it has this share of its live bytes: all but the few that
differ from step to step.
"""
KEPT_AFTER = 2
"""A step is said to keep what is still there so many steps later."""
LONGEST_GAP = 3
"""A site that has kept nothing for longer than this, times the usual gap between steps in which it
keeps something, has come to rest.
"""
LEAST_RISES = 3
"""In fewer steps than this something may grow by chance."""
IN_MOST_STEPS = 2 / 3
"""The share of steps in which a call site asks, if it asks in most of them."""


@dataclass(frozen=True)
class Grower:
    """A call site that keeps more with each step.

    ``count``: how many blocks it keeps of each step. ``how``: KEPT, or LARGER where each step
    replaces its blocks by larger ones or by more. ``held_bytes``: what it had kept when the
    program ran out of memory, or when most was live.
    """

    site: CallSite
    bytes_per_step: float
    count: float
    how: str
    held_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Growth:
    """What grew over the steps of a trace.

    ``growers``: empty where nothing grew; those in the program's own files first, then those
    with most bytes per step. ``live``: live bytes at the beginning of each step. ``window``: the
    numbers, from 0, of the first and the last step that keep something; growth is counted from
    the one to the other. ``inputs_grow``: the steps themselves ask for more each time, so that
    their peak rises. ``goes_on``: the steps had not ended, because the program ran out of memory
    or the last request of the trace is one that steps make. ``seen_every``: growth is seen if it
    keeps something at least once in so many steps.
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
    """What grows over the steps of a trace. The steps are the passes of its main loop, unless those
    of another loop kept clearly more of what is live when the trace is fullest (MOST_OF_IT).

    ``until_given_up``: what the steps kept counts although they give it up later, as a queue
    that drains or a list that is cleared each epoch. Raises LinesError where the trace has too few
    steps.
    """
    loops = loops_of(requests)
    if until_given_up:
        loops = [_rise_to_the_peak(requests, loop) for loop in loops]
    growths = [_Search(requests, loop).growth() for loop in loops]
    most = max(growth.held_bytes for growth in growths)
    return next(growth for growth in growths if growth.held_bytes >= MOST_OF_IT * most)


def _rise_to_the_peak(requests: Requests, steps: Steps) -> Steps:
    """Of steps that now and then give up what they kept, those in which live memory rises to where
    the trace is fullest. All steps where fewer than FEWEST_STEPS would be left, or where the
    trace is fullest before its first step.

    Where live memory falls in one step by half of the most that the steps kept, one rise ends and
    the next begins. The rise that is wanted is the one in which the trace is fullest. Its steps
    count up to the last that is as full as its fullest (AS_FULL), if live memory falls after that.
    """
    live = requests.live_before[steps.begins]
    # Only what steps keep. The least of all steps but the first is what is always there: weights,
    # and the optimizer's state, which the first step makes.
    live = live - live[1:].min()
    half = live.max() / 2
    falls = np.flatnonzero(np.diff(live) < -half) + 1
    bounds = [0, *falls.tolist(), len(steps)]  # of the rises
    fullest = int(np.searchsorted(steps.begins, requests.fullest, "right")) - 1
    if fullest < 0:
        return steps
    number = bisect_right(bounds, fullest)
    first = bounds[number - 1]
    end = bounds[number]
    rise = live[first:end]
    # It falls after the rise, or slowly within it, as a queue does that drains step by step.
    if end < len(steps) or rise[-1] < half:
        last_full = int(np.flatnonzero(rise >= AS_FULL * rise.max())[-1])
        end = first + last_full + 1
    if end - first < FEWEST_STEPS:
        return steps
    return replace(steps, begins=steps.begins[first:end])


class _Search:
    """The search for what grows over the steps of a trace. Steps are numbered from 0; ``count`` is
    how many there are.

    ``asked_in``: the step in which each request was asked for, -1 before the first step.
    ``freed_in``: the step in which it was freed; the last step also for what was never freed.
    ``alive``: a mask of the requests that are live when the trace is fullest. Growth is looked for
    from the step ``first`` to the step ``last``.
    """

    def __init__(self, requests: Requests, steps: Steps) -> None:
        self.requests = requests
        self.steps = steps
        self.count = len(steps)
        self.asked_in = np.searchsorted(steps.begins, requests.at, "right") - 1
        freed_in = np.searchsorted(steps.begins, requests.until, "right") - 1
        self.freed_in = np.minimum(freed_in, self.count - 1)
        # The first third counts as a start, in which caches fill. Where there are few steps, only
        # the first one does, since the others are needed.
        self.first = 1
        if self.count > FEWEST_STEPS:
            self.first = self.count // 3
        self.last = self.count - 1
        self.alive = requests.alive(requests.fullest)

    def growth(self) -> Growth:
        """What grows over the steps."""
        kept_from = self.asked_in + KEPT_AFTER
        stays = (self.asked_in >= 0) & (self.freed_in >= kept_from)
        held_bytes = self.requests.by_site(stays & self.alive)
        if not self.steps.trains:  # only then can they be parts of a training step
            held_bytes[self._graphs(stays)] = 0
        kept_bytes = self._bytes_by_site(stays, kept_from, self.freed_in)
        keeping = self._keeping_sites(kept_bytes, held_bytes)
        larger, inputs_grow = self._replaced_by_larger(keeping)
        kept = self._kept_by(keeping)
        window = self._window(kept)
        growers = self._keepers(keeping, kept, window, kept_bytes, held_bytes) + larger
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
            # Growth must show in each third of the steps (_goes_on).
            seen_every=max(1, (self.last - self.first) // 3),
        )

    def _goes_on_at_the_end(self) -> bool:
        """Whether the steps go on to the end of the trace: the program ran out of memory, or its
        last request is of a call site that asks in steps. Otherwise the steps had ended, and the
        program did other things with what they kept.
        """
        sites = self.requests.site
        in_steps = (self.asked_in >= 0) & (self.asked_in < self.last)
        return self.requests.trace.ran_out or bool(np.isin(sites[-1], sites[in_steps]))

    def _keeping_sites(
        self, kept_bytes: np.ndarray, held_bytes: np.ndarray
    ) -> list[int]:
        """The numbers of the call sites that keep more and more, and some of it until the trace is
        fullest.

        ``kept_bytes``: what each call site has kept, by call site and step. ``held_bytes``: what
        each call site holds of it when the trace is fullest.
        """
        held_sites = np.flatnonzero(held_bytes).tolist()
        return [site for site in held_sites if _goes_on(kept_bytes[site, self.first :])]

    def _graphs(self, stays: np.ndarray) -> np.ndarray:
        """The call sites of whose memory that stays over steps a backward pass frees most, as a
        mask of call sites. What they keep is a graph of autograd: the steps are only parts of a
        training step, which frees it at its end.

        ``stays``: a mask of the requests that stay over steps.
        """
        freed = self.requests.by_site(stays & ~self.alive)
        in_backward = self.requests.by_site(stays & self.requests.freed_in_backward)
        return in_backward > freed / 2

    def _replaced_by_larger(self, keeping: list[int]) -> tuple[list[Grower], bool]:
        """The call sites whose blocks each step replaces by larger ones or by more of them, as
        growers (LARGER); and whether the inputs of the steps grow, so that call sites were left
        out which ask for more only because of that (_with_inputs).

        ``keeping``: the call sites that keep blocks of each step, which are no growers of this
        kind.
        """
        left_by_site = self._bytes_left_a_step_later()
        asks_for_more = self._sites_that_ask_for_more()
        growers = []
        inputs_grow = False
        for site, left_bytes in enumerate(left_by_site):
            if site in keeping or not asks_for_more.get(site):
                continue
            if not _rises(left_bytes[self.first :]):
                continue
            if _with_inputs(site, asks_for_more):
                inputs_grow = True
                continue
            more = float(left_bytes[self.last] - left_bytes[self.first])
            grower = Grower(
                site=self.requests.sites[site],
                bytes_per_step=more / (self.last - self.first),
                count=0.0,  # each block takes the place of an older one
                how=LARGER,
                held_bytes=int(left_bytes[self.last]),
            )
            growers.append(grower)
        return growers, inputs_grow

    def _bytes_left_a_step_later(self) -> np.ndarray:
        """By call site and step: the bytes that were asked for in the step before, and are still
        live in this step.
        """
        is_left = (self.asked_in >= 0) & (self.freed_in > self.asked_in)
        step_after = self.asked_in + 1
        return self._bytes_by_site(is_left, begin=step_after, end=step_after)

    def _kept_by(self, sites: list[int]) -> np.ndarray:
        """The requests of these call sites that stay to the end, as a mask. Only those count that
        are seen as kept, KEPT_AFTER steps later, after the step ``first`` and up to ``last``.
        """
        first_asked = self.first + 1 - KEPT_AFTER
        last_asked = self.last - KEPT_AFTER
        in_time = (self.asked_in >= first_asked) & (self.asked_in <= last_asked)
        stays: np.ndarray = self.alive & (self.freed_in == self.last)
        return stays & in_time & np.isin(self.requests.site, sites)

    def _window(self, kept: np.ndarray) -> tuple[int, int]:
        """The first and the last step that keep something. Where fewer than two steps do, the steps
        that were looked at: what is seen in a step was left by the one before.
        """
        steps = np.unique(self.asked_in[kept])
        if len(steps) > 1:
            return int(steps[0]), int(steps[-1])
        return self.first - 1, self.last - 1

    def _keepers(
        self,
        sites: list[int],
        kept: np.ndarray,
        window: tuple[int, int],
        kept_bytes: np.ndarray,
        held_bytes: np.ndarray,
    ) -> list[Grower]:
        """The call sites ``sites`` as growers, with the blocks and bytes that each keeps more with
        each step of the window.

        ``kept``: a mask of the requests that they keep (_kept_by). ``kept_bytes``,
        ``held_bytes``: as in _keeping_sites.
        """
        begin, end = window
        # What the first step kept is where growth begins, and is no growth itself.
        counted = kept & (self.asked_in > begin) & (self.asked_in <= end)
        seen_first = begin + KEPT_AFTER
        seen_last = min(end + KEPT_AFTER, self.last)
        growers = []
        for site in sites:
            blocks = counted & (self.requests.site == site)
            more = kept_bytes[site, seen_last] - kept_bytes[site, seen_first]
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
        """Bytes by call site and step of the requests of a mask. ``begin`` and ``end`` have for
        each request the first and the last step in which it counts.
        """
        # One column more for what ends behind the last step.
        change = np.zeros((len(self.requests.sites), self.count + 2), np.int64)
        inside = mask & (begin < self.count)  # others begin behind the last step
        site = self.requests.site[inside]
        size = self.requests.size[inside]
        np.add.at(change, (site, begin[inside]), size)
        np.add.at(change, (site, end[inside] + 1), -size)
        return np.cumsum(change, axis=1)[:, : self.count]

    def _sites_that_ask_for_more(self) -> dict[int, bool]:
        """For each call site that asks in most steps, by its number: whether it asks for more bytes
        from step to step, in larger requests or more often. Call sites that ask more seldom are
        left out.
        """
        asked_bytes = np.zeros((len(self.requests.sites), self.count), np.int64)
        inside = self.asked_in >= 0
        place = (self.requests.site[inside], self.asked_in[inside])
        np.add.at(asked_bytes, place, self.requests.size[inside])
        window = asked_bytes[:, self.first : self.last]
        asks_often = (window > 0).mean(axis=1) > IN_MOST_STEPS
        sites = np.flatnonzero(asks_often).tolist()
        return {site: _rises(window[site]) for site in sites}


def _goes_on(series: np.ndarray) -> bool:
    """Whether a series of bytes, one number for each step, grows on to its end. That is so if

    - it grows in each third, and in the last third at least at half the pace of the first two;
    - the last third nowhere falls back to where the first third was;
    - it rises in at least LEAST_RISES steps;
    - it has not come to rest: the last rise is hardly longer ago than rises are apart.
    """
    # Where the thirds begin, and where the last one ends.
    places = np.linspace(0, len(series) - 1, 4).round().astype(int)
    gains = np.diff(series[places])
    falls_back = series[places[2] :].min() <= series[: places[1]].max()
    usual_gain = (gains[0] + gains[1]) / 2
    slows_down = gains[2] < usual_gain / 2
    if falls_back or (gains <= 0).any() or slows_down:
        return False
    rises = np.flatnonzero(np.diff(series) > 0)
    if len(rises) < LEAST_RISES:
        return False
    last_change = len(series) - 2  # the place of the last difference
    return is_usual_gap(last_change - rises[-1], np.diff(rises))


def _rises(series: np.ndarray) -> bool:
    """Whether bytes by step grow on (_goes_on), and hardly any step has less than the one before:
    at least the share SAME_COUNT of the steps has as much or more.
    """
    falls_seldom = (np.diff(series) >= 0).mean() >= SAME_COUNT
    return _goes_on(series) and bool(falls_seldom)


def is_usual_gap(gap: int, gaps: np.ndarray) -> bool:
    """Whether a gap between two steps that keep something is hardly longer than usual: at most
    LONGEST_GAP times the median of ``gaps``, and one step, since the running one may keep something
    still.
    """
    return bool(gap <= LONGEST_GAP * np.median(gaps) + 1)


def _with_inputs(site: int, asks_for_more: dict[int, bool]) -> bool:
    """Whether at least half of the other call sites, and at least one, ask for more from step to
    step as well. Then the inputs of the steps grow, and nothing is kept.

    ``asks_for_more``: as _sites_that_ask_for_more returns it.
    """
    others = [more for other, more in asks_for_more.items() if other != site]
    return sum(others) >= max(1, len(others) / 2)
