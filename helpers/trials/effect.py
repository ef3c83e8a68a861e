"""Did the change help, and by how much?

Two arms of repeated trials compared: ratio with its interval, outcomes, answers.

Pure. Measurements are compared as ratios, in pairs that ran one after the other, so that a slow
hour of the box falls on both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST = {"memory": 0.02, "time": 0.10}
"""The least effect that matters: a change of less is called none."""
LEVEL = 0.99
FEWEST_PAIRS = 3
_WORDS = "helps no_effect harmful not_supported ineffective not_enough_evidence predicted"
VERDICTS = tuple(_WORDS.split())
# How close the losses must be: the same bits, or the same within what another order of sums and
# a shorter number allow.
TOLERANCE = {"bitwise": 0.0, "close": 1e-4, "half": 5e-2}


@dataclass(frozen=True)
class Effect:
    """Treated over control: ``ratio`` with the bounds of its 99 % interval; 0.5 is half.

    ``pairs`` it rests on.

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
class Arm:
    """One side of a comparison, trial by trial: the outcomes, the losses, and what was measured
    where it was (else None).
    """

    outcomes: tuple[str, ...]
    losses: tuple[tuple[float, ...], ...] = ()
    measured: Mapping[str, tuple[float | None, ...]] | None = None


@dataclass(frozen=True)
class Comparison:
    """A verdict with its one-line reason and the effects it rests on; ``same_answer`` is None
    where it was not compared.
    """

    verdict: str
    why: str
    memory: Effect
    time: Effect
    same_answer: bool | None


def effect(what: str, control: Sequence[float | None], treated: Sequence[float | None]) -> Effect:
    """The ratio of two arms by their pairs: the t interval of the mean logarithm at 99 %.

    A pair that lacks a side, or has one that is not above 0, is left out. With fewer than three
    pairs nothing is said.
    """
    both = [(a, b) for a, b in zip(control, treated, strict=False) if a and b and min(a, b) > 0]
    logs = [math.log(b / a) for a, b in both]
    if not logs:
        return Effect(what, math.nan, math.nan, math.nan, 0, "unclear")
    mean = math.fsum(logs) / len(logs)
    if len(logs) < FEWEST_PAIRS:
        return Effect(what, math.exp(mean), 0.0, math.inf, len(logs), "unclear")
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in logs) / (len(logs) - 1) / len(logs))
    half = student(LEVEL, len(logs) - 1) * spread
    low = mean - half
    high = mean + half
    least = -math.log(1 - LEAST[what])
    says = "unclear"
    if low > -least and high < least:
        says = "same"
    elif high < 0 and mean <= -least:
        says = "less"
    elif low > 0 and mean >= least:
        says = "more"
    return Effect(what, math.exp(mean), math.exp(low), math.exp(high), len(logs), says)


def student(level: float, freedom: int) -> float:
    """The two-sided quantile of Student's t, by bisection over its distribution function
    (Abramowitz and Stegun 26.7.3-4).
    """
    low = 0.0
    high = 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < level else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """The probability that |T| is below t."""
    angle = math.atan(t / math.sqrt(freedom))
    sine = math.sin(angle)
    cosine = math.cos(angle)
    term, total, start = (cosine, cosine, 3) if freedom % 2 else (1.0, 1.0, 2)
    for k in range(start, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom == 1:
        return 2 * angle / math.pi
    return 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total


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
    control: Sequence[Sequence[float]], treated: Sequence[Sequence[float]], tolerance: str
) -> bool | None:
    """Whether the losses of each pair agree, on the steps that both made; None where no pair
    has any.
    """
    arms = zip(control, treated, strict=False)
    steps = [step for one, other in arms for step in zip(one, other, strict=False)]
    share = TOLERANCE[tolerance]
    # A loss that is no number is like nothing, itself included.
    alike = [a == b or abs(a - b) <= share * max(abs(a), abs(b)) for a, b in steps]
    return all(alike) if alike else None


def compare(control: Arm, treated: Arm, *, goal: str = "memory", answer: str = "") -> Comparison:
    """The verdict on a remedy for ``goal`` (memory or time).

    ``answer``: bitwise, close, half; empty: not compared.

    First whether both arms finish; then the answer; then the effects. What a remedy costs in
    time beside the memory that it saves is told and not held against it; a cost without the
    gain is harm.
    """
    arms = (control, treated)
    memory, time = (effect(w, *((arm.measured or {}).get(w, ()) for arm in arms)) for w in LEAST)
    same = same_answer(control.losses, treated.losses, answer) if answer else None
    decided = _by_outcomes(control, treated, same)
    if decided is None and same is False:
        changed = "the losses differ by more than the remedy may change them"
        decided = "harmful", f"it changes the answer: {changed}"
    if decided is None:
        decided = _by_effects(*((memory, time) if goal == "memory" else (time, memory)))
    return Comparison(*decided, memory, time, same)


def _by_outcomes(control: Arm, treated: Arm, same: bool | None) -> tuple[str, str] | None:
    """The verdict and why where the arms do not both finish alike, or there is no trial; else
    None.
    """
    arms = (control, treated)
    bad = [sum(outcome != "ok" for outcome in arm.outcomes) for arm in arms]
    count = [len(arm.outcomes) for arm in arms]
    if not min(count):
        which = "remedy" if count[0] else "control"
        return "not_enough_evidence", f"no trial of the {which} was made"
    ends = [
        ", ".join(f"{arm.outcomes.count(one)} {one}" for one in dict.fromkeys(arm.outcomes))
        for arm in arms
    ]
    before = bad[0] * count[1]
    after = bad[1] * count[0]
    if before != after:
        says = f"it ended {ends[1]}, and without it {ends[0]}"
        chance = fisher(bad[0], count[0], bad[1], count[1])
        if chance > 1 - LEVEL:
            few = f"that few trials could show by chance (p = {chance:.2g})"
            return "not_enough_evidence", f"{says}: {few}"
        changed = ", and the answer changed" if same is False else ""
        helps = after < before and not changed
        return "helps" if helps else "harmful", says + changed
    if bad[0] == count[0]:
        alike = set(control.outcomes) == set(treated.outcomes) != {"crashed"}
        why = f"no trial finished, with it ({ends[1]}) or without ({ends[0]})"
        return "no_effect" if alike else "not_enough_evidence", why
    return None


def _by_effects(main: Effect, other: Effect) -> tuple[str, str]:
    """The verdict and why of two arms that finish alike: ``main`` is what the remedy is for."""
    if main.says == "less":
        cost = f"; it costs {other.words}" if other.says == "more" else ""
        return "helps", main.words + cost
    if main.says == "more":
        return "harmful", main.words
    if other.says == "more":
        gain = main.words if main.says == "same" else "no gain is shown"
        return "harmful", f"{other.words}, and {gain}"
    if main.says == "same":
        return "no_effect", f"{main.words}: below {LEAST[main.what]:.0%}, the least that matters"
    return "not_enough_evidence", f"{main.words}: the interval leaves open whether it matters"
