"""The record of a trial: its inputs and its results."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from helpers.ground.shapes import Evidence, Outcome
from helpers.look.files import read_whole

MOST_BYTES = 16 << 20
"""Above the largest record, which has the loss and the time of each step of a long training."""
FEWEST_STEPS = 3
"""Of fewer steps the median without the first, which is slower, says nothing."""


class TrialError(ValueError):
    """Nothing was measured: one line with what was seen, what was expected and what to do."""


class TrialRefused(TrialError):
    """This box or its torch cannot run the workload: it needs a GPU, or a package that is
    missing.
    """


@dataclass(frozen=True)
class TrialLimits:
    """Limits of a trial: ``seconds`` in all, ``start_s`` until its first word (Python, torch and
    the driver start), ``silent_s`` between two words, and ``clean_s`` until the box is clean again.

    ``host_bytes`` is the most memory of each of its processes, and of all together if a cgroup can
    be made; None is no limit.
    """

    seconds: float = 120.0
    start_s: float = 90.0
    silent_s: float = 30.0
    host_bytes: int | None = None
    clean_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(
                    f"limit {name} is {value!r}; expected a number above 0"
                )


class Trial(BaseModel):
    """The result of one workload under one preset, in its own process.

    ``build`` is cuda, rocm or cpu. Sizes are peaks; ``rss_anon_bytes`` is resident memory without
    files. ``steps`` were made; ``loss`` has an entry for each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    workload: str
    preset: str
    build: str
    outcome: Outcome
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    driver_used_bytes: int | None
    rss_anon_bytes: int | None
    seconds: float
    steps: int
    loss: list[float] = []
    message: str = ""
    evidence: list[Evidence] = []


class TrialRecord(Trial):
    """A trial with all of its inputs and results.

    ``complete`` is false if it did not reach its end; with the outcome ok it was then stopped at
    its time limit while it made progress. ``work_bytes`` is the peak of resident memory above that
    after the imports, of a built-in workload; ``rss_anon_bytes`` is sampled from outside, over all
    of its processes. ``step_s`` has the seconds of each step, for a built-in workload without the
    time in which other programs had the core. ``clean`` says why the box is not clean after it, or
    is empty; ``left_behind`` has a line for each process that lived on. ``not_kept`` says why the
    record could not be written, or is empty. ``given`` is the digest of its inputs
    (PreparedTrial.digest).
    """

    key: str
    given: str = ""
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
    step_s: list[float] = []
    stacks: str = ""
    clean: str = ""
    left_behind: list[str] = []
    not_kept: str = ""
    started_at: str = ""
    notes: list[str] = []

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step: the median without the first; None if there are too few steps."""
        if len(self.step_s) < FEWEST_STEPS:
            return None
        return median(self.step_s[1:])


def read_trials(folder: Path) -> list[TrialRecord]:
    """The records of trials in a folder; other files there are ignored."""
    records = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            text = read_whole(path, MOST_BYTES)
            records.append(TrialRecord.model_validate_json(text))
    return records
