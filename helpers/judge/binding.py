"""Which ceiling binds an APU's memory: the decision table over pages_limit, GTT, carve-out, KFD bank and torch's total. Pure.

The same total has several causes, so no one number decides. Which of carve-out and TTM the pool is goes by the kernel: the
carve-out alone before Linux 6.10; TTM's limit, even where the carve-out is larger, until 6.14 (89773b85599a); from 6.15 on
TTM's limit where the GTT is larger than the carve-out, else the carve-out (759e764f7d58; amd-gfx, 2025-01-30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from helpers.look.reading import show_bytes
from helpers.run.shapes import Cause, Confidence, Layer

CLOSE = 0.015
"""Totals of two layers that differ by no more than this share are one number: torch rounds to MiB, the kernel to pages."""
CLOSE_TO_HALF = 0.03
"""MemTotal grows a little after TTM took half of it, so half the RAM is met less exactly."""
KFD_RESERVE_BYTES = 3 << 29
NEW_KFD_LIMIT, GTT_AS_VRAM, GTT_IF_LARGER = (6, 7), (6, 10), (6, 15)


@dataclass(frozen=True)
class Numbers:
    """The readings of the decision table, in bytes; None is not known. ``ram`` is what the carve-out left to Linux.

    ``wanted`` is the pages_limit that is configured, ``free`` what HIP says is free. ``out_of_tree``: a DKMS driver.
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


@dataclass(frozen=True)
class Decision:
    """Which layer binds and why. ``pattern`` names the row of the decision table; ``step`` is the one next thing to do."""

    pattern: str
    binding: Layer | None
    binding_bytes: int | None
    cause: Cause
    confidence: Confidence
    says: str
    step: str
    others: tuple[Cause, ...] = ()
    missing: tuple[str, ...] = ()


def kernel_release(text: str) -> tuple[int, int] | None:
    """The first two numbers of a kernel release: (6, 17) of "6.17.4-200.fc42"."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def kfd_limit(ram_bytes: int, kernel: tuple[int, int] | None) -> int:
    """Bytes of system memory that KFD lets compute programs take together (amdgpu_amdkfd_gpuvm_init_mem_limits).

    Since October 2023 RAM less a 64th less 1.5 GiB, or half where that leaves under 1.5 GiB; before, 15/16 of what was free at
    load, of which 15/16 of the RAM is an upper bound. With an unknown kernel the lower of both.
    """
    left = ram_bytes - (ram_bytes >> 6)
    new = left >> 1 if left < 2 * KFD_RESERVE_BYTES else left - KFD_RESERVE_BYTES
    old = ram_bytes - (ram_bytes >> 4)
    return min(new, old) if kernel is None else new if kernel >= NEW_KFD_LIMIT else old


def close(left: int | None, right: int | None, share: float = CLOSE) -> bool:
    """Whether two totals are one number, give or take what layers round."""
    return left is not None and right is not None and abs(left - right) <= share * max(left, right)


def decide(n: Numbers) -> Decision:
    """The binding layer of an APU by the decision table: pages_limit, GTT, carve-out, KFD bank and torch's total together.

    One number never decides. Where layers that would discriminate are missing, the answer is ``cannot-tell`` with their names.
    """
    pool = n.kfd if n.kfd is not None else n.hsa
    below = n.torch if pool is None else pool
    found = _above_the_driver(n, pool) or _in_the_driver(n, below, pool is not None) or _undecided(n)
    # By default a capture does not ask torch; without its total a faulty HIP build above the kernel stays unseen.
    return replace(found, missing=("torch total",)) if n.torch is None and not found.missing else found


def _above_the_driver(n: Numbers, pool: int | None) -> Decision | None:
    """Whether a layer above the kernel lowers the total."""
    if pool is not None and n.kfd is not None and n.hsa is not None and n.hsa < n.kfd and not close(n.hsa, n.kfd):
        return Decision("hsa_below_kfd", "hsa_pool", n.hsa, "hsa-pool-cap", "confirmed",
                        f"The kernel offers {show_bytes(n.kfd)} and the HSA runtime {show_bytes(n.hsa)}.",
                        "Change the ROCm build")
    if pool is not None and n.torch is not None and n.torch < pool and not close(n.torch, pool):
        return Decision("hip_total", "hip_total", n.torch, "hsa-pool-cap", "confirmed",
                        f"The kernel offers {show_bytes(pool)} and HIP reports {show_bytes(n.torch)}: the fault of a HIP "
                        "build, which no kernel setting moves (TheRock#4645).",
                        "Change the torch or ROCm build, not the kernel",
                        ("version-mismatch",))
    if n.torch is not None and n.free is not None and n.free > n.torch and not close(n.free, n.torch) and pool is None:
        # KFD's free is the least of its system, TTM and VRAM limits, so a TTM limit at the total could not leave more free.
        return Decision("free_above_total", "hip_total", n.torch, "hsa-pool-cap", "likely",
                        f"HIP calls {show_bytes(n.free)} free of {show_bytes(n.torch)} in all: the driver's limit is above "
                        "HIP's total.",
                        "Change the torch or ROCm build, then read the KFD bank", ("ttm-gtt-cap", "metric-misreport"),
                        ("KFD memory bank",))
    return None


def _in_the_driver(n: Numbers, pool: int | None, is_kfd: bool) -> Decision | None:
    """Which of carve-out and TTM the pool is, and whether that is as low as it is by default."""
    if pool is None or (n.pages_limit is None and n.vram is None):
        return None
    sure: Confidence = "confirmed" if is_kfd else "likely"
    is_ttm, is_carveout = close(pool, n.pages_limit), close(pool, n.vram)
    if is_ttm and is_carveout:
        # Both would give this number; Linux 6.15 and later take GTT only where it is larger than the carve-out.
        if n.kernel is None or n.gtt is None:
            return None
        is_ttm = GTT_AS_VRAM <= n.kernel and (n.kernel < GTT_IF_LARGER or (n.vram or 0) < n.gtt)
        is_carveout = not is_ttm
    if is_carveout:
        return _carveout(n, pool, sure)
    if not is_ttm:
        return None
    if n.vram is not None and n.vram > pool and not close(n.vram, pool):
        old = n.out_of_tree or n.kernel is None or n.kernel < GTT_IF_LARGER
        if not old and n.gtt is not None and n.gtt > n.vram:
            return Decision("gtt_flip", "ttm", pool, "ttm-gtt-cap", sure,
                            f"The GTT ({show_bytes(n.gtt)}) was made larger than the carve-out ({show_bytes(n.vram)}), so the "
                            f"kernel went over to GTT, and there TTM's limit is {show_bytes(pool)}.",
                            "Remove amdgpu.gttsize, so that the larger carve-out is used again", ("config-ineffective",))
        return Decision("old_kernel_half", "ttm", pool, "ttm-gtt-cap", sure if old else "likely",
                        f"The carve-out is {show_bytes(n.vram)}, and this kernel takes TTM's share of the RAM left instead "
                        f"({show_bytes(pool)}): the rule before Linux 6.15, and of some out-of-tree drivers.",
                        "Use Linux 6.15 or later with its own driver, or make the carve-out small", ("version-mismatch",))
    if n.wanted is not None and not close(n.wanted, n.pages_limit, 0.0001):
        return Decision("not_taken", "ttm", pool, "ttm-gtt-cap", sure,
                        f"A limit of {show_bytes(n.wanted)} is configured and {show_bytes(n.pages_limit or 0)} is live: "
                        "not yet rebooted, a stale initramfs, another module's name, or another value on the command line.",
                        "Find out why the setting did not take: casebook ttm --verify EARLIER", ("config-ineffective",))
    by_default = n.ram is not None and close(pool, n.ram // 2, CLOSE_TO_HALF)
    if by_default and n.gtt is not None and n.gtt > pool and not close(n.gtt, pool):
        return Decision("gttsize_only", "ttm", pool, "ttm-gtt-cap", sure,
                        f"amdgpu.gttsize raised the GTT to {show_bytes(n.gtt)}; the compute pool follows TTM's limit, "
                        f"still at its default of half the RAM, {show_bytes(pool)}.",
                        "Remove amdgpu.gttsize and raise ttm.pages_limit",
                        ("config-ineffective",))
    if by_default:
        return Decision("ttm_default", "ttm", pool, "ttm-gtt-cap", sure,
                        f"TTM's limit is at its default, half the RAM left to Linux: {show_bytes(pool)}. Every layer above "
                        "passes it on.", "Raise ttm.pages_limit")
    half = n.ram // 2 if n.ram is not None else None
    if half is not None and pool < half:
        return Decision("ttm_lowered", "ttm", pool, "ttm-gtt-cap", sure,
                        f"TTM's limit is {show_bytes(pool)}, set below its default of {show_bytes(half)}.",
                        "Remove the setting, or raise ttm.pages_limit")
    if n.ram is not None and pool > kfd_limit(n.ram, n.kernel):
        limit = kfd_limit(n.ram, n.kernel)
        return Decision("beyond_kfd", "kfd_limit", limit, "other", "likely",
                        f"TTM's limit of {show_bytes(pool)} is above what KFD lets programs take ({show_bytes(limit)}): the "
                        "total promises more than can be had.", "Lower ttm.pages_limit")
    return Decision("raised", "ttm", pool, "other", sure if half is not None else "weak",
                    f"No layer is below what was set: TTM's limit was raised to {show_bytes(pool)} and every layer above "
                    "passes it on.", "Nothing needs doing here; a failing program needs another look")


def _carveout(n: Numbers, pool: int, sure: Confidence) -> Decision:
    if n.kernel is not None and n.kernel < GTT_AS_VRAM:
        return Decision("old_kernel_carveout", "carveout", pool, "carveout-only", sure,
                        f"Linux {n.kernel[0]}.{n.kernel[1]} gives compute programs the carve-out alone: {show_bytes(pool)}.",
                        "Use Linux 6.15 or later; TTM's limit does nothing for compute before 6.10", ("version-mismatch",))
    limit = n.pages_limit
    if limit is not None and limit > pool and not close(limit, pool) and (n.gtt is None or n.gtt > pool):
        return Decision("carveout_odd", "carveout", pool, "carveout-only", "likely",
                        f"The pool is the carve-out of {show_bytes(pool)} although TTM's limit of {show_bytes(limit)} is "
                        "larger: an out-of-tree or older driver.",
                        "Use Linux 6.15 or later with its own driver", ("version-mismatch",))
    return Decision("carveout", "carveout", pool, "carveout-only", sure,
                    f"The firmware's carve-out is the pool: {show_bytes(pool)}. TTM's limit does not bind while it is "
                    "smaller.",
                    "Nothing, if that is enough; else shrink the carve-out in the firmware and raise ttm.pages_limit")


def _undecided(n: Numbers) -> Decision:
    names = (("pages_limit", n.pages_limit), ("GTT total", n.gtt), ("carve-out", n.vram), ("KFD memory bank", n.kfd),
             ("torch total", n.torch))
    missing = tuple(name for name, value in names if value is None)
    half = n.torch is not None and n.ram is not None and close(n.torch, n.ram // 2, CLOSE_TO_HALF)
    says = f"torch's total of {show_bytes(n.torch or 0)} is half the RAM, which TTM's default and a HIP build both "\
            "give." if half else \
        "The readings match none of the known patterns." if not missing else "Too few layers were read to say which one binds."
    others: tuple[Cause, ...] = ("ttm-gtt-cap", "hsa-pool-cap") if half else ()
    return Decision("undecided", None, None, "cannot-tell", "weak", says, "Capture again where the missing layers can be read",
                    others, missing)
