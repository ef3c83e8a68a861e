"""What did trials of a remedy, or of a preset, show beside their control?"""

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
    """What the trials of a pair decide: only repeats that both arms have count.

    A refused remedy is not supported.
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
    """A workload under each preset beside itself without: a row a preset, and what a reader of
    them must know, a line each.

    ``goal`` is memory or time; the rest is as of fixplan.run. Raises ValueError in one line
    where nothing can be tried.
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
        rows.append(
            {
                "preset": pair.name,
                "workload": wanted.words,
                "verdict": compared.verdict,
                "why": compared.why,
                "memory": asdict(compared.memory),
                "time": asdict(compared.time),
                "troubles": list(ran.troubles),
            }
        )
    return rows, ran.troubles


def results_of(records: Sequence[TrialRecord]) -> ArmResults:
    """The trials of one arm as they are compared, as far as they ended well."""
    return ArmResults(
        outcomes=tuple(record.outcome for record in records),
        losses=tuple(tuple(record.loss) for record in records),
        memory=tuple(map(_memory, records)),
        time=tuple(map(_seconds, records)),
    )


def _memory(record: TrialRecord) -> float | None:
    """The bytes of a trial that are compared: on a GPU what torch reserved, on the CPU resident
    memory, of a built-in workload that of the work alone.
    """
    if record.outcome != "ok":
        return None
    if record.device != "cpu":
        return record.peak_reserved_bytes or record.driver_used_bytes
    return record.rss_anon_bytes if record.work_bytes is None else record.work_bytes


def _seconds(record: TrialRecord) -> float | None:
    """The seconds of a trial that are compared: of a step of a built-in workload, where the
    start of the process only blurs, or of a whole command.
    """
    if record.outcome != "ok":
        return None
    if record.work_bytes is not None:
        return record.step_seconds
    return record.seconds if record.complete else None
