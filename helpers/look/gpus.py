"""The GPUs of a box by their PCI addresses: what each layer (kernel, ROCm, vendor tools, torch)
says about the name, the memory and the holders of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground.shapes import Reading, not_available, seen
from helpers.look.bundle import Bundle

from . import rocm, ttm
from .framework import TorchDevice
from .holders import Holder, blind_spots, holders_of, unattributed
from .layers import Layers, layers_by_address
from .machine import machine
from .nvidia import MigSlice, NvidiaGpu


@dataclass(frozen=True)
class Pool:
    """What one layer says about one pool of memory, in bytes.

    ``pci`` is the GPU's address, empty for a pool of the host. ``layer`` is the layer's own name
    for the pool ("sysfs VRAM", "KFD bank", "TTM limit", "nvidia-smi", "torch").
    """

    pci: str
    layer: str
    total: Reading
    used: Reading
    free: Reading


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    ``integrated`` is None if no layer says so. ``indices`` has its number or name in each layer
    (drm card, render node, kfd node, rocm-smi, torch, ...). ``unattributed`` is the memory in use
    that no process seen here holds; ``blind_spots`` say which holders cannot be seen. ``slices``
    are MIG devices, each with memory of its own; ``window`` is BAR1, through which the CPU and
    other devices reach the memory.
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
"""The fields of Layers with a GPU's name, the most useful name for a person first: those with the
model before those with a board or a series.
"""
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
"""The fields of Layers with each layer's own number for a GPU. The numbers differ, and variables
such as CUDA_VISIBLE_DEVICES change some of them.
"""


def gpus(bundle: Bundle) -> tuple[Gpu, ...]:
    """Every AMD or NVIDIA GPU that any layer knows, sorted by PCI address; not a server's display
    chip.
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
    slices: tuple[MigSlice, ...] = ()
    window = None
    if layers.nvidia:
        drivers.append("nvidia")
        slices = layers.nvidia.slices
        window = _window(layers.nvidia)
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
        slices=slices,
        window=window,
    )


def _window(gpu: NvidiaGpu) -> Pool | None:
    """BAR1 as a pool; None if its size is not known."""
    if not gpu.bar1_total.ok:
        return None
    return _pool(gpu.pci, "BAR1 window", gpu.bar1_total, gpu.bar1_used)


def _numbers(layers: Layers) -> dict[str, str]:
    """The number of a GPU in each layer that has one for it."""
    numbers = {}
    for name, field in _INDICES.items():
        number = _field(layers, field)
        if isinstance(number, Reading):
            number = number.value
        if number not in (None, ""):
            numbers[name] = str(number)
    return numbers


def _integrated(layers: Layers) -> bool | None:
    """Whether a GPU uses the RAM as its memory; None if no layer says so. torch and ROCm ask the
    driver, so they come first; any other GPU that NVIDIA's tools list is a card.
    """
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
    """The first name that a layer has; else the gfx target, as in gfx1151; else the PCI ids, as in
    1002:1586.
    """
    for field in _NAMES:
        reading = _field(layers, field)
        if isinstance(reading, Reading) and reading.ok and str(reading.value).strip():
            return reading
    node = layers.node
    if node and node.gfx:
        return seen(node.gfx, "text", node.gpu_id.source, node.gpu_id.item)
    if layers.ids:
        vendor_id = layers.ids.vendor_id.replace("0x", "")
        device_id = layers.ids.device_id.replace("0x", "")
        return seen(f"{vendor_id}:{device_id}", "text", "PCI vendor and device id")
    return not_available("no layer names it", "text", "")


def _field(layers: Layers, path: str) -> object:
    """The value of a layer's field such as ``card.product``; None if the layer does not know the
    GPU.
    """
    layer, _, field = path.partition(".")
    return getattr(getattr(layers, layer), field, None)


def _pool(
    pci: str,
    layer: str,
    total: Reading,
    used: Reading | None = None,
    free: Reading | None = None,
) -> Pool:
    """A pool of which a layer gives the ``total``, and what is ``used`` or ``free``, or neither.

    ``free`` is computed from ``used`` where a layer does not give it. ``used`` is computed from
    ``free`` only for a pool of the host (empty ``pci``): on a GPU a driver also keeps some memory
    for itself, which is neither.
    """
    if used is None and free is not None and not pci:
        used = _less(total, free)
    if used is None:
        why = "this layer gives a total only"
        used = not_available(why, "bytes", total.source, total.item)
    if free is None:
        free = _less(total, used)
    return Pool(pci, layer, total, used, free)


def _pools(bundle: Bundle, pci: str, layers: Layers) -> tuple[Pool, ...]:
    """What every layer says about the memory of a GPU, from the kernel up to torch."""
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
    if layers.torch:
        pools.append(_torch_pool(pci, layers.torch))
    return tuple(pools)


def _torch_pool(pci: str, device: TorchDevice) -> Pool:
    if device.free.ok:
        return _pool(pci, "torch", device.total, free=device.free)
    return _pool(pci, "torch", device.total)


def _tool_pools(pci: str, name: str, card: rocm.SmiCard) -> list[Pool]:
    """What rocm-smi or amd-smi, called ``name``, says about VRAM and GTT."""
    pools = []
    for pool in ("vram", "gtt"):
        total = card.pools[f"{pool} total"]
        used = card.pools[f"{pool} used"]
        if total.ok or used.ok:
            pools.append(_pool(pci, f"{name} {pool.upper()}", total, used))
    return pools


def _less(total: Reading, part: Reading) -> Reading:
    """The difference of two sizes, or why one of them has no value."""
    for reading in (total, part):
        if not reading.ok:
            return not_available(reading.why, "bytes", reading.source, reading.item)
    # The two were read moments apart, so the part may be larger.
    rest = max(0, total.bytes - part.bytes)
    return seen(rest, "bytes", f"{total.source} - {part.source}", total.item)


def host_pools(bundle: Bundle) -> tuple[Pool, ...]:
    """The host's memory that a GPU can use, and its limits: RAM, swap, TTM's limit, the control
    group's.
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
