"""The JSON shapes that commands print, files hold and notebooks emit, as pydantic models.

Unknown keys are refused on input. The JSON Schema of each is kept beside this module in ``schema/`` (``write_schemas``) and
a test compares them. Any layer above ``look`` and ``allocator`` may import this module; it imports only ``look``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from helpers.look.bundle import SCHEMA_VERSION, Item
from helpers.look.reading import Reading

from .plan_shapes import DANGERS as DANGERS
from .plan_shapes import STATES as STATES
from .plan_shapes import Danger as Danger
from .plan_shapes import Gates as Gates
from .plan_shapes import Limits as Limits
from .plan_shapes import Plan, Shape, State
from .plan_shapes import PlannedRun as PlannedRun
from .plan_shapes import StopRules as StopRules

SCHEMA_FOLDER = Path(__file__).parent / "schema"

Cause = Literal[
    "external-holder", "stale-holder", "driver-leak", "true-capacity", "allocator-fragmentation",
    "allocator-cache-not-returned", "user-leak", "ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "version-mismatch",
    "unsupported-gfx", "permission", "metric-misreport", "library-workspace", "host-oom", "context-corruption",
    "config-ineffective", "multi-gpu-imbalance", "expandable-segments-unsupported", "other", "cannot-tell",
]
CAUSES: tuple[str, ...] = get_args(Cause)
Confidence = Literal["confirmed", "likely", "weak"]
Layer = Literal["carveout", "ram", "ttm", "gtt", "kfd_bank", "kfd_limit", "hsa_pool", "hip_total", "fraction", "cgroup",
                "ulimit"]
Outcome = Literal["ok", "oom", "crashed", "hung", "stuck", "host_oom"]


RUN_VERSION = 2  # of run.json: 2 since records know attempts, strikes, nodes and what stopped a run


def _only(known: int) -> Any:
    def check(version: int) -> int:
        if version != known:
            raise ValueError(f"schema_version {version}: this workbook reads {known}; update the workbook")
        return version

    return AfterValidator(check)


SchemaVersion = Annotated[int, _only(SCHEMA_VERSION)]


class Manifest(Shape):
    """manifest.json of an evidence bundle."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    box: str
    captured_at: str
    kind: Literal["live", "recorded", "constructed"]
    tool_version: str
    items: list[Item]


class Evidence(Shape):
    """One reading and what it says for or against a cause."""

    id: str
    reading: Reading
    says: str


class Missing(Shape):
    """A reading that would decide, and how to take it."""

    reading: str
    how: str


class NextStep(Shape):
    """The one first choice. ``command`` is printed, never run; what it needs and what it may harm stand beside it."""

    what: str
    command: str = ""
    precondition: str = ""
    blast_radius: str = "none"


class Alternative(Shape):
    """A cause that the evidence leaves open."""

    cause: Cause
    confidence: Confidence


class Verdict(Shape):
    """A cause with its evidence, what speaks against it, and what is missing."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    cause: Cause
    confidence: Confidence
    summary: str = ""
    alternatives: list[Alternative] = []
    evidence: list[Evidence] = []
    against: list[Evidence] = []
    missing: list[Missing] = []
    next_step: NextStep


class Figure(Shape):
    """A picture that a run drew: its file beside run.json, and the words for those who cannot see it."""

    path: str
    alt: str


StoppedBy = Literal["", "interrupt", "limit", "quarantine", "stop_rule", "disk", "box", "batch_end", "record"]


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
    verdict: Verdict | None = None
    figures: list[Figure] = []
    files: list[str] = []
    left_behind: list[str] = []
    gate: str = ""
    quarantined: str = ""
    notes: list[str] = []


class Ceiling(Shape):
    """One layer's limit on memory; ``pending_bytes`` where configuration and live value differ."""

    layer: Layer
    bytes: int | None
    source: str
    status: Literal["ok", "not_available", "not_allowed"]
    pending_bytes: int | None = None


class TtmPlan(Shape):
    """What to do about the TTM limit, in pages of the box."""

    action: Literal["set", "leave", "remove"]
    pages_limit: int | None
    bytes: int | None
    reserve_bytes: int | None
    why: str


class TtmCommand(Shape):
    """What a person would run on one system, how to undo it and how to verify it after the reboot."""

    system: str
    run: str
    undo: str
    verify: str


class Ttm(Shape):
    """Every ceiling between the RAM and torch, and the safe way to raise it."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    box: str
    ceilings: list[Ceiling]
    binding: Layer | None
    binding_bytes: int | None
    torch_total_bytes: int | None
    plan: TtmPlan
    commands: list[TtmCommand] = []
    warnings: list[str] = []


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
    "reading": Reading, "manifest": Manifest, "verdict": Verdict, "plan": Plan, "run": Run,
    "ttm": Ttm, "replay": Replay, "whatif": WhatIf, "trial": Trial,
}


def schema(name: str) -> str:
    """The JSON Schema of one shape, as it stands in ``schema/<name>.json``."""
    return json.dumps(TypeAdapter(SHAPES[name]).json_schema(), indent=1, sort_keys=True) + "\n"


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
