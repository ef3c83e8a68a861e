"""Where the layers that report one GPU's memory disagree."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.ground.shapes import Reading
from helpers.ground.units import MIB, show_bytes
from helpers.look.gpus import Gpu, Pool

TOTALS_AGREE = 4 * MIB
"""Totals of two layers are one figure where they differ by no more: each rounds to MiB or to blocks
of 2 MiB.
"""
NVIDIA_ROUNDING = 3 * MIB
"""nvidia-smi prints total, used and free in whole MiB: together they hide up to 3."""
# KFD counts free memory in blocks of this size (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABLITY_ALIGN).
KFD_BLOCK = 2 * MIB
RESERVED = "reserved by the driver"
TOTALS = ("sysfs VRAM", "nvidia-smi")
"""The layers whose total is the card's own."""


def pools_by_layer(gpu: Gpu) -> dict[str, Pool]:
    """The pools of a GPU by the layer that reports each."""
    return {pool.layer: pool for pool in gpu.pools}


def card_totals(gpu: Gpu) -> list[Reading]:
    """The totals of the layers that count the card's own memory."""
    return [pool.total for pool in gpu.pools if pool.layer in TOTALS and pool.total.ok]


def contradictions(gpu: Gpu) -> Iterator[str]:
    """Each contradiction in a sentence, with both figures; none where the layers agree."""
    for pool in gpu.pools:
        yield from _above_total(pool)
    pools = pools_by_layer(gpu)
    yield from _between_totals(pools)
    torch = pools.get("torch")
    sysfs = pools.get("sysfs VRAM")
    if torch and sysfs and not gpu.integrated and torch.free.ok and sysfs.free.ok:
        more_free = torch.free.bytes - sysfs.free.bytes
        if more_free > TOTALS_AGREE + KFD_BLOCK:
            yield (
                f"HIP calls {torch.free.show()} free, sysfs {sysfs.free.show()}: "
                "HIP leaves out the memory of clients other than compute (ROCm/amdgpu#223)"
            )
    nvidia = pools.get("nvidia-smi")
    if nvidia and nvidia.total.ok and nvidia.used.ok and nvidia.free.ok:
        reserved_bytes = 0
        if RESERVED in pools:
            reserved_bytes = pools[RESERVED].total.bytes
        # Since driver 510 used leaves the reserve out, before it did not.
        rest = nvidia.total.bytes - nvidia.used.bytes - nvidia.free.bytes
        gap = min(abs(rest), abs(rest - reserved_bytes))
        if gap > NVIDIA_ROUNDING:
            total = nvidia.total.show()
            yield (
                f"nvidia-smi: used, free and reserved leave {show_bytes(gap)} of {total} "
                "unexplained"
            )


def _above_total(pool: Pool) -> Iterator[str]:
    """The used or free memory of a pool, where it is more than its total."""
    for figure, part in (("used", pool.used), ("free", pool.free)):
        if part.ok and pool.total.ok and part.bytes > pool.total.bytes:
            yield (
                f"{pool.layer}: {figure} {part.show()} is more than the total "
                f"{pool.total.show()} ({pool.total.source})"
            )


def _between_totals(pools: dict[str, Pool]) -> Iterator[str]:
    """Totals of two layers that differ and should not."""
    for layer in ("torch", "HSA pool"):
        gap = _gap(pools, layer, "KFD bank")
        if gap is not None and abs(gap) > TOTALS_AGREE:
            yield (
                f"{layer} has {pools[layer].total.show()} in all, KFD's bank "
                f"{pools['KFD bank'].total.show()}: the kernel and the runtime above it disagree"
            )
    # torch's total is usually the lower one: nvidia-smi's has what the driver keeps, too.
    gap = _gap(pools, "torch", "nvidia-smi")
    if gap is not None and gap > TOTALS_AGREE:
        total = pools["nvidia-smi"].total.show()
        yield f"torch has {pools['torch'].total.show()} in all, nvidia-smi only {total}"


def _gap(pools: dict[str, Pool], layer: str, other: str) -> int | None:
    """By how many bytes a layer's total is above another's; None where one was not read."""
    if layer not in pools or other not in pools:
        return None
    total = pools[layer].total
    compared = pools[other].total
    if not total.ok or not compared.ok:
        return None
    return total.bytes - compared.bytes
