"""Which ceiling binds: the decision table over pages_limit, GTT, carve-out, KFD bank and total. Pure.

The same total has several causes, so no one number decides. Which of carve-out and TTM the pool is
goes by the kernel: the carve-out alone before Linux 6.10; TTM's limit, even where the carve-out is
larger, until 6.14 (89773b85599a); from 6.15 on TTM's limit where the GTT is larger than the
carve-out, else the carve-out (759e764f7d58; amd-gfx, 2025-01-30). The words of each row, its cause
and its source are in ceilings.json; the rules that find the row are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from helpers.judge import table
from helpers.look.figures import HALF, NOT_MEASURED_BYTES, Figure, beside, lone_free
from helpers.look.parts import APU, CARD, UNIFIED, UNKNOWN, is_card_size
from helpers.look.relations import HALF_SHARE, INSTALLED_SHARE
from helpers.units import GIB, MIB, near, show_bytes

if TYPE_CHECKING:
    from helpers.shapes import Cause, Confidence, Layer

KFD_RESERVE_BYTES = 3 << 29
NEW_KFD_LIMIT, GTT_AS_VRAM, GTT_IF_LARGER = (6, 7), (6, 10), (6, 15)
FAR = 1.3
"""A layer this much above another is no rounding, and no share that firmware keeps."""
MENU = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
CARVE_OUTS = tuple(512 * MIB * size for size in MENU)
"""Sizes that firmware menus offer for the frame buffer of an APU (AMD, Ryzen AI system guides)."""
SMALL_CARVE_OUTS = (256 * MIB, 512 * MIB, GIB, 2 * GIB)
"""Sizes of a frame buffer that no system with a desktop has as its whole RAM (firmware menus of APUs)."""


@dataclass(frozen=True)
class Numbers:
    """The readings of the decision table, in bytes; None is not known. ``ram`` is what the carve-out left to Linux.

    ``wanted`` is the pages_limit that is configured, ``free`` what HIP or CUDA says is free, ``installed`` the RAM as bought;
    ``bare_free`` and ``available`` are MemFree and MemAvailable. ``out_of_tree``: a DKMS driver. ``kind`` is gpu_kind's answer
    or empty. ``filled`` and ``hearsay`` name the fields that no machine printed, or that somebody retold; ``precision`` is how
    exact ``torch`` was printed. ``other_total`` is what another program or build sees, ``vulkan`` the largest heap, ``halves``
    the layers that were called half of the RAM in words, ``failed`` whether an allocation failed.
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
    other_total: int | None = None
    vulkan: int | None = None
    halves: tuple[str, ...] = ()
    failed: bool = True


@dataclass(frozen=True)
class Decision:
    """Which layer binds and why. ``pattern`` names the row of the decision table; ``step`` is the one next thing to do.

    ``rests`` names the fields of Numbers that the answer rests on.
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


def decisions() -> dict[str, dict[str, Any]]:
    """The decision table as data: layer, cause, what it rests on, words, step, source."""
    return table("ceilings")["decisions"]


def kernel_release(text: str) -> tuple[int, int] | None:
    """The first two numbers of a kernel release: (6, 17) of "6.17.4-200.fc42"."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def kfd_limit(ram_bytes: int, kernel: tuple[int, int] | None) -> int:
    """Bytes of system memory that KFD lets compute programs take together (amdgpu_amdkfd_gpuvm_init_mem_limits).

    Since October 2023 RAM less a 64th less 1.5 GiB, or half where that leaves under 1.5 GiB; before, 15/16 of what was free
    at load, of which 15/16 of the RAM is an upper bound. With an unknown kernel the lower of both.
    """
    left = ram_bytes - (ram_bytes >> 6)
    new = left >> 1 if left < 2 * KFD_RESERVE_BYTES else left - KFD_RESERVE_BYTES
    old = ram_bytes - (ram_bytes >> 4)
    return min(new, old) if kernel is None else new if kernel >= NEW_KFD_LIMIT else old


def far(left: int | None, right: float | None) -> bool:
    """Whether the left size is known and far above the right."""
    return left is not None and right is not None and left > FAR * right


def decide(n: Numbers) -> Decision:
    """The binding layer by the decision table, of a bundle's readings and of posted numbers alike.

    One number never decides. Where layers that would discriminate are missing, the answer is ``cannot-tell`` with their names.
    ``confirmed`` needs two layers that a machine printed and that agree; a reading that was filled in counts towards
    ``likely`` only, and what was retold alone is ``weak``.
    """
    if n.kind == UNIFIED:
        return _graded(_unified(n), n)
    if n.kind == CARD:
        return row("card", n, None, "confirmed", vram_words=_known(n.vram or None))
    pool = n.kfd if n.kfd is not None else n.hsa
    below = n.torch if pool is None else pool
    found = (
        _above_the_driver(n, pool)
        or _in_the_driver(n, below, pool is not None)
        or (_posted(n, n.torch) if n.torch and pool is None else None)
        or (_heap(n, n.vulkan) if n.vulkan and below is None else None)
        or _without_a_total(n)
        or _undecided(n)
    )
    # By default a capture does not ask torch; without its total a faulty HIP build above the kernel stays unseen.
    if n.torch is None and not found.missing:
        found = replace(found, missing=("torch total",))
    return _graded(found, n)


def row(
    pattern: str, n: Numbers, size: int | None, confidence: Confidence, **words: str
) -> Decision:
    """The decision that a row of the table words, with the readings put in. ``size`` is what binds, in bytes."""
    data, either = decisions()[pattern], table("ceilings")["either"]
    values = {k: show_bytes(v) for k, v in vars(n).items() if type(v) is int}
    values.update(pool=show_bytes(size or 0), ram_any=show_bytes(_ram(n) or 0), **words)
    rests = []
    for name in data["rests"]:
        fields = either.get(name, [name])
        rests.append(next((f for f in fields if getattr(n, f) is not None), fields[0]))
    return Decision(
        pattern,
        binding=data["layer"],
        binding_bytes=size if data["layer"] else None,
        cause=data["cause"],
        confidence=confidence,
        says=data["says"].format(**values),
        step=data["step"],
        rests=tuple(rests),
    )


def _known(size: int | None) -> str:
    return "" if size is None else f" ({show_bytes(size)})"


def _graded(found: Decision, n: Numbers) -> Decision:
    """The confidence that the readings behind a decision allow."""
    rests = [field for field in found.rests if getattr(n, field) is not None]
    told = [field for field in rests if field in n.hearsay]
    steps: list[Confidence] = ["weak", "likely", "confirmed"]
    unread = told or any(field in n.filled for field in rests)
    most = 0 if rests and len(told) == len(rests) else 1 if unread or len(rests) == 1 else 2
    return replace(found, confidence=steps[min(steps.index(found.confidence), most)])


def _ram(n: Numbers) -> int | None:
    return n.ram if n.ram is not None else n.installed


def _is_half(n: Numbers, size: int) -> bool:
    """Whether a size is half of the RAM: of MemTotal closely, of the RAM as bought less what firmware takes."""
    if n.ram is not None and near(size, n.ram // 2, HALF_SHARE):
        return True
    half = (n.installed or 0) // 2
    return n.ram is None and (1 - INSTALLED_SHARE) * half <= size <= half and half > 0


def _is_half_of_rest(n: Numbers, size: int) -> bool:
    """Whether a size is half of what a larger carve-out leaves of the RAM."""
    rest = ((n.installed or 0) - (n.vram or 0)) // 2
    return rest > 0 and (1 - 2 * INSTALLED_SHARE) * rest <= size <= rest


def _above_the_driver(n: Numbers, pool: int | None) -> Decision | None:
    """Whether a layer above the kernel lowers the total."""
    if _below(n.hsa, n.kfd):
        return row("hsa_below_kfd", n, n.hsa, "confirmed")
    if _below(n.torch, pool):
        return replace(row("hip_total", n, pool, "confirmed"), binding_bytes=n.torch)
    if pool is None and _below(n.torch, n.free):
        found = row("free_above_total", n, n.torch, "likely")
        return replace(found, missing=("KFD memory bank",))
    return None


def _below(size: int | None, other: int | None) -> bool:
    """Whether both are known, and the first is the smaller by more than two layers' rounding."""
    return size is not None and other is not None and size < other and not near(size, other)


def _in_the_driver(n: Numbers, pool: int | None, is_driver: bool) -> Decision | None:
    """Which of carve-out and TTM the pool is, and whether that is as low as it is by default."""
    if pool is None or (n.pages_limit is None and n.vram is None):
        return None
    sure: Confidence = "confirmed" if is_driver else "likely"
    is_ttm, is_carveout = near(pool, n.pages_limit), near(pool, n.vram)
    if is_ttm and is_carveout:
        # Both would give this number; Linux 6.15 and later take GTT only where it is larger than the carve-out.
        if n.kernel is None or n.gtt is None:
            return None
        is_ttm = GTT_AS_VRAM <= n.kernel and (n.kernel < GTT_IF_LARGER or (n.vram or 0) < n.gtt)
        is_carveout = not is_ttm
    if is_carveout:
        return _carveout(n, pool, sure) if is_driver else None
    if not is_ttm:
        return None
    if _below(pool, n.vram):
        old = n.out_of_tree or n.kernel is None or n.kernel < GTT_IF_LARGER
        if not old and (n.gtt or 0) > (n.vram or 0):
            return row("gtt_flip", n, pool, sure)
        return row("old_kernel_half", n, pool, sure if old else "likely")
    if n.wanted is not None and not near(n.wanted, n.pages_limit, 0.0001):
        return row("not_taken", n, pool, sure)
    by_default = _is_half(n, pool)
    if by_default and _below(pool, n.gtt):
        return row("gttsize_only", n, pool, sure, gtt_any=show_bytes(n.gtt or 0))
    if by_default:
        return row("ttm_default", n, pool, sure)
    ram = _ram(n)
    if ram is not None and pool < ram // 2:
        return row("ttm_lowered", n, pool, sure, half=show_bytes(ram // 2))
    if n.ram is not None and pool > kfd_limit(n.ram, n.kernel):
        limit = kfd_limit(n.ram, n.kernel)
        found = row("beyond_kfd", n, pool, "likely", kfd_limit=show_bytes(limit))
        return replace(found, binding_bytes=limit)
    return row("raised", n, pool, sure if ram is not None else "weak")


def _carveout(n: Numbers, pool: int, sure: Confidence) -> Decision:
    if n.kernel is not None and n.kernel < GTT_AS_VRAM:
        release = f"{n.kernel[0]}.{n.kernel[1]}"
        return row("old_kernel_carveout", n, pool, sure, release=release)
    if _below(pool, n.pages_limit) and (n.gtt is None or n.gtt > pool):
        return row("carveout_odd", n, pool, "likely")
    return row("carveout", n, pool, sure)


def _posted(n: Numbers, torch: int) -> Decision | None:
    """What a program's total says beside other layers, where nobody read the driver's own pool."""
    ram = _ram(n)
    asked = n.kind == UNKNOWN and n.hip and not is_card_size(torch)
    if n.kind == UNKNOWN and not asked:
        return None
    if n.vram and n.gtt and n.vram > 0.01 * n.gtt and near(torch, n.vram + n.gtt, 0.005):
        return row("sum_of_both", n, torch, "likely")
    whole = int((n.ram + (n.vram or 0)) / (1 - INSTALLED_SHARE)) if n.ram else 0
    if torch > 1.02 * (n.installed or whole or torch):
        return row("above_ram", n, torch, "likely")
    menu = any(abs(torch - size) <= n.precision for size in CARVE_OUTS)
    if near(torch, n.vram, 0.05 if "vram" in n.hearsay else 0.005):
        beside = any(far(size, torch) for size in (n.gtt, n.pages_limit, n.vulkan))
        return row("carveout_seen", n, torch, "likely") if beside or far(ram, 2 * torch) else None
    if far(n.other_total, torch):
        return row("builds_differ", n, torch, "likely")
    large = f"the RAM of {show_bytes(ram or 0)}" if far(ram, 3 * torch) else ""
    large = large or (
        f"what Vulkan is given, {show_bytes(n.vulkan or 0)}" if far(n.vulkan, torch) else ""
    )
    # ROCm runs on no card of so little memory (parts.json).
    small = torch in SMALL_CARVE_OUTS and (n.kind == APU or torch <= GIB)
    large = large or ("the RAM of any system with a desktop" if small else "")
    if (small or (n.kind == APU and menu)) and n.vram is None and large:
        return row("carveout_size", n, torch, "likely", beside=large)
    if far(n.vulkan, torch):
        return row("vulkan_above", n, torch, "weak")
    if far(n.vram, torch):
        half = _is_half_of_rest(n, torch) or (n.ram is not None and _is_half(n, torch))
        return row("old_kernel_half" if half else "below_carveout", n, torch, "likely")
    if far(n.pages_limit, torch):
        return row("below_driver", n, torch, "likely", driver=show_bytes(n.pages_limit or 0))
    if far(n.gtt, torch):
        if n.gtt_wanted is not None and n.wanted is None:
            return row("gttsize_only", n, torch, "likely", gtt_any=show_bytes(n.gtt or 0))
        if near(n.wanted, n.gtt):
            return row("below_driver", n, torch, "likely", driver=show_bytes(n.gtt or 0))
        return row("gtt_above_half" if _is_half(n, torch) else "below_gtt", n, torch, "weak")
    if far(n.wanted, torch):
        return row("wanted_above", n, torch, "weak")
    if _is_half(n, torch):
        if far(n.gtt_wanted, torch):
            return row("gttsize_only", n, torch, "likely", gtt_any=show_bytes(n.gtt_wanted or 0))
        if n.kind == APU:
            return row("half_of_ram", n, torch, "weak")
    return row("ask_apu", n, None, "weak") if asked else None


def _heap(n: Numbers, heap: int) -> Decision | None:
    """What Vulkan's largest heap says beside the driver's layers, where no other program's total is known."""
    whole = (n.gtt, n.gtt_wanted, n.wanted, (n.gtt or 0) + (n.vram or 0))
    if any(near(heap, 2 * (size or 0) // 3, 0.02) for size in whole):
        return row("two_thirds", n, heap, "weak")
    return row("heap_below_carveout", n, heap, "likely") if far(n.vram, heap) else None


def _without_a_total(n: Numbers) -> Decision | None:
    """What GTT, or a tool's figure of the carve-out, says of an APU where no program's total is known."""
    if n.kind != APU:
        return None
    pool = n.kfd or n.hsa or n.torch
    sizes = (n.gtt or 0, pool or 0, _ram(n) or 0)
    if n.vram and not n.failed and max(sizes) > 4 * n.vram and not near(pool, n.vram):
        words = f": they have {show_bytes(pool)}" if pool else ""
        return row("tool_shows_carveout", n, None, "likely" if pool else "weak", pool_words=words)
    if pool is None and n.gtt and _is_half(n, n.gtt):
        sure: Confidence = "likely" if n.failed else "weak"
        return row("gtt_default", n, n.gtt, sure, gtt_half=show_bytes(n.gtt))
    if pool is None and "gtt" in n.halves:
        return row("gtt_default", n, None, "weak", gtt_half="said to be")
    return None


def _unified(n: Numbers) -> Decision:
    """NVIDIA's shared memory: whether "free" counts the page cache as used (cudaMemGetInfo reads MemFree)."""
    free = n.free if n.free is not None else n.bare_free
    if n.available is not None and free is not None and far(n.available, 1.15 * free):
        if n.available - free > 2 << 30:
            return row("page_cache", n, free, "likely", free_any=show_bytes(free))
    return row("unified", n, None, "likely", available_words=_known(n.available))


def _undecided(n: Numbers) -> Decision:
    names = {field: data.get("missing") for field, data in table("ceilings")["numbers"].items()}
    missing = tuple(name for field, name in names.items() if name and getattr(n, field) is None)
    says = "Too few layers were read to say which one binds."
    if n.torch is not None and n.ram is not None and _is_half(n, n.torch):
        total = show_bytes(n.torch)
        says = f"torch's total of {total} is half the RAM, which TTM's default and a HIP build both give."
    elif not missing:
        says = "The readings match none of the known patterns."
    return replace(row("undecided", n, None, "weak", undecided=says), missing=missing)


def numbers_of(
    figures: Iterable[Figure],
    kind: str = UNKNOWN,
    kernel: str = "",
    hip: bool = True,
    failed: bool | None = None,
) -> Numbers:
    """Posted figures as the decision takes them. What the failing message says comes first, then what a machine printed.

    ``kind`` is gpu_kind's answer, ``kernel`` the release as posted, ``hip`` whether the runtime is ROCm's,
    ``failed`` whether an allocation failed (by default: whether a message gives a total).
    """
    figures = tuple(figures)
    known = [f for f in figures if f.bytes is not None and 0 < f.bytes < NOT_MEASURED_BYTES]
    known.sort(key=lambda f: (f.origin != "message", not f.read))
    chosen: dict[str, Figure] = {}
    for field, data in table("ceilings")["numbers"].items():
        for place in data["posted"]:
            fitting = [f for f in known if f"{f.what}@{f.pool}" == place]
            if fitting and field not in chosen:
                # Without its agents rocminfo's pools are the processor's first.
                chosen[field] = fitting[-1 if field == "hsa" else 0]
            if fitting and field == "vulkan":
                chosen[field] = max(fitting, key=lambda f: f.bytes or 0)
    totals = [f for f in known if (f.what, f.pool) == ("total", "runtime")]
    said = any(f.origin == "message" for f in totals)
    if totals and not said:
        chosen["torch"] = min(totals, key=lambda f: (f.hearsay, f.bytes or 0))
    told = chosen.get("torch")
    if told is not None and "free" in chosen:
        # Free and total are compared, so they must be of one program.
        rest = beside(told, known, "free") or lone_free(known)
        chosen.update(free=rest[0]) if rest else chosen.pop("free")
    told_at = (told.source, told.line) if told else None
    others = [f.bytes for f in totals if told_at and f.read and (f.source, f.line) != told_at]
    return Numbers(
        **{field: f.bytes for field, f in chosen.items()},  # type: ignore[arg-type]
        kernel=kernel_release(kernel),
        kind=kind,
        filled=tuple(field for field, f in chosen.items() if f.filled),
        hearsay=tuple(field for field, f in chosen.items() if f.hearsay),
        precision=chosen["torch"].precision_bytes if "torch" in chosen else 0,
        hip=hip,
        other_total=max((size for size in others if size), default=None),
        halves=tuple(f.pool for f in figures if f.text == HALF),
        failed=said if failed is None else failed,
    )
