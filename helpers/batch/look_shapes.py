"""The result of a look at a box between two jobs, and the conditions for the next job.

Only the standard library of Python 3.8 is used: a scheduler's prolog has nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple

from helpers.ground.contract import from_json


@dataclass(frozen=True)
class Trouble:
    """Why a box is not clean.

    ``scope`` says of what: "box", "host memory", "gpu 0000:03:00.0" (its PCI address), or "a GPU"
    if it is not known which. ``why`` is one line: seen, expected, with units. ``passes`` is true if
    a later look may find it gone: memory, holders, heat, a full disk, a program's own fault. It is
    false for a fault that no look can disprove, such as a GPU reset.
    """

    scope: str
    why: str
    passes: bool = True


@dataclass(frozen=True)
class Held:
    """A process with a GPU open.

    ``start_ticks`` is when it started, in clock ticks since the boot; with the number it identifies
    the process. ``bytes`` is its GPU memory, None where no source measured it; ``state`` is the
    kernel's letter (proc_pid_stat(5)), or empty.
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

    ``total_bytes`` and ``available_bytes`` are of the RAM. ``log`` is the position at the end of
    the kernel log, ``errors`` what was logged since an earlier look (``box_state.measure``),
    ``seconds`` how long this look took, ``at`` when it was (UTC). ``folder`` is the one whose disk
    was looked at. ``unanswered`` are signs of a GPU that no layer shows, and what could not be
    looked at.
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
    """A look that was saved as JSON by ``contract.to_json``. Raises ValueError with one line."""
    return from_json(BoxState, text, "look of the gate")


@dataclass(frozen=True)
class Gates:
    """What a box must be like for the next job: the ``gates`` of a plan.

    At least ``disk_free_bytes`` are free on the disk for results and ``host_free_bytes`` of the
    RAM. At most the share ``memory_back_fraction`` of a GPU's memory may be used beyond what was
    used before. No sensor of a GPU is at ``temperature_c`` or above (None: any temperature will
    do). A run waits up to ``settle_s`` seconds for memory, holders and heat.

    The defaults are choices of this project: room for outputs (1 GiB of disk), for a kernel that
    imports torch (1 GiB of RAM), and a GPU that is not about to slow down for heat (90 degrees).
    """

    # pydantic reads this and the bounds of the fields where a plan holds gates; it refuses
    # unknown keys.
    __pydantic_config__ = {"extra": "forbid"}

    disk_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    host_free_bytes: int = field(default=1 << 30, metadata={"ge": 0})
    memory_back_fraction: float = field(default=0.05, metadata={"ge": 0, "le": 1})
    temperature_c: Optional[float] = field(default=90, metadata={"gt": 0})
    settle_s: float = field(default=30, metadata={"ge": 0, "le": 3600})
