"""The shapes of a plan file and of run.json, as pydantic models.

Shapes that need no package, such as a verdict, are in ``helpers.ground.shapes``. ``casebook schema
NAME`` prints the JSON Schema of each.
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
"""The state of a run: waiting, under way, or how it ended. ``answered`` is the good end; of the
others ``record.BLAMED`` are those that the run is to blame for.
"""
STATES: tuple[str, ...] = get_args(State)
Danger = Literal["looks", "loads", "provokes"]
"""What a run does to a box: only look at it, load it, or provoke an out-of-memory."""
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
"""What outside of a run kept it from its end; ``Run`` says it in words."""
MOST_ATTEMPTS = 1_000_000
"""Above what any batch reaches; a record with a larger number is broken."""
MOST_NAME_BYTES = 255
"""NAME_MAX of Linux (limits.h): the longest name of a file or folder."""
RUN_VERSION = 2
"""The version of run.json. 2 has attempts, strikes, nodes and what stopped a run."""
DEFAULT_TOTAL_S = 3600
MOST_JOBS = 64
"""Runs side by side, each with a process and a kernel: as many as a large host starts well."""
MOST_PID = 2**31 - 1
"""The largest pid_t; the kernel's own limit is lower (pid_max of proc_sys_kernel(5))."""


class Shape(BaseModel):
    """Base of every shape: unknown keys are refused, and fields cannot be set later."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Limits(Shape):
    """Time limits in seconds, for a cell, a run and the whole plan.

    None leaves the limit of the next level: of a run's line in the plan, the plan, the defaults.
    """

    cell_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    run_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    total_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class PlannedRun(Shape):
    """One line of a plan: a notebook with fixed ``parameters``, and a run for each combination of
    the values in ``grid``, ``repeats`` times.

    ``gpu`` is the PCI address of the GPU that it uses; only what is wrong with that GPU holds the
    run back. ``danger`` can only raise what the notebook says of itself.
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
    """A plan file: which notebooks run, in which order, with which parameters, and how long at
    most.

    Of the runs that only look, up to ``jobs`` run side by side. The default limits fit notebooks
    that take minutes and a batch of an hour.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    limits: Limits = Limits(cell_s=120, run_s=600, total_s=DEFAULT_TOTAL_S)
    jobs: int = Field(default=1, ge=1, le=MOST_JOBS)
    order: Literal["danger", "as written"] = "danger"
    gates: Gates = Gates()
    runs: list[PlannedRun] = Field(min_length=1)


def _folder_name(name: str) -> str:
    """Return the name; raises ValueError unless it is that of a single folder, printable and not
    too long.
    """
    is_path = name in ("", ".", "..") or "/" in name
    steers_a_terminal = plain(name) != name
    is_too_long = len(os.fsencode(name)) > MOST_NAME_BYTES
    if is_path or steers_a_terminal or is_too_long:
        raise ValueError("no name of a folder")
    return name


Id = Annotated[str, AfterValidator(_folder_name)]
"""The id of a run or a batch, which is the name of its folder."""


def _readable(version: int) -> int:
    """Return the version of a record; raises ValueError for another one than RUN_VERSION."""
    if version != RUN_VERSION:
        raise ValueError(
            f"schema_version {version}: this workbook reads {RUN_VERSION}; "
            "update the workbook"
        )
    return version


class Run(Shape):
    """run.json: the record of one run of a notebook.

    ``stopped_by`` says what outside of it kept the run from its end: the user (interrupt), the
    plan's time limit, a full disk, a box that was not clean or could not be captured, the end of
    its batch, or a record that cannot be read (in records of earlier versions also a quarantine or
    a stop rule). ``from_start`` is the attempt that a person wanted to begin at its start (0:
    none). ``strikes`` counts the attempts that ended in a state of ``record.BLAMED``. ``gate`` says
    why the box was not clean after it, ``quarantined`` which part of it stays so until a reboot
    ("gpu 0000:03:00.0 (for good)"). ``ooms_before`` is the number of OOM kills that its cgroup had
    counted before its start. ``cells`` has the number of cells in each status of papermill.
    ``left_behind`` are the processes that were killed after it. Times are UTC.
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
    pid: int | None = Field(default=None, ge=1, le=MOST_PID)
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
        if not self.box:
            return self.notebook
        return f"{self.notebook} on {self.box}"

    @property
    def reads_batch(self) -> bool:
        """Whether it reads the records of the runs before it: a parameter names the batch's folder,
        which a plan writes as {batch}.
        """
        return any("{batch}" in str(value) for value in self.parameters.values())

    @property
    def strikes_in_words(self) -> str:
        """How many strikes it has, such as "2 strikes"; empty if it has none."""
        if not self.strikes:
            return ""
        if self.strikes == 1:
            return "1 strike"
        return f"{self.strikes} strikes"
