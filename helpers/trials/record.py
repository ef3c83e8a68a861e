"""A trial that was made: what it was given, and what was seen of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from helpers.ground.shapes import Evidence, Outcome
from helpers.look.files import read_whole

MOST_BYTES = 16 << 20  # of a record


class TrialError(ValueError):
    """Nothing was measured: one line with what was seen, what was expected and what to do."""


class TrialRefused(TrialError):
    """This box or this torch cannot run the workload: no GPU where one is demanded, a package
    that is not installed.
    """


@dataclass(frozen=True)
class TrialLimits:
    """Seconds: of the whole trial, until its first word (``start_s``), and between two words of
    it (``silent_s``).

    ``host_bytes`` is the memory of each process, and of all together where a cgroup can be
    made. ``clean_s``: how long the box has to be clean again.
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
    """One workload under one preset in its own process."""

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
    """A trial with what it was given and all that was seen.

    ``complete``: false where it did not come to its end; with the outcome ok it was stopped at
    its time limit while it made progress. ``work_bytes``: the peak of resident memory above
    that after the imports, of a built-in workload; ``rss_anon_bytes`` is sampled from outside,
    over all of its processes. ``step_s`` has one entry a step, for a built-in workload without
    the time that other programs had the core. ``clean``: why the box is not clean after it, or
    empty; ``left_behind``: processes that lived on, and what was done about them. ``not_kept``:
    why its record could not be written, or empty. ``given``: the digest of all that it was given
    (trial.PreparedTrial.digest).
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
        """Seconds of a step, the median without the first; None where too few steps were told."""
        return median(self.step_s[1:]) if len(self.step_s) > 2 else None


def read_trials(folder: Path) -> list[TrialRecord]:
    """The trials whose records lie in a folder; what is no record there is left out."""
    records = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            records.append(
                TrialRecord.model_validate_json(read_whole(path, MOST_BYTES))
            )
    return records
