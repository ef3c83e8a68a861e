"""What a look at a box between two jobs holds, and what a box must be like for the next job.

Standard library of Python 3.8 alone: a scheduler's prolog has nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

from helpers.ground.contract import from_json


@dataclass(frozen=True)
class Trouble:
    """Why a box is not clean. ``scope`` is "box", "host memory", "gpu PCI", or "a GPU" where nobody
    knows which.

    ``why`` is one line: seen, expected, with units. ``passes`` is true for what a later look may
    find mended: memory, holders, heat, a full disk, a program's own fault. It is false for what
    no look can disprove, such as a GPU reset.
    """

    scope: str
    why: str
    passes: bool = True


@dataclass(frozen=True)
class Held:
    """A process with a GPU open.

    ``bytes`` is None where no source measured it; ``state`` is the kernel's letter, or empty.
    """

    pid: int
    name: str
    state: str
    start_ticks: int
    bytes: Optional[int]


@dataclass(frozen=True)
class GpuState:
    """One GPU.

    ``pools`` are (layer, used bytes, total bytes); ``celsius`` are (sensor, degrees, critical
    degrees or None).
    """

    pci: str
    pools: Tuple[Tuple[str, int, int], ...] = ()
    holders: Tuple[Held, ...] = ()
    celsius: Tuple[Tuple[str, float, Optional[float]], ...] = ()


@dataclass(frozen=True)
class BoxState:
    """One look at a box. None stands for what could not be read.

    ``log`` is the position in the kernel log, ``errors`` what happened since the look that was
    given as ``since``, ``seconds`` how long this look took, ``at`` when it was (UTC).
    ``folder`` is the one whose disk was looked at. ``unanswered`` are the signs of a GPU that no
    layer shows, and what could not be looked at.
    """

    boot_id: str
    gpus: Tuple[GpuState, ...] = ()
    total_bytes: Optional[int] = None
    available_bytes: Optional[int] = None
    disk_free_bytes: Optional[int] = None
    read_only: bool = False
    oom_kills: Optional[int] = None
    log: str = ""
    errors: Tuple[Trouble, ...] = ()
    unanswered: Tuple[Trouble, ...] = ()
    folder: str = "."
    seconds: float = 0.0
    at: str = ""


def read_state(text: str | bytes) -> BoxState:
    """A look that was kept as JSON (``to_json``). Raises ValueError, one line."""
    return from_json(BoxState, text, "look of the gate")


@dataclass(frozen=True)
class Gates:
    """What a box must be like for the next job, as a plan's ``gates`` say it.

    A temperature of None is not looked at.

    ``disk_free_bytes`` and ``host_free_bytes``: free for results, and of the RAM, whoever uses the
    rest. ``memory_back_fraction``: the share of a GPU's memory that may stay used. ``settle_s``:
    seconds to wait for memory, holders and heat before a run is closed.
    """

    # Read by pydantic where a plan holds gates, as the bounds beside the fields are: unknown
    # keys are refused.
    __pydantic_config__ = {"extra": "forbid"}

    disk_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    host_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    memory_back_fraction: float = field(default=0.05, metadata={"ge": 0, "le": 1})
    temperature_c: Optional[float] = field(default=90, metadata={"gt": 0})
    settle_s: float = field(default=30, metadata={"ge": 0, "le": 3600})
