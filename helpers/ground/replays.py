"""The contracts of the allocator: what a replay and a what-if hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Literal, Optional, Tuple

from helpers.ground.contract import FIRST, SCHEMA_VERSION, Shape
from helpers.ground.shapes import Verdict


@dataclass(frozen=True)
class FirstOom(Shape):
    """Where a replay first ran out."""

    index: int
    size_bytes: int


@dataclass(frozen=True)
class Replay(Shape):
    """What the allocator did, or would have done, under one setting.

    ``proved``: the compiled allocator of this release and build was compared with the model, or
    only its source was read; ``proved_on``: that in words, with what was compared;
    ``not_modelled``: settings named in ``settings`` that the model leaves out, each with why;
    ``flags``: why it is never recommended, and ``danger`` the first of them that does harm.
    """

    events: int
    ooms: int
    first_oom: Optional[FirstOom]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    settings: str
    torch: str
    build: str
    proved: Literal["oracle", "source"]
    schema_version: int = field(default=SCHEMA_VERSION, metadata=FIRST)
    proved_on: str = ""
    slow_calls: int = 0
    passes: bool = False
    addresses_agree: Optional[bool] = None
    peak_reserved_low_bytes: int = 0
    peak_reserved_high_bytes: int = 0
    flags: List[str] = field(default_factory=list)
    danger: str = ""
    not_modelled: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class LiveBytes(Shape):
    """What was live at the first out-of-memory, in requested bytes: one allocation (``id``, and
    ``index``, the operation that made it; -1: before the first) or all of one stack
    (``count``). ``frames``: that stack, innermost first.
    """

    size_bytes: int
    frames: Tuple[str, ...] = ()
    id: Optional[int] = None
    index: Optional[int] = None
    count: Optional[int] = None


@dataclass(frozen=True)
class LineEdit(Shape):
    """A line of the program and the least change of it that lets the recorded requests pass;
    ``edit`` "" where it alone does not. ``live_bytes``: what of it is live where it fails;
    ``conf``: the settings under which it passes then.
    """

    line: str
    live_bytes: int
    edit: str
    conf: str
    assumes: str
    chunks: int


@dataclass(frozen=True)
class WhatIf(Shape):
    """The settings tried on one trace and the one to use: empty for the default settings, or
    where needs_bytes is not 0. ``grows``: what grows from step to step, in words; then a
    setting that passes here passes for the steps of the trace only. ``ends_at_failure``: the
    recorded program ran out of memory itself, so that the rest of it is missing. ``verdict``: why
    the program failed on that card, or that it did not.
    """

    capacity_bytes: int
    rows: List[Replay]
    use: str
    needs_bytes: int
    schema_version: int = field(default=SCHEMA_VERSION, metadata=FIRST)
    proved: Literal["oracle", "source"] = "source"
    proved_on: str = ""
    warnings: List[str] = field(default_factory=list)
    held_bytes: int = 0
    torch: str = ""
    build: str = ""
    why: str = ""
    needs_settings: str = ""
    floor_bytes: int = 0
    floor_index: int = -1
    live: List[LiveBytes] = field(default_factory=list)
    groups: List[LiveBytes] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    grows: str = ""
    lines: List[LineEdit] = field(default_factory=list)
    ends_at_failure: bool = False
    verdict: Optional[Verdict] = None
