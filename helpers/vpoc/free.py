"""How much memory is free for profiles: on this machine, on a GPU, on a recorded box."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.ground.units import show_bytes
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle
from helpers.look.gpus import gpus
from helpers.look.machine import machine
from helpers.trials.under_torch.host_memory import host_available_bytes

CACHE_UNITS = {"K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class Free:
    """Free memory and the limit that says so; ``cache_bytes`` is the last cache's size (0: not
    known, or a GPU).
    """

    bytes: int
    says: str
    cache_bytes: int = 0
    gpu: bool = False

    @property
    def words(self) -> str:
        """The size and where it comes from."""
        return f"{show_bytes(self.bytes)} is {self.says}"


def free_of(bundle: Bundle) -> Free:
    """What a box has free for profiles: on its first GPU whose pool is known, else in its RAM."""
    for gpu in gpus(bundle):
        for pool in gpu.pools:
            if pool.total.ok and pool.used.ok:
                left = max(0, pool.total.bytes - pool.used.bytes)
                return free_on(left, f"{gpu.pci}, {pool.layer}")
    if is_this_box(bundle):
        return free_here()
    ram = machine(bundle)
    if ram.ram_available.ok:
        return Free(ram.ram_available.bytes, "available RAM of the recorded box")
    return Free(
        ram.ram_total.bytes // 2, "half the RAM: what was available is not recorded"
    )


def free_on(device_free_bytes: int, device: str) -> Free:
    """Free memory of a GPU, as torch or the driver tells it."""
    return Free(device_free_bytes, f"free on {device}", gpu=True)


def free_here(root: Path = Path("/")) -> Free:
    """What this process may still take of the RAM, with the limits of its control groups and its
    own.
    """
    size = host_available_bytes(root)
    return Free(size, "available RAM, its limits counted", cache_bytes(root))


def cache_bytes(root: Path = Path("/")) -> int:
    """The last level of cache that the first core has, in bytes; 0 where the kernel is silent."""
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) << CACHE_UNITS.get(text[-1], 0))
    return max(sizes)
