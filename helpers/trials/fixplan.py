"""Plans trials within a time budget and makes them: cheap remedies first, the arms of each
interleaved.

An arm is one thing to try. A pair has two arms that are compared: the work with the remedy (the
treated arm) and the work without the remedy (its control). A repeat makes one trial of each arm.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.settings.presets import NONE, Preset
from helpers.trials.effect import FEWEST_PAIRS
from helpers.trials.record import TrialError, TrialLimits, TrialRecord, TrialRefused
from helpers.trials.targets import CPU, Target
from helpers.trials.trial import PreparedTrial, trial
from helpers.trials.workload import Workload

DEFAULT_REPEATS = 5
"""The interval of five pairs is about a third as wide as that of three, the fewest that do."""
SEEDS_APART = 1000
"""The seed of a repeat is that of the plan times this, plus its number: plans share no seeds."""


class BudgetError(ValueError):
    """No plan can be made: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Arm:
    """One thing to try: a workload under a preset. One trial takes about ``seconds``."""

    name: str
    workload: Workload
    preset: Preset = NONE
    seconds: float = 10.0


@dataclass(frozen=True)
class Pair:
    """A remedy beside its control; ``goal`` and ``answer`` are as of ``effect.did_it_help``."""

    name: str
    control: Arm
    treated: Arm
    goal: str = "memory"
    answer: str = ""


@dataclass(frozen=True)
class Planned:
    """One trial of the plan; the arms of a pair are compared repeat by repeat."""

    arm: Arm
    repeat: int


@dataclass(frozen=True)
class FixPlan:
    """The ``trials`` in the order in which they are made, the ``seconds`` that they take, and the
    ``pairs`` that they decide. ``left_out`` says why a pair is not tried, by the pair's name.
    """

    trials: tuple[Planned, ...]
    seconds: float
    pairs: tuple[Pair, ...]
    left_out: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class Ran:
    """The results of a plan.

    ``records`` are by (the arm's name, the repeat); ``refused`` says why an arm cannot run here, by
    the arm's name; ``troubles`` has a line for each thing that went wrong. ``before`` of the trials
    had finished in an earlier run and were not made again.
    """

    records: Mapping[tuple[str, int], TrialRecord]
    refused: Mapping[str, str]
    troubles: tuple[str, ...]
    before: int = 0

    def arms(self, pair: Pair) -> tuple[list[TrialRecord], list[TrialRecord]]:
        """(records of the control, records of the treated arm), of the repeats that both have."""
        control = []
        treated = []
        for name, repeat in sorted(self.records):
            other = (pair.treated.name, repeat)
            if name == pair.control.name and other in self.records:
                control.append(self.records[name, repeat])
                treated.append(self.records[other])
        return control, treated


NOTHING = FixPlan((), 0.0, (), {}, 0)
NOT_RUN = Ran({}, {}, ())


def plan(
    pairs: Sequence[Pair],
    *,
    repeats: int = DEFAULT_REPEATS,
    budget_s: float,
    seed: int = 0,
) -> FixPlan:
    """The trials of the cheapest pairs that fit into ``budget_s`` seconds; pairs with the same
    control share its trials.

    Raises BudgetError for fewer repeats than an interval needs, and if no pair fits.
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
    # The arms with one control run together, close to it in time.
    by_control: dict[str, list[Pair]] = {}
    for pair in chosen:
        by_control.setdefault(pair.control.name, []).append(pair)
    trials: list[Planned] = []
    for control, alike in by_control.items():
        # Of its own, so that the order does not depend on which other pairs fit the budget.
        rng = random.Random(f"{seed}/{control}")
        trials += _interleaved(_arms(alike), repeats, rng)
    return FixPlan(
        tuple(trials), _seconds(chosen, repeats), tuple(chosen), left_out, seed
    )


def _cost(pair: Pair) -> tuple[float, str]:
    """The sort key of a pair: the seconds of one repeat, then its name for a stable order."""
    return pair.control.seconds + pair.treated.seconds, pair.name


def _arms(pairs: Sequence[Pair]) -> list[Arm]:
    """The arms of these pairs, each once."""
    arms: dict[str, Arm] = {}
    for pair in pairs:
        arms[pair.control.name] = pair.control
        arms[pair.treated.name] = pair.treated
    return list(arms.values())


def _seconds(pairs: Sequence[Pair], repeats: int) -> float:
    """Seconds that the trials of these pairs take; a control that they share counts once."""
    return repeats * sum(arm.seconds for arm in _arms(pairs))


def _interleaved(
    arms: Sequence[Arm], repeats: int, rng: random.Random
) -> list[Planned]:
    """Every arm once in each repeat, in a random order and then in the reverse of it (ABBA), so
    that a steady drift of the box cancels.
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
    """Make the trials of a plan, except those whose record is in ``finished``.

    All arms of a repeat have the same seed. ``on_trial`` gets each trial with its record, None if
    it was refused. If a trial is refused, no other of its arm is made. If one is stuck or leaves
    the box unclean, the plan ends: later trials would not be comparable.
    """
    records: dict[tuple[str, int], TrialRecord] = {}
    refused: dict[str, str] = {}
    troubles: list[str] = []
    before = 0
    by_digest = {record.given: record for record in finished}
    for planned in wanted.trials:
        arm = planned.arm
        repeat = planned.repeat
        which = f"{arm.name}, repeat {repeat}"
        seed = wanted.seed * SEEDS_APART + repeat
        if arm.name in refused:
            continue
        prepared = PreparedTrial(
            arm.workload, arm.preset, python, seed, limits, repeat, target
        )
        record = None
        if finished:  # else no digest is needed, which asks the Python for its torch
            record = by_digest.get(prepared.digest())
        if record:
            before += 1
        else:
            try:
                record = trial(prepared, out)
            except TrialRefused as error:
                refused[arm.name] = str(error)
                on_trial(planned, None)
                continue
            except TrialError as error:
                troubles.append(f"{which}: {error}")
                continue
        records[arm.name, repeat] = record
        if record.not_kept:
            troubles.append(record.not_kept)
        troubles += (f"{which}: {line}" for line in record.left_behind)
        on_trial(planned, record)
        if record.outcome == "stuck" or record.clean:  # why the box is not clean
            where = f"GPU {target.pci}, which is set aside"
            if target.pci == "cpu":
                where = "the CPU"
            why = record.clean or record.message
            stopped = f"stopped after {which}: {why}"
            troubles.append(f"{stopped}; nothing more is tried on {where}")
            break
    return Ran(records, refused, tuple(troubles), before)
