"""Which trials, in what order, within the time there is?

Cheap ones first, the arms interleaved by seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.settings.presets import NONE, Preset
from helpers.trials.effect import FEWEST_PAIRS
from helpers.trials.record import TrialError, TrialLimits, TrialRecord, TrialRefused
from helpers.trials.targets import CPU, Target
from helpers.trials.trial import PreparedTrial, trial
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

    ``goal`` (memory or time) and ``answer`` as of effect.did_it_help.
    """

    name: str
    control: Arm
    treated: Arm
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


@dataclass(frozen=True)
class Ran:
    """The records by arm and repeat; the arms that were refused, and why; what went wrong without
    losing them, a line each; and how many trials had finished before.
    """

    records: Mapping[tuple[str, int], TrialRecord]
    refused: Mapping[str, str]
    troubles: tuple[str, ...]
    before: int = 0

    def arms(self, pair: Pair) -> tuple[list[TrialRecord], list[TrialRecord]]:
        """The records of the control and of the treated arm, of those repeats that both have."""
        control = self._by_repeat(pair.control)
        treated = self._by_repeat(pair.treated)
        both = sorted(control.keys() & treated.keys())
        return [control[repeat] for repeat in both], [
            treated[repeat] for repeat in both
        ]

    def _by_repeat(self, arm: Arm) -> dict[int, TrialRecord]:
        records = self.records.items()
        return {
            repeat: record for (name, repeat), record in records if name == arm.name
        }


NOTHING = FixPlan((), 0.0, (), {}, 0)
NOT_RUN = Ran({}, {}, ())


def plan(
    pairs: Sequence[Pair],
    *,
    repeats: int = DEFAULT_REPEATS,
    budget_s: float,
    seed: int = 0,
) -> FixPlan:
    """The trials that fit ``budget_s``, those of the cheapest pairs first.

    A control is shared by its pairs.

    What does not fit is left out by name. Raises BudgetError for fewer repeats than an interval
    needs, and where nothing fits.
    """
    if repeats < FEWEST_PAIRS:
        raise BudgetError(
            f"{repeats} repeats; expected {FEWEST_PAIRS} or more, for an interval"
        )
    chosen: list[Pair] = []
    left_out: dict[str, str] = {}
    for pair in sorted(pairs, key=_cost):
        so_far = _seconds(chosen, repeats)
        needed = _seconds([*chosen, pair], repeats)
        if needed <= budget_s:
            chosen.append(pair)
        else:
            rest = f"{needed - so_far:.0f} s more, and {budget_s - so_far:.0f} s of {budget_s:.0f}"
            left_out[pair.name] = f"not tried because it takes {rest} are left"
    if pairs and not chosen:
        cheapest = min(_seconds([pair], repeats) for pair in pairs)
        raise BudgetError(
            f"time budget {budget_s:.0f} s: the cheapest of {len(pairs)} "
            f"remedies takes {cheapest:.0f} s at {repeats} repeats; expected "
            "at least that; give more time or fewer repeats"
        )
    trials: list[Planned] = []
    for control in dict.fromkeys(pair.control.name for pair in chosen):
        arms = _arms(pair for pair in chosen if pair.control.name == control)
        trials += _interleaved(arms, repeats, random.Random(f"{seed}/{control}"))
    return FixPlan(
        tuple(trials), _seconds(chosen, repeats), tuple(chosen), left_out, seed
    )


def _cost(pair: Pair) -> tuple[float, str]:
    """The seconds of a repeat of a pair; its name, so that the order is always the same."""
    return pair.control.seconds + pair.treated.seconds, pair.name


def _arms(pairs: Iterable[Pair]) -> list[Arm]:
    """The arms of these pairs, each once."""
    both = (arm for pair in pairs for arm in (pair.control, pair.treated))
    return list({arm.name: arm for arm in both}.values())


def _seconds(pairs: Sequence[Pair], repeats: int) -> float:
    return repeats * sum(arm.seconds for arm in _arms(pairs))


def _interleaved(
    arms: Sequence[Arm], repeats: int, rng: random.Random
) -> list[Planned]:
    """Rounds of every arm: an order drawn anew, then the same backwards (ABBA), so that a drift
    of the box cancels.
    """
    planned: list[Planned] = []
    order = list(arms)
    for repeat in range(repeats):
        if repeat % 2 == 0:
            rng.shuffle(order)
        else:
            order.reverse()
        planned += [Planned(arm, repeat) for arm in order]
    return planned


def run(
    wanted: FixPlan,
    *,
    python: str,
    out: Path,
    limits: TrialLimits = TrialLimits(),  # noqa: B008
    target: Target = CPU,
    on_trial: Callable[
        [Planned, TrialRecord | None], None
    ] = lambda _planned, _record: None,
    finished: Sequence[TrialRecord] = (),
) -> Ran:
    """Make the trials of a plan, but for those of which ``finished`` has the record.

    Every arm of a repeat has the same seed.

    A record that cannot be written is kept here and named. A trial that is refused takes its
    arm out of the plan, one that is stuck, or leaves the box unclean, ends it: what follows
    would be measured on another box.
    """
    records: dict[tuple[str, int], TrialRecord] = {}
    refused: dict[str, str] = {}
    troubles: list[str] = []
    before = 0
    by_given = {record.given: record for record in finished}
    for planned in wanted.trials:
        arm = planned.arm
        repeat = planned.repeat
        seed = wanted.seed * 1000 + repeat
        if arm.name in refused:
            continue
        prepared = PreparedTrial(
            arm.workload, arm.preset, python, seed, limits, repeat, target
        )
        earlier = None
        if finished:
            earlier = by_given.get(prepared.digest())
        if earlier:
            before += 1
        try:
            record = earlier or trial(prepared, out)
        except TrialRefused as error:
            refused[arm.name] = str(error)
            on_trial(planned, None)
            continue
        except TrialError as error:
            troubles.append(f"{arm.name}, repeat {repeat}: {error}")
            continue
        records[arm.name, repeat] = record
        if record.not_kept:
            troubles.append(record.not_kept)
        troubles += (
            f"{arm.name}, repeat {repeat}: {line}" for line in record.left_behind
        )
        on_trial(planned, record)
        if record.outcome == "stuck" or record.clean:
            where = f"GPU {target.pci}, which is set aside"
            if target.pci == "cpu":
                where = "the CPU"
            stopped = f"stopped after {arm.name}, repeat {repeat}"
            why = record.clean or record.message
            troubles.append(f"{stopped}: {why}; nothing more is tried on {where}")
            break
    return Ran(records, refused, tuple(troubles), before)
