"""Compares the trials of a remedy, or of a preset, with those of its control."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from helpers.settings.presets import Preset
from helpers.trials import fixplan
from helpers.trials.effect import ArmResults, Comparison, did_it_help
from helpers.trials.fixplan import Arm, Pair, Planned, Ran
from helpers.trials.record import TrialLimits, TrialRecord
from helpers.trials.targets import Target
from helpers.trials.workload import Workload


def comparison(pair: Pair, ran: Ran) -> Comparison:
    """The verdict of the trials of a pair, by the repeats that both arms have.

    A remedy whose trials were refused is not_supported.
    """
    control, treated = (results_of(records) for records in ran.arms(pair))
    compared = did_it_help(control, treated, goal=pair.goal, answer=pair.answer)
    refused = ran.refused.get(pair.treated.name)
    if refused:
        return replace(compared, verdict="not_supported", why=refused)
    return compared


def preset_trials(
    wanted: Workload,
    presets: Sequence[Preset],
    *,
    goal: str,
    repeats: int,
    seed: int,
    limits: TrialLimits,
    python: str,
    out: Path,
    target: Target,
    on_trial: Callable[[Planned, TrialRecord | None], None],
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Try a workload under each preset and without: (a row for each preset, troubles, a line each).

    A row has the keys preset, workload, verdict, why, memory, time (fields of Effect) and troubles.
    ``goal`` is memory or time; the rest is as of ``fixplan.run``. Raises ValueError with one line
    if nothing can be tried.
    """
    control = Arm(wanted.words, wanted)
    tried = []
    for preset in presets:
        treated = Arm(f"{wanted.words} under {preset.name}", wanted, preset)
        tried.append(Pair(preset.name, control, treated, goal=goal))
    plan = fixplan.plan(tried, repeats=repeats, budget_s=math.inf, seed=seed)
    ran = fixplan.run(
        plan, python=python, out=out, limits=limits, target=target, on_trial=on_trial
    )
    rows = []
    for pair in tried:
        compared = comparison(pair, ran)
        row = {
            "preset": pair.name,
            "workload": wanted.words,
            **asdict(compared),
            "troubles": list(ran.troubles),
        }
        rows.append(row)
    return rows, ran.troubles


def results_of(records: Sequence[TrialRecord]) -> ArmResults:
    """The values of one arm's trials that are compared; memory and time only of those that ended
    ok.
    """
    return ArmResults(
        outcomes=tuple(record.outcome for record in records),
        losses=tuple(tuple(record.loss) for record in records),
        memory=tuple(map(_memory, records)),
        time=tuple(map(_seconds, records)),
    )


def _memory(record: TrialRecord) -> float | None:
    """The bytes of a trial that are compared. On a GPU: what torch reserved, or, of a command that
    does not tell this, what the driver counted. On the CPU: resident memory, of a built-in workload
    only that above its start. None if it did not end ok.
    """
    if record.outcome != "ok":
        return None
    if record.device != "cpu":
        return record.peak_reserved_bytes or record.driver_used_bytes
    if record.work_bytes is not None:
        return record.work_bytes
    return record.rss_anon_bytes


def _seconds(record: TrialRecord) -> float | None:
    """The seconds of a trial that are compared: of a step of a built-in workload, as the start of
    the process varies more than its steps, or of a whole command. None if the trial did not end ok,
    if it made too few steps, or if the command was stopped at its limit.
    """
    if record.outcome != "ok":
        return None
    # Only a built-in workload tells its resident memory.
    if record.work_bytes is not None:
        return record.step_seconds
    if record.complete:  # else it was stopped at its limit, and its time is that limit
        return record.seconds
    return None
