"""The record of a trial: what was given, what was seen, under which name it is kept, and read back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from helpers.load.limits import Limits
from helpers.load.targets import Target
from helpers.load.workloads import Workload
from helpers.run.shapes import Trial, one_line
from helpers.settings.presets import Preset


class TrialError(ValueError):
    """Nothing was measured: one line with what was seen, what was expected and what to do."""


class TrialRefused(TrialError):
    """This box or this torch cannot run the workload: no GPU where one is demanded, a package that is not installed."""


class RecordNotKept(TrialError):
    """It was measured, and the record could not be written; ``record`` has it."""

    def __init__(self, message: str, record: TrialRecord):
        super().__init__(message)
        self.record = record


class TrialRecord(Trial):
    """A trial with what it was given and all that was seen.

    ``complete``: false where it did not come to its end; with the outcome ok it was stopped at its time limit while it made
    progress. ``work_bytes``: the peak of resident memory above that after the imports; ``rss_anon_bytes`` and
    ``rss_file_bytes`` are sampled from outside, the former over all of its processes. ``step_s`` has one entry a step, for a
    built-in workload without the time that other programs had the core.
    ``started_s``: from the start to the first word of the work, imports of torch included. ``overhead_s``: what starting,
    watching and cleaning up cost beyond the life of the program. ``clean``: why the box is not clean after it, or empty.
    """

    key: str
    seed: int
    repeat: int = 0
    python: str = ""
    torch: str = ""
    device: str = "cpu"
    settings: dict[str, str] = {}
    limits: dict[str, float | int | None] = {}
    complete: bool = True
    exit_code: int | None = None
    signal: str = ""
    work_bytes: int | None = None
    rss_file_bytes: int | None = None
    work_s: float | None = None
    step_s: list[float] = []
    started_s: float | None = None
    overhead_s: float | None = None
    stacks: str = ""
    clean: str = ""
    left_pids: list[int] = []
    started_at: str = ""
    notes: list[str] = []

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step, the median without the first; None where too few steps were told."""
        return median(self.step_s[1:]) if len(self.step_s) > 2 else None


def trial_key(workload: Workload, preset: Preset, python: str, seed: int, limits: Limits, repeat: int, target: Target) -> str:
    """A name for a trial that differs where anything that it is given differs."""
    given = [workload.name, sorted(workload.parameters.items()), workload.command, sorted(preset.environ.items()), python, seed,
             asdict(limits), repeat, target.pci]
    return f"{workload.name}-{preset.name}-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]}"


def read(path: Path) -> TrialRecord:
    """A record from its file. Raises TrialError in one line."""
    try:
        return TrialRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise TrialError(f"{one_line(error, path.name)}; expected the record of a trial; remove it to run it again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TrialError(f"{path.name}: cannot be read ({error}); remove it to run the trial again") from error
