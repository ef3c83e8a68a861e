"""What a plan file and run.json hold, as pydantic models: unknown keys are refused, values do
not change.

The contracts that need no package (a verdict and its parts) are those of ``helpers.ground.shapes``.
The JSON Schema of every shape is printed by ``casebook schema NAME``.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from helpers.ground.contract import as_dict
from helpers.ground.shapes import Verdict
from helpers.ground.units import plain

from .look_shapes import Gates

State = Literal[
    "planned",
    "started",
    "answered",
    "failed",
    "died",
    "timed_out",
    "stuck",
    "rebooted",
    "node_lost",
    "skipped",
]
STATES: tuple[str, ...] = get_args(State)
Danger = Literal["looks", "loads", "provokes"]
DANGERS: tuple[str, ...] = get_args(Danger)
StoppedBy = Literal[
    "",
    "interrupt",
    "limit",
    "quarantine",
    "stop_rule",
    "disk",
    "box",
    "batch_end",
    "record",
]
MOST_ATTEMPTS = 1_000_000
MOST_NAME_BYTES = 255  # of a file's name (NAME_MAX)
RUN_VERSION = 2  # of run.json: 2 since records know attempts, strikes, nodes and what stopped a run


class Shape(BaseModel):
    """Base of every shape: unknown keys refused, values immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Limits(Shape):
    """Time limits in seconds: of a cell, of a run, of the whole plan. None keeps the level above."""

    cell_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    run_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    total_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class PlannedRun(Shape):
    """One line of a plan: a notebook with fixed parameters, or a grid of them.

    ``gpu`` is the PCI address of the GPU that it uses: a notebook that takes ``gpu`` is given
    it, and only what is wrong with that GPU holds it back. ``danger`` can only raise what the
    notebook says of itself.
    """

    notebook: str
    parameters: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    box: str = "live"
    preset: str = ""
    gpu: str = ""
    danger: Literal["", "looks", "loads", "provokes"] = ""
    repeats: int = Field(default=1, ge=1)
    limits: Limits = Limits()


class Plan(Shape):
    """A plan file: which notebooks run, in which order, with what, and for how long at most.

    ``jobs`` runs that only look may go on side by side.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    limits: Limits = Limits(cell_s=120, run_s=600, total_s=3600)
    jobs: int = Field(default=1, ge=1, le=64)
    order: Literal["danger", "as written"] = "danger"
    gates: Gates = Gates()
    runs: list[PlannedRun] = Field(min_length=1)


def _folder_name(name: str) -> str:
    """The name of one folder: no path leads out of it, and nothing in it steers a terminal."""
    is_path = name in ("", ".", "..") or "/" in name
    if is_path or plain(name) != name or len(os.fsencode(name)) > MOST_NAME_BYTES:
        raise ValueError("no name of a folder")
    return name


Id = Annotated[str, AfterValidator(_folder_name)]
"""The id of a run or a batch, which is the name of its folder."""


def _readable(version: int) -> int:
    if version != RUN_VERSION:
        raise ValueError(
            f"schema_version {version}: this workbook reads {RUN_VERSION}; "
            "update the workbook"
        )
    return version


class Run(Shape):
    """run.json: the truth about one run of one notebook.

    ``stopped_by`` says what outside of it kept the run from its end: the user, the plan's time
    limit, a full disk, a box that was not clean or could not be captured, the end of its batch,
    or a record that cannot be read (in records of earlier versions also a quarantine or a stop
    rule). ``from_start`` is the attempt that a person wanted to begin at its start (0: none).
    ``strikes`` counts, over all attempts, what it is to blame for. ``gate`` says why the
    box was not clean after it, ``quarantined`` which part of it no look can find well again
    before a reboot ("gpu 0000:03:00.0 (for good)"). ``ooms_before``: OOM kills that its cgroup
    had counted before its start.
    """

    schema_version: Annotated[int, AfterValidator(_readable)] = RUN_VERSION
    run_id: Id
    batch_id: Id
    box: str
    notebook: str
    parameters: dict[str, Any] = {}
    preset: str = ""
    danger: Literal["", "looks", "loads", "provokes"] = ""
    gpu: str = ""
    estimate_s: float | None = None
    state: State = "planned"
    cause: str = ""
    stopped_by: StoppedBy = ""
    attempt: int = Field(default=1, ge=1, le=MOST_ATTEMPTS)
    from_start: int = Field(default=0, ge=0, le=MOST_ATTEMPTS)
    strikes: int = Field(default=0, ge=0, le=MOST_ATTEMPTS)
    signal: str = ""
    failing_cell: int | None = None
    cells: dict[str, int] = {}
    last_words: str = ""
    node: str = ""
    boot_id: str = ""
    pid: int | None = Field(default=None, ge=1, le=2**31 - 1)
    ooms_before: int | None = None
    plan_sha256: str = ""
    started_at: str = ""
    ended_at: str = ""
    seconds: float | None = None
    tool_version: str = ""
    verdict: Annotated[Verdict, PlainSerializer(as_dict)] | None = None
    figures: list[dict[str, str]] = []  # of records before 0.1.0
    files: list[str] = []
    left_behind: list[str] = []
    gate: str = ""
    quarantined: str = ""
    notes: list[str] = []

    @property
    def short(self) -> str:
        """The run in a few words: its notebook, and the box that it is about."""
        return f"{self.notebook} on {self.box}" if self.box else self.notebook

    @property
    def reads_batch(self) -> bool:
        """Whether it reports what the runs before it came to."""
        return any("{batch}" in str(value) for value in self.parameters.values())

    @property
    def strikes_in_words(self) -> str:
        """How many strikes it has, or nothing."""
        if not self.strikes:
            return ""
        return "1 strike" if self.strikes == 1 else f"{self.strikes} strikes"
