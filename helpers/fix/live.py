"""A change run for real: the changed program as a trial with limits, on a GPU that is free."""

from __future__ import annotations

from pathlib import Path

from helpers.fix.change import Change
from helpers.fix.program import Program, changed_copy
from helpers.ground.units import show_bytes
from helpers.look.boxes import open_box
from helpers.rehearse.counterfactual import UPLOADS_OFF
from helpers.rehearse.scratch import working_in
from helpers.settings.presets import Preset
from helpers.trials import workload
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.record import TrialLimits, TrialRecord
from helpers.trials.targets import Target, free_targets
from helpers.trials.trial import PreparedTrial, trial


def free_gpu() -> tuple[Target | None, str]:
    """A GPU of this machine that nobody else uses, and no words; else None, and why there is none."""
    targets, why = free_targets(open_box("live"))
    return next(iter(targets), None), why


def run_for_real(
    program: Program, change: Change, target: Target, out: Path, seconds: float
) -> TrialRecord:
    """Run the changed program on a GPU, in a copy of the current folder, for at most ``seconds``.
    ``out``: the folder of its record. Raises TrialError.
    """
    settings = {**UPLOADS_OFF, **change.environment}
    limits = TrialLimits(seconds=seconds, start_s=seconds, silent_s=seconds)
    with changed_copy(program, change, Path.cwd()) as (copy, words), working_in(copy):
        prepared = PreparedTrial(
            workload.command(words),
            Preset("fix", settings, {}),
            python=torch_interpreter(),
            seed=0,
            limits=limits,
            target=target,
        )
        return trial(prepared, out)


def in_words(record: TrialRecord, target: Target) -> str:
    """How the run on the GPU ended, in one line."""
    words = f"run for real on {target.device} ({target.pci}): the changed program"
    if record.outcome != "ok":
        words += f" ended with {record.outcome}"
        if record.message:
            words += f": {record.message}"
        return words
    ending = "came to its end"
    if not record.complete:
        ending = "was still running at its time limit"
    words += f" {ending} in {record.seconds:.0f} s"
    if record.driver_used_bytes:
        most = show_bytes(record.driver_used_bytes)
        words += f"; its processes used at most {most}"
    return words
