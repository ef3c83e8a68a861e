"""The JSON shapes that commands print, files hold and notebooks emit, as pydantic models.

What a run, a replay and a trial record; a verdict and what it holds are of ``helpers.shapes``, which needs no package. Unknown
keys are refused on input. The JSON Schema of each is kept beside this module in ``schema/`` (``write_schemas``) and a test
compares them.
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, TypeAdapter, ValidationError

from helpers.look.bundle import Manifest as Manifest
from helpers.shapes import (
    SCHEMA_VERSION,
    Evidence,
    Outcome,
    Reading,
    Ttm,
    Verdict,
    as_dict,
    json_schema,
)

from .plan_shapes import DANGERS as DANGERS
from .plan_shapes import STATES as STATES
from .plan_shapes import Danger as Danger
from .plan_shapes import Gates as Gates
from .plan_shapes import Limits as Limits
from .plan_shapes import Plan, Shape, State
from .plan_shapes import PlannedRun as PlannedRun
from .plan_shapes import StopRules as StopRules

SCHEMA_FOLDER = Path(__file__).parent / "schema"

RUN_VERSION = 2  # of run.json: 2 since records know attempts, strikes, nodes and what stopped a run


def _only(known: int) -> Any:
    def check(version: int) -> int:
        if version != known:
            raise ValueError(
                f"schema_version {version}: this workbook reads {known}; update the workbook"
            )
        return version

    return AfterValidator(check)


SchemaVersion = Annotated[int, _only(SCHEMA_VERSION)]
Recorded = Annotated[Verdict, PlainSerializer(as_dict)]
"""A verdict inside a record, written as it is by itself."""


class Figure(Shape):
    """A picture that a run drew: its file beside run.json, and the words for those who cannot see it."""

    path: str
    alt: str


StoppedBy = Literal[
    "", "interrupt", "limit", "quarantine", "stop_rule", "disk", "box", "batch_end", "record"
]


class Run(Shape):
    """run.json: the truth about one run of one notebook.

    ``stopped_by`` says what outside of it kept the run from its end: the user, the plan's time limit, a quarantine or stop
    rule, a full disk, a box that could not be captured, the end of its batch, or a record that cannot be read. ``strikes``
    counts, over all attempts, what it is to blame for. ``gate`` says why the box was not clean after it, ``quarantined`` what
    is closed since then ("gpu 0000:03:00.0", "box"). ``ooms_before``: OOM kills that its cgroup had counted before its start.
    """

    schema_version: Annotated[int, _only(RUN_VERSION)] = RUN_VERSION
    run_id: str
    batch_id: str
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
    attempt: int = Field(default=1, ge=1)
    strikes: int = Field(default=0, ge=0)
    signal: str = ""
    failing_cell: int | None = None
    cells: dict[str, int] = {}
    last_words: str = ""
    node: str = ""
    boot_id: str = ""
    pid: int | None = None
    ooms_before: int | None = None
    plan_sha256: str = ""
    started_at: str = ""
    ended_at: str = ""
    seconds: float | None = None
    tool_version: str = ""
    verdict: Recorded | None = None
    figures: list[Figure] = []
    files: list[str] = []
    left_behind: list[str] = []
    gate: str = ""
    quarantined: str = ""
    notes: list[str] = []


class FirstOom(Shape):
    """Where a replay first ran out."""

    index: int
    size_bytes: int


class Replay(Shape):
    """What the allocator did, or would have done, under one setting."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    events: int
    ooms: int
    first_oom: FirstOom | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    device_allocs: int
    settings: str
    torch: str
    build: str
    proved: Literal["oracle", "source"]
    slow_calls: int | None = None
    passes: bool | None = None
    addresses_agree: bool | None = None
    peak_reserved_low_bytes: int | None = None
    peak_reserved_high_bytes: int | None = None
    flags: list[str] = []


class LiveBytes(Shape):
    """What was live at the first out-of-memory: one allocation (id, index) or all of one stack (count)."""

    size_bytes: int
    frames: list[str] = []
    id: int | None = None
    index: int | None = None
    count: int | None = None


class WhatIf(Shape):
    """The settings tried on one trace and the one to use: empty for the default settings, or where needs_bytes is not 0."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    capacity_bytes: int
    rows: list[Replay]
    use: str
    needs_bytes: int
    warnings: list[str] = []
    held_bytes: int = 0
    torch: str = ""
    build: str = ""
    why: str = ""
    needs_settings: str = ""
    floor_bytes: int = 0
    floor_index: int = -1
    live: list[LiveBytes] = []
    groups: list[LiveBytes] = []
    notes: list[str] = []


class Trial(Shape):
    """One workload under one preset in its own process."""

    schema_version: SchemaVersion = SCHEMA_VERSION
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


SHAPES: dict[str, Any] = {
    "reading": Reading,
    "manifest": Manifest,
    "verdict": Verdict,
    "plan": Plan,
    "run": Run,
    "ttm": Ttm,
    "replay": Replay,
    "whatif": WhatIf,
    "trial": Trial,
}


def schema(name: str) -> str:
    """The JSON Schema of one shape, as it stands in ``schema/<name>.json``."""
    shape = SHAPES[name]
    content = json_schema(shape) if is_dataclass(shape) else TypeAdapter(shape).json_schema()
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def write_schemas(folder: Path = SCHEMA_FOLDER) -> None:
    """Write the JSON Schema of every shape."""
    folder.mkdir(exist_ok=True)
    for name in SHAPES:
        (folder / f"{name}.json").write_text(schema(name))


def one_line(error: ValidationError, what: str) -> str:
    """The first thing wrong with an input, in one line: where, what was seen, what was expected."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the whole"
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    seen = repr(first.get("input"))
    seen = seen if len(seen) < 60 else seen[:57] + "..."
    return f"{what}: {where}: {first['msg'].removeprefix('Value error, ')}; seen {seen}{others}"
