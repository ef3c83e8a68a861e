"""Did a change help, and by how much?

Compares two arms of repeated trials, the control without the change and the treated with it: their
outcomes, their answers, and the ratios of memory and time. A ratio is of a pair of trials that ran
one after the other, so that a slow hour of the box falls on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = {"memory": 0.02, "time": 0.10}
"""The least effect that matters, as a share: a smaller one is called none. Memory repeats nearly
exactly; the time of a step varies by several percent on an idle box.
"""
LEVEL = 0.99
"""Of the intervals and of the test of outcomes: a false alarm in a hundred remedies."""
FEWEST_PAIRS = 3
"""With two pairs Student's t at LEVEL is 63.7, and the interval would say nothing."""
QUANTILES = (
    *(9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106),
    *(3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
)
"""Student's t, two-sided at LEVEL, for 2, 3, ... degrees of freedom (Abramowitz and Stegun,
26.10).
"""
TOLERANCE = {"bitwise": 0.0, "close": 1e-4, "half": 5e-2}
"""The largest relative difference of losses that count as the same: none; what another order of
float32 sums may change (1e-4); what bfloat16 may change, which rounds at 4e-3 (5e-2).
"""
ROUNDING = 1e-9
"""Relative error of a probability computed twice in different ways, with room to spare."""


@dataclass(frozen=True)
class Effect:
    """The ratio of treated to control in one quantity, ``what``: memory or time.

    ``ratio`` is the mean, ``low`` to ``high`` its 99 % interval; 0.5 is half. It is of this number
    of ``pairs``. ``says`` is less, more, same (any effect is smaller than the least that matters)
    or unclear.
    """

    what: str
    ratio: float
    low: float
    high: float
    pairs: int
    says: str

    @property
    def words(self) -> str:
        """Such as "memory x 0.5 (0.49 to 0.51, 5 pairs)"."""
        if not self.pairs:
            return f"{self.what}: not measured"
        return f"{self.what} x {self.ratio:.3g} ({self.low:.3g} to {self.high:.3g}, {self.pairs} pairs)"


@dataclass(frozen=True)
class ArmResults:
    """One arm of a comparison; each field has an entry for each trial, in the order of the pairs.

    ``outcomes`` are as of TrialRecord, ``losses`` those of the steps; ``memory`` is in bytes and
    ``time`` in seconds, None where it was not measured.
    """

    outcomes: tuple[str, ...]
    losses: tuple[tuple[float, ...], ...] = ()
    memory: tuple[float | None, ...] = ()
    time: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A verdict (helps, harmful, no_effect, not_enough_evidence), its reason in one line, and the
    effects.
    """

    verdict: str
    why: str
    memory: Effect
    time: Effect


def effect(
    quantity: str, control: Sequence[float | None], treated: Sequence[float | None]
) -> Effect:
    """The ratio of treated to control, with the t interval of the mean of its logarithms.

    Logarithms make half and double equally far from 1. A pair in which a value is missing or not
    above 0 is left out. With fewer than FEWEST_PAIRS the effect is unclear.
    """
    pairs = [
        (before, after)
        for before, after in zip(control, treated, strict=False)
        if before and after
    ]
    logs = [
        math.log(after / before) for before, after in pairs if before > 0 and after > 0
    ]
    if not logs:
        return Effect(quantity, math.nan, math.nan, math.nan, 0, "unclear")
    mean = math.fsum(logs) / len(logs)
    if len(logs) < FEWEST_PAIRS:
        return Effect(quantity, math.exp(mean), 0.0, math.inf, len(logs), "unclear")
    freedom = len(logs) - 1
    variance = math.fsum((log - mean) ** 2 for log in logs) / freedom
    # QUANTILES begins at 2; above its end the last one makes the interval a little too wide.
    quantile = QUANTILES[min(freedom - 2, len(QUANTILES) - 1)]
    half_width = quantile * math.sqrt(variance / len(logs))
    low = mean - half_width
    high = mean + half_width
    least = -math.log(1 - LEAST[quantity])
    # "Same" needs the whole interval within the least effect that matters. "Less" and "more" need
    # an interval that excludes 1, whose logarithm is 0, and a mean of at least that effect.
    says = "unclear"
    if low > -least and high < least:
        says = "same"
    elif high < 0 and mean <= -least:
        says = "less"
    elif low > 0 and mean >= least:
        says = "more"
    return Effect(
        quantity, math.exp(mean), math.exp(low), math.exp(high), len(logs), says
    )


def fisher(control_bad: int, control: int, treated_bad: int, treated: int) -> float:
    """The probability, if both arms were alike, that bad outcomes are spread over them at least as
    unevenly as here (Fisher's exact test, two-sided).

    ``control_bad`` of ``control`` trials and ``treated_bad`` of ``treated`` ended badly.
    """
    bad = control_bad + treated_bad
    ways = math.comb(control + treated, bad)
    # k: how many of the bad ones are in the control, from the fewest to the most that can be.
    fewest = max(0, bad - treated)
    chances = [
        math.comb(control, k) * math.comb(treated, bad - k) / ways
        for k in range(fewest, min(bad, control) + 1)
    ]
    seen = chances[control_bad - fewest]
    as_uneven = [chance for chance in chances if chance <= seen * (1 + ROUNDING)]
    return math.fsum(as_uneven)


def same_answer(
    control: Sequence[Sequence[float]],
    treated: Sequence[Sequence[float]],
    tolerance: str,
) -> bool | None:
    """Whether the losses of each pair agree within a tolerance of TOLERANCE, on the steps that both
    trials made; None if there is no such step.
    """
    steps: list[tuple[float, float]] = []
    for control_losses, treated_losses in zip(control, treated, strict=False):
        steps += zip(control_losses, treated_losses, strict=False)
    if not steps:
        return None
    share = TOLERANCE[tolerance]
    # math.isclose is false for NaN, so a loss that is no number never agrees.
    return all(math.isclose(a, b, rel_tol=share) for a, b in steps)


def did_it_help(
    control: ArmResults, treated: ArmResults, *, goal: str = "memory", answer: str = ""
) -> Comparison:
    """The verdict on a remedy whose ``goal`` is memory or time.

    Decided by the first that can: how often both arms finish, whether the losses agree, the
    effects. A remedy that reaches its goal helps, even if it costs more of the other quantity; a
    cost without that is harm. ``answer`` is the tolerance for the losses, of TOLERANCE; if empty,
    they are not compared.
    """
    memory = effect("memory", control.memory, treated.memory)
    time = effect("time", control.time, treated.time)
    same = None
    if answer:
        same = same_answer(control.losses, treated.losses, answer)
    decided = _by_outcomes(control.outcomes, treated.outcomes, same)
    if decided is None and same is False:
        changed = "the losses differ by more than the remedy may change them"
        decided = "harmful", f"it changes the answer: {changed}"
    if decided is None and goal == "memory":
        decided = _by_effects(memory, time)
    elif decided is None:
        decided = _by_effects(time, memory)
    verdict, why = decided
    return Comparison(verdict, why, memory, time)


def _by_outcomes(
    control: Sequence[str], treated: Sequence[str], same: bool | None
) -> tuple[str, str] | None:
    """(verdict, why) if an arm has no trial, if one arm finishes more often, or if none finishes;
    else None. ``same`` says whether the losses agree.
    """
    if not control:
        return "not_enough_evidence", "no trial of the control was made"
    if not treated:
        return "not_enough_evidence", "no trial of the remedy was made"
    control_bad = len(control) - control.count("ok")
    treated_bad = len(treated) - treated.count("ok")
    before = control_bad / len(control)
    after = treated_bad / len(treated)
    if before != after:
        says = f"it ended {_counted(treated)}, and without it {_counted(control)}"
        chance = fisher(control_bad, len(control), treated_bad, len(treated))
        if chance > 1 - LEVEL:
            few = f"that few trials could show by chance (p = {chance:.2g})"
            return "not_enough_evidence", f"{says}: {few}"
        # A remedy that finishes more often does not help if it computes something else.
        if same is False:
            return "harmful", f"{says}, and the answer changed"
        if after > before:
            return "harmful", says
        return "helps", says
    if before < 1:
        return None
    arms = f"with it ({_counted(treated)}) or without ({_counted(control)})"
    why = f"no trial finished, {arms}"
    ends = set(control) | set(treated)
    if set(control) != set(treated) or ends == {"crashed"}:
        return "not_enough_evidence", why  # a crash may have any cause
    return "no_effect", why


def _counted(outcomes: Sequence[str]) -> str:
    """Outcomes with how often there was each: ``4 ok, 1 oom``."""
    return ", ".join(
        f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)
    )


def _by_effects(main: Effect, other: Effect) -> tuple[str, str]:
    """(verdict, why) of two arms that finish equally often: ``main`` is the effect on the remedy's
    goal, ``other`` that on the other quantity.
    """
    has_cost = other.says == "more"
    if main.says == "less" and has_cost:
        return "helps", f"{main.words}; it costs {other.words}"
    if main.says == "less":
        return "helps", main.words
    if main.says == "more":
        return "harmful", main.words
    if main.says == "same" and has_cost:
        return "harmful", f"{other.words}, and {main.words}"
    if has_cost:
        return "harmful", f"{other.words}, and no gain is shown"
    if main.says == "same":
        why = f"below {LEAST[main.what]:.0%}, the least that matters"
        return "no_effect", f"{main.words}: {why}"
    why = "the interval leaves open whether it matters"
    return "not_enough_evidence", f"{main.words}: {why}"
