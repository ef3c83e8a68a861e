"""Where two layers, or two figures of one layer, say of one GPU's memory what cannot both be right."""

from __future__ import annotations

from helpers.judge.ledger_book import size
from helpers.look.gpus import Gpu, Pool
from helpers.look.reading import MIB, show_bytes

TOTALS_AGREE = 4 * MIB
# KFD counts free memory in blocks of this size (amdgpu_amdkfd_gpuvm.c, VRAM_AVAILABILITY_ALIGN).
KFD_BLOCK = 2 * MIB
RESERVED = "of it reserved by the driver"


def contradictions(gpu: Gpu) -> tuple[str, ...]:
    """Each contradiction in a sentence, with both figures; empty where the layers agree."""
    pools = {pool.layer: pool for pool in gpu.pools}
    found = [f"{pool.layer}: {what} {reading.show()} is more than the total {pool.total.show()} ({pool.total.source})"
             for pool in gpu.pools for what, reading in (("used", pool.used), ("free", pool.free))
             if reading.ok and pool.total.ok and size(reading) > size(pool.total)]
    torch, bank, nvidia = pools.get("torch"), pools.get("KFD bank"), pools.get("nvidia-smi")
    for layer, other in (("torch", torch), ("HSA pool", pools.get("HSA pool"))):
        if other and bank and other.total.ok and bank.total.ok and abs(size(other.total) - size(bank.total)) > TOTALS_AGREE:
            found.append(f"{layer} has {other.total.show()} in all, KFD's bank {bank.total.show()}: the kernel and the runtime "
                         "above it disagree")
    if torch and nvidia and torch.total.ok and nvidia.total.ok and size(torch.total) > size(nvidia.total) + TOTALS_AGREE:
        found.append(f"torch has {torch.total.show()} in all, nvidia-smi only {nvidia.total.show()}")
    for tool in ("rocm-smi", "amd-smi"):
        for place in ("VRAM", "GTT"):
            found += _unlike(pools.get(f"sysfs {place}"), pools.get(f"{tool} {place}"))
    sysfs = pools.get("sysfs VRAM")
    if torch and sysfs and not gpu.integrated and torch.free.ok and sysfs.free.ok:
        over = size(torch.free) - size(sysfs.free)
        if over > TOTALS_AGREE + KFD_BLOCK:
            found.append(f"HIP calls {torch.free.show()} free, sysfs {sysfs.free.show()}: HIP leaves out what clients other "
                         "than compute hold (ROCm/amdgpu#223)")
    if nvidia and all(r.ok for r in (nvidia.total, nvidia.used, nvidia.free)):
        kept = pools[RESERVED].total if RESERVED in pools else None
        parts = size(nvidia.used) + size(nvidia.free)
        gap = min(abs(size(nvidia.total) - parts - extra) for extra in {0, size(kept) if kept else 0})
        if gap > 3 * MIB:
            found.append(f"nvidia-smi: used, free and reserved leave {show_bytes(gap)} of {nvidia.total.show()} unexplained")
    return tuple(found)


def _unlike(one: Pool | None, other: Pool | None) -> list[str]:
    if not one or not other or not one.total.ok or not other.total.ok:
        return []
    if abs(size(one.total) - size(other.total)) <= MIB:
        return []
    return [f"{one.layer} has {one.total.show()} in all, {other.layer} {other.total.show()}"]
