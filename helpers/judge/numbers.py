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
"""1.5 GiB, of amdgpu_amdkfd_gpuvm_init_mem_limits."""
NEW_KFD_LIMIT = (6, 7)
"""The first Linux with KFD's present limit (October 2023)."""
GTT_AS_VRAM = (6, 10)
"""The first Linux in which compute programs on an APU get TTM's limit (89773b85599a)."""
GTT_IF_LARGER = (6, 15)
"""The first Linux in which they get it only where GTT is larger than the carve-out (759e764f7d58).
"""


@dataclass(frozen=True)
class Numbers:
    """The readings that binding.decide rests on, in bytes; None is not known.

    ``pages_limit``: TTM's limit that is live, ``wanted`` that which is configured. ``gtt``: what
    amdgpu shows, ``gtt_wanted`` what amdgpu.gttsize says. ``vram``: a card's own memory or an
    APU's carve-out. ``kfd``, ``hsa`` and ``torch`` are the totals of the KFD bank, of HSA's pool
    and of HIP or CUDA; ``precision`` is by how much the last may be off as printed. ``free``: what
    HIP or CUDA says is free. ``ram``: what the carve-out left to Linux, ``installed`` the RAM as
    bought; ``bare_free`` and ``available`` are MemFree and MemAvailable.

    ``kernel``: the release. ``out_of_tree``: a DKMS driver. ``kind`` is gpu_kind's answer or
    empty. ``hip``: the runtime is ROCm's. ``failed``: an allocation failed. ``filled`` and
    ``hearsay`` name the fields that no machine printed, and those that somebody retold.
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
        """The pool that the driver gives to compute programs, in bytes."""
        if self.kfd is None:
            return self.hsa
        return self.kfd

    @property
    def low(self) -> int | None:
        """The total of the lowest layer that is known: the driver's pool, else torch's total."""
        if self.driver is None:
            return self.torch
        return self.driver

    @property
    def total(self) -> int | None:
        """The first total that is not zero: KFD's, HSA's or torch's; None for none."""
        for size in (self.kfd, self.hsa, self.torch):
            if size:
                return size
        return None

    @property
    def any_ram(self) -> int | None:
        """The RAM by the best reading: what Linux has, else what was bought."""
        if self.ram is None:
            return self.installed
        return self.ram

    def missing(self) -> tuple[str, ...]:
        """What each reading is called that would help to decide and is not known."""
        rows = table("ceiling_numbers")["numbers"]
        absent = [rows[field] for field in rows if getattr(self, field) is None]
        return tuple(row["missing"] for row in absent if "missing" in row)

    @property
    def is_ttm(self) -> bool:
        """Whether the pool is TTM's limit. Where limit and carve-out are of one size, the kernel
        has to tell which it takes; else the pool counts as neither.
        """
        if not near(self.low, self.pages_limit):
            return False
        return not near(self.low, self.vram) or self._kernel_takes_ttm is True

    @property
    def is_carve_out(self) -> bool:
        """Whether the pool is the firmware's carve-out; see ``is_ttm`` for equal sizes."""
        if not near(self.low, self.vram):
            return False
        return not near(self.low, self.pages_limit) or self._kernel_takes_ttm is False

    @property
    def _kernel_takes_ttm(self) -> bool | None:
        """Whether the kernel takes TTM's limit and not the carve-out: by its release and, from
        GTT_IF_LARGER on, by whether GTT is larger than the carve-out. None: not known.
        """
        if self.kernel is None or self.gtt is None:
            return None
        if self.kernel < GTT_AS_VRAM:
            return False
        if self.kernel < GTT_IF_LARGER or self.vram is None:
            return True
        return self.vram < self.gtt


@dataclass(frozen=True)
class Decision:
    """Which layer binds and why.

    ``pattern`` names the row of ceiling_answers.json; ``step`` is the one next thing to do.
    ``binding`` is None where no layer is said to bind. ``missing`` are readings that would help.
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
    before, 15/16 of what was free as the module was loaded, of which 15/16 of the RAM is an upper
    bound. With an unknown kernel the lower of both.
    """
    left = ram_bytes - ram_bytes // 64
    since_6_7 = left - KFD_RESERVE_BYTES
    if left < 2 * KFD_RESERVE_BYTES:
        since_6_7 = left // 2
    before_6_7 = ram_bytes - ram_bytes // 16
    if kernel is None:
        return min(since_6_7, before_6_7)
    if kernel >= NEW_KFD_LIMIT:
        return since_6_7
    return before_6_7


def numbers_of(
    figures: Iterable[Figure],
    kind: str = UNKNOWN,
    kernel: str = "",
    hip: bool = True,
    failed: bool | None = None,
) -> Numbers:
    """Posted figures as binding.decide takes them: those of the failing message first, then those
    that a machine printed, then those that somebody retold.

    ``kind`` is gpu_kind's answer, ``kernel`` the release as posted, ``hip`` whether the runtime
    is ROCm's, ``failed`` whether an allocation failed (by default: whether a message gives a
    total).
    """
    readable = [f for f in figures if 0 < bytes_of(f) < NOT_MEASURED_BYTES]
    readable.sort(key=lambda figure: (figure.origin != "message", figure.hearsay))
    totals = [
        figure
        for figure in readable
        if figure.measure == "total" and figure.pool == "runtime"
    ]
    printed_by_message = any(figure.origin == "message" for figure in totals)
    if failed is None:
        failed = printed_by_message
    chosen = _chosen(readable)
    if totals and not printed_by_message:
        # Of several programs' totals the smallest is what each of them can have.
        chosen["torch"] = min(
            totals, key=lambda total: (total.hearsay, bytes_of(total))
        )
    precision = 0
    if "torch" in chosen:
        precision = chosen["torch"].precision_bytes
    if "torch" in chosen and "free" in chosen:
        # Free and total are compared, so they must be of one program: the free of the same output,
        # else the only one that was posted.
        chosen.pop("free")
        frees = beside(chosen["torch"], readable, "free")
        if not frees:
            frees = lone_free(readable)
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
    """The figure that stands for each field of Numbers: the first of the first place (measure@pool)
    in ceiling_numbers.json that was posted.
    """
    chosen: dict[str, Figure] = {}
    by_place: dict[str, list[Figure]] = {}
    for figure in figures:
        by_place.setdefault(f"{figure.measure}@{figure.pool}", []).append(figure)
    for field, row in table("ceiling_numbers")["numbers"].items():
        places = [place for place in row["posted"] if place in by_place]
        if not places:
            continue
        chosen[field] = by_place[places[0]][0]
        if field == "hsa":  # without its agents rocminfo's first pools are the CPU's
            chosen[field] = by_place[places[0]][-1]
    return chosen
