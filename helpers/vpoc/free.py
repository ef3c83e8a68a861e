"""How much memory is free for profiles: on this machine, on a GPU, or on a recorded box."""

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
"""The bits to shift a cache's size to the left, by its unit in sysfs, such as 32768K."""


@dataclass(frozen=True)
class Free:
    """Free memory. ``says``: what was read; ``gpu``: whether it is a GPU's.

    ``cache_bytes``: the size of the CPU's last level of cache (0: unknown, or a GPU).
    """

    bytes: int
    says: str
    cache_bytes: int = 0
    gpu: bool = False

    @property
    def words(self) -> str:
        """The size, and what was read."""
        return f"{show_bytes(self.bytes)} is {self.says}"


def free_of(bundle: Bundle) -> Free:
    """The free memory of a box: of its first GPU whose use is known, else of its RAM: what is
    available, or half of all RAM where a recording does not say that.
    """
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
    says = "half the RAM: what was available is not recorded"
    return Free(ram.ram_total.bytes // 2, says)


def free_on(device_free_bytes: int, device: str) -> Free:
    """Free memory of a GPU; ``device``: what it is called in sentences."""
    return Free(device_free_bytes, f"free on {device}", gpu=True)


def free_here(root: Path = Path("/")) -> Free:
    """The RAM that this process may still take, within the limits of its control groups and its
    own.
    """
    size = host_available_bytes(root)
    return Free(size, "available RAM, its limits counted", cache_bytes(root))


def cache_bytes(root: Path = Path("/")) -> int:
    """The size of the largest cache of the first core; 0 where the kernel does not say."""
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        number = text[:-1]
        if number.isdigit():
            sizes.append(int(number) << CACHE_UNITS.get(text[-1], 0))
    return max(sizes)
