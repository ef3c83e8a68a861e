"""Which trials, in what order, within the time there is?

Cheap and telling ones first, the arms interleaved by seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.settings.presets import NONE, Preset
from helpers.trials.effect import FEWEST_PAIRS
from helpers.trials.record import Limits, RecordNotKept, TrialError, TrialRecord, TrialRefused
from helpers.trials.targets import CPU, Target
from helpers.trials.trial import trial
from helpers.trials.workload import Workload

DEFAULT_REPEATS = 5


class BudgetError(ValueError):
    """No plan can be made: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Arm:
    """One thing to try: a workload under a preset.

    ``seconds`` is what one trial of it is thought to take.
    """

    name: str
    workload: Workload
    preset: Preset = NONE
    seconds: float = 10.0


@dataclass(frozen=True)
class Pair:
    """A remedy beside its control.

    ``tells``: 2 where the outcome is open, 1 where a replay or the audit has predicted it.

    ``goal`` (memory or time) and ``answer`` as of effect.compare.
    """

    name: str
    control: Arm
    treated: Arm
    tells: float = 1.0
    goal: str = "memory"
    answer: str = ""


@dataclass(frozen=True)
class Planned:
    """One trial of the plan, in its place."""

    arm: Arm
    repeat: int


@dataclass(frozen=True)
class FixPlan:
    """The trials in order, what they will take, the pairs they decide, and what had to be left
    out, each with why.
    """

    trials: tuple[Planned, ...]
    seconds: float
    pairs: tuple[Pair, ...]
    left_out: Mapping[str, str]
    seed: int

    def then(self, more: FixPlan) -> FixPlan:
        """This plan, and after it one that takes up some of what it left out."""
        taken_up = {pair.name for pair in more.pairs}
        left_out = {name: why for name, why in self.left_out.items() if name not in taken_up}
        trials = self.trials + more.trials
        seconds = self.seconds + more.seconds
        return FixPlan(trials, seconds, self.pairs + more.pairs, left_out, self.seed)


@dataclass(frozen=True)
class Ran:
    """The records by arm and repeat, and what went wrong without losing them: a line each.

    ``refused``: arm and why.

    ``kept``: when each was made of those that were not measured now.
    """

    records: Mapping[tuple[str, int], TrialRecord]
    refused: Mapping[str, str]
    troubles: tuple[str, ...]
    kept: tuple[str, ...] = ()

    def then(self, more: Ran) -> Ran:
        """These records, and those of trials that were made after them."""
        records = {**self.records, **more.records}
        refused = {**self.refused, **more.refused}
        return Ran(records, refused, self.troubles + more.troubles, self.kept + more.kept)

    def arms(self, pair: Pair) -> list[list[TrialRecord]]:
        """The records of the control and of the treated arm, of those repeats that both have."""
        names = (pair.control.name, pair.treated.name)
        repeats = [{at for name, at in self.records if name == wanted} for wanted in names]
        both = sorted(repeats[0] & repeats[1])
        return [[self.records[name, at] for at in both] for name in names]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the results must know, a line each: which were not measured now, and
        the troubles.
        """
        if not self.kept:
            return self.troubles
        days = sorted({when[:10] for when in self.kept})
        dates = " to ".join(dict.fromkeys((days[0], days[-1])))
        kept = f"{len(self.kept)} of {len(self.records)} trials are kept from {dates}"
        return (f"{kept}; another --out measures them again", *self.troubles)


def plan(
    pairs: Sequence[Pair], *, repeats: int = DEFAULT_REPEATS, budget_s: float, seed: int = 0
) -> FixPlan:
    """The trials that fit ``budget_s``, those of the pairs that tell most a second first.

    A control is shared by its pairs.

    What does not fit is left out by name. Raises BudgetError for fewer repeats than an interval
    needs, and where nothing fits.
    """
    if repeats < FEWEST_PAIRS:
        raise BudgetError(f"{repeats} repeats; expected {FEWEST_PAIRS} or more, for an interval")
    chosen: list[Pair] = []
    left_out: dict[str, str] = {}
    for pair in sorted(pairs, key=_worth):
        so_far = _seconds(chosen, repeats)
        needed = _seconds([*chosen, pair], repeats)
        if needed <= budget_s:
            chosen.append(pair)
        else:
            rest = f"{needed - so_far:.0f} s more, and {budget_s - so_far:.0f} s of {budget_s:.0f}"
            left_out[pair.name] = f"not tried because it takes {rest} are left"
    if pairs and not chosen:
        cheapest = min(_seconds([pair], repeats) for pair in pairs)
        takes = f"the cheapest of {len(pairs)} remedies takes {cheapest:.0f} s at {repeats} repeats"
        expected = "expected at least that; give more time or fewer repeats"
        raise BudgetError(f"time budget {budget_s:.0f} s: {takes}; {expected}")
    trials: list[Planned] = []
    for control in dict.fromkeys(pair.control.name for pair in chosen):
        arms = _arms(pair for pair in chosen if pair.control.name == control)
        trials += _interleaved(arms, repeats, random.Random(f"{seed}/{control}"))
    return FixPlan(tuple(trials), _seconds(chosen, repeats), tuple(chosen), left_out, seed)


def _worth(pair: Pair) -> tuple[float, str]:
    """What a pair tells a second, the most first."""
    return -pair.tells / (pair.control.seconds + pair.treated.seconds), pair.name


def _arms(pairs: Iterable[Pair]) -> list[Arm]:
    """The arms of these pairs, each once."""
    both = (arm for pair in pairs for arm in (pair.control, pair.treated))
    return list({arm.name: arm for arm in both}.values())


def _seconds(pairs: Sequence[Pair], repeats: int) -> float:
    return repeats * sum(arm.seconds for arm in _arms(pairs))


def _interleaved(arms: Sequence[Arm], repeats: int, rng: random.Random) -> list[Planned]:
    """Rounds of every arm: an order drawn anew, then the same backwards (ABBA), so that a drift
    of the box cancels.
    """
    found: list[Planned] = []
    order = list(arms)
    for repeat in range(repeats):
        if repeat % 2 == 0:
            rng.shuffle(order)
        found += [Planned(arm, repeat) for arm in (order if repeat % 2 == 0 else reversed(order))]
    return found


def within(
    pairs: Sequence[Pair],
    *,
    repeats: int,
    budget_s: float,
    seed: int,
    run: Callable[[FixPlan], Ran],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[FixPlan, Ran]:
    """Plan and run, then plan again what was left out for as long as there is time: estimates
    are on the long side.

    A pair whose control has run is not taken up later: the two would not have run side by side.
    Raises BudgetError as ``plan``.
    """
    began = clock()
    made = plan(pairs, repeats=repeats, budget_s=budget_s, seed=seed)
    ran = run(made)
    while made.left_out and len(ran.records) == len(made.trials):
        controls = {pair.control.name for pair in made.pairs}
        rest = [one for one in pairs if one.name in made.left_out]
        rest = [one for one in rest if one.control.name not in controls]
        if not rest:
            break
        left_s = budget_s - (clock() - began)
        try:
            more = plan(rest, repeats=repeats, budget_s=left_s, seed=seed)
        except BudgetError:
            break
        made = made.then(more)
        ran = ran.then(run(more))
    return made, ran


def run(
    wanted: FixPlan,
    *,
    python: str,
    out: Path,
    limits: Limits = Limits(),  # noqa: B008
    target: Target = CPU,
    on_trial: Callable[[Planned, TrialRecord | None], None] = lambda planned, record: None,
    one: Callable[..., TrialRecord] = trial,
) -> Ran:
    """Make the trials of a plan; those that ``out`` has are read.

    Every arm of a repeat has the same seed.

    A record that cannot be written is kept here and named. A trial that is refused takes its
    arm out of the plan, one that is stuck, or leaves the box unclean, ends it: what follows
    would be measured on another box.
    """
    records: dict[tuple[str, int], TrialRecord] = {}
    refused: dict[str, str] = {}
    troubles: list[str] = []
    kept: list[str] = []
    began = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    how: dict[str, Any] = {"python": python, "limits": limits, "out": out, "target": target}
    for planned in wanted.trials:
        arm = planned.arm
        repeat = planned.repeat
        if arm.name in refused:
            continue
        seed = wanted.seed * 1000 + repeat
        try:
            record = one(arm.workload, arm.preset, seed=seed, repeat=repeat, **how)
        except TrialRefused as error:
            refused[arm.name] = str(error)
            on_trial(planned, None)
            continue
        except RecordNotKept as error:
            troubles.append(str(error))
            record = error.record
        except TrialError as error:
            troubles.append(f"{arm.name}, repeat {repeat}: {error}")
            continue
        records[arm.name, repeat] = record
        kept += [record.started_at] if "" < record.started_at < began else []
        on_trial(planned, record)
        if record.outcome == "stuck" or record.clean:
            where = "the CPU" if target.pci == "cpu" else f"GPU {target.pci}, which is set aside"
            stopped = f"stopped after {arm.name}, repeat {repeat}"
            why = record.clean or record.message
            troubles.append(f"{stopped}: {why}; nothing more is tried on {where}")
            break
    return Ran(records, refused, tuple(troubles), tuple(kept))
