"""The GPUs of a box, each under its PCI address, with every layer's name, pools and holders for
it side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground.shapes import Reading, not_available, seen
from helpers.look.bundle import Bundle

from . import rocm, ttm
from .holders import Holder, blind_spots, holders_of, unattributed
from .layers import Layers, layers_by_address
from .machine import machine
from .nvidia import MigSlice, NvidiaGpu


@dataclass(frozen=True)
class Pool:
    """One layer's account of one pool of memory, in bytes.

    ``pci`` is empty for a pool of the host.

    ``layer`` is the layer in its own words ("sysfs VRAM", "KFD bank", "TTM limit",
    "nvidia-smi", "torch"); the readings carry the sources.
    """

    pci: str
    layer: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    ``indices`` maps each index space (drm card, render node, kfd node, rocm-smi, torch, ...) to
    its name there.

    ``unattributed`` is what is in use and no process seen here accounts for; ``blind_spots``
    say which holders cannot be seen. ``slices`` are MIG devices, each with memory of its own;
    ``window`` is BAR1, through which the CPU and other devices reach the memory.
    """

    pci: str
    vendor: str
    name: Reading
    driver: str
    integrated: bool | None
    indices: dict[str, str]
    pools: tuple[Pool, ...]
    holders: tuple[Holder, ...]
    unattributed: Reading
    blind_spots: tuple[str, ...]
    slices: tuple[MigSlice, ...] = ()
    window: Pool | None = None

    @property
    def parts(self) -> tuple[Pool, ...]:
        """Its MIG devices and its window, which are parts of its memory, as pools."""
        pools = [
            Pool(self.pci, f"MIG device {part.index}", part.total, part.used, part.free)
            for part in self.slices
        ]
        if self.window is not None:
            pools.append(self.window)
        return tuple(pools)


_NAMES = "nvidia.name torch.name agent.marketing_name amd_smi.name card.product rocm_smi.name".split()
"""The layers' names of a GPU, in the order in which they are useful to a person."""
_INDICES = {
    "drm card": "card.card",
    "render node": "card.render",
    "kfd node": "node.node",
    "kfd gpu_id": "node.gpu_id",
    "gfx": "node.gfx",
    "rocm-smi": "rocm_smi.index",
    "amd-smi": "amd_smi.index",
    "HIP": "amd_smi.hip",
    "nvidia-smi": "nvidia.index",
    "torch": "torch.index",
}
"""Each layer's own number for a GPU. They differ; visibility variables renumber some of them."""


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD or NVIDIA GPU that any layer knows, by PCI address.

    A server's display chip is none.
    """
    return bundle.once("gpus", lambda: _gpus(bundle))


def _gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    cards = []
    for address, layers in layers_by_address(bundle).items():
        if layers.vendor:
            cards.append(_gpu(bundle, address, layers))
    return tuple(cards)


def _gpu(bundle: Bundle, address: str, layers: Layers) -> Gpu:
    integrated = _integrated(layers)
    holders = holders_of(bundle, address, layers, integrated)
    drivers = [device.driver for device in (layers.device, layers.card) if device]
    if layers.nvidia:
        drivers.append("nvidia")
    return Gpu(
        pci=address,
        vendor=layers.vendor,
        name=_name(layers),
        driver=next(filter(None, drivers), ""),
        integrated=integrated,
        indices=_numbers(layers),
        pools=_pools(bundle, address, layers),
        holders=holders,
        unattributed=unattributed(bundle, layers, integrated, holders),
        blind_spots=blind_spots(bundle, layers.vendor),
        slices=layers.nvidia.slices if layers.nvidia else (),
        window=_window(layers.nvidia) if layers.nvidia else None,
    )


def _window(gpu: NvidiaGpu) -> Pool | None:
    """BAR1 as a pool; None where nobody gives its size."""
    if not gpu.bar1_total.ok:
        return None
    return _pool(gpu.pci, "BAR1 window", gpu.bar1_total, gpu.bar1_used)


def _numbers(layers: Layers) -> dict[str, str]:
    """The number of a GPU in each index space that has one."""
    numbers = {}
    for space, place in _INDICES.items():
        number = _field(layers, place)
        if isinstance(number, Reading):
            number = number.value
        if number not in (None, ""):
            numbers[space] = str(number)
    return numbers


def _integrated(layers: Layers) -> bool | None:
    if layers.torch and layers.torch.integrated is not None:
        return layers.torch.integrated
    if layers.agent and layers.agent.integrated:
        return True
    if layers.nvidia:
        return False
    if layers.device is None:
        return None
    return layers.device.integrated


def _name(layers: Layers) -> Reading:
    """The first name that a layer has; else the target, or the PCI ids."""
    for place in _NAMES:
        reading = _field(layers, place)
        if isinstance(reading, Reading) and reading.ok and str(reading.value).strip():
            return reading
    node = layers.node
    if node and node.gfx:
        return seen(node.gfx, "text", node.gpu_id.source, node.gpu_id.item)
    if layers.ids:
        words = f"{layers.ids.vendor_id[2:]}:{layers.ids.device_id[2:]}"
        return seen(words, "text", "PCI vendor and device id")
    return not_available("no layer names it", "text", "")


def _field(layers: Layers, place: str) -> object:
    """What a layer says in one of its fields, such as ``card.product``; None for nothing."""
    layer, _, field = place.partition(".")
    return getattr(getattr(layers, layer), field, None)


def _pool(
    pci: str,
    layer: str,
    total: Reading,
    used: Reading | None = None,
    free: Reading | None = None,
) -> Pool:
    if used is None and free is not None and not pci:
        used = _less(total, free)
    if used is None:
        why = "this layer gives a total only"
        used = not_available(why, "bytes", total.source, total.item)
    if free is None:
        free = _less(total, used)
    return Pool(pci, layer, total, used, free)


def _pools(bundle: Bundle, pci: str, layers: Layers) -> tuple[Pool, ...]:
    pools = []
    card = layers.card
    if card and card.driver == "amdgpu":
        pools.append(_pool(pci, "sysfs VRAM", card.vram_total, card.vram_used))
        pools.append(_pool(pci, "sysfs GTT", card.gtt_total, card.gtt_used))
    if layers.node:
        pools.append(_pool(pci, "KFD bank", layers.node.framebuffer))
    if layers.agent:
        pools.append(_pool(pci, "HSA pool", layers.agent.memory))
    elif layers.vendor == "AMD":
        pools.append(_pool(pci, "HSA pool", rocm.agent_count(bundle)))
    for name, smi in (("rocm-smi", layers.rocm_smi), ("amd-smi", layers.amd_smi)):
        if smi:
            pools += _tool_pools(pci, name, smi)
    gpu = layers.nvidia
    if gpu:
        pools.append(_pool(pci, "nvidia-smi", gpu.total, gpu.used, gpu.free))
        if gpu.reserved.ok:
            pools.append(_pool(pci, "reserved by the driver", gpu.reserved))
    torch = layers.torch
    if torch:
        free = torch.free if torch.free.ok else None
        pools.append(_pool(pci, "torch", torch.total, free=free))
    return tuple(pools)


def _tool_pools(pci: str, name: str, card: rocm.SmiCard) -> list[Pool]:
    pools = []
    for pool in ("vram", "gtt"):
        total = card.pools[f"{pool} total"]
        used = card.pools[f"{pool} used"]
        if total.ok or used.ok:
            pools.append(_pool(pci, f"{name} {pool.upper()}", total, used))
    return pools


def _less(total: Reading, used: Reading) -> Reading:
    if total.ok and used.ok:
        left = max(0, total.bytes - used.bytes)
        return seen(left, "bytes", f"{total.source} - {used.source}", total.item)
    missing = used if total.ok else total
    return not_available(missing.why, "bytes", missing.source, missing.item)


def host_pools(bundle: Bundle) -> tuple[Pool, ...]:
    """Memory of the host that a GPU may draw on: RAM, swap, the TTM limit, and the control
    group's limit.
    """
    box = machine(bundle)
    pools = [
        _pool("", "RAM", box.ram_total, free=box.ram_available),
        _pool("", "swap", box.swap_total, free=box.swap_free),
    ]
    for parameter in ttm.parameters(bundle):
        if parameter.name == "pages_limit" and parameter.live.ok:
            pools.append(_pool("", f"{parameter.module} limit", parameter.live_bytes))
    if box.cgroup_limit.ok:
        pools.append(_pool("", "control group", box.cgroup_limit, box.cgroup_used))
    return tuple(pools)
