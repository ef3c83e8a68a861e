"""How much memory is free for profiles: on this machine, on a GPU, on a recorded box."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from helpers.ground.child import field
from helpers.ground.units import KIB
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle, BundleWriter
from helpers.look.files import read
from helpers.look.gpus import gpus
from helpers.look.machine import FILES, cgroup_files, machine

CACHE_UNITS = {"K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class Free:
    """Free memory and the limit that says so; ``cache_bytes`` is the last cache's size (0: not
    known, or a GPU), ``card_bytes`` the whole of a GPU's memory (0: not known, or none).
    """

    bytes: int
    says: str
    cache_bytes: int = 0
    gpu: bool = False
    card_bytes: int = 0


def free_of(bundle: Bundle) -> Free:
    """What a box has free for profiles: on its first GPU whose pool is known, else in its RAM."""
    for gpu in gpus(bundle):
        for pool in gpu.pools:
            if pool.total.ok and pool.used.ok:
                left = max(0, pool.total.bytes - pool.used.bytes)
                return free_on(left, f"{gpu.pci}, {pool.layer}", pool.total.bytes)
    if is_this_box(bundle):
        return free_here()
    ram = machine(bundle)
    if ram.ram_available.ok:
        return Free(ram.ram_available.bytes, "available RAM of the recorded box")
    half = ram.ram_total.bytes // 2 if ram.ram_total.ok else 0
    return Free(half, "half the RAM: what was available is not recorded")


def free_on(device_free_bytes: int, device: str, card_bytes: int = 0) -> Free:
    """Free memory of a GPU, as torch or the driver tells it."""
    return Free(device_free_bytes, f"free on {device}", gpu=True, card_bytes=card_bytes)


def free_here(root: Path = Path("/")) -> Free:
    """What this process may still take: the least of available RAM, its control groups' rest,
    and RLIMIT_DATA and RLIMIT_AS.
    """
    writer = BundleWriter("this box", "live", "", "")
    for source in {*FILES, *cgroup_files(root)}:
        content, status, why = read(str(root), source)
        writer.add("file", source, content, status=status, why=why)
    facts = machine(writer.bundle())
    rests = []
    if facts.ram_available.ok:
        rests.append((facts.ram_available.bytes, "available RAM"))
    for limit, says in (
        (facts.cgroup_limit, "the memory control group's rest"),
        (facts.cgroup_high, "the control group's rest up to memory.high"),
    ):
        if limit.ok and facts.cgroup_used.ok:
            rests.append((limit.bytes - facts.cgroup_used.bytes, says))
    for number, name, used in (
        (resource.RLIMIT_DATA, "RLIMIT_DATA", "VmData:"),
        (resource.RLIMIT_AS, "RLIMIT_AS", "VmSize:"),
    ):
        most = resource.getrlimit(number)[0]
        if most != resource.RLIM_INFINITY:
            taken = (field("/proc/self/status", used) or 0) * KIB
            rests.append((most - taken, f"{name}'s rest"))
    least, says = min(rests, default=(0, "nothing says how much memory is free"))
    return Free(max(0, least), says, cache_bytes(root))


def cache_bytes(root: Path = Path("/")) -> int:
    """The last level of cache that the first core has, in bytes; 0 where the kernel is silent."""
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) << CACHE_UNITS.get(text[-1], 0))
    return max(sizes)
