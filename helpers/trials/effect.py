"""Did the change help, and by how much?

Two arms of repeated trials compared: ratio with its interval, outcomes, answers.

Pure. Measurements are compared as ratios, in pairs that ran one after the other, so that a slow
hour of the box falls on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = {"memory": 0.02, "time": 0.10}
"""The least effect that matters: a change of less is called none."""
LEVEL = 0.99
FEWEST_PAIRS = 3
QUANTILES = (
    *(9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106),
    *(3.055, 3.012, 2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845),
)
"""Student's t, two-sided at LEVEL, from two degrees of freedom on (Abramowitz and Stegun, 26.10)."""
TOLERANCE = {"bitwise": 0.0, "close": 1e-4, "half": 5e-2}
"""How close losses must be: the same bits, or the same within what another order of sums and a
shorter number allow.
"""


@dataclass(frozen=True)
class Effect:
    """Treated over control: ``ratio`` with the bounds of its 99 % interval; 0.5 is half.

    ``pairs``: how many pairs it rests on.

    ``says``: less, more, same (any effect is below the least that matters) or unclear.
    """

    what: str
    ratio: float
    low: float
    high: float
    pairs: int
    says: str

    @property
    def words(self) -> str:
        if not self.pairs:
            return f"{self.what}: not measured"
        return f"{self.what} x {self.ratio:.3g} ({self.low:.3g} to {self.high:.3g}, {self.pairs} pairs)"


@dataclass(frozen=True)
class ArmResults:
    """One side of a comparison, trial by trial: the outcomes, the losses, and the memory (bytes)
    and time (seconds) where they were measured (else None).
    """

    outcomes: tuple[str, ...]
    losses: tuple[tuple[float, ...], ...] = ()
    memory: tuple[float | None, ...] = ()
    time: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A verdict with its one-line reason and the effects it rests on."""

    verdict: str
    why: str
    memory: Effect
    time: Effect


def effect(
    quantity: str, control: Sequence[float | None], treated: Sequence[float | None]
) -> Effect:
    """The ratio of two arms by their pairs: the t interval of the mean logarithm at 99 %.

    A pair that lacks a side, or has one that is not above 0, is left out. With fewer than three
    pairs nothing is said.
    """
    logs = [
        math.log(after / before)
        for before, after in zip(control, treated, strict=False)
        if before and after and before > 0 and after > 0
    ]
    if not logs:
        return Effect(quantity, math.nan, math.nan, math.nan, 0, "unclear")
    mean = math.fsum(logs) / len(logs)
    if len(logs) < FEWEST_PAIRS:
        return Effect(quantity, math.exp(mean), 0.0, math.inf, len(logs), "unclear")
    freedom = len(logs) - 1
    variance = math.fsum((log - mean) ** 2 for log in logs) / freedom
    # With more pairs than the table has, the interval is a little wide.
    quantile = QUANTILES[min(freedom - 2, len(QUANTILES) - 1)]
    half = quantile * math.sqrt(variance / len(logs))
    low = mean - half
    high = mean + half
    least = -math.log(1 - LEAST[quantity])
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
    """The probability of an outcome table at least as uneven, were both arms alike (Fisher's
    exact test, two-sided).
    """
    bad = control_bad + treated_bad
    total = control + treated
    ways = math.comb(total, bad)
    fewest = max(0, bad - treated)
    chances = [
        math.comb(control, k) * math.comb(treated, bad - k) / ways
        for k in range(fewest, min(bad, control) + 1)
    ]
    seen = chances[control_bad - fewest]
    return math.fsum(chance for chance in chances if chance <= seen * (1 + 1e-9))


def same_answer(
    control: Sequence[Sequence[float]],
    treated: Sequence[Sequence[float]],
    tolerance: str,
) -> bool | None:
    """Whether the losses of each pair agree, on the steps that both made; None where no pair
    has any.
    """
    steps: list[tuple[float, float]] = []
    for control_losses, treated_losses in zip(control, treated, strict=False):
        steps += zip(control_losses, treated_losses, strict=False)
    if not steps:
        return None
    share = TOLERANCE[tolerance]
    # A loss that is no number is like nothing, itself included.
    return all(a == b or abs(a - b) <= share * max(abs(a), abs(b)) for a, b in steps)


def did_it_help(
    control: ArmResults, treated: ArmResults, *, goal: str = "memory", answer: str = ""
) -> Comparison:
    """The verdict on a remedy for ``goal`` (memory or time).

    ``answer``: bitwise, close, half; empty: not compared.

    First whether both arms finish; then the answer; then the effects. What a remedy costs in
    time beside the memory that it saves is told and not held against it; a cost without the
    gain is harm.
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
    """The verdict and why where the arms do not both finish alike, or there is no trial; else
    None.
    """
    if not control or not treated:
        which = "remedy" if control else "control"
        return "not_enough_evidence", f"no trial of the {which} was made"
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
        if same is False:
            return "harmful", f"{says}, and the answer changed"
        return "helps" if after < before else "harmful", says
    if before == 1:
        alike = set(control) == set(treated) != {"crashed"}
        why = f"with it ({_counted(treated)}) or without ({_counted(control)})"
        verdict = "no_effect" if alike else "not_enough_evidence"
        return verdict, f"no trial finished, {why}"
    return None


def _counted(outcomes: Sequence[str]) -> str:
    """Outcomes with how often there was each: ``4 ok, 1 oom``."""
    return ", ".join(
        f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)
    )


def _by_effects(main: Effect, other: Effect) -> tuple[str, str]:
    """The verdict and why of two arms that finish alike: ``main`` is what the remedy is for."""
    has_cost = other.says == "more"
    if main.says == "less" and has_cost:
        return "helps", f"{main.words}; it costs {other.words}"
    if main.says == "less":
        return "helps", main.words
    if main.says == "more":
        return "harmful", main.words
    if has_cost:
        gain = main.words if main.says == "same" else "no gain is shown"
        return "harmful", f"{other.words}, and {gain}"
    if main.says == "same":
        why = f"below {LEAST[main.what]:.0%}, the least that matters"
        return "no_effect", f"{main.words}: {why}"
    why = "the interval leaves open whether it matters"
    return "not_enough_evidence", f"{main.words}: {why}"
