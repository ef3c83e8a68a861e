"""The contracts of the allocator: what a replay and a what-if hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Literal, Optional, Tuple

from helpers.ground.contract import FIRST, SCHEMA_VERSION, Shape
from helpers.ground.shapes import Verdict


@dataclass(frozen=True)
class FirstOom(Shape):
    """Where a replay first ran out of memory: the operation's number in the trace, and how many
    bytes were asked for.
    """

    index: int
    size_bytes: int


@dataclass(frozen=True)
class Replay(Shape):
    """What the allocator did, or would have done, under one setting.

    ``proved``: ``oracle`` if the compiled allocator of this release and build was compared with
    the model, ``source`` if only its source was read; ``proved_on`` says in words what was
    compared. ``not_modelled``: settings named in ``settings`` that the model leaves out, each
    with why. ``retries``: requests that freed the cache and tried again; ``slow_calls``: calls
    of the driver that allocate or free. ``passes``: nothing ran out of memory.
    A setting is replayed once for each rule by which a driver may choose addresses:
    ``peak_reserved_low_bytes`` and ``peak_reserved_high_bytes`` are the least and the highest peak
    of these replays, and ``addresses_agree`` says whether all of them pass or all of them fail.
    ``flags``: why this setting is never recommended; ``danger``: the first of them that does
    harm.
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
    """What was live at the first out-of-memory, in requested bytes: one allocation, or all
    allocations of one stack together.

    ``id`` and ``index`` are given for one allocation: its id, and the operation that made it (-1:
    before the trace began). ``count`` is given for a stack: how many allocations it made.
    ``frames``: the stack, innermost first.
    """

    size_bytes: int
    frames: Tuple[str, ...] = ()
    id: Optional[int] = None
    index: Optional[int] = None
    count: Optional[int] = None


@dataclass(frozen=True)
class LineEdit(Shape):
    """A line of the program, and the least change of it that lets the recorded requests pass.

    ``edit``: the change in words, empty if changing this line alone is not enough; ``chunks``:
    into how many parts the change divides the line's requests; ``assumes``: what must be true of
    the program for the change to be possible. ``live_bytes``: bytes of the line that are live when
    the program fails. ``conf``: the settings under which the changed program passes.
    """

    line: str
    live_bytes: int
    edit: str
    conf: str
    assumes: str
    chunks: int


@dataclass(frozen=True)
class WhatIf(Shape):
    """The settings tried on one trace, and the one to use.

    ``use``: the setting to use, empty for the default settings, or if none passes.
    ``needs_bytes``: if none passes, how many more bytes the card needs under ``needs_settings``.
    ``floor_bytes``: the most that was live at once, which no setting can lower; ``floor_index``:
    the operation at which that was so. ``grows``: what grows from step to step, in words; if
    something does, a setting that passes here passes for the steps of the trace only.
    ``ends_at_failure``: the recorded program ran out of memory itself, so that the rest of it is
    missing. ``verdict``: why the program failed on that card, or that it did not.
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
