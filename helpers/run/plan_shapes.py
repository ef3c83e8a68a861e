"""The shape of a plan file, and the base of every shape. Import them from ``shapes``, where all the others are."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

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


class Shape(BaseModel):
    """Base of every shape: unknown keys refused, values immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Shape):
    """Time limits in seconds: of a cell, of a run, of the whole plan. None keeps the level above."""

    cell_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    run_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    total_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class PlannedRun(Shape):
    """One line of a plan: a notebook with fixed parameters, or a grid of them.

    ``gpu`` is the PCI address of the GPU that it uses: a notebook that takes ``gpu`` is given it, and a gate or a quarantine of
    that GPU counts for it. ``danger`` can only raise what the notebook says of itself.
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


class Gates(Shape):
    """What a box must be like again before the next run starts there. A limit of None is not looked at."""

    disk_free_bytes: int = Field(default=1 << 30, ge=0)
    memory_back_fraction: float = Field(
        default=0.05, ge=0, le=1
    )  # of host memory, and of a GPU's, that may stay used
    temperature_c: float | None = Field(default=90, gt=0)
    settle_s: float = Field(default=30, ge=0, le=3600)


class StopRules(Shape):
    """When a batch, or a node, gets no more runs. A strike is a run that died, hung or took its box down."""

    after_failures: int | None = Field(default=None, ge=1)
    after_strikes: int = Field(
        default=1, ge=1
    )  # with more than these a run is never repeated by itself
    node_strikes: int | None = Field(default=None, ge=1)
    on_states: list[State] = []


class Plan(Shape):
    """A plan file: which notebooks run, in which order, with what, for how long at most, and when it stops.

    ``jobs`` runs that only look may go on side by side. ``outside`` names folders outside the checkout that paths may be in.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    limits: Limits = Limits(cell_s=120, run_s=600, total_s=3600)
    jobs: int = Field(default=1, ge=1, le=64)
    order: Literal["danger", "as written"] = "danger"
    gates: Gates = Gates()
    stop: StopRules = StopRules()
    outside: list[str] = []
    runs: list[PlannedRun] = Field(min_length=1)
