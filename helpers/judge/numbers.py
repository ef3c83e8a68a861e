"""The readings that the decision about ceilings rests on, and the decision itself as a shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from helpers.ground.shapes import Cause, Confidence, Layer
from helpers.ground.units import NOT_MEASURED_BYTES, near
from helpers.judge import table
from helpers.look.figures import Figure, beside, lone_free
from helpers.look.parts import UNKNOWN

KFD_RESERVE_BYTES = 3 << 29
NEW_KFD_LIMIT = (6, 7)
GTT_AS_VRAM = (6, 10)
GTT_IF_LARGER = (6, 15)


@dataclass(frozen=True)
class Numbers:
    """The readings of the decision table, in bytes; None is not known.

    ``ram`` is what the carve-out left to Linux.

    ``wanted`` is the pages_limit that is configured, ``free`` what HIP or CUDA says is free,
    ``installed`` the RAM as bought; ``bare_free`` and ``available`` are MemFree and
    MemAvailable. ``out_of_tree``: a DKMS driver. ``kind`` is gpu_kind's answer or empty.
    ``filled`` and ``hearsay`` name the fields that no machine printed, or that somebody retold;
    ``precision`` is how exact ``torch`` was printed, ``failed`` whether an allocation failed.
    """

    pages_limit: int | None = None
    gtt: int | None = None
    vram: int | None = None
    kfd: int | None = None
    hsa: int | None = None
    torch: int | None = None
    free: int | None = None
    ram: int | None = None
    wanted: int | None = None
    kernel: tuple[int, int] | None = None
    out_of_tree: bool = False
    installed: int | None = None
    gtt_wanted: int | None = None
    bare_free: int | None = None
    available: int | None = None
    kind: str = ""
    filled: tuple[str, ...] = ()
    hearsay: tuple[str, ...] = ()
    precision: int = 0
    hip: bool = True
    failed: bool = True

    @property
    def driver(self) -> int | None:
        """The pool that the driver gives to compute, in bytes."""
        return self.hsa if self.kfd is None else self.kfd

    @property
    def low(self) -> int | None:
        """The driver's pool, or torch's total where that is not known."""
        return self.torch if self.driver is None else self.driver

    @property
    def total(self) -> int | None:
        """The first total that is not zero: KFD's, HSA's or torch's."""
        return self.kfd or self.hsa or self.torch or None

    @property
    def any_ram(self) -> int | None:
        """The RAM by the best reading: what Linux has, else what was bought."""
        return self.installed if self.ram is None else self.ram

    def missing(self) -> tuple[str, ...]:
        """What is said of each reading that would help to decide and is not there."""
        rows = table("ceiling_numbers")["numbers"]
        absent = [rows[field] for field in rows if getattr(self, field) is None]
        return tuple(row["missing"] for row in absent if "missing" in row)

    @property
    def is_ttm(self) -> bool:
        """Whether the pool is TTM's limit."""
        if not near(self.low, self.pages_limit):
            return False
        return not near(self.low, self.vram) or self._kernel_takes_ttm is True

    @property
    def is_carve_out(self) -> bool:
        """Whether the pool is the firmware's carve-out."""
        if not near(self.low, self.vram):
            return False
        return not near(self.low, self.pages_limit) or self._kernel_takes_ttm is False

    @property
    def _kernel_takes_ttm(self) -> bool | None:
        """Where both would give this number, which of them the kernel takes; None: not known.

        Linux 6.15 and later take GTT only where it is larger than the carve-out (759e764f7d58).
        """
        if self.kernel is None or self.gtt is None:
            return None
        if self.kernel < GTT_AS_VRAM:
            return False
        return self.kernel < GTT_IF_LARGER or (self.vram or 0) < self.gtt


@dataclass(frozen=True)
class Decision:
    """Which layer binds and why.

    ``pattern`` names the row of the decision table; ``step`` is the one next thing to do.

    ``rests`` names the fields of Numbers that the answer rests on; ``filled``: one of them was
    filled in for a recorded box.
    """

    pattern: str
    binding: Layer | None
    binding_bytes: int | None
    cause: Cause
    confidence: Confidence
    says: str
    step: str
    missing: tuple[str, ...] = ()
    rests: tuple[str, ...] = ()
    filled: bool = False


def kernel_release(text: str) -> tuple[int, int] | None:
    """The first two numbers of a kernel release: (6, 17) of "6.17.4-200.fc42"."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    if match is None:
        return None
    return int(match.group(1)), int(match.group(2))


def kfd_limit(ram_bytes: int, kernel: tuple[int, int] | None) -> int:
    """Bytes of system memory that KFD lets compute programs take together
    (amdgpu_amdkfd_gpuvm_init_mem_limits).

    Since October 2023 RAM less a 64th less 1.5 GiB, or half where that leaves under 1.5 GiB;
    before, 15/16 of what was free at load, of which 15/16 of the RAM is an upper bound. With an
    unknown kernel the lower of both.
    """
    left = ram_bytes - (ram_bytes >> 6)
    since_6_7 = left - KFD_RESERVE_BYTES
    if left < 2 * KFD_RESERVE_BYTES:
        since_6_7 = left >> 1
    before_6_7 = ram_bytes - (ram_bytes >> 4)
    if kernel is None:
        return min(since_6_7, before_6_7)
    return since_6_7 if kernel >= NEW_KFD_LIMIT else before_6_7


def numbers_of(
    figures: Iterable[Figure],
    kind: str = UNKNOWN,
    kernel: str = "",
    hip: bool = True,
    failed: bool | None = None,
) -> Numbers:
    """Posted figures as the decision takes them.

    What the failing message says comes first, then what a machine printed.

    ``kind`` is gpu_kind's answer, ``kernel`` the release as posted, ``hip`` whether the runtime
    is ROCm's, ``failed`` whether an allocation failed (by default: whether a message gives a
    total).
    """
    readable = [f for f in figures if 0 < bytes_of(f) < NOT_MEASURED_BYTES]
    readable.sort(key=lambda figure: (figure.origin != "message", figure.hearsay))
    totals = [f for f in readable if (f.measure, f.pool) == ("total", "runtime")]
    printed_by_message = any(figure.origin == "message" for figure in totals)
    if failed is None:
        failed = printed_by_message
    chosen = _chosen(readable)
    if totals and not printed_by_message:
        chosen["torch"] = min(
            totals, key=lambda total: (total.hearsay, bytes_of(total))
        )
    precision = 0
    if "torch" in chosen:
        precision = chosen["torch"].precision_bytes
    if "torch" in chosen and "free" in chosen:
        # Free and total are compared, so they must be of one program.
        chosen.pop("free")
        frees = beside(chosen["torch"], readable, "free") or lone_free(readable)
        if frees:
            chosen["free"] = frees[0]
    readings: dict[str, Any] = {field: figure.bytes for field, figure in chosen.items()}
    return Numbers(
        **readings,
        kernel=kernel_release(kernel),
        kind=kind,
        hearsay=tuple(field for field, figure in chosen.items() if figure.hearsay),
        precision=precision,
        hip=hip,
        failed=failed,
    )


def bytes_of(figure: Figure | None) -> int:
    """The size of a figure; 0 where there is none, or the tool did not measure it."""
    if figure is None or figure.bytes is None:
        return 0
    return figure.bytes


def _chosen(figures: list[Figure]) -> dict[str, Figure]:
    """The figure that stands for each reading (ceiling_numbers.json)."""
    chosen: dict[str, Figure] = {}
    by_place: dict[str, list[Figure]] = {}
    for figure in figures:
        by_place.setdefault(f"{figure.measure}@{figure.pool}", []).append(figure)
    for field, row in table("ceiling_numbers")["numbers"].items():
        places = [place for place in row["posted"] if place in by_place]
        if places:
            # Without its agents rocminfo's first pools are the CPU's.
            position = -1 if field == "hsa" else 0
            chosen[field] = by_place[places[0]][position]
    return chosen
